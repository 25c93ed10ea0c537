"""The audit beside a compaction: no false alarm while it runs, and the truth where it was stopped."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bolts.aggregate import AggregateBolt
from downspout.audit import AuditReport
from downspout.audit import output_files as files
from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import CommitLog, Layout
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sink.compaction_support import compact, expected, flush, opened, plain
from tests.sink.support import rows_of, sink, tup

ROWS = range(30)


def fill(directory: Path) -> Path:
    for number in range(3):
        flush(directory, range(number * 10, number * 10 + 10), f"first-{number}")
    return directory


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not move in these tests will not move a second later."""
    monkeypatch.setattr(files, "TURN_S", 0.0)


def stopped_before(step: int, work: Callable[[SteppedDisk], object]) -> bool:
    """Do something that is stopped before a step; return whether it got there."""

    def before(now: int) -> None:
        if now == step:
            raise Killed

    try:
        work(SteppedDisk(before))
    except Killed:
        return True
    return False


def beside(monkeypatch: pytest.MonkeyPatch, work: Callable[[int], object]) -> None:
    """Let something happen before each file that an audit reads, and again after it was listed."""
    count = itertools.count()
    real = files._OriginReader.read

    def read(self: Any, path: Path) -> int:
        work(next(count))
        return real(self, path)

    monkeypatch.setattr(files._OriginReader, "read", read)


@pytest.mark.parametrize("keep_s", [0.0, 1e6])
@pytest.mark.parametrize("number", range(8))
def test_a_compaction_while_files_are_read_is_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, keep_s: float
) -> None:
    """Whichever file is being read when a whole compaction comes, kept or deleted what it replaces: exact."""
    directory = fill(tmp_path / "out")
    compact(directory)
    flush(directory, range(30, 40), "second")
    flush(directory, range(40, 50), "third")
    beside(monkeypatch, lambda now: now == number and compact(directory, keep_s=keep_s))
    report = audit(directory)
    assert (report.exit_code, len(report.notes)) == (0, 2)  # compared with the log alone, and without values
    assert report.verdict.startswith("exact: 50 offsets")


def test_flushes_and_compactions_while_files_are_read_are_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a flush and a compaction before each file that is read, the audit tells how it was as of one entry."""
    directory = fill(tmp_path / "out")

    def work(now: int) -> None:
        flush(directory, range(100 + now * 2, 102 + now * 2), f"beside-{now}")
        compact(directory)

    beside(monkeypatch, work)
    report = audit(directory)
    assert (report.exit_code, report.found.gone, report.found.staged) == (0, [], [])


def test_an_audit_that_cannot_keep_up_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where replaced files are deleted before they could be read, again and again, nothing is called exact or wrong."""
    directory = fill(tmp_path / "out")

    def work(now: int) -> None:
        flush(directory, range(100 + now * 2, 102 + now * 2), f"beside-{now}")
        compact(directory, keep_s=0.0)

    beside(monkeypatch, work)
    with pytest.raises(SinkError, match="faster than they can be read"):
        audit(directory)


@pytest.mark.slow
def test_a_stopped_compaction_is_told_as_a_plain_reader_meets_it(tmp_path: Path) -> None:
    """Whatever step a compaction was stopped before: rows that are in sight twice are duplicates, of files that are
    named; rows whose old files are in sight still are exact; and the next start of the topology ends it."""
    template, verdicts = fill(tmp_path / "filled"), set[int]()
    for step in itertools.count(1):
        directory = tmp_path / str(step)
        shutil.copytree(template, directory)
        if not stopped_before(step, lambda disk, at=directory: compact(at, disk)):
            break
        report, seen = audit(directory), plain(directory)
        twice = {row[1] for row, count in seen.items() if count > 1}
        assert seen.keys() == expected(ROWS).keys()
        assert report.exit_code == (11 if twice else 0), f"before step {step}"
        assert sum(part.count("duplicate") for part in report.partitions) == len(twice)
        assert report.found.unknown == report.found.gone == []
        assert (report.found.replaced != []) >= bool(twice)
        verdicts.add(report.exit_code)
        opened(directory, "next")
        assert audit(directory).exit_code == 0
    assert verdicts == {0, 11}


def add_up(directory: Path, offsets: range, disk: SteppedDisk | None = None) -> None:
    """Let an AggregateBolt add up one row for each offset."""
    settings = {"schema": ["word:string"], "keys": ["word"], "aggregates": ["count"]}
    conf = {f"parquet.{name}": value for name, value in settings.items()}
    bolt = sink(AggregateBolt, directory, fields=["origin", "word"], **conf)
    for offset in offsets:
        bolt.process(tup(("t", "id", 0, offset, ""), "a"))
    bolt.drain()


def duplicates(report: AuditReport) -> int:
    return sum(part.rows_of.get("duplicate", 0) for part in report.partitions)


def test_aggregates_of_a_stopped_compaction_are_counted_as_they_are_in_sight(tmp_path: Path) -> None:
    """Whatever step a compaction of aggregates was stopped before, the audit finds as many records added up as the
    sum of the counts in sight, and as many duplicates as there are too many."""
    template, seen = tmp_path / "filled", set[int]()
    for start in (0, 5, 10):
        add_up(template, range(start, start + 5))
    for step in itertools.count(1):
        directory = tmp_path / str(step)
        shutil.copytree(template, directory)
        if not stopped_before(step, lambda disk, at=directory: compact(at, disk)):
            break
        report, total = audit(directory), sum(row["count"] for row in rows_of(directory))
        assert duplicates(report) == total - 15, f"before step {step}"
        assert report.exit_code == (11 if total > 15 else 0)
        seen.add(total)
    assert {15, 20, 30} <= seen


def test_files_of_an_earlier_generation_in_sight_are_extra(tmp_path: Path) -> None:
    """A rebuild whose first writer was stopped leaves old files in sight: extra, and named as what they are."""
    directory = fill(tmp_path / "out")

    def begin(disk: SteppedDisk) -> None:
        opened(directory, "new", disk, rebuild=2)

    for step in itertools.count(1):
        assert stopped_before(step, begin)
        log = CommitLog(directory)
        log.refresh()
        if log.rebuild:
            break
    report = audit(directory)
    assert (report.exit_code, len(report.found.outdated), report.found.unknown) == (13, 6, [])
    assert "6 files from before the last rebuild" in report.verdict
    opened(directory, "next")
    flush(directory, range(5), "new")
    report = audit(directory)
    assert report.verdict.startswith("exact: 5 offsets")
    assert len(list(Layout(directory).replaced.rglob("*.hidden"))) == 6


def test_rows_of_before_a_generation_are_not_missing(tmp_path: Path) -> None:
    """What there was before a rebuild, rows or aggregates, compacted or not, is gone on purpose."""
    directory = fill(tmp_path / "out")
    compact(directory)
    flush(directory, range(10, 20), "new", rebuild=1)
    compact(directory)
    report = audit(directory)
    assert (report.exit_code, len(report.notes)) == (0, 2)  # compared with the log alone, and without values
    assert report.verdict.startswith("exact: 10 offsets")
