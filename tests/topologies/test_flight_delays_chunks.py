"""The flight delays as chunks: the same tables as record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from demos.flights_data import Flights
from downspout.ledger import Origin
from downspout.origins import column_of
from downspout.testing import run_topology
from topologies.flight_delays import FlightDelays


def tables(result: Any, output: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of both sinks, in a fixed order."""
    assert result.run.reports["flights"]["rows"]
    found = []
    for name in ("flights", "route_delays"):
        rows = ds.dataset(output / "output" / name, partitioning="hive").to_table().to_pylist()
        found.append(sorted(rows, key=repr))
    return found


def run(spout: list[Any], output: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[list[dict[str, Any]]]]:
    """Run the topology over these rows or chunks, in one flush for each sink."""
    output.mkdir()
    monkeypatch.chdir(output)
    result = run_topology(FlightDelays, spouts={"spout": spout})
    return result, tables(result, output)


def test_chunks_make_the_same_tables(flights: Flights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flights, and their delays added up, are the same whether they came as records or as chunks."""
    values: list[bytes | None] = [flights.record(row).value for row in range(len(flights))]
    origins = [Origin("flights", "id", 0, offset) for offset in range(len(values))]
    records, by_record = run(
        [list(row) for row in zip(origins, values, strict=True)], tmp_path / "records", monkeypatch
    )
    chunks = [
        pa.RecordBatch.from_arrays(
            [column_of(origins[at : at + 600]), pa.array(values[at : at + 600], pa.binary())], names=["origin", "value"]
        )
        for at in range(0, len(values), 600)
    ]
    in_chunks, by_chunk = run(chunks, tmp_path / "chunks", monkeypatch)
    assert by_chunk == by_record
    assert all(isinstance(batch, pa.RecordBatch) for batch in in_chunks.emitted("enrich"))
    assert sum(batch.num_rows for batch in in_chunks.emitted("enrich")) == len(records.emitted("enrich")) == len(values)
