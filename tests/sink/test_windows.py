"""Windows as keys of an AggregateBolt: each row in its windows, whatever order and flush it comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pystorm.component import Tuple

from bolts.aggregate import AggregateBolt
from demos.flights_data import load_flights
from downspout.errors import ConfigError
from downspout.ledger import Origin
from downspout.sink import Aggregate, Aggregation, Window, read_table
from downspout.sink.snapshot import read_windows
from tests.sink.support import sink

SCHEMA = ["route:string", "at:timestamp", "delay:int16"]
COUNT = (Aggregate("count", None),)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FLIGHTS = 5_000


def starts_of(window: Window, moment: datetime) -> list[datetime]:
    """Return the starts of all windows that a moment is in, by their definition and nothing else."""
    zone = ZoneInfo(window.zone or "UTC")
    local = moment.astimezone(zone).replace(tzinfo=UTC) - EPOCH
    size, slide = timedelta(microseconds=window.size), timedelta(microseconds=window.slide)
    number, found = local // slide, []
    while number * slide + size > local:
        found.append((EPOCH + number * slide).replace(tzinfo=zone).astimezone(UTC))
        number -= 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "window(at, 10 minutes)",
        "window(at, 1 hour, 10 minutes)",
        "window(at, 90 seconds, 40 seconds)",  # neither divides the other
        "window(at, 1 week, 2 days)",
        "window(at, 1 day, Europe/Berlin)",
        "window(at, 3 days, 1 day, America/New_York)",
    ],
)
@given(st.lists(st.datetimes(datetime(1960, 1, 1), datetime(2037, 1, 1)), min_size=1, max_size=8))
def test_each_row_is_in_its_windows_and_no_others(key: str, naive: list[datetime]) -> None:
    """By the definition: windows begin at multiples of the slide, and hold their start and not their end."""
    window = Window.parse(key)
    assert window is not None
    moments = [moment.replace(tzinfo=UTC) for moment in naive]
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC"))})
    made = Aggregation((window,), COUNT).fold(table)
    wanted = Counter(start for moment in moments for start in starts_of(window, moment))
    assert {row["window_start"]: row["count"] for row in made.to_pylist()} == wanted
    assert made.num_rows == len(wanted)


def test_the_day_of_a_clock_change_has_its_own_length() -> None:
    """A day in Berlin has 23 hours in March and 25 in October, and one whose midnight was skipped begins at one."""
    moments = [datetime(2013, 3, 31, 12, tzinfo=UTC), datetime(2013, 10, 27, 12, tzinfo=UTC)]
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC"))})
    window = Window.parse("window(at, 1 day, Europe/Berlin)")
    assert window is not None
    days = Aggregation((window,), COUNT).fold(table).sort_by("window_start").to_pylist()
    assert [(row["window_end"] - row["window_start"]) / timedelta(hours=1) for row in days] == [23, 25]
    skipped = pa.table({"at": pa.array([datetime(2018, 11, 4, 12, tzinfo=UTC)], pa.timestamp("us", "UTC"))})
    window = Window.parse("window(at, 1 day, America/Sao_Paulo)")
    assert window is not None
    [row] = Aggregation((window,), COUNT).fold(skipped).to_pylist()
    assert row["window_start"] == datetime(2018, 11, 4, 3, tzinfo=UTC)


def test_rows_without_a_usable_time_are_in_the_window_null() -> None:
    """A null, and a time that no reader has a date for, are counted and not lost."""
    times = pa.array([None, 2**62, -(2**62), 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    for key in ("window(at, 1 hour)", "window(at, 1 day, 1 hour)", "window(at, 2 days, 1 day, Europe/Berlin)"):
        window = Window.parse(key)
        assert window is not None
        made = Aggregation((window,), COUNT).fold(pa.table({"at": times})).to_pylist()
        assert [(row["count"], row["window_end"]) for row in made if row["window_start"] is None] == [(3, None)], key
        assert sum(row["count"] for row in made) == 3 + window.size // window.slide


def flushed(directory: Path, key: str, frame: pd.DataFrame, *, flushes: int, replays: bool) -> pa.Table:
    """Return what a sink makes of flights, in flushes of rows in random order, each half of them twice."""
    conf = {"parquet.keys": ["route", key], "parquet.aggregates": ["count", "sum:delay", "max:delay"]}
    fields = ["origin", "route", "at", "delay"]
    bolt = sink(AggregateBolt, directory, fields=fields, **{"parquet.schema": SCHEMA, **conf})
    order = np.random.default_rng(41).permutation(len(frame))
    parts = np.array_split(order, flushes)
    for number, part in enumerate(parts):
        again = parts[number - 1][: len(part) // 2] if replays and number else part[:0]
        for row in map(int, (*part, *again)):
            at, route, delay = frame["at"].iat[row], frame["route"].iat[row], frame["delay"].iat[row]
            bolt.process(_tuple(row, (route, at.to_pydatetime(), None if pd.isna(delay) else int(delay))))  # type: ignore[arg-type]
        bolt.drain()
    assert not bolt.failed
    return read_table(directory)


def _tuple(offset: int, values: Iterable[Any]) -> Any:
    return Tuple(str(offset), "parse", "default", 2, (Origin("t", "id", offset % 4, offset // 4, ""), *values))


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Return the first flights, with the moments that they were to leave at."""
    frame = load_flights(FLIGHTS)
    at = pd.to_datetime(frame["time_hour"], utc=True) + pd.to_timedelta(frame["minute"], unit="m")
    return pd.DataFrame({"route": frame["origin"] + "-" + frame["dest"], "at": at, "delay": frame["dep_delay"]})


