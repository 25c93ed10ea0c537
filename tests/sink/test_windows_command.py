"""``downspout windows``: final and open windows, and late rows, as the readers see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import ConfigError
from downspout.sink import read_table
from downspout.testing import VirtualClock
from tests.sink.test_watermark import HOUR, START, flush, give, task, warm_up


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with final windows, an open one, one without a time, and two late rows in one window."""
    clock = VirtualClock()
    bolt = task(tmp_path / "hours", clock)
    warm_up(bolt, clock)
    flush(bolt, clock, (0, 20, "a", START - 9 * HOUR), (0, 21, "b", START - 9 * HOUR), (0, 22, "a", START))
    give(bolt, (0, 23, "a", None))
    bolt.drain()
    return tmp_path / "hours"


def test_the_command_says_what_the_readers_return(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its final windows are those of ``closed=True``, and its late rows those that these leave out."""
    assert main(["windows", str(directory), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["watermark"] == START.isoformat()
    assert (report["final"], report["open"], report["late_rows"]) == (9, 2, 2)
    final = {row["start"] for row in report["windows"] if row["final"]}
    closed = read_table(directory, closed=True)
    assert final == {each.isoformat() for each in closed.column("window_start").to_pylist()}
    in_time = sum(row["rows"] - row["late_rows"] for row in report["windows"] if row["final"])
    assert in_time == sum(closed.column("count").to_pylist()) == 9
    assert report["windows"][1]["late_rows"] == 2
    assert report["windows"][-1] == {"start": None, "end": None, "final": False, "rows": 1, "late_rows": 0}
    assert report["partitions"] == [{"topic": "t", "partition": 0, "time": START.isoformat()}]


def test_people_see_what_is_open_or_late_first(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Final windows in which all is as it should be are shown if asked for."""
    assert main(["windows", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{directory}: final until 2013-01-01 00:00; 9 final; 2 open; 2 late rows in 1 window"
    assert [line.split()[:5] for line in lines[2:4]] == [
        ["2012-12-31", "15:00", "2012-12-31", "16:00", "final"],
        ["2013-01-01", "00:00", "2013-01-01", "01:00", "open"],
    ]
    assert lines[-1].split() == ["t[0]", "2013-01-01", "00:00"]
    assert main(["windows", str(directory), "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(lines) + 8


def test_columns_and_filters_go_with_closed(directory: Path) -> None:
    """A filter of the reader's own, and columns without the window's, narrow what is closed."""
    late = read_table(directory, ["count"], [("window_start", "<", START - 8 * HOUR)], closed=True)
    assert late.to_pydict() == {"count": [1, 1]}


def test_a_directory_without_windows_is_an_error_with_a_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the kind of directory that has them."""
    bolt = task(tmp_path, VirtualClock(), keys=["key"])
    give(bolt, (0, 0, "a", START))
    bolt.drain()
    assert main(["windows", str(tmp_path)]) == ConfigError.exit_code
    assert "AggregateBolt" in capsys.readouterr().err
