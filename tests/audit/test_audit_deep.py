"""The audit of data files' content: hashes in the log, checksums of pages, and which commands check them."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bolts.parquet import ParquetBolt, with_origins
from downspout.audit import visible_files
from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import (
    CommitLog,
    Compactor,
    Disk,
    Entry,
    Identities,
    Run,
    SinkWriter,
    encode,
    hash_of,
    note_run,
    read_entries,
    read_table,
)
from downspout.sink import log as log_module
from tests.audit.test_audit_tampered import edit
from tests.sink.support import sink, tup

ROWS = 200
NOT_DEEP = "values were not compared with their hashes: --deep does"


def flush(directory: Path, first: int, writer: str) -> Path:
    """Commit rows that all hold the number 7, in one file; return it."""
    made = SinkWriter(directory, topology="t", component="sink", columns=["n:int64"], writer=writer)
    made.open()
    identities = Identities.of([("t", "", 0, first + n, "") for n in range(ROWS)])
    table = with_origins(pa.table({"n": pa.array([7] * ROWS, pa.int64())}), identities)
    made.flush(identities, lambda mask, _: table.filter(pa.array(mask)))
    return next(path for path in visible_files(directory) if writer in path.name)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_each_flipped_bit_is_found(tmp_path: Path) -> None:
    """A deep audit notices a change of any byte of a data file, wherever it is, and names the file."""
    path = flush(tmp_path, 0, "w")
    assert audit(tmp_path, deep=True).exit_code == 0
    good = path.read_bytes()
    for place in range(0, len(good), 13):
        flip(path, place)
        report = audit(tmp_path, deep=True)
        assert report.exit_code in (10, 13)
        assert list(report.found.corrupt) == [path.name]
        path.write_bytes(good)


def test_values_that_were_replaced_are_found(tmp_path: Path) -> None:
    """A file of the same size with other values is a good file; its hash says that it is not what was written."""
    path = flush(tmp_path, 0, "w")
    size = path.stat().st_size
    table = pq.ParquetFile(path).read().set_column(0, "n", pa.array([8] * ROWS, pa.int64()))
    path.write_bytes(encode([table], table.schema, "zstd"))
    assert path.stat().st_size == size
    report = audit(tmp_path)
    assert report.exit_code == 0  # it looks at where rows came from, and says so
    assert NOT_DEEP in report.notes
    report = audit(tmp_path, deep=True)
    assert NOT_DEEP not in report.notes
    assert (report.exit_code, report.found.corrupt) == (13, {path.name: "other values"})
    assert "1 file changed since written" in report.verdict


def test_the_damaged_column_is_named(tmp_path: Path) -> None:
    """Checksums of pages say which column was hit; and who reads through the log gets an error instead of the value."""
    path = flush(tmp_path, 0, "w")
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - (chunk.data_page_offset - 4) - 3)
    assert audit(tmp_path, deep=True).found.corrupt == {path.name: "damaged pages in n"}
    with pytest.raises(SinkError, match="cannot be read"):
        read_table(tmp_path)


def test_a_compaction_makes_no_good_file_of_a_damaged_one(tmp_path: Path) -> None:
    """A compaction refuses a source whose content or pages are not what was written, and leaves all as it was."""
    path = flush(tmp_path, 0, "w")
    flush(tmp_path, ROWS, "v")
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - (chunk.data_page_offset - 4) - 3)
    with pytest.raises(SinkError, match=f"{path.name} (was changed since it was written|cannot be read)"):
        Compactor(tmp_path).run()
    assert len(list(visible_files(tmp_path))) == 2


def test_a_compacted_file_has_a_hash(tmp_path: Path) -> None:
    """What a compaction writes is checked like what a flush writes."""
    flush(tmp_path, 0, "w")
    flush(tmp_path, ROWS, "v")
    assert Compactor(tmp_path).run().made == 1
    (path,) = visible_files(tmp_path)
    assert read_entries(tmp_path)[-1].files[0].hash == hash_of(path.read_bytes())
    report = audit(tmp_path, deep=True)
    assert (report.exit_code, report.found.checked) == (0, 1)


class TornDisk(Disk):
    """Returns what it was given to write, but for one bit."""

    def write(self, path: Path, content: bytes) -> None:
        """Write a data file with a flipped bit in its first column."""
        if path.name.startswith("part-compact"):
            content = content[:30] + bytes([content[30] ^ 1]) + content[31:]
        super().write(path, content)


def test_a_compaction_that_was_not_written_as_made_is_given_up(tmp_path: Path) -> None:
    flush(tmp_path, 0, "w")
    flush(tmp_path, ROWS, "v")
    with pytest.raises(SinkError):
        Compactor(tmp_path, disk=TornDisk()).run()
    assert len(list(visible_files(tmp_path))) == 2


def test_a_checkpoint_with_another_hash_ends_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_EVERY", 1)
    flush(tmp_path, 0, "w")
    checkpoint = CommitLog(tmp_path).checkpoint_path(1)
    edit(checkpoint, lambda document: document["files"][0].__setitem__(3, "crc32c:00000000"))
    with pytest.raises(SinkError, match="does not say what the"):
        audit(tmp_path)


@pytest.mark.parametrize("value", [[], 7, None])
def test_a_hash_out_of_form_is_refused(tmp_path: Path, value: Any) -> None:
    flush(tmp_path, 0, "w")
    place = CommitLog(tmp_path).path(0)
    edit(place, lambda document: document["files"][0].__setitem__(3, value))
    with pytest.raises(ValueError, match="out of form"):
        Entry.from_bytes(place.read_bytes())


@pytest.mark.parametrize(("what", "value"), [("topology", "u"), ("component", "x"), ("schema", ["n:string"])])
def test_an_entry_that_says_it_is_of_another_is_damaged(tmp_path: Path, what: str, value: Any) -> None:
    """Topology and sink are the same in all entries, and columns grow: one that was edited is named."""
    flush(tmp_path, 0, "w")
    flush(tmp_path, ROWS, "v")
    for number in (0, 1):
        place = CommitLog(tmp_path).path(number)
        good = place.read_bytes()
        edit(place, lambda document: document.update({what: value}))
        with pytest.raises(SinkError, match=rf"1\.json is damaged: its {what} is"):
            audit(tmp_path)
        place.write_bytes(good)


def test_columns_that_an_entry_did_not_write_are_found(tmp_path: Path) -> None:
    """An entry whose columns were edited to what may grow into the later ones is not what its file holds."""
    path = flush(tmp_path, 0, "w")
    flush(tmp_path, ROWS, "v")
    edit(CommitLog(tmp_path).path(0), lambda document: document.update({"schema": ["n:int32"]}))
    assert audit(tmp_path).found.changed == [path.name]


@pytest.mark.parametrize("schema", [["n:int32"], ["m:int64"], ["n:int64", "m:string"], ["n:int64", "/n"], ["what"]])
def test_the_columns_of_the_only_entry_are_compared_with_the_files(tmp_path: Path, schema: list[str]) -> None:
    path = flush(tmp_path, 0, "w")
    edit(CommitLog(tmp_path).path(0), lambda document: document.update(schema=schema))
    report = audit(tmp_path)
    assert (report.exit_code, report.found.changed) == (13, [path.name])


def test_the_topology_of_the_only_entry_is_compared_with_the_runs(tmp_path: Path) -> None:
    flush(tmp_path, 0, "w")
    note_run(tmp_path, Run("t"), Disk(), "w")
    assert not any("changed by hand" in note for note in audit(tmp_path).notes)
    edit(CommitLog(tmp_path).path(0), lambda document: document.update(topology="u"))
    assert any("the log belongs to topology u" in note for note in audit(tmp_path).notes)


EVERY_TYPE = {
    "s:string": "x", "b:binary": b"x", "t:bool": True, "i:int8": 1, "j:int16!": 2, "k:int32": 3, "l:int64": 4,
    "f:float32": 1.5, "g:float64": 2.5, "m:decimal(9,2)": Decimal("1.25"), "d:date": date(2013, 1, 31),
    "w:timestamp": datetime(2013, 1, 31, 5, 17), "x:timestamp_ms": 7, "y:list<int64>": [1, 2], "z:list<string>": ["a"],
}  # fmt: skip


@pytest.mark.parametrize("folders", [[], ["s", "d"]])
def test_files_of_a_sink_have_the_columns_that_the_log_says(tmp_path: Path, folders: list[str]) -> None:
    """Columns of every type, and those that name folders, are in the files as declared: no false alarm."""
    fields = ["origin", *(column.partition(":")[0] for column in EVERY_TYPE)]
    bolt = sink(
        ParquetBolt, tmp_path, fields=fields, **{"parquet.schema": list(EVERY_TYPE), "parquet.partition_by": folders}
    )
    bolt.process(tup(("t", "", 0, 0, ""), *EVERY_TYPE.values()))
    bolt.drain()
    assert not bolt.failed
    report = audit(tmp_path, deep=True)
    assert (report.exit_code, report.found.checked, report.found.changed) == (0, 1, [])
