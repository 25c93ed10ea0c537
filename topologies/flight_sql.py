"""Flights from Kafka into a table of a database, each row exactly once.

    spout ──▶ parse ──▶ made_up ──▶ store

* ``made_up`` adds how many minutes a flight made up on its way. It is a plain streamparse bolt.
* ``store`` writes rows to the table ``flights``, and in the same transaction the offsets that they stand for. A row
  that is there already is left out, however often the processes die.

The spout keeps its offsets in the database as well, where ``kafka.offset_store`` says so. ``make sql-demo`` does that,
kills it ten times, and counts; by hand::

    sqlite3 flights.db "CREATE TABLE flights (carrier TEXT NOT NULL, flight INTEGER, from_airport TEXT, to_airport TEXT,
                        distance INTEGER, dep_delay INTEGER, arr_delay INTEGER, made_up INTEGER)"
    downspout run topologies/flight_sql.py --until end
"""

from __future__ import annotations

from typing import Any, ClassVar

import streamparse
from streamparse import Topology

from bolts.parse import JsonParseBolt
from bolts.sql import SqlBolt
from spouts.kafka import KafkaSpout

FIELDS = ["carrier", "flight", "from_airport", "to_airport", "distance", "dep_delay", "arr_delay"]


class MadeUpBolt(streamparse.Bolt):
    """Adds how many minutes a flight made up; null for one that did not arrive."""

    outputs: ClassVar[list[str]] = ["origin", *FIELDS, "made_up"]

    def process(self, tup: Any) -> None:
        """Emit the flight with one more field."""
        flight = tup.values
        arrived = flight.dep_delay is not None and flight.arr_delay is not None
        self.emit([*flight, flight.dep_delay - flight.arr_delay if arrived else None])


class FlightSql(Topology):
    """Kafka in, a database out."""

    config = {"topology.max.spout.pending": 50_000}  # noqa: RUF012 - streamparse wants a plain class attribute

    spout = KafkaSpout.spec(topics=["flights"], fields=["origin", "value"], commit_period_ms=1_000)
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=[
            {"from_airport": "from_airport=origin", "to_airport": "to_airport=dest"}.get(name, name) for name in FIELDS
        ],
        on_null="filter",
    )
    made_up = MadeUpBolt.spec(inputs=[parse])
    store = SqlBolt.spec(inputs=[made_up], database="sqlite:///flights.db", table="flights", flush_rows=5_000)
