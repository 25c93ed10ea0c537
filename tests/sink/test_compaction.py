"""The result of a compaction: the same rows, columns and options, in fewer files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.audit import look_at_files, visible_files
from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import CommitLog, Compactor, DataFile, Disk, Layout, encode, read_entries, read_table
from downspout.sink import compact as merge_module
from downspout.sink.compact import OUTWEIGHS, SMALL_BYTES, Source, alike, check, merge, plan
from downspout.sink.layout import logged
from tests.sink.compaction_support import compact, expected, flush, opened, plain, rows, through_the_log, write
from tests.sink.support import rows_of, sink, tup


def names(directory: Path) -> list[str]:
    return [path.relative_to(directory).as_posix() for path in visible_files(directory)]


def fill(directory: Path, count: int = 3) -> Path:
    for number in range(count):
        flush(directory, range(number * 10, number * 10 + 10), f"w{number}")
    return directory


# --- one file of several -----------------------------------------------------------------------------------


def encoded(table: pa.Table, codec: str) -> bytes:
    return encode([table], table.schema, codec)


def source(table: pa.Table, name: str = "part-a-0.parquet", codec: str = "zstd") -> Source:
    """Return a table as a sink would have written it."""
    content = encoded(table, codec)
    return Source(DataFile(name, table.num_rows, len(content)), content)


def all_types(start: int) -> pa.Table:
    """Return rows of every type that a sink writes, with nulls, NaN and empty lists, and a column of nulls alone."""
    numbers = list(range(start, start + 4))
    return pa.table(
        {
            "text": pa.array(["é", None, "", str(start)]),
            "bytes": pa.array([b"\x00", None, b"", b"x"]),
            "small": pa.array(numbers, pa.int8()),
            "float": pa.array([math.nan, None, -0.0, start], pa.float32()),
            "decimal": pa.array([None, 1, 2, 3], pa.decimal128(38, 2)),
            "day": pa.array(numbers, pa.date32()),
            "time": pa.array(numbers, pa.timestamp("us", "UTC")),
            "list": pa.array([[], None, [None], [1.5, math.nan]], pa.list_(pa.float64())),
            "texts": pa.array([["a", None], [], None, ["b"]], pa.list_(pa.string())),
            "nothing": pa.array([None] * 4, pa.string()),
            "flag": pa.array([True, None, False, True]),
        }
    )


@pytest.mark.parametrize("codec", ["zstd", "snappy", "none", "gzip"])
def test_a_merged_file_is_what_the_sink_would_have_written(codec: str) -> None:
    tables = [all_types(0), all_types(10).slice(0, 0), all_types(20)]
    required = tables[0].schema.set(2, pa.field("small", pa.int8(), nullable=False))
    tables = [pa.Table.from_arrays(table.columns, schema=required) for table in tables]
    # Arrow's name of a list's items is not Parquet's, so files with lists differ in a word that no reader sees.
    flat = [table.drop_columns(["list", "texts"]) for table in tables]
    assert merge([source(table, codec=codec) for table in flat]) == encoded(pa.concat_tables(flat), codec)
    merged = pq.ParquetFile(pa.BufferReader(merge([source(table, codec=codec) for table in tables])))
    wanted = pq.ParquetFile(pa.BufferReader(encoded(pa.concat_tables(tables), codec)))
    assert merged.schema_arrow.equals(wanted.schema_arrow, check_metadata=True)
    assert merged.schema.equals(wanted.schema)
    for column in range(merged.metadata.num_columns):
        ours, theirs = (file.metadata.row_group(0).column(column) for file in (merged, wanted))
        assert (ours.compression, ours.encodings) == (theirs.compression, theirs.encodings)
        assert ours.statistics.to_dict() == theirs.statistics.to_dict()
    assert repr(merged.read().to_pylist()) == repr(wanted.read().to_pylist())  # NaN equals itself in words


def test_metadata_of_the_schema_stays(tmp_path: Path) -> None:
    """What a schema says of itself and of its columns is in the merged file too."""
    field = pa.field("n", pa.int64(), metadata={"unit": "ms"})
    table = pa.table({"n": pa.array([1, 2])}, schema=pa.schema([field], metadata={"by": "hand"}))
    path = tmp_path / "merged.parquet"
    path.write_bytes(merge([source(table), source(table)]))
    found = pq.read_schema(path)
    assert (found.metadata[b"by"], found.field("n").metadata[b"unit"]) == (b"hand", b"ms")


def test_row_groups_are_filled_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small row groups become large ones, no larger than the limit in rows and in bytes; rows keep their order."""
    tables = [pa.table({"n": pa.array(range(start, start + 40))}) for start in range(0, 400, 40)]
    for limit, value, groups in (("ROW_GROUP_ROWS", 100, 5), ("ROW_GROUP_BYTES", 1100, 4), ("ROW_GROUP_ROWS", 7, 60)):
        with monkeypatch.context() as patch:
            patch.setattr(merge_module, limit, value)
            made = pq.ParquetFile(pa.BufferReader(merge([source(table) for table in tables])))
            assert made.metadata.num_row_groups == groups
            assert made.read()["n"].to_pylist() == list(range(400))


