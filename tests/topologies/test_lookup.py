"""LookupBolt: lookups record by record and in columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bolts.lookup import LookupBolt, LookupTable, read_table
from downspout.engine import Component, Graph, Input, OutputStream, component_of
from downspout.errors import ConfigError, TopologyError
from downspout.origins import origins
from downspout.testing import TopologyResult, run_bolt, run_topology
from tests.parse.support import Chunks

CSV = "code,name,founded\nUA,United,1926\nAA,American,\n007,Bond,1953\n,Nothing,1\n"


@pytest.fixture(params=["csv", "parquet", "folder"])
def airlines(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "csv":
        (path := tmp_path / "airlines.csv").write_text(CSV)
        return path
    path = tmp_path / "table"
    path.mkdir()
    columns = {"code": ["UA", "AA", "007", None], "name": ["United", "American", "Bond", "Nothing"]}
    table = pa.table({**columns, "founded": pa.array([1926, None, 1953, 1], pa.int16())})
    file = path / "airlines.parquet"
    parquet.write_table(table, file)
    return path if request.param == "folder" else file


def test_a_table_is_read_alike_in_each_form(airlines: Path) -> None:
    """CSV with types, a Parquet file and a folder of them give the same rows, and a row without a key is left out."""
    types = ["founded:int16"] if airlines.suffix == ".csv" else []
    table = LookupTable(read_table(airlines, "code", ["name", "founded"], types), "code", ["name", "founded"])
    keys = ["UA", "AA", "007", "7", None, "ZZ"]
    rows = [("United", 1926), ("American", None), ("Bond", 1953), None, None, None]
    assert [table.row(key) for key in keys] == rows
    for kind in (pa.string(), pa.large_string()):  # the column's own type, and one that is looked up row by row
        added, known = table.rows(pa.array(keys, kind))
        assert [column.to_pylist() for column in added] == [[row and row[at] for row in rows] for at in (0, 1)]
        assert known.to_pylist() == [row is not None for row in rows]


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("code,name\nUA,a\nUA,b\n", "code", r"code = 'UA' stands in 2 rows"),
        ("code,name\nUA,a\n", "iata", r"has no column iata\. Try: one of code, name"),
        ("", "code", "cannot be read"),
        (None, "code", "cannot be read"),
    ],
)
def test_a_table_that_gives_no_one_answer_is_refused(tmp_path: Path, text: str | None, key: str, said: str) -> None:
    """A key that stands twice, a column that is not there and a file that cannot be read are errors with the path."""
    path = tmp_path / "airlines.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said) as raised:
        read_table(path, key, ["name"])
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": "carrier", "add": ["name"]}, "lookup.table is not set"),
        ({"table": "t.csv", "add": ["name"]}, "lookup.key is not set"),
        ({"table": "t.csv", "key": "carrier"}, "lookup.add is not set"),
        ({"table": "t.csv", "key": "carrier", "fields": ["name"], "add": ["name"]}, "'name' twice.*new_name=name"),
        ({"table": "t.csv", "key": "carrier", "fields": ["origin"], "add": ["name"]}, "origin goes on by itself"),
        ({"table": "t.csv", "key": "carrier", "add": ["name="]}, "field and a column"),
    ],
)
def test_settings_are_checked_when_the_topology_is_built(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LookupBolt.spec(**settings)


FIELDS = ("origin", "carrier", "delay")
CARRIERS = ["UA", None, "ZZ", "AA", "UA"]


def look_up(airlines: Path, in_chunks: bool, **settings: Any) -> TopologyResult:
    """Run five tuples, as records or as one chunk, through the bolt."""
    spec = LookupBolt.spec(table=str(airlines), key="carrier=code", add=["airline=name"], fields=["delay"], **settings)
    bolt = component_of(spec)
    columns = [origins("flights", "id", 0, range(5)), pa.array(CARRIERS), pa.array(range(5))]
    chunk = pa.RecordBatch.from_arrays(columns, names=list(FIELDS))
    batches = [chunk] if in_chunks else [chunk.slice(row, 1) for row in range(5)]
    source = type("Source", (Chunks,), {"given": batches})
    graph = {
        "source": Component("source", source, streams={"default": OutputStream("default", FIELDS)}),
        "bolt": Component("bolt", bolt.cls, 1, bolt.config, bolt.streams, (Input("source", "default"),)),
    }
    return run_topology(Graph("looking up", graph))


def rows(result: TopologyResult) -> list[tuple[Any, ...]]:
    """Return offset, delay and airline of each row that was emitted."""
    return [
        (origin["offset"], delay, airline)
        for batch in result.emitted("bolt")
        for origin, delay, airline in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


@pytest.mark.parametrize("in_chunks", [False, True])
def test_what_the_table_lacks_goes_on_with_nulls(airlines: Path, in_chunks: bool) -> None:
    """Each tuple goes on with what the table knows of its key, and is counted where it knows nothing."""
    result = look_up(airlines, in_chunks)
    assert rows(result) == [(0, 0, "United"), (1, 1, None), (2, 2, None), (3, 3, "American"), (4, 4, "United")]
    (bolt,) = result.components["bolt"]
    assert bolt.report()["missing"] == 2


@pytest.mark.parametrize("in_chunks", [False, True])
def test_what_the_table_lacks_is_rejected_where_that_is_asked(airlines: Path, in_chunks: bool) -> None:
    """With missing=reject the tuples without a match fail, and no others."""
    result = look_up(airlines, in_chunks, missing="reject")
    assert sorted(rows(result)) == [(0, 0, "United"), (3, 3, "American"), (4, 4, "United")]
    (source,) = result.components["source"]
    assert (sorted(source.given_up), sorted(source.acked)) == ([1, 2], [0, 3, 4])


def test_an_input_without_the_key_is_refused(airlines: Path) -> None:
    """An input that lacks the key or a field is named at the start, and so are the fields it has."""
    spec = LookupBolt.spec(table=str(airlines), key="code", add=["name"], fields=["delay"])
    with pytest.raises(TopologyError, match=r"has no field code\. Try: one of origin, delay"):
        run_bolt(spec, [{"origin": None, "delay": 1}])


def test_records_are_looked_up_as_chunks_are(airlines: Path) -> None:
    """A tuple that is one record goes on with the same values, also where its key is of another kind."""
    spec = LookupBolt.spec(table=str(airlines), key="carrier=code", add=["airline=name"], fields=["delay"])
    given: list[dict[str, Any]] = [
        {"origin": ("flights", "id", 0, row, ""), "carrier": carrier, "delay": row}
        for row, carrier in enumerate([*CARRIERS, ["UA"], 7])
    ]
    found = run_bolt(spec, given).emitted("bolt")
    assert [row.airline for row in found] == ["United", None, None, "American", "United", None, None]
    assert [row.delay for row in found] == list(range(7))
