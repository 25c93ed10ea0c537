"""A directory as a stream: the meaning of a position in the log, regardless of changes to files."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from downspout.errors import ConfigError, SinkError
from downspout.sink import CommitLog, DataFile, Disk, Layout, log, wherever
from downspout.sink.log_stream import Follower, Position, files_before
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sink.readers_support import compact, delete_replaced, fence, start_anew
from tests.sink.support import write_rows


def write(directory: Path, *offsets: int, **options: Any) -> None:
    write_rows(directory, [("t", "", 0, offset, "") for offset in offsets], writer=f"w{offsets[0]}", **options)


def numbers(directory: Path, files: list[DataFile]) -> list[int]:
    """Return the rows of files, in the order in which a stream has them."""
    return [number for file in files for number in wherever(Layout(directory), file.path, _numbers_in)]


def _numbers_in(path: Path) -> list[int]:
    return [int(row["n"]) for row in pq.ParquetFile(path).read().to_pylist()]


def kept(position: Position) -> Position:
    """Return a position as it comes back from a checkpoint."""
    return Position.from_json(json.loads(json.dumps(position.to_json())))


def drained(directory: Path, start: Position, **limits: Any) -> tuple[list[int], Position]:
    """Read to the end, by batches, each by a follower of its own, as after a restart."""
    found: list[int] = []
    while (end := Follower(directory, **limits).latest(start)) != start:
        found += numbers(directory, Follower(directory).files(start, end))
        start = kept(end)
    return found, start


class Streams(RuleBasedStateMachine):
    """Flushes, compactions, fences, deletions and restarts in any order beside a stream."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="downspout-streams-"))
        self.directory = self.folder / "sink"
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(log, "CHECKPOINT_EVERY", 3)
        self.flushed = 0
        self.read: list[int] = []
        self.position = Position()
        self.follower = Follower(self.directory)

    @rule(count=st.integers(1, 3))
    def flush(self, count: int) -> None:
        write(self.directory, *range(self.flushed, self.flushed + count))
        self.flushed += count

    @rule()
    def flush_and_die(self) -> None:
        entry = CommitLog(self.directory).path(len(list(Layout(self.directory).log.glob("*.json"))))

        def stop(_: int) -> None:
            if entry.exists():
                raise Killed

        with pytest.raises(Killed):
            write(self.directory, self.flushed, disk=SteppedDisk(stop))
        self.flushed += 1

    @precondition(lambda self: self.flushed)
    @rule(most=st.integers(2, 5))
    def compact(self, most: int) -> None:
        compact(self.directory, most=most)

    @precondition(lambda self: self.flushed)
    @rule()
    def fence(self) -> None:
        fence(self.directory, "nobody")

    @precondition(lambda self: len(self.read) == self.flushed)
    @rule()
    def delete(self) -> None:
        """What was replaced is deleted; the stream has read it."""
        delete_replaced(self.directory)

    @rule(files=st.none() | st.integers(1, 3), size=st.none() | st.integers(1, 4_000), again=st.booleans())
    def batch(self, files: int | None, size: int | None, again: bool) -> None:
        """One batch; maybe it is planned again, by another process, before it is read."""
        self.follower.files_max, self.follower.bytes_max = files, size
        end = self.follower.latest(self.position)
        planned = self.follower.files(self.position, end)
        if files is not None:
            assert len(planned) <= files
        if again:
            self.follower = Follower(self.directory)
            end = kept(end)
            assert self.follower.files(self.position, end) == planned
        assert bool(planned) == (end != self.position)
        self.read += numbers(self.directory, planned)
        self.position = end

    @rule()
    def restart(self) -> None:
        self.position = kept(self.position)
        self.follower = Follower(self.directory)

    @rule()
    def finish(self) -> None:
        """To the end, as availableNow does: what comes meanwhile is left for the next time."""
        follower = Follower(self.directory, 2)
        follower.freeze()
        wanted = self.flushed
        self.flush(1)
        while (end := follower.latest(self.position)) != self.position:
            self.read += numbers(self.directory, follower.files(self.position, end))
            self.position = end
        assert sorted(self.read) == list(range(wanted))

    @invariant()
    def each_row_once(self) -> None:
        """Nothing was read twice, and what was read before the position is just that."""
        assert len(set(self.read)) == len(self.read) <= self.flushed
        assert sorted(numbers(self.directory, files_before(self.directory, self.position))) == sorted(self.read)

    def teardown(self) -> None:
        self.read += drained(self.directory, self.position, files_max=2)[0]
        assert sorted(self.read) == list(range(self.flushed))
        self.patch.undo()
        shutil.rmtree(self.folder)


