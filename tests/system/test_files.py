from __future__ import annotations

import os
from pathlib import Path

from downspout.system import files


def modes(folder: Path) -> dict[str, int]:
    """Return the rights of a folder and of all in it."""
    return {each.name: each.lstat().st_mode & 0o777 for each in (folder, *folder.rglob("*")) if not each.is_symlink()}


def test_what_an_older_version_left_open_is_closed(tmp_path: Path) -> None:
    """A directory and all that is in it are their owner's alone afterwards; programs can still be run."""
    home = tmp_path / "kafka"
    (home / "data" / "orders-0").mkdir(parents=True)
    (home / "data" / "orders-0" / "log").touch(0o644)
    (home / "lock").touch(0o644)
    os.chmod(home, 0o755)
    (home / "data" / "program").touch(0o755)
    (tmp_path / "other").touch(0o644)
    (home / "data" / "link").symlink_to(tmp_path / "other")
    files.own(home, {"data", "lock"})
    assert modes(home) == {
        "kafka": 0o700,
        "data": 0o700,
        "orders-0": 0o700,
        "log": 0o600,
        "lock": 0o600,
        "program": 0o700,
    }
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o644


def test_what_is_not_ours_is_left_as_it_is(tmp_path: Path) -> None:
    """In a directory with other things in it these keep their rights, and so does the directory."""
    (tmp_path / "project").mkdir(mode=0o755)
    (tmp_path / "project" / "page.html").touch(0o644)
    (tmp_path / "project" / "data").mkdir(mode=0o755)
    files.own(tmp_path / "project", {"data"})
    assert modes(tmp_path / "project") == {"project": 0o755, "page.html": 0o644, "data": 0o700}


def test_a_file_is_written_for_its_owner(tmp_path: Path) -> None:
    (tmp_path / "there").touch(0o644)
    for name in ("there", "new"):
        files.write(tmp_path / name, "text")
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert (tmp_path / name).read_text() == "text"
