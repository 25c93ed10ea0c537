"""The Python side of a topology as one archive."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import ConfigError, MissingExtraError
from downspout.storm import bundle


def test_the_closure_follows_what_is_required_and_no_extra_that_is_not() -> None:
    """What a requirement needs is in, with what that needs; extras are followed only where they are asked for."""
    found = bundle.closure(["streamparse"])
    assert {"streamparse", "pystorm", "thriftpy2", "jinja2", "markupsafe"} <= set(found)
    assert "pytest" not in bundle.closure(["downspout"])
    assert "pytest" in bundle.closure(["downspout[dev]"])


@pytest.mark.parametrize(
    ("wanted", "error"), [("surely-not-installed-here", MissingExtraError), ("no requirement", ConfigError)]
)
def test_what_cannot_be_packed_is_named(wanted: str, error: type[Exception]) -> None:
    """A requirement that is not installed here, or is none, is an error that names it."""
    with pytest.raises(error, match=wanted):
        bundle.closure([wanted])


def test_a_projects_requirements_are_read_without_comments_and_options(tmp_path: Path) -> None:
    """The lines of virtualenvs/NAME.txt count; comments, blank lines and pip's options do not."""
    (tmp_path / "virtualenvs").mkdir()
    (tmp_path / "virtualenvs" / "t.txt").write_text("# all\n-i https://x\norjson>=3  # fast\n\n", encoding="utf-8")
    assert bundle.requirements(tmp_path, "t") == ["orjson>=3"]
    assert bundle.requirements(tmp_path, "other") == []


@pytest.mark.slow
def test_a_bundle_needs_nothing_but_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked elsewhere, its launcher runs with a bare interpreter, and spout and sinks are imported from it alone."""
    (tmp_path / "topologies").mkdir()
    (tmp_path / "topologies" / "t.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["storm", "bundle", "t"]) == 0
    with tarfile.open(tmp_path / "t.tar.gz") as archive:
        archive.extractall(tmp_path / "venvs", filter="data")
    base = sys._base_executable  # not the one of a virtual environment, which would bring its packages
    bare = {"PATH": "/usr/bin:/bin", "DOWNSPOUT_PYTHON": base}
    launcher = tmp_path / "venvs" / "t" / "bin" / "streamparse_run"
    said = subprocess.run([launcher, "--help"], env=bare, capture_output=True, text=True, check=True).stdout
    assert "target_class" in said
    code = "import downspout.spouts.kafka, downspout.bolts.parquet as p; print(p.__file__)"
    bare["PYTHONPATH"] = str(tmp_path / "venvs" / "t" / "lib")
    found = subprocess.run([base, "-s", "-P", "-c", code], env=bare, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(tmp_path / "venvs"))


def test_a_topology_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`downspout storm bundle` says which file it looked for."""
    monkeypatch.chdir(tmp_path)
    assert main(["storm", "bundle", "nothing"]) == ConfigError.exit_code
    assert "topologies/nothing.py" in capsys.readouterr().err
