"""Schemas that grow: old and new writers into one directory, and one table for its readers."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.cli import main
from downspout.errors import SinkError
from downspout.sink import DirectoryState, read_table
from downspout.sink.log import logged_columns
from downspout.sink.schema import refusals
from tests.sink.support import TOPIC, TOPIC_ID, sink, tup, write

OLD, NEW = ["n:int32", "word:string"], ["n:int64", "word:string", "price:decimal(9,2)"]


def numbers(directory: Path) -> list[Any]:
    return sorted(read_table(directory).column("n").to_pylist())


def test_a_column_is_added_and_another_widens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Readers through the log get one table, with nulls for what older rows lack; the audit is exact."""
    directory = tmp_path / "out"
    write(directory, OLD, range(3), lambda n: (n, f"w{n}"))
    write(directory, NEW, range(3, 6), lambda n: (2**40 + n, f"w{n}", n))
    table = read_table(directory)
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("n", "int64"), ("word", "string"), ("price", "decimal128(9, 2)"),
    ]  # fmt: skip
    assert table.column("price").null_count == 3
    assert numbers(directory) == [0, 1, 2, *(2**40 + n for n in range(3, 6))]
    assert read_table(directory, ["price"], [("price", ">", Decimal("3.00"))]).num_rows == 2
    assert read_table(directory, ["n"], [("n", "<", 2)]).num_rows == 2
    assert main(["audit", str(directory), "--files-only", "--deep"]) == 0
    assert "6" in capsys.readouterr().out


def test_a_plain_reader_merges_schemas(tmp_path: Path) -> None:
    """Without the log, Polars reads a directory to which a column was added, when it is told to."""
    directory = tmp_path / "out"
    write(directory, OLD, range(3), lambda n: (n, "w"))
    write(directory, [*OLD, "price:float64"], range(3, 6), lambda n: (n, "w", 1.5))
    plain = pl.scan_parquet(f"{directory}/*.parquet", missing_columns="insert", extra_columns="ignore").collect()
    assert sorted(plain["n"].to_list()) == list(range(6))


