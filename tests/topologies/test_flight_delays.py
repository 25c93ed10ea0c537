"""The topology on a slice of the real flights: exact, whatever is run again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from demos.audit import check_coverage, check_values, read_rows
from demos.flights_data import TOPIC, Flights, reference_route_hours
from downspout.testing import FakeKafka
from tests.topologies.slices import COUNT, finished_route_hours, run_flight_delays

pytestmark = pytest.mark.fake_only("runs a topology in virtual time; tests/spark/test_demo.py has it in real time")


def assert_exact(output: Path, frame: pd.DataFrame, flights: Flights) -> None:
    """Every flight is there once with the package's values, and the aggregates are pandas'."""
    rows = read_rows(output / "flights")
    coverage = check_coverage(rows, [len(part) for part in flights.rows])
    assert coverage.right, coverage.text
    values = check_values(rows, frame, flights)
    assert values.right, values.text
    pd.testing.assert_frame_equal(
        finished_route_hours(output), reference_route_hours(frame), check_dtype=False, check_exact=True
    )


@pytest.mark.slow
def test_every_flight_once(output: Path, frame: pd.DataFrame, flights: Flights) -> None:
    """One run brings all flights into the files, and their delays into the aggregates."""
    assert_exact(output, frame, flights)


def test_flights_are_in_folders_by_month(output: Path) -> None:
    """The rows are in Hive folders, with the enriched columns and the identity of each."""
    (file, *_) = (output / "flights").glob("month=1/*.parquet")
    names = pq.read_schema(file).names
    assert {"airline", "to_name", "manufacturer", "scheduled_at", "_offset", "_topic_id"} <= set(names)
    assert "month" not in names


def test_replay_changes_nothing(output: Path, kafka: FakeKafka, frame: pd.DataFrame, flights: Flights) -> None:
    """All flights read once more, by another group, add no row and no count."""
    result = run_flight_delays(kafka, output, group="again")
    assert result.completed == COUNT
    assert result.reports["flights"]["covered"] == COUNT
    assert result.reports["flights"]["rows"] == 0
    assert_exact(output, frame, flights)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 700, 2_000])
def test_a_run_continues_where_one_stopped(
    kafka: FakeKafka, tmp_path: Path, frame: pd.DataFrame, flights: Flights, first: int
) -> None:
    """A run that stopped early, and one that goes on to the end, together make each flight once."""
    assert run_flight_delays(kafka, tmp_path, run__records=first).completed >= first
    run_flight_delays(kafka, tmp_path)
    assert_exact(tmp_path, frame, flights)


@pytest.mark.slow
def test_flushes_of_any_size_add_up(kafka: FakeKafka, tmp_path: Path, frame: pd.DataFrame, flights: Flights) -> None:
    """Many small flushes leave many partial aggregates and the same result."""
    run_flight_delays(kafka, tmp_path, run__until="end", parquet__flush_rows=100, kafka__chunk_records_max=100)
    assert len(list((tmp_path / "route_delays").glob("*.parquet"))) > 20
    assert_exact(tmp_path, frame, flights)


@pytest.mark.slow
def test_bad_records_among_flights_are_dead_lettered(
    kafka: FakeKafka, tmp_path: Path, frame: pd.DataFrame, flights: Flights
) -> None:
    """Corrupt JSON and a tombstone among the flights cost no flight and end neither run nor partition."""
    for value in (b"{", None, b"[]"):
        kafka.produce(TOPIC, value, b"UA", partition=1)
    result = run_flight_delays(kafka, tmp_path)
    assert (result.reports["spout"]["dead_lettered"], result.reports["parse"]["filtered"]) == (2, 1)
    letters = kafka.records("g.dead-letters")
    assert sorted(letter.value or b"" for letter in letters) == [b"[]", b"{"]
    assert_exact(tmp_path, frame, flights)
