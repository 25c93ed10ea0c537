"""Generations of a directory: records can be processed anew, and earlier writers cannot continue."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bolts.parquet import ParquetBolt
from downspout.errors import SinkError
from downspout.sink import BatchWriter, Disk, Identities, Layout, SinkWriter, StagingWriter, read_entries
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sink.support import rows_of, sink, tup

FIELDS = ["origin", "n"]


def opened(directory: Path, writer: str, rebuild: int = 0, column: str = "n", disk: Disk | None = None) -> SinkWriter:
    made = SinkWriter(
        directory, topology="t", component="sink", columns=[f"{column}:int64"], writer=writer,
        rebuild=rebuild, disk=disk,
    )  # fmt: skip
    made.open()
    return made


def flush(writer: SinkWriter, offsets: range, factor: int = 1, column: str = "n") -> None:
    table = pa.table({column: pa.array([factor * offset for offset in offsets], pa.int64())})
    identities = Identities.of([("t", "id", 0, offset, "") for offset in offsets])
    writer.flush(identities, lambda mask, _: table.filter(pa.array(mask)))


def values(directory: Path, column: str = "n") -> list[int]:
    return sorted(row[column] for row in rows_of(directory))


def test_a_new_rebuild_writes_the_same_records_anew(tmp_path: Path) -> None:
    """With a higher number the directory starts empty, and what was there is kept out of sight."""
    flush(opened(tmp_path, "a"), range(5))
    again = opened(tmp_path, "b", 1)
    assert values(tmp_path) == []
    flush(again, range(5), factor=10)
    assert values(tmp_path) == [0, 10, 20, 30, 40]
    kept = [pq.read_table(path)["n"].to_pylist() for path in Layout(tmp_path).replaced.rglob("*.hidden")]
    assert kept == [[0, 1, 2, 3, 4]]


def test_the_same_rebuild_goes_on(tmp_path: Path) -> None:
    """A restart with the number that the directory has, or with none, starts nothing anew."""
    flush(opened(tmp_path, "a", 2), range(5))
    for writer, rebuild in (("b", 2), ("c", 0)):
        flush(opened(tmp_path, writer, rebuild), range(5), factor=10)
    assert values(tmp_path) == [0, 1, 2, 3, 4]
    assert [entry.rebuild for entry in read_entries(tmp_path)] == [2, 0]


def test_a_writer_of_an_earlier_rebuild_writes_no_more(tmp_path: Path) -> None:
    """A writer that was there before, and one that comes later with a lower number, are told so and change nothing."""
    old = opened(tmp_path, "old")
    flush(old, range(3))
    flush(opened(tmp_path, "new", 3), range(2), factor=10)
    with pytest.raises(SinkError, match=r"was rebuilt \(rebuild 3\); this sink writes for rebuild 0"):
        flush(old, range(3, 6))
    with pytest.raises(SinkError, match=r"rebuild 3\); this sink writes for rebuild 2") as caught:
        opened(tmp_path, "older", 2)
    assert caught.value.cure == "parquet.rebuild=3, or no such setting, and start again"
    assert values(tmp_path) == [0, 10]


def test_a_new_rebuild_may_have_other_columns(tmp_path: Path) -> None:
    flush(opened(tmp_path, "a"), range(3))
    with pytest.raises(SinkError, match="has the columns") as caught:
        opened(tmp_path, "b", column="m")
    assert "parquet.rebuild=1" in str(caught.value.cure)
    flush(opened(tmp_path, "b", 1, column="m"), range(3), column="m")
    assert values(tmp_path, "m") == [0, 1, 2]
    with pytest.raises(SinkError, match="has the columns"):
        opened(tmp_path, "c", 1)


def test_a_batch_that_was_committed_before_is_committed_again(tmp_path: Path) -> None:
    """A Spark batch whose rows went out of sight with a rebuild is not taken for committed."""
    for rebuild in range(2):
        made: list[SinkWriter] = []
        for cls in (BatchWriter, StagingWriter):
            made.append(
                cls(tmp_path, topology="t", component="sink", columns=["n:int64"], writer=f"{cls.__name__}{rebuild}",
                    rebuild=rebuild)
            )  # fmt: skip
            made[-1].open()
        committer, task = made
        assert isinstance(committer, BatchWriter)
        assert isinstance(task, StagingWriter)
        flush(task, range(3), factor=1 + rebuild)
        committer.commit("query-7", task.staged)
    assert values(tmp_path) == [0, 2, 4]


def test_all_tasks_of_a_sink_start_one_rebuild(tmp_path: Path) -> None:
    """Of tasks that open the directory in the same moment one starts it anew, and the others go along."""
    flush(opened(tmp_path, "a"), range(4))
    others: list[SinkWriter] = []

    def before(step: int) -> None:
        if step == pause:
            others.append(opened(tmp_path, f"other-{pause}", pause))

    for pause in range(1, 15):
        writer = opened(tmp_path, f"w-{pause}", pause, disk=SteppedDisk(before))
        flush(writer, range(4), factor=pause)
        flush(others[-1], range(6), factor=pause)
        assert values(tmp_path) == [pause * offset for offset in range(6)]
    started = [entry.rebuild for entry in read_entries(tmp_path) if entry.rebuild]
    assert started == list(range(1, 15))


def test_a_stop_at_any_step_of_a_new_start_is_made_up_for(tmp_path: Path) -> None:
    """Stopped before any step of starting anew, the next opening ends what was begun: no old row beside a new one."""
    step = 0
    while True:
        step += 1
        directory = tmp_path / f"stop-{step}"
        flush(opened(directory, "a"), range(4))

        def before(at: int, step: int = step) -> None:
            if at == step:
                raise Killed

        try:
            opened(directory, "b", 1, disk=SteppedDisk(before))
        except Killed:
            flush(opened(directory, "c", 1), range(3), factor=10)
            assert values(directory) == [0, 10, 20], f"stopped before step {step}"
        else:
            break
    assert step > 8


def test_seeking_back_writes_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records that come again are acked and not written, and one warning says why and what to do."""
    settings: dict[str, Any] = {"parquet.schema": ["n:int64"], "parquet.flush_rows": 3}
    for run in range(2):
        bolt = sink(ParquetBolt, tmp_path, fields=FIELDS, **settings)
        with caplog.at_level(logging.WARNING):
            for offset in range(9):
                bolt.process(tup(("orders", "id", 2, offset, ""), offset))
            bolt.drain()
        assert len(bolt.acked) == 9
        assert values(tmp_path) == list(range(9))
        said = [record.getMessage() for record in caplog.records if record.name == "downspout.sink"]
        assert len(said) == run
    assert "all 3 rows of a flush (from orders[2]@0) are in" in said[0]
    assert "parquet.rebuild=1" in said[0]


def test_records_that_come_again_in_a_run_that_writes_are_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where rows were written and come again, as after timeouts, nobody is advised to rebuild."""
    bolt = sink(ParquetBolt, tmp_path, fields=FIELDS, **{"parquet.schema": ["n:int64"], "parquet.flush_rows": 3})
    with caplog.at_level(logging.WARNING):
        for offset in (0, 1, 2, 0, 1, 2):
            bolt.process(tup(("orders", "id", 2, offset, ""), offset))
        bolt.drain()
    assert (len(bolt.acked), values(tmp_path)) == (6, [0, 1, 2])
    assert not [record for record in caplog.records if record.name == "downspout.sink"]


def test_a_sink_with_a_rebuild_processes_again(tmp_path: Path) -> None:
    """The setting reaches the writer: the same records are written anew."""
    for rebuild, factor in ((0, 1), (1, 10)):
        bolt = sink(ParquetBolt, tmp_path, fields=FIELDS, **{"parquet.schema": ["n:int64"], "parquet.rebuild": rebuild})
        for offset in range(4):
            bolt.process(tup(("orders", "id", 2, offset, ""), factor * offset))
        bolt.drain()
    assert values(tmp_path) == [0, 10, 20, 30]
