"""Flights in batches: for each carrier how many there were, and how late they arrived, with a reducer of one's own.

    coordinator ─▶ flights ──▶ parse ──▶ carriers

``arrivals`` is a plain function: it is given what is stored for a carrier, and one flight, and returns what is to be
stored. It may return anything that is JSON.
"""

from __future__ import annotations

from typing import Any, ClassVar

import streamparse
from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches


class ParseBolt(streamparse.Bolt):
    """Takes two fields of each flight."""

    outputs: ClassVar[list[str]] = ["attempt", "carrier", "arr_delay"]

    def process(self, tup: Any) -> None:
        """Emit them, the attempt before them."""
        flight = tup.values.value
        self.emit([tup.values.attempt, flight["carrier"], flight["arr_delay"]])


def arrivals(value: list[int] | None, flight: Any) -> list[int]:
    """Return the number of flights, of those that arrived, and the sum of their delays in minutes.

    >>> from collections import namedtuple
    >>> Flight = namedtuple("Flight", "carrier arr_delay")
    >>> arrivals(arrivals(None, Flight("UA", 11)), Flight("UA", None))
    [2, 1, 11]
    """
    flights, arrived, delay = value or [0, 0, 0]
    if flight.arr_delay is None:
        return [flights + 1, arrived, delay]
    return [flights + 1, arrived + 1, delay + flight.arr_delay]


class BatchFlights(Topology):
    """Kafka in, one row for each carrier in a database."""

    coordinator, flights = KafkaBatches.spec(topics=["flights"], fields=["value"], value_format="json")
    parse = ParseBolt.spec(inputs=[flights])
    carriers = StateBolt.spec(
        coordinator=coordinator,
        inputs={parse: Grouping.fields("carrier")},
        store="sqlite:///carriers.db",
        key="carrier",
        update=arrivals,
    )
