"""The report on the flight delays, on a slice of the real flights that the topology has written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from demos.audit import check_tables
from demos.flights_data import Flights, load_flights, publish
from downspout.testing import FakeKafka
from tests.topologies.slices import run_flight_delays
from topologies import flight_delays_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.fake_only("runs a topology in virtual time; tests/spark/test_demo.py has it in real time"),
]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Days of all seasons, the one on which the clocks went back among them, and every cancelled flight of June."""
    year = load_flights()
    picked = year[year["day"].isin([3, 9]) | ((year["month"] == 6) & year["dep_delay"].isna())]
    return picked.iloc[::4].reset_index(drop=True)


@pytest.fixture(scope="module")
def output(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patch, FakeKafka("twin") as kafka:
        patch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("home")))
        publish(kafka, Flights(frame))
        run_flight_delays(kafka, directory, run__until="end", parquet__flush_rows=1_500)
        yield directory


def test_report_equals_pandas(spark: SparkSession, output: Path, frame: pd.DataFrame) -> None:
    """Every table of the report equals the one that pandas computes from the package, to the last bit."""
    tables = flight_delays_report.run(spark, output)
    assert [finding.text for finding in check_tables(tables, frame) if not finding.right] == []
    assert len(tables["weather"]) >= 5


@pytest.mark.sweep
def test_report_is_there_as_parquet(spark: SparkSession, output: Path) -> None:
    """The tables are written as Parquet, one file each, and running again replaces them."""
    first = flight_delays_report.run(spark, output)
    again = flight_delays_report.run(spark, output)
    for name, table in again.items():
        assert len(list((output / "report" / name).glob("*.parquet"))) == 1
        pd.testing.assert_frame_equal(pd.read_parquet(output / "report" / name), first[name])
        pd.testing.assert_frame_equal(table, first[name])


def test_join_keeps_every_flight(spark: SparkSession, output: Path, frame: pd.DataFrame) -> None:
    """The join with the weather neither drops nor doubles a flight, also on the day with two hours 1."""
    flights = flight_delays_report.build(spark, output, flight_delays_report.weather_file())["weather"]
    assert sum(row["flights"] for row in flights.collect()) == len(frame)


def test_worst_routes_have_enough_flights() -> None:
    """A route with few flights is not ranked, however late they were."""
    routes = pd.DataFrame({"route": ["a", "b", "c"], "flights": [400, 3, 500], "arr_delay_mean": [5.0, 300.0, 9.0]})
    assert list(flight_delays_report.worst_routes(routes)["route"]) == ["c", "a"]
    assert list(flight_delays_report.worst_routes(routes, count=1, flights_min=1)["route"]) == ["b"]
