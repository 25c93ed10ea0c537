"""The bolts of ``batch_word_count.py`` and ``batch_flights.py``, and a reducer.

They have their own module because Storm's workers import components from the project's ``src``, which does not contain
the topology's file.
"""

from __future__ import annotations

from typing import Any, ClassVar

import streamparse

from bolts.split import split_words


class SplitBolt(streamparse.Bolt):
    """Splits lines into words; a null has none."""

    outputs: ClassVar[list[str]] = ["attempt", "word"]

    def process(self, tup: Any) -> None:
        """Emit each word after its attempt."""
        for word in split_words(tup.values.value or ""):
            self.emit([tup.values.attempt, word])


class ParseBolt(streamparse.Bolt):
    """Extracts two fields of each flight."""

    outputs: ClassVar[list[str]] = ["attempt", "carrier", "arr_delay"]

    def process(self, tup: Any) -> None:
        """Emit them after the attempt."""
        flight = tup.values.value
        self.emit([tup.values.attempt, flight["carrier"], flight["arr_delay"]])


def arrivals(value: list[int] | None, flight: Any) -> list[int]:
    """Return the number of flights, the number that arrived, and the sum of their delays in minutes.

    >>> from collections import namedtuple
    >>> Flight = namedtuple("Flight", "carrier arr_delay")
    >>> arrivals(arrivals(None, Flight("UA", 11)), Flight("UA", None))
    [2, 1, 11]
    """
    flights, arrived, delay = value or [0, 0, 0]
    if flight.arr_delay is None:
        return [flights + 1, arrived, delay]
    return [flights + 1, arrived + 1, delay + flight.arr_delay]
