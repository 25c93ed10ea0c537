"""The packages that a Python elsewhere needs, and the archives of them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from downspout.errors import ConfigError, MissingExtraError
from downspout.system import packaging


@pytest.mark.slow
def test_the_closure_follows_what_is_required_and_no_extra_that_is_not() -> None:
    found = packaging.closure(["streamparse"])
    assert {"streamparse", "pystorm", "thriftpy2", "jinja2", "markupsafe"} <= set(found)
    assert "pytest" not in packaging.closure(["downspout"])
    assert "pytest" in packaging.closure(["downspout[dev]"])


@pytest.mark.parametrize(
    ("wanted", "error"), [("surely-not-installed-here", MissingExtraError), ("no requirement", ConfigError)]
)
def test_what_cannot_be_packed_is_named(wanted: str, error: type[Exception]) -> None:
    """A requirement that is not installed here, or is none, is an error that names it."""
    with pytest.raises(error, match=wanted):
        packaging.closure([wanted])


def test_a_projects_requirements_are_read_without_comments_and_options(tmp_path: Path) -> None:
    """The lines of virtualenvs/NAME.txt count; comments, blank lines and pip's options do not."""
    (tmp_path / "virtualenvs").mkdir()
    (tmp_path / "virtualenvs" / "t.txt").write_text("# all\n-i https://x\norjson>=3  # fast\n\n", encoding="utf-8")
    assert packaging.requirements(tmp_path, "t") == ["orjson>=3"]
    assert packaging.requirements(tmp_path, "other") == []


def test_what_is_there_already_is_not_followed() -> None:
    """A distribution that the other side brings is left out, with what only it needs."""
    found = packaging.closure(["downspout[spark]"], without=("pyspark",))
    assert "pandas" in found
    assert not {"pyspark", "py4j"} & set(found)


def test_an_archive_is_whole_or_not_there(tmp_path: Path) -> None:
    """What fails while an archive is written leaves neither the archive nor a part of it, and the one before stays."""
    target = tmp_path / "a.tar.gz"
    target.write_text("before", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"), packaging.archive(target) as packed:
        packed.add("x", tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
    assert target.read_text(encoding="utf-8") == "before"


def test_the_first_file_has_the_place_and_links_are_followed(tmp_path: Path) -> None:
    """Two files for one place are one entry, the first; a link to a folder is packed as what it leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text("first", encoding="utf-8")
    (tmp_path / "other.py").write_text("second", encoding="utf-8")
    (tmp_path / "linked").symlink_to("real")
    with packaging.archive(tmp_path / "a.tar.gz") as packed:
        for place, path in packaging.files_below(tmp_path / "linked"):
            packed.add(place, path)
        packed.add("a.py", tmp_path / "other.py")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        (entry,) = archive.getmembers()
        file = archive.extractfile(entry)
        assert file is not None
        assert (entry.name, entry.isreg(), file.read()) == ("a.py", True, b"first")


def test_a_link_to_where_it_lies_has_an_end(tmp_path: Path) -> None:
    """`src/all -> ..` is left out, and what is beside it is there once."""
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "a.py").touch()
    (tmp_path / "src" / "deep" / "all").symlink_to(tmp_path)
    assert [place for place, _ in packaging.files_below(tmp_path / "src")] == ["deep/a.py"]
