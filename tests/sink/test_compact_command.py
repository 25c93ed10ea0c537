"""``downspout compact``: output, refusals and exit codes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from downspout.audit import visible_files
from downspout.cli import main
from downspout.sink import Disk, Layout, read_entries
from tests.sink.compaction_support import expected, flush, plain


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with three files in each of two folders."""
    for number in range(3):
        flush(tmp_path / "out", range(number * 10, number * 10 + 10), f"w{number}")
    return tmp_path / "out"


def tree(directory: Path) -> dict[str, int]:
    """Return all files below a directory, with their time of change."""
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_it_says_what_it_did(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each file that was made, and a summary; a second run has nothing to do."""
    assert main(["compact", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("month=0: 3 files (")
    assert lines[0].endswith("), 20 rows")
    assert lines[2].startswith(f"{directory}: 6 files (")
    assert " → 2 files (" in lines[2]
    assert main(["compact", str(directory), "--keep", "0s"]) == 0
    assert capsys.readouterr().out.endswith("nothing to merge; 6 replaced long ago and deleted\n")


def test_a_dry_run_changes_nothing(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run tells what would be merged, and forgotten, and leaves all as it is."""
    next(visible_files(directory)).unlink()
    before = tree(directory)
    assert main(["compact", str(directory), "--dry-run", "--forget-missing"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("month=0: 3 files (")
    assert lines[2] == "month=0/part-w0-0.parquet is gone, and would be forgotten"
    assert lines[3] == f"{directory}: 6 files would become 2; nothing was changed"
    assert main(["compact", str(directory), "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (len(facts["merge"]), facts["forget"]) == (2, [])
    assert tree(directory) == before


def test_the_summary_as_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json standard output holds the summary alone."""
    assert main(["compact", str(directory), "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert (facts["files_before"], facts["files_after"], facts["merged"], facts["made"]) == (6, 2, 6, 2)
    assert "month=1: 3 files" in err


def test_missing_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is gone ends with exit code 7 and the option that helps, and with the option it is named."""
    (directory / "month=1" / "part-w1-0.parquet").unlink()
    assert main(["compact", str(directory)]) == 7
    assert f"downspout compact {directory} --forget-missing" in capsys.readouterr().err
    assert main(["compact", str(directory), "--forget-missing"]) == 0
    out = capsys.readouterr().out
    assert "forgotten: month=1/part-w1-0.parquet" in out
    assert out.endswith("; 1 gone and forgotten\n")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--target-size", "big"], 2, "--target-size big is not a size. Try: 128MB"),
        (["--target-size", "0"], 2, "--target-size 0 is not a size"),
        (["--keep", "7"], 2, "--keep 7 is not a duration. Try: 7d"),
    ],
)
def test_wrong_options(
    directory: Path, options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that makes no sense is named, with one that does, before anything is touched."""
    assert main(["compact", str(directory), *options]) == code
    assert message in capsys.readouterr().err
    assert plain(directory) == expected(range(30))


def test_no_sinks_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is none, or no sink's, ends with exit code 7."""
    assert main(["compact", str(tmp_path / "none")]) == 7
    assert main(["compact", str(tmp_path)]) == 7
    assert "holds no commit log" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "text"), [(errno.EROFS, "Read-only file system"), (errno.EACCES, "Permission")])
def test_a_directory_that_cannot_be_written(
    directory: Path, number: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory that cannot be written to ends with exit code 7 and the file's name; a dry run does not mind."""

    def refuse(self: Disk, path: Path, content: bytes) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Disk, "write", refuse)
    assert main(["compact", str(directory)]) == 7
    error = capsys.readouterr().err
    assert text in error
    assert "part-compact-" in error
    assert main(["compact", str(directory), "--dry-run"]) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_signal_ends_it_cleanly(directory: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM in the middle of a merge end with exit code 130, nothing staged, and every row in place."""
    program = (
        "import os, sys\n"
        "from downspout.cli import main\n"
        "from downspout.sink.storage import Disk\n"
        "write = Disk.write\n"
        "def stop(self, path, content):\n"
        "    write(self, path, content)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "Disk.write = stop\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command: list[Any] = [sys.executable, "-c", program, "compact", str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (code, "downspout: interrupted\n")
    assert not list(Layout(directory).staging.rglob("*.hidden"))
    assert len(read_entries(directory)) == 3
    assert plain(directory) == expected(range(30))