def test_old_and_new_write_at_once(tmp_path: Path) -> None:
    """A process of the old topology goes on beside the new one, also one that is started again; no row is lost."""
    directory = tmp_path / "out"
    bolts = [
        sink(ParquetBolt, directory, fields=["origin", *(word.partition(":")[0] for word in schema)],
             **{"parquet.schema": schema})
        for schema in (OLD, NEW)
    ]  # fmt: skip
    for offset in range(6):
        old, new = bolts
        old.process(tup((TOPIC, TOPIC_ID, 0, offset, ""), offset, "w"))
        old.drain()
        new.process(tup((TOPIC, TOPIC_ID, 1, offset, ""), 10 + offset, "w", 1))
        new.drain()
    write(directory, OLD, range(6, 8), lambda n: (n, "w"))
    write(directory, NEW, range(8), lambda n: (n, "w", 7))  # again, by the other: they are there
    assert numbers(directory) == [*range(8), *range(10, 16)]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (["n:int32"], "word is dropped"),
        (["n:int32", "words:string"], "word is dropped"),
        (["n:int16", "word:string"], "n narrows from int32 to int16"),
        (["n:string", "word:string"], "n changes from int32 to string"),
        (["n:int32!", "word:string"], "n becomes required, but older rows may have nulls"),
        ([*OLD, "m:int8!"], "m is new and required, but older rows lack it"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(tmp_path: Path, schema: list[str], said: str) -> None:
    """A column that is dropped, renamed, narrowed or required stops the sink; the directory is as before."""
    directory = tmp_path / "out"
    write(directory, OLD, range(3), lambda n: (n, "w"))
    with pytest.raises(SinkError, match="has the columns") as caught:
        write(directory, schema, [], lambda n: ())
    assert said in str(caught.value)
    assert "parquet.rebuild=1" in str(caught.value)
    assert numbers(directory) == [0, 1, 2]
    write(directory, OLD, range(3, 4), lambda n: (n, "w"))


def test_of_two_that_grow_apart_the_second_is_refused(tmp_path: Path) -> None:
    """Two topologies that each add another column cannot both go on: the second would drop the first one's."""
    directory = tmp_path / "out"
    write(directory, OLD, range(2), lambda n: (n, "w"))
    write(directory, [*OLD, "a:int8"], range(2, 4), lambda n: (n, "w", 1))
    with pytest.raises(SinkError, match="a is dropped"):
        write(directory, [*OLD, "b:int8"], [], lambda n: ())


def test_folders_and_sums_stay_as_they_are(tmp_path: Path) -> None:
    """A column that names folders keeps its type, and an aggregate all its columns."""
    write(tmp_path / "a", OLD, range(2), lambda n: (n, "w"), **{"parquet.partition_by": ["n"]})
    with pytest.raises(SinkError, match="n names folders and changes from int32 to int64"):
        write(tmp_path / "a", NEW, [], lambda n: (), **{"parquet.partition_by": ["n"]})
    write(tmp_path / "a", [*OLD, "m:int8"], [2], lambda n: (n, "w", 3), **{"parquet.partition_by": ["n"]})
    assert sorted(read_table(tmp_path / "a").column("m").to_pylist(), key=str) == [3, None, None]
    sums = {"parquet.keys": ["word"], "parquet.aggregates": ["count"]}
    for place, schema in enumerate((OLD, ["n:int64", "word:string"])):
        make = {"fields": ["origin", "n", "word"], "parquet.schema": schema, **sums}
        if place:
            with pytest.raises(SinkError, match="the columns of an aggregate stay as they are"):
                sink(AggregateBolt, tmp_path / "b", **make)
        else:
            bolt = sink(AggregateBolt, tmp_path / "b", **make)
            bolt.process(tup((TOPIC, TOPIC_ID, 0, 0, ""), 1, "w"))
            bolt.drain()


def test_a_compaction_keeps_versions_apart(tmp_path: Path) -> None:
    """Files of one version are merged with one another, no row changes, and the audit is exact."""
    directory = tmp_path / "out"
    for offset in range(0, 12, 2):
        schema = OLD if offset < 6 else NEW
        write(directory, schema, [offset, offset + 1], lambda n, s=schema: (n, "w", 1)[: len(s)])
    assert main(["compact", str(directory)]) == 0
    assert numbers(directory) == list(range(12))
    assert read_table(directory).column("price").null_count == 6
    assert main(["audit", str(directory), "--files-only", "--deep"]) == 0
    write(directory, NEW, [12], lambda n: (n, "w", 1))
    assert numbers(directory) == list(range(13))


def test_checkpoints_know_all_versions() -> None:
    history = DirectoryState()
    history.length, history.topology, history.component = 1, "t", "sink"
    history.schemas = (tuple(OLD), tuple(NEW))
    found = DirectoryState()
    found.restore(history.to_bytes())
    assert (found.schema, found.schemas) == (history.schema, history.schemas)


def test_a_table_grows_with_the_directory(tmp_path: Path) -> None:
    """An export goes on after a column was added and another became wider: Iceberg takes both, Delta the column."""
    from deltalake import DeltaTable

    from downspout.tables import open_catalog

    directory = tmp_path / "out"
    for form in ("--iceberg", "--delta"):
        place = f"{directory}.{form.strip('-')}"
        later = NEW if form == "--iceberg" else [*OLD, "price:decimal(9,2)"]
        write(directory / form, OLD, range(3), lambda n: (n, "w"))
        assert main(["export", str(directory / form), form, "--to", place]) == 0
        write(directory / form, later, range(3, 6), lambda n: (n, "w", 1))
        assert main(["export", str(directory / form), form, "--to", place]) == 0
    table = open_catalog(None, f"{directory}.iceberg").load_table("downspout.--iceberg").scan().to_arrow()
    assert sorted(table.column("n").to_pylist()) == list(range(6))
    assert table.column("price").null_count == 3
    found = DeltaTable(f"{directory}.delta").to_pyarrow_table()
    assert sorted(found.column("n").to_pylist()) == list(range(6))
    assert found.column("price").null_count == 3


def test_a_delta_table_does_not_widen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The export stops, names the column and the cure, and the table is as before."""
    directory = tmp_path / "out"
    write(directory, OLD, range(3), lambda n: (n, "w"))
    assert main(["export", str(directory), "--delta"]) == 0
    write(directory, NEW, range(3, 6), lambda n: (n, "w", 1))
    assert main(["export", str(directory), "--delta"]) == 7
    assert "has n as int32; it is int64 now" in capsys.readouterr().err
    assert main(["export", str(directory), "--delta", "--to", f"{directory}.wide"]) == 0
    assert "6 rows of 2 files" in capsys.readouterr().out


KINDS = ["int8", "int16", "int32", "int64"]


@settings(max_examples=40)
@given(data=st.data())
def test_each_row_is_there_once_in_any_order_of_changes(data: st.DataObject) -> None:
    """Any allowed growth, writers of all versions by turns, and replays: each row once, with its values."""
    with tempfile.TemporaryDirectory() as folder:
        directory, versions, written = Path(folder, "out"), [{"n": "int8"}], {}
        for step in range(data.draw(st.integers(2, 6))):
            if data.draw(st.booleans(), "grow"):
                now = dict(versions[-1])
                name = data.draw(st.sampled_from([*now, f"c{step}"]))
                kind = now.get(name, "int8")
                now[name] = kind if name not in now else KINDS[min(KINDS.index(kind) + 1, 3)]
                versions.append(now)
            schema = data.draw(st.sampled_from(versions))
            if logged_columns(directory) is None or data.draw(st.booleans(), "newest"):
                schema = versions[-1]
            words = [f"{name}:{kind}" for name, kind in schema.items()]
            known = logged_columns(directory)
            offsets = data.draw(st.lists(st.integers(0, 9), unique=True, min_size=1))
            rows = {
                n: {name: n + 2 ** (8 * 2 ** KINDS.index(kind) - 2) for name, kind in schema.items()} for n in offsets
            }
            try:
                write(directory, words, offsets, lambda n, rows=rows: tuple(rows[n].values()))
            except SinkError:
                assert refusals(known or (), words)
                continue
            for n in offsets:
                written.setdefault(n, rows[n])
        found = read_table(directory, origins=True)
        assert sorted(found.column("_offset").to_pylist()) == sorted(written)
        for row in found.to_pylist():
            wanted = written[row["_offset"]]
            values = {name: value for name, value in row.items() if not name.startswith("_")}
            assert {name: value for name, value in values.items() if value is not None} == wanted
        assert pa.types.is_integer(found.schema.field("n").type)
