"""Rows held by a sink, and their fate when a flush fails."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from pystorm.component import Tuple

from bolts.parquet import ParquetBolt
from downspout.errors import SinkError
from downspout.sink import Disk
from downspout.sink.row_sink import BLOCK_ROWS, find_fields
from tests.sink.support import rows_of, sink, tup

FIELDS = ["origin", "word"]


class BrokenDisk(Disk):
    """Fails every operation of one kind while ``broken``, as the operating system does."""

    def __init__(self, operation: str, code: int) -> None:
        self.operation, self.code, self.broken = operation, code, True

    def _maybe(self, operation: str, path: Path) -> None:
        if self.broken and operation == self.operation:
            raise OSError(self.code, "injected", str(path))

    def make_folder(self, folder: Path) -> None:
        self._maybe("make_folder", folder)
        super().make_folder(folder)

    def write(self, path: Path, content: bytes) -> None:
        self._maybe("write", path)
        super().write(path, content)

    def sync(self, path: Path) -> None:
        self._maybe("sync", path)
        super().sync(path)

    def link(self, source: Path, target: Path) -> None:
        self._maybe("link", target)
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe("rename", target)
        super().rename(source, target)


def make(directory: Path, **settings: Any) -> Any:
    return sink(ParquetBolt, directory, fields=FIELDS, **{"parquet.schema": ["word:string"], **settings})


def one(offset: int, word: Any = "a") -> Tuple:
    return tup(("t", "", 0, offset, ""), word)


@pytest.mark.parametrize("operation", ["make_folder", "write", "sync", "link", "rename"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO])
def test_a_failed_flush_acks_nothing_and_a_replay_makes_it_good(tmp_path: Path, operation: str, code: int) -> None:
    """Whatever operation fails, nothing is acked or held, the error has the path, and replayed rows are there once."""
    bolt = make(tmp_path / "out")
    disk = bolt.writer.disk = bolt.writer.log.disk = BrokenDisk(operation, code)
    for offset in range(3):
        bolt.process(one(offset))
    with pytest.raises(SinkError, match=str(tmp_path / "out")):
        bolt.drain()
    assert (bolt.acked, bolt.failed, bolt.report()["held"]) == ([], {}, 0)
    bolt.drain()  # an engine that stops drains once more: there is nothing to be drained
    disk.broken = False
    for offset in range(5):
        bolt.process(one(offset))
    bolt.drain()
    assert len(bolt.acked) == 5
    assert sorted(row["_offset"] for row in rows_of(tmp_path / "out")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("operation", ["make_folder", "write"])
def test_a_directory_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path, operation: str) -> None:
    """An unwritable directory stops the topology before any record is read."""

    class Unwritable(ParquetBolt):
        disk = BrokenDisk(operation, errno.EACCES)

    with pytest.raises(SinkError, match="cannot be written"):
        sink(Unwritable, tmp_path, fields=FIELDS, **{"parquet.schema": ["word:string"]})


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    """A directory whose name is taken by a file, or one above it, is an error with the path and a cure that fits."""
    (tmp_path / "out").write_text("mine")
    for directory in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(SinkError, match=str(directory)) as caught:
            make(directory)
        assert "move it away, or use another parquet.directory" in str(caught.value.cure)


def test_invalid_values_fail_at_once(tmp_path: Path) -> None:
    """A row that does not fit fails when its block is converted, and does not wait for the flush."""
    bolt = make(tmp_path)
    bolt.process(one(0, word=5))
    for offset in range(1, BLOCK_ROWS):
        bolt.process(one(offset))
    assert list(bolt.failed) == ["t--0-0-"]
    assert "word = 5" in bolt.failed["t--0-0-"]
    assert rows_of(tmp_path) == []


def test_a_flush_of_invalid_values_alone_writes_nothing(tmp_path: Path) -> None:
    """Where no row fits there is no file and no log entry, and every tuple has failed."""
    bolt = make(tmp_path)
    for offset in range(10):
        bolt.process(one(offset, word=offset))
    bolt.drain()
    assert len(bolt.failed) == 10
    assert (bolt.writer.log.length, rows_of(tmp_path)) == (0, [])
    assert bolt.report() | {"rejected": 10, "held": 0, "flushes": 0} == bolt.report()


def test_large_rows_are_flushed_before_they_pile_up(tmp_path: Path) -> None:
    """The bytes held never go far beyond the limit, whatever size rows grow to."""
    bolt = make(tmp_path, **{"parquet.flush_bytes": 1_000_000})
    highest = 0
    for offset in range(300):
        bolt.process(one(offset, word="x" * (10_000 if offset > 100 else 10)))
        highest = max(highest, len(bolt._waiting) * 10_000 + bolt._buffer.bytes)
    assert bolt.report()["flushes"] >= 1
    assert highest < 1_000_000 + BLOCK_ROWS * 10_000
    for offset in range(300, 600):
        bolt.process(one(offset, word="x" * 10_000))
        assert len(bolt._waiting) * 10_000 + bolt._buffer.bytes < 1_400_000


def test_inputs_with_other_fields_share_a_sink(tmp_path: Path) -> None:
    """Inputs may have their fields in any order, and lack an origin: their rows are written, at least once."""
    bolt = make(tmp_path)
    inputs = {"source->stream->fields": {
        "one": {"default": ["x", "origin", "word"]}, "two": {"late": ["word"]}, "__system": {"__tick": ["rate_secs"]}
    }}  # fmt: skip
    bolt._inputs = find_fields(inputs, bolt.columns, "sink")
    assert set(bolt._inputs) == {("one", "default"), ("two", "late")}
    for _ in range(2):
        bolt.process(Tuple("1", "one", "default", 2, (0, ("t", "", 0, 7, ""), "a")))
        bolt.process(Tuple("2", "two", "late", 3, ("b",)))
    bolt.drain()
    assert sorted((row["word"], row["_offset"]) for row in rows_of(tmp_path) if row["word"] == "a") == [("a", 7)]
    assert [row["_offset"] for row in rows_of(tmp_path) if row["word"] == "b"] == [None, None]
    assert sorted(bolt.acked) == ["1", "1", "2", "2"]


def test_values_that_became_lists_on_a_pipe(tmp_path: Path) -> None:
    """Origins and values that travelled as JSON lists are the same rows."""
    bolt = make(tmp_path)
    bolt.process(Tuple("1", "parse", "default", 2, [["t", "", 0, 7, ""], "a"]))
    bolt.process(one(7))
    bolt.drain()
    assert [row["_offset"] for row in rows_of(tmp_path)] == [7]
    assert len(bolt.acked) == 2


@pytest.mark.slow
def test_rows_that_become_large_do_not_wait_by_the_hundred(tmp_path: Path) -> None:
    """After thousands of small rows, large ones are converted before they are a multiple of what a flush holds."""
    bolt = sink(ParquetBolt, tmp_path, fields=["origin", "v"], **{"parquet.schema": ["v:string"]})
    for number in range(3000):
        bolt.process(tup(("t", "i", 0, number, ""), "x" * 100))
    large, most = "y" * (5 << 20), 0
    for number in range(3000, 3040):
        bolt.process(tup(("t", "i", 0, number, ""), large))
        most = max(most, sum(len(waiting[4][1]) for waiting in bolt._waiting))
    assert most <= bolt.settings["flush_bytes"]
