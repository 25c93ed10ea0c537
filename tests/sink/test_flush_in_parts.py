"""A flush with many folders is written in parts, each committed and acked separately."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pystorm.component import Tuple

from bolts.parquet import ParquetBolt
from downspout.audit import visible_files
from downspout.origins import origins
from downspout.sink import Disk, Layout, read_entries
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sink.support import sink, tup


class FewFiles(ParquetBolt):
    files_max: ClassVar[int] = 3


def make(directory: Path, disk: Disk | None = None) -> Any:
    """Return a sink with a folder for each word, which gives its numbers to the files."""
    cls = type("Sink", (FewFiles,), {"disk": disk})
    settings = {"parquet.schema": ["word:string", "n:int64"], "parquet.partition_by": ["word"]}
    return sink(cls, directory, fields=["origin", "word", "n"], **settings)


def hold(bolt: Any, offsets: range) -> None:
    for offset in offsets:
        bolt.process(tup(("t", "id", 0, offset, ""), f"w{offset:02}", offset))


def acked(offsets: range) -> list[str]:
    return [f"t-id-0-{offset}-" for offset in offsets]


def test_each_part_is_an_entry_of_a_few_files_and_the_user_is_warned_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten folders at three a time are four entries; the warning counts rows and files, and names the column."""
    bolt = make(tmp_path / "out")
    for start in (0, 10):
        hold(bolt, range(start, start + 10))
        bolt.drain()
    assert bolt.acked == acked(range(20))
    entries = read_entries(tmp_path / "out")
    assert [len(entry.files) for entry in entries] == [3, 3, 3, 1] * 2
    assert len(list(visible_files(tmp_path / "out"))) == 20
    [warning] = [record.getMessage() for record in caplog.records if "partition_by" in record.getMessage()]
    assert "a flush of 10 rows makes 10 files, one for each value of parquet.partition_by = word" in warning
    assert "Try: partition_by a column of fewer values" in warning


def test_a_stop_repeats_one_part(tmp_path: Path) -> None:
    """Stopped at any step, a sink leaves at most one part's files behind, and writes again what it had not acked."""
    counting = SteppedDisk()
    hold(bolt := make(tmp_path / "count", counting), range(10))
    begin = counting.steps
    bolt.drain()
    for stop in range(begin + 1, counting.steps, 7):
        directory = tmp_path / f"stop-{stop}"

        def before(step: int, stop: int = stop) -> None:
            if step == stop:
                raise Killed

        hold(bolt := make(directory, SteppedDisk(before)), range(10))
        with pytest.raises(Killed):
            bolt.drain()
        assert bolt.acked == acked(range(len(bolt.acked)))
        assert len(bolt.acked) % 3 == 0
        assert len(list(Layout(directory).staging.rglob("part-*"))) <= 3
        hold(again := make(directory), range(10))
        again.drain()
        assert again.report()["covered"] >= len(bolt.acked)
        assert len(list(visible_files(directory))) == 10


def test_a_chunk_is_acked_with_its_last_part(tmp_path: Path) -> None:
    """A chunk whose rows are in several parts is acked once all of them are durable; one that ended before, before."""
    bolt = make(tmp_path / "out")
    parts: list[list[str]] = []
    write = bolt.write
    bolt.write = lambda batch: parts.append(list(batch.tuples)) or write(batch)
    for name, first, words in (("early", 0, ["a", "b"]), ("late", 2, ["a", "g", "c"]), ("last", 5, ["f", "e", "d"])):
        offsets = list(range(first, first + len(words)))
        columns = [origins("t", "id", 0, offsets), pa.array(words), pa.array(offsets)]
        batch = pa.RecordBatch.from_arrays(columns, names=["origin", "word", "n"])
        bolt.process_chunk(Tuple(name, "parse", "default", 2, batch))
    bolt.drain()
    assert parts == [["early"], ["late"], ["last"]]
    assert bolt.acked == ["early", "late", "last"]


def test_a_call_ends_between_two_parts(tmp_path: Path) -> None:
    """A tick writes for a few seconds; the rest is held, is due at once, and is written by the next calls."""
    bolt = make(tmp_path / "out")
    write = bolt.write

    def slowly(batch: Any) -> Any:
        bolt.clock.sleep(6.0)
        return write(batch)

    bolt.write = slowly
    hold(bolt, range(10))
    bolt.clock.sleep(60.0)
    for done in (3, 6):
        bolt.process_tick(Tuple("tick", "__system", "__tick", -1, [1]))
        assert [one for one in bolt.acked if one != "tick"] == acked(range(done))
        assert bolt.report()["held"] == 10 - done
        assert bolt.drain_at() <= bolt.clock.monotonic()
    hold(bolt, range(10, 12))
    bolt.drain()
    assert sorted(bolt.acked) == sorted([*acked(range(12)), "tick", "tick"])
    assert (bolt.report()["held"], bolt.drain_at()) == (0, None)