TestStreams = pytest.mark.slow(Streams.TestCase)
TestStreams.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_rows_come_in_the_order_of_the_log(tmp_path: Path) -> None:
    """A stream that was there from the beginning reads flush after flush, though they were compacted meanwhile."""
    start = Position()
    for offset in range(3):
        write(tmp_path, 10 - offset)
    found, start = drained(tmp_path, start, files_max=1)
    assert found == [10, 9, 8]
    for offset in range(3):
        write(tmp_path, 20 - offset)
    compact(tmp_path)
    found, start = drained(tmp_path, start, files_max=1)
    assert found == [20, 19, 18]
    assert drained(tmp_path, start) == ([], start)


def test_a_stream_begins_on_a_compacted_directory(tmp_path: Path) -> None:
    """What was replaced, and deleted, before a stream began is read where it is now."""
    for offset in range(4):
        write(tmp_path, offset)
    compact(tmp_path)
    delete_replaced(tmp_path)
    write(tmp_path, 4)
    assert drained(tmp_path, Position())[0] == [0, 1, 2, 3, 4]


def test_a_batch_of_a_new_stream_is_the_same_after_a_crash(tmp_path: Path) -> None:
    """A first batch whose end was written down is the same again, though the log has grown and was compacted."""
    for offset in range(3):
        write(tmp_path, offset)
    end = Follower(tmp_path, 2).latest(Position())
    compact(tmp_path)
    write(tmp_path, 3)
    restarted = Follower(tmp_path)
    assert numbers(tmp_path, restarted.files(Position(), kept(end))) == [0, 1]
    assert drained(tmp_path, kept(end))[0] == [2, 3]


def test_what_was_read_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a stream says how far it has read, the entries are on the disk: a power cut cannot take one of them."""
    write(tmp_path, 0)
    synced: list[tuple[Path, int]] = []
    folder = CommitLog(tmp_path).folder
    monkeypatch.setattr(Disk, "sync", lambda self, path: synced.append((path, len(list(folder.glob("*.json"))))))
    follower = Follower(tmp_path)
    position = follower.latest(Position())
    assert synced == [(folder, 1)]
    assert follower.latest(position) == position
    monkeypatch.undo()
    write(tmp_path, 1)

    def refuse(self: Disk, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Disk, "sync", refuse)
    with pytest.raises(SinkError, match=r"cannot be synced to the disk: Input/output error"):
        follower.latest(position)


def test_a_new_generation_ends_a_stream(tmp_path: Path) -> None:
    """When the directory starts anew a stream says so, and a new stream reads the new rows alone."""
    write(tmp_path, 0)
    _, position = drained(tmp_path, Position())
    start_anew(tmp_path)
    with pytest.raises(SinkError, match=r"was rebuilt: it is at rebuild 1, and rebuild 0 was read.*another checkpoint"):
        drained(tmp_path, position)
    write(tmp_path, 0)
    found, position = drained(tmp_path, Position())
    assert found == [0]
    assert position.rebuild == 1


def test_a_stream_that_is_too_far_behind_says_so(tmp_path: Path) -> None:
    """Rows whose files were deleted before the stream read them are an error with a cure: none is left out."""
    write(tmp_path, 0)
    _, position = drained(tmp_path, Position())
    write(tmp_path, 1)
    write(tmp_path, 2)
    compact(tmp_path)
    delete_replaced(tmp_path)
    with pytest.raises(SinkError, match=r"part-w1-0\.parquet was deleted before the stream.*compact --keep"):
        drained(tmp_path, position)


def test_another_log_is_noticed(tmp_path: Path) -> None:
    """A directory that was made again, or whose log has lost its end or its middle, is not read on."""
    for offset in range(3):
        write(tmp_path / "one", offset)
    write(tmp_path / "other", 7)
    write(tmp_path / "other", 8)
    write(tmp_path / "other", 9)
    _, position = drained(tmp_path / "one", Position())
    for bad in (tmp_path / "other", tmp_path / "none"):
        with pytest.raises(SinkError, match="another commit log than the one that was read"):
            drained(bad, position)
    log = CommitLog(tmp_path / "one")
    begun = replace(position, entry=0, file=1)
    last = log.path(2).rename(tmp_path / "last")
    with pytest.raises(SinkError, match=r"its end was deleted.*Try: restore it"):
        drained(tmp_path / "one", position)
    last.rename(log.path(2))
    log.path(1).unlink()
    with pytest.raises(SinkError, match=r"0001\.json is missing"):
        drained(tmp_path / "one", begun)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"logOffset": 3}, "to another query"),
        ({"t": {"0": 5}}, "to another query"),
        ({**Position("w", 0, 1, 1, 0).to_json(), "entry": "1"}, "to another query"),
        ({**Position("w", 0, 1, 1, 0).to_json(), "file": -1}, "changed by hand"),
        ({**Position("w", 0, 1, 1, 0).to_json(), "base": True}, "to another query"),
    ],
)
def test_foreign_positions_are_refused(value: dict[str, Any], said: str) -> None:
    """What a checkpoint holds is not trusted: a position of something else is an error with a cure."""
    with pytest.raises(ConfigError, match=rf"{said}.*Try: start over with another checkpoint"):
        Position.from_json(value)
