"""Flights from Kafka to two Kafka topics, each result exactly once.

    spout ──▶ parse ──▶ decide ──▶ out ──▶ route-delays, flight-rejects

* ``decide`` emits each flight's delay, as JSON with the route as key, or a reject with the reason if it did not arrive.
  It is a plain streamparse bolt.
* ``out`` writes in transactions, together with the offsets of the flights: a reader with ``isolation_level =
  read_committed`` sees each result once, however often the processes die. The header ``flight`` names the flight's
  record, so that the demo can count.

``make kafka-demo`` kills it ten times and counts. Its native Spark version, ``flight_topics_spark.py``, writes the same
records at least once.
"""

from __future__ import annotations

from typing import Any, ClassVar

import streamparse
from streamparse import Topology

from bolts.kafka import KafkaBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout

DELAYS, REJECTS = "route-delays", "flight-rejects"


class DecideBolt(streamparse.Bolt):
    """Emits a flight's delay, or a reject if it did not arrive."""

    outputs: ClassVar[list[str]] = ["origin", "topic", "key", "message", "headers"]

    def process(self, tup: Any) -> None:
        """Emit one of the two."""
        flight = tup.values
        origin = flight.origin
        route = f"{flight.from_airport}-{flight.to_airport}"
        place = {"flight": f"{origin[2]}@{origin[3]}"}
        if flight.arr_delay is None:
            reject = {"flight": flight.flight, "reason": "it did not arrive"}
            self.emit([origin, REJECTS, flight.carrier, reject, place])
        else:
            delay = {"route": route, "carrier": flight.carrier, "arr_delay": flight.arr_delay}
            self.emit([origin, DELAYS, route, delay, place])


class FlightTopics(Topology):
    """Kafka in, Kafka out."""

    config = {"topology.max.spout.pending": 20_000}  # noqa: RUF012 - streamparse wants a plain class attribute

    spout = KafkaSpout.spec(topics=["flights"], fields=["origin", "value"], transaction_ms=250)
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=["carrier", "flight", "from_airport=origin", "to_airport=dest", "arr_delay"],
        on_null="filter",
    )
    decide = DecideBolt.spec(inputs=[parse])
    out = KafkaBolt.spec(
        inputs=[decide],
        fields={"topic": "topic", "headers": "headers"},
        message_format="json",
        transactional=True,
    )
