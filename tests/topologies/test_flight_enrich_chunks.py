"""FlightEnrichBolt on chunks: the same output as for its flights one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.engine import Component, Graph, Input, OutputStream, component_of
from downspout.origins import ORIGIN, origins
from downspout.testing import TopologyResult, run_topology
from tests.parse.support import Chunks
from tests.sampling import examples
from topologies.flight_enrich import (
    ADDED_FIELDS,
    FLIGHT_FIELDS,
    ArrowTables,
    FlightEnrichBolt,
    enrich,
    load_tables,
    package_directory,
)

TEXTS = {"time_hour", "carrier", "tailnum", "from_airport", "to_airport"}
SCHEMA = pa.schema([(name, pa.string() if name in TEXTS else pa.int16()) for name in FLIGHT_FIELDS])
TABLES = load_tables(package_directory())
ARROW = ArrowTables(TABLES)


def codes(table: Any) -> st.SearchStrategy[str | None]:
    return st.none() | st.sampled_from(sorted(table)) | st.sampled_from(["", "??", "é", "NA"])


flights = st.fixed_dictionaries(
    {
        "time_hour": st.none() | st.sampled_from(["2013-01-01T10:00:00Z", "", "2013", "2013-01-01é10:00:00Z"]),
        "minute": st.none() | st.integers(-(2**15), 2**15 - 1) | st.integers(0, 59),
        "carrier": codes(TABLES.airlines),
        "tailnum": codes(TABLES.planes),
        "from_airport": codes(TABLES.airports),
        "to_airport": codes(TABLES.airports),
    }
)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(rows=st.lists(flights, max_size=8))
def test_columns_are_what_rows_give(rows: list[dict[str, Any]]) -> None:
    """Each row of the added columns equals what the function for one flight returns, to the bit."""
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(FLIGHT_FIELDS) | row for row in rows], schema=SCHEMA)
    added = [list(values) for values in zip(*(column.to_pylist() for column in ARROW.enrich(batch)), strict=True)]
    assert repr(added) == repr(
        [enrich(SimpleNamespace(**(dict.fromkeys(FLIGHT_FIELDS) | row)), TABLES) for row in rows]
    )


def run(batches: list[pa.RecordBatch]) -> TopologyResult:
    fields = ("origin", *FLIGHT_FIELDS)
    source = type("Source", (Chunks,), {"given": batches})
    bolt = component_of(FlightEnrichBolt.spec())
    graph = {
        "source": Component("source", source, streams={"default": OutputStream("default", fields)}),
        "bolt": Component("bolt", bolt.cls, 1, bolt.config, bolt.streams, (Input("source", "default"),)),
    }
    return run_topology(Graph("enriching", graph))


def chunk_of(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(FLIGHT_FIELDS) | row for row in rows], schema=schema)
    return pa.RecordBatch.from_arrays(
        [origins("flights", "id", 0, range(len(rows))), *batch.columns],
        schema=pa.schema([pa.field("origin", ORIGIN), *schema]),
    )


def test_a_chunk_stays_a_chunk() -> None:
    """The bolt emits the flights with the added fields behind them, under the same origins."""
    rows = [
        {"carrier": "UA", "from_airport": "EWR", "to_airport": "IAH", "minute": 5, "time_hour": "2013-01-01T10:00:00Z"}
    ]
    (made,) = run([chunk_of(rows * 3)]).emitted("bolt")
    assert made.schema.names == list(FlightEnrichBolt.outputs)
    assert made.column("scheduled_at").to_pylist() == ["2013-01-01T10:05:00Z"] * 3
    assert made.column("origin").field("offset").to_pylist() == [0, 1, 2]
    assert set(ADDED_FIELDS) < set(made.schema.names)


@pytest.mark.parametrize("minutes", [[], [5.0, 6.0]])
def test_what_raises_for_a_flight_fails_it_in_a_chunk(minutes: list[float]) -> None:
    """A column of another type is looked at flight by flight: those that raise alone fail, and no others."""
    schema = pa.schema([field if field.name != "minute" else pa.field("minute", pa.float64()) for field in SCHEMA])
    rows: list[dict[str, Any]] = [{"time_hour": "2013-01-01T10:00:00Z", "minute": minute} for minute in minutes]
    result = run([chunk_of([*rows, {"carrier": "UA", "time_hour": None}], schema)])
    (source,) = result.components["source"]
    assert source.given_up == list(range(len(minutes)))
    (made,) = result.emitted("bolt")
    assert made.column("airline").to_pylist() == ["United Air Lines Inc."]