def test_only_files_alike_are_merged() -> None:
    """Files whose schemas differ, if only in a null or a name, or whose codecs do, are left apart."""
    number, other = pa.table({"n": [1]}), pa.table({"n": [2]})
    nullable = pa.Table.from_arrays([pa.array([1])], schema=pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    marked = number.replace_schema_metadata({"a": "b"})
    files = [source(number), source(nullable), source(other), source(marked), source(number, codec="gzip")]
    assert [[files.index(one) for one in group] for group in alike(files)] == [[0, 2], [1], [3], [4]]


def wrong(table: pa.Table, column: str, value: Any) -> pa.Table:
    """Return the table with one value of a column replaced."""
    at = table.column_names.index(column)
    values = [value, *table.column(column).to_pylist()[1:]]
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def test_a_merge_that_went_wrong_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged file that lacks a row, has one twice, or has another's identity, is given up with an error, and the
    directory is as it was."""
    directory = fill(tmp_path / "out")
    good = merge

    def spoiled(change: Any) -> Any:
        def made(sources: Sequence[Source]) -> bytes:
            return encoded(change(pq.ParquetFile(pa.BufferReader(good(sources))).read()), "zstd")

        return made

    for change in (
        lambda table: table.slice(1),
        lambda table: pa.concat_tables([table.slice(1), table.slice(1, 1)]),
        lambda table: wrong(table, "_offset", 77),
        lambda table: wrong(table, "_path", "x"),
        lambda table: table.drop_columns(["value"]),
    ):
        monkeypatch.setattr("downspout.sink.compact.merge", spoiled(change))
        with pytest.raises(SinkError, match="not written correctly"):
            compact(directory)
        assert plain(directory) == expected(range(30))
        assert (len(read_entries(directory)), look_at_files(directory).leftovers) == (3, 0)


def test_files_without_origins_are_compared_by_their_values() -> None:
    """Where rows have no identity, a changed value is noticed."""
    table = pa.table({"word": ["a", "b"], "count": [1, 2], "mean": [0.5, math.nan]})
    files = [source(table), source(table)]
    check(files, source(pa.concat_tables([table, table])), "x")
    with pytest.raises(SinkError, match="column count differs"):
        check(files, source(pa.concat_tables([table, wrong(table, "count", 9)])), "x")


# --- the plan ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["", "a=1/", "a=1/b=2/"]), st.integers(0, 300)), max_size=60))
def test_a_plan_keeps_to_its_rules(sizes: list[tuple[str, int]]) -> None:
    """No file stands in a plan twice, nor one that is large enough; each bin is of one folder, fits the target, has
    two files at least, in the order of the log, and none that outweighs the rest."""
    files = [DataFile(f"{folder}{n}", 1, size * SMALL_BYTES) for n, (folder, size) in enumerate(sizes)]
    bins = plan(files, 100 * SMALL_BYTES)
    chosen = [file for one in bins for file in one]
    assert len(set(chosen)) == len(chosen)
    for one in bins:
        assert len({file.path.rpartition("/")[0] for file in one}) == 1
        assert len(one) > 1
        assert sum(file.bytes for file in one) <= 100 * SMALL_BYTES
        assert [files.index(file) for file in one] == sorted(files.index(file) for file in one)
        weights = sorted(max(file.bytes, SMALL_BYTES) for file in one)
        assert weights[-1] <= OUTWEIGHS * sum(weights[:-1])


def test_compacting_after_each_flush_rewrites_little() -> None:
    """With a compaction after each of a thousand flushes, a byte is written some ten times and not five hundred, and
    the files stay few."""
    files: list[DataFile] = []
    written = 0
    for number in range(1000):
        files.append(DataFile(f"f{number}", 1, SMALL_BYTES))
        for one in plan(files, 10_000 * SMALL_BYTES):
            size = sum(file.bytes for file in one)
            written += size
            files = [file for file in files if file not in one] + [DataFile(f"c{number}-{size}", len(one), size)]
        assert len(files) < 16
    assert sum(file.bytes for file in files) == 1000 * SMALL_BYTES
    assert written < 15 * 1000 * SMALL_BYTES


class CountedSize(int):
    """A size that counts how often it is compared with the room in a bin."""

    comparisons = 0

    def __le__(self, other: int) -> bool:
        CountedSize.comparisons += 1
        return int(self) <= other


def test_many_files_that_fit_no_common_bin_are_planned_in_linear_time() -> None:
    """Files of more than half the target each need a bin of their own; a file is compared with some bins, not all."""
    CountedSize.comparisons = 0
    files = [DataFile(f"f{number}", 1, CountedSize(60 * SMALL_BYTES)) for number in range(3_000)]
    assert plan(files, 100 * SMALL_BYTES) == []
    assert CountedSize.comparisons < 250 * len(files)


# --- a directory -------------------------------------------------------------------------------------------


def test_small_files_become_one_in_each_folder(tmp_path: Path) -> None:
    """Each folder has one file afterwards, with the same rows in the order of the log; a second run finds nothing."""
    directory = fill(tmp_path / "out", 5)
    before = plain(directory)
    done = compact(directory)
    assert (done.files_before, done.files_after, done.merged, done.made) == (10, 2, 10, 2)
    assert plain(directory) == through_the_log(directory) == before
    values = pq.ParquetFile(next(visible_files(directory / "month=0"))).read()["value"].to_pylist()
    assert values == [offset for offset in range(50) if offset % 3 < 2]
    again = compact(directory)
    assert (again.made, again.files_after, len(read_entries(directory))) == (0, 2, 7)
    assert audit(directory).verdict.startswith("exact: 50 offsets")


def test_folders_with_escapes_stay_what_they_are(tmp_path: Path) -> None:
    """Values of Hive folders that need escaping, and nulls, have their file in the same folder as before."""
    values = ["../up", "a=b", "%41", None, "é/\x00", "x" * 80]
    for start in (0, 10):
        bolt = sink(
            ParquetBolt, tmp_path, fields=["origin", "n", "kind"],
            **{"parquet.schema": ["n:int64", "kind:string"], "parquet.partition_by": ["kind"]},
        )  # fmt: skip
        for number, value in enumerate(values):
            bolt.process(tup(("t", "id", 0, start + number, ""), start + number, value))
        bolt.drain()
    folders = {name.partition("/")[0] for name in names(tmp_path)}
    assert len(folders) == len(values)
    assert compact(tmp_path).made == len(values)
    assert sorted(name.partition("/")[0] for name in names(tmp_path)) == sorted(folders)
    assert audit(tmp_path).exit_code == 0
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [*range(6), *range(10, 16)]


@pytest.mark.slow
def test_aggregates_are_compacted_and_audited(tmp_path: Path) -> None:
    """Partial aggregates are put together, and the audit knows still which offsets they hold; and that they are gone
    with the file that took their place."""

    def add_up(offsets: Sequence[int]) -> None:
        settings = {"schema": ["word:string", "x:float64"], "keys": ["word"], "aggregates": ["count", "sum:x"]}
        conf = {f"parquet.{name}": value for name, value in settings.items()}
        bolt = sink(AggregateBolt, tmp_path, fields=["origin", "word", "x"], **conf)
        for offset in offsets:
            bolt.process(tup(("t", "id", 0, offset, ""), f"w{offset % 2}", 0.5))
        bolt.drain()

    for start in (0, 5, 10):
        add_up(range(start, start + 8))  # three of them are there already
    assert compact(tmp_path).made == 1
    add_up(range(15, 20))
    assert compact(tmp_path).made == 1
    report = audit(tmp_path)
    assert (report.exit_code, report.found.aggregates) == (0, True)
    assert report.verdict.startswith("exact: 20 offsets are added up")
    assert sum(row["count"] for row in rows_of(tmp_path)) == 20
    (name,) = names(tmp_path)
    replaced = next(Layout(tmp_path).replaced.glob("part-compact-*"))
    os.link(replaced, again := tmp_path / logged(replaced.name))
    assert audit(tmp_path).partitions[0].offsets == {"duplicate": [(0, 18)]}
    (tmp_path / name).unlink()
    assert audit(tmp_path).partitions[0].offsets == {"missing": [(18, 20)]}
    again.unlink()
    assert audit(tmp_path).partitions[0].offsets == {"missing": [(0, 20)]}


def test_files_that_are_large_enough_stay(tmp_path: Path) -> None:
    """A file of the target size or more is neither read nor replaced."""
    directory = fill(tmp_path / "out")
    largest = max(path.stat().st_size for path in visible_files(directory))
    before = names(directory)
    assert compact(directory, target_bytes=largest // 2).made == 0
    assert names(directory) == before


def test_replaced_files_and_snapshots_are_deleted_when_they_are_old(tmp_path: Path) -> None:
    """What was replaced, and what a reader had frozen, stays for a while and is then deleted; nothing else is."""
    directory = fill(tmp_path / "out")
    compact(directory)
    snapshot = Layout(directory).snapshots / "a" / "month=0"
    snapshot.mkdir(parents=True)
    (snapshot / "part-w0-0.parquet").write_bytes(b"x")
    assert compact(directory).deleted == 0
    assert len(list(Layout(directory).replaced.rglob("*.hidden"))) == 6
    done = compact(directory, keep_s=0.0)
    assert (done.deleted, done.snapshots) == (6, 1)
    assert not any(Layout(directory).snapshots.iterdir())
    assert not list(Layout(directory).replaced.rglob("*.hidden"))
    assert plain(directory) == expected(range(30))
    assert audit(directory).exit_code == 0


def test_an_old_file_is_kept_from_the_day_it_was_replaced(tmp_path: Path) -> None:
    directory = fill(tmp_path / "out")
    for path in visible_files(directory):
        os.utime(path, (1, 1))
    done = compact(directory, keep_s=3600.0)
    assert (done.merged, done.deleted) == (6, 0)


def test_what_is_settled_is_forgotten_by_the_log(tmp_path: Path) -> None:
    """The list of files that may still be in sight does not grow with each compaction."""
    directory = fill(tmp_path / "out")
    for number in range(5):
        flush(directory, [100 + number * 2, 101 + number * 2], f"v{number}")
        compact(directory)
    log = CommitLog(directory)
    log.refresh()
    assert len(log.removed) <= 4
    assert log.rows == 40


def test_a_removed_file_that_lingers_is_not_settled(tmp_path: Path) -> None:
    """A removed file that came into sight late is not struck off the list, and the next start moves it away."""
    directory = fill(tmp_path / "out")
    late = Path("month=0") / "part-w1-0.parquet"

    class Late(Disk):
        def rename(self, source: Path, target: Path) -> None:
            if source != directory / late:  # a slow writer brings it into sight just behind us
                super().rename(source, target)

    done = Compactor(directory, disk=Late(), say=lambda line: None).run()
    assert done.made == 2
    assert [entry.gone_before for entry in read_entries(directory)][3:] == [3, 3]
    assert plain(directory) != expected(range(30))
    opened(directory, "next")
    assert plain(directory) == expected(range(30))


def test_what_is_settled_is_durable(tmp_path: Path) -> None:
    """Between the last file that was moved out of a folder and the entry that says so, the folder is forced to the
    disk: a power cut would bring the file back, and nobody would know it any more."""
    directory, steps = fill(tmp_path / "out"), list[tuple[str, str]]()

    def place(path: Path) -> str:
        return path.relative_to(tmp_path).as_posix().removeprefix("out/")

    class Noting(Disk):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            steps.append(("moved from", place(source.parent)))

        def sync(self, path: Path) -> None:
            steps.append(("sync", place(path)))

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            steps.append(("entry", target.stem[-1]))

    Compactor(directory, disk=Noting(), say=lambda line: None).run()
    assert read_entries(directory)[4].gone_before == 4
    before = steps[: steps.index(("entry", "4"))]
    last_move = max(at for at, step in enumerate(before) if step == ("moved from", "month=0"))
    assert ("sync", "month=0") in before[last_move:]


def test_a_paused_writer_whose_file_was_compacted_and_deleted_goes_on(tmp_path: Path) -> None:
    """A writer that wakes between its entry and its rename, when its file was merged and deleted for its age, has
    nothing to complain of."""
    directory = fill(tmp_path / "out")

    class Paused(Disk):
        def rename(self, source: Path, target: Path) -> None:
            if "part-paused" in source.name and "staging" in source.parts:
                compact(directory, keep_s=0.0)
            super().rename(source, target)

    made = opened(directory, "paused", Paused())
    assert write(made, range(30, 40)).rows == 10
    assert plain(directory) == through_the_log(directory) == expected(range(40))


# --- errors ------------------------------------------------------------------------------------------------


def test_what_is_no_sinks_directory_is_refused(tmp_path: Path) -> None:
    """No directory, one without a log, and one of Spark's are told apart, and nothing is made in them."""
    (tmp_path / "spark" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name, match in (("none", "does not exist"), ("empty", "no commit log"), ("spark", "Spark streaming query")):
        with pytest.raises(SinkError, match=match):
            compact(tmp_path / name)
        with pytest.raises(SinkError, match=match):
            Compactor(tmp_path / name).plan()
    assert {path.name for path in tmp_path.rglob("*")} == {"spark", "_spark_metadata", "empty"}


def test_a_file_that_is_not_as_logged_is_not_merged(tmp_path: Path) -> None:
    """A file with other rows than the log says, or that is no Parquet, stops the compaction before anything is made
    of it."""
    directory = fill(tmp_path / "out")
    path = next(visible_files(directory))
    content = path.read_bytes()
    for damaged in (encoded(rows(range(3))[1].drop_columns(["month"]), "zstd"), content[:-10], b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(SinkError, match=path.name):
            compact(directory)
        assert len(read_entries(directory)) == 3
    path.write_bytes(content)
    assert compact(directory).made == 2


def test_missing_files_are_an_error_until_they_are_forgotten(tmp_path: Path) -> None:
    """A file that is gone is an error that says how to go on; forgotten, it stops nobody, its rows stay missing for
    the audit, and replays of them are not written."""
    directory = fill(tmp_path / "out")
    path = directory / "month=1" / "part-w1-0.parquet"
    path.unlink()
    with pytest.raises(SinkError, match="--forget-missing"):
        compact(directory)
    done = compact(directory, forget_missing=True)
    assert done.forgotten == ["month=1/part-w1-0.parquet"]
    flush(directory, range(30), "replay")
    gone = [offset for offset in range(10, 20) if offset % 3 == 2]
    assert plain(directory) == through_the_log(directory) == expected(set(range(30)) - set(gone))
    report = audit(directory)
    assert report.exit_code == 10
    assert sum(part.count("missing") for part in report.partitions) == len(gone)
    assert any("--forget-missing" in note for note in report.notes)
    assert compact(directory, forget_missing=True).forgotten == []


def test_a_forgotten_file_that_is_put_back_is_told_as_what_it_is(tmp_path: Path) -> None:
    """A file that was forgotten and is there again is extra to the audit; neither sink nor compaction takes it in."""
    directory = fill(tmp_path / "out")
    path = directory / "month=1" / "part-w1-0.parquet"
    content = path.read_bytes()
    path.unlink()
    compact(directory, forget_missing=True)
    compact(directory)
    path.write_bytes(content)
    assert audit(directory).exit_code == 13
    for use in (lambda: compact(directory), lambda: opened(directory, "next")):
        with pytest.raises(SinkError, match=r"was forgotten with --forget-missing \(entry \d+\), but exists again"):
            use()
    path.unlink()
    compact(directory)


def test_pages_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    """A file whose values cannot be decoded is named, by compaction and by readers, and nothing is replaced."""
    directory = fill(tmp_path / "out")
    path = min(visible_files(directory))
    content = bytearray(path.read_bytes())
    at = content.index(b"\x28\xb5\x2f\xfd")  # where a page of zstd begins
    content[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    before = len(read_entries(directory))
    with pytest.raises(SinkError, match=path.name):
        compact(directory)
    with pytest.raises(SinkError, match=path.name):
        read_table(directory)
    assert len(read_entries(directory)) == before