@pytest.mark.slow
@pytest.mark.parametrize("replays", [False, True])
def test_tumbling_hours_of_the_flights_are_those_of_pandas(
    tmp_path: Path, flights: pd.DataFrame, replays: bool
) -> None:
    """In random order, cut into flushes, with replays: the finished windows are what pandas makes of all rows."""
    partials = flushed(tmp_path, "window(at, 1 hour)", flights, flushes=5, replays=replays).to_pandas()
    found = partials.groupby(["route", "window_start"], as_index=False).agg(
        count=("count", "sum"), sum_delay=("sum_delay", "sum"), max_delay=("max_delay", "max")
    )
    hours = flights.assign(window_start=flights["at"].dt.floor("1h"))
    wanted = hours.groupby(["route", "window_start"], as_index=False).agg(
        count=("delay", "size"), sum_delay=("delay", "sum"), max_delay=("delay", "max")
    )
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)


@pytest.mark.slow
def test_sliding_windows_of_the_flights_are_those_of_duckdb(tmp_path: Path, flights: pd.DataFrame) -> None:
    """Four hours, each hour anew: DuckDB, which joins each flight with its windows, has the same ones."""
    partials = flushed(tmp_path, "window(at, 4 hours, 1 hour)", flights, flushes=3, replays=True)  # noqa: F841
    found = duckdb.sql(
        "SELECT route, epoch_us(window_start) AS start, epoch_us(window_end) AS ends, sum(count)::INT AS n, "
        "sum(sum_delay)::INT AS s, max(max_delay)::INT AS m FROM partials GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    wanted = duckdb.sql(
        "WITH hours AS (SELECT *, epoch_us(date_trunc('hour', flights.at)) AS hour FROM flights) "
        "SELECT route, hour - back * 3600000000 AS start, start + 4 * 3600000000 AS ends, count(*)::INT AS n, "
        "sum(delay)::INT AS s, max(delay)::INT AS m FROM hours, range(4) AS slides(back) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    assert found == wanted


def test_one_key_has_one_form_however_it_is_written(tmp_path: Path) -> None:
    """Sixty minutes are an hour, a list in text may be cut at commas, and another window is another directory."""
    conf = {"parquet.schema": SCHEMA, "parquet.aggregates": ["count"]}
    fields = ["origin", "route", "at", "delay"]
    bolt = sink(AggregateBolt, tmp_path, fields=fields, **conf, **{"parquet.keys": ["window(at, 60 minutes)"]})
    bolt.process(_tuple(0, ("a", EPOCH, 1)))
    bolt.drain()
    sink(AggregateBolt, tmp_path, fields=fields, **conf, **{"parquet.keys": "window(at, 1 hour, 3600 seconds)"})
    with pytest.raises(Exception, match="folders, keys and aggregates stay as they are"):
        sink(AggregateBolt, tmp_path, fields=fields, **conf, **{"parquet.keys": "window(at, 2 hours)"})
    assert read_table(tmp_path).column_names == ["window_start", "window_end", "count", "late_rows"]


@pytest.mark.parametrize(
    ("keys", "cure"),
    [
        (["window(at)"], "10 minutes"),
        (["window(at, 10 parsecs)"], "10 minutes"),
        (["window(at, 10 minutes, 1 hour)"], "at most the size"),
        (["window(at, 0 minutes)"], "at most the size"),
        (["window(at, 1 day, 1 second)"], "at least a 1,000th"),
        (["window(at, 1 hour, Europe/Berlin)"], "leave Europe/Berlin out"),
        (["window(at, 1 day, Europe/Atlantis)"], "Europe/Berlin"),
        (["window(at, 1 day, UTC, UTC)"], "10 minutes"),
        (["window(at, 10 mins)"], "seconds, minutes, hours, days or weeks"),
        (["window(at, 1 hour, 10min)"], "seconds, minutes, hours, days or weeks"),
        (["window(at, 1 hr, 10 minutes)"], "seconds, minutes, hours, days or weeks"),
        (["window(nope, 1 hour)"], "some of route, at, delay"),
        (["window(route, 1 hour)"], "route:timestamp"),
        (["window(at, 1 hour)", "window(at, 1 day)"], "at most one window"),
    ],
)
def test_a_window_that_cannot_be_computed_is_refused_when_the_topology_is_built(keys: list[str], cure: str) -> None:
    """The error names the key and a cure."""
    with pytest.raises(ConfigError) as refused:
        AggregateBolt.spec(directory="x", schema=SCHEMA, keys=keys, aggregates=["count"])
    assert cure in str(refused.value.cure)
    with pytest.raises(ConfigError, match="window_end itself"):
        AggregateBolt.spec(
            directory="x", schema=["at:timestamp", "window_end:date"], keys=["window(at, 1 hour)"], aggregates=["count"]
        )


def test_a_wrong_unit_is_named() -> None:
    """The error names the unit that is none, not only the key."""
    with pytest.raises(ConfigError, match=r"window\(at, 10 mins\): 'mins' is not a unit of time"):
        AggregateBolt.spec(directory="x", schema=SCHEMA, keys=["window(at, 10 mins)"], aggregates=["count"])


def test_a_date_is_no_moment() -> None:
    """A column of days is refused: an hour of it would be midnight's."""
    with pytest.raises(ConfigError, match="day:date is not a timestamp"):
        AggregateBolt.spec(directory="x", schema=["day:date"], keys=["window(day, 1 day)"], aggregates=["count"])


def test_a_time_at_the_end_of_the_calendar_is_in_the_window_null(tmp_path: Path) -> None:
    """The window of 9999-12-31 ends in a year that no reader has a date for."""
    conf = {"parquet.keys": ["window(at, 1 day)"], "parquet.aggregates": ["count"], "parquet.schema": SCHEMA}
    bolt = sink(AggregateBolt, tmp_path, fields=["origin", "route", "at", "delay"], **conf)
    for offset, at in enumerate([datetime(2013, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]):
        bolt.process(_tuple(offset, ("EWR-IAH", at, 1)))
    bolt.drain()
    assert [(row.start, row.rows) for row in read_windows(tmp_path).windows] == [
        (datetime(2013, 1, 1, tzinfo=UTC), 1),
        (None, 1),
    ]
