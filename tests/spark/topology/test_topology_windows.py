"""Windows on Spark: the tasks of a batch tell late rows, and the batch is committed with its times, whole."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from streamparse import Bolt, Grouping

from bolts.aggregate import AggregateBolt
from downspout.engine import Graph
from downspout.sink import CommitLog, read_entries, read_table
from downspout.testing import FakeKafka
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, send

START, HOUR = datetime(2013, 1, 1, tzinfo=UTC), timedelta(hours=1)
SCHEMA = {"key": "string", "at": "timestamp"}
IDLE_S = 1.0


class Timed(Bolt):
    """Makes of "a 5" the key a at five hours past START."""

    outputs: ClassVar[Any] = ["origin", "key", "at"]

    def process(self, tup: Any) -> None:
        key, hour = tup.values.value.split()
        self.emit([tup.values.origin, key, (START + int(hour) * HOUR).isoformat()])


def hours(out: Path, **settings: Any) -> Graph:
    """Return a topology that counts by key and hour in two tasks, and writes what comes late."""
    spout = b.lines()
    timed = Timed.spec(inputs=[spout])
    counts = AggregateBolt.spec(
        inputs={timed: Grouping.fields("key")}, par=2, directory=str(out / "hours"), schema=SCHEMA,
        keys=["key", "window(at, 1 hour)"], aggregates=["count"], lateness_s=0.0, idle_s=IDLE_S, late="stream",
    )  # fmt: skip
    late = b.sink([counts["late"]], out / "late", SCHEMA)
    return b.graph_of(spout=spout, timed=timed, hours=counts, late=late)


def counts_of(directory: Path, *, closed: bool = False) -> dict[tuple[str, int], int]:
    """Return the counts by key and hour past START."""
    found: dict[tuple[str, int], int] = {}
    for row in read_table(directory, closed=closed).to_pylist():
        key = row["key"], (row["window_start"] - START) // HOUR
        found[key] = found.get(key, 0) + row["count"]
    return found


@pytest.mark.slow
@pytest.mark.fake_only("the stages run in process; what is Spark's own is tested with the readers")
def test_batches_close_windows_and_late_rows_go_to_their_stream(kafka: FakeKafka, tmp_path: Path) -> None:
    """Each batch moves the watermark by itself; what comes late is in the other directory, once."""
    query = InProcess(hours(tmp_path), kafka)
    for hour in range(6):
        send(kafka, f"a {hour}", f"b {hour}")
        query.run()
        time.sleep(IDLE_S / 4)  # as much as a pause counts
    times = [entry.times for entry in read_entries(tmp_path / "hours")]
    assert [each.writer for each in times if each] == [""] * 6
    log = CommitLog(tmp_path / "hours")
    log.refresh()
    assert log.watermark.value == int((START + 5 * HOUR).timestamp()) * 1_000_000
    final = {(key, hour): 1 for key in "ab" for hour in range(5)}
    assert counts_of(tmp_path / "hours", closed=True) == final
    send(kafka, "a 5", "c 1", "b 7")
    query.run()
    assert counts_of(tmp_path / "hours") == {**final, ("a", 5): 2, ("b", 5): 1, ("b", 7): 1}
    late = read_table(tmp_path / "late").to_pylist()
    assert late == [{"key": "c", "at": START + HOUR}]
