"""The demo's audit finds every kind of difference: it is only worth something if it can fail."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from demos.audit import RENAMED, check_coverage, check_tables, check_values
from demos.flights_data import (
    PARTITIONS,
    Flights,
    load_flights,
    read_table,
    reference_hours,
    reference_route_hours,
    reference_routes,
    reference_weather,
)

COUNT = 900


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return load_flights(COUNT)


@pytest.fixture(scope="module")
def flights(frame: pd.DataFrame) -> Flights:
    return Flights(frame)


@pytest.fixture
def rows(frame: pd.DataFrame, flights: Flights) -> pd.DataFrame:
    """What the sink would have written for them, were all right."""
    place = {row: (partition, offset) for partition, part in enumerate(flights.rows) for offset, row in enumerate(part)}
    rows = frame.rename(columns=RENAMED)
    rows["_partition"] = [place[row][0] for row in range(len(frame))]
    rows["_offset"] = [place[row][1] for row in range(len(frame))]
    rows["_topic"], rows["_topic_id"], rows["_path"] = "flights", "id", ""
    hours = pd.to_datetime(rows.pop("time_hour"), utc=True)
    rows["scheduled_at"] = hours + pd.to_timedelta(rows["minute"], unit="min")
    return rows.sample(frac=1, random_state=1)


@pytest.fixture
def ends(flights: Flights) -> list[int]:
    return [len(part) for part in flights.rows]


def test_all_right(rows: pd.DataFrame, ends: list[int], frame: pd.DataFrame, flights: Flights) -> None:
    """Complete and correct rows, in any order, pass."""
    coverage = check_coverage(rows, ends)
    assert (coverage.right, coverage.text) == (True, "900 of 900 offsets are in the files, each exactly once")
    assert check_values(rows, frame, flights).right


def test_missing_offsets_are_named(rows: pd.DataFrame, ends: list[int]) -> None:
    found = check_coverage(rows[~((rows["_partition"] == 1) & (rows["_offset"] == 7))], ends)
    assert (found.right, found.text) == (False, "offsets: 1 missing ([1]@7)")


def test_doubled_offsets_are_named(rows: pd.DataFrame, ends: list[int]) -> None:
    """Rows that are there twice are named, the first few of many."""
    doubled = rows[(rows["_partition"] == 2) & (rows["_offset"] < 5)]
    found = check_coverage(pd.concat([rows, doubled]), ends)
    assert (found.right, found.text) == (False, "offsets: 5 more than once ([2]@0, [2]@1, [2]@2, …)")


def test_offsets_that_kafka_does_not_have_are_named(rows: pd.DataFrame, ends: list[int]) -> None:
    """Rows beyond the end of a partition are named."""
    ends[3] -= 1
    found = check_coverage(rows, ends)
    assert (found.right, found.text) == (False, f"offsets: 1 beyond the end ([3]@{ends[3]})")


@pytest.mark.parametrize(("column", "value"), [("_partition", PARTITIONS), ("_path", "split.1")])
def test_rows_from_elsewhere_are_counted(rows: pd.DataFrame, ends: list[int], column: str, value: object) -> None:
    """A row of another partition, or one that is not the record's own, is no flight."""
    foreign = rows.head(1).copy()
    foreign[column] = value
    found = check_coverage(pd.concat([rows, foreign]), ends)
    assert not found.right
    assert "1 rows from elsewhere" in found.text


def test_two_lives_of_the_topic_are_told_apart(rows: pd.DataFrame, ends: list[int]) -> None:
    """Rows of a topic that was deleted and made again do not add up to one that is whole."""
    rows["_topic_id"] = ["old" if offset < 10 else "new" for offset in rows["_offset"]]
    found = check_coverage(rows, ends)
    assert (found.right, found.text) == (False, "offsets: rows of a topic that was deleted and made again")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("dep_delay", 9_999),
        ("dep_delay", None),
        ("carrier", "??"),
        ("from_airport", "XXX"),
        ("scheduled_at", pd.Timestamp("2013-12-31T00:00:00Z")),
    ],
)
def test_one_wrong_value_is_found(
    rows: pd.DataFrame, frame: pd.DataFrame, flights: Flights, column: str, value: Any
) -> None:
    """A single value that is not the package's is found, and its place named."""
    at = rows.index[(rows["_partition"] == 0) & (rows["_offset"] == 3)][0]
    rows.loc[at, column] = value
    found = check_values(rows, frame, flights)
    assert not found.right
    assert "1 values of" in found.text
    assert "[0]@3" in found.text


def test_two_swapped_rows_are_found(rows: pd.DataFrame, frame: pd.DataFrame, flights: Flights) -> None:
    first, second = rows.index[0], rows.index[1]
    places = ["_partition", "_offset"]
    rows.loc[[first, second], places] = rows.loc[[second, first], places].to_numpy()
    assert not check_values(rows, frame, flights).right


def test_tables_are_compared_to_the_last_bit(frame: pd.DataFrame) -> None:
    """Equal tables pass, and one whose mean differs in the last bit does not."""
    tables: dict[str, Any] = {
        "route_hours": reference_route_hours(frame),
        "routes": reference_routes(frame),
        "hours": reference_hours(frame),
        "weather": reference_weather(frame, read_table("weather")),
    }
    assert all(finding.right for finding in check_tables(tables, frame))
    tables["hours"].loc[3, "dep_delay_mean"] *= 1 + 1e-15
    tables["weather"] = tables["weather"].iloc[1:]
    assert [finding.right for finding in check_tables(tables, frame)] == [True, True, False, False]
