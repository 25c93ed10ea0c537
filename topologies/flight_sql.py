"""Flights from Kafka into a table of a database, each row exactly once.

    spout ──▶ parse ──▶ made_up ──▶ store

* ``made_up`` adds the minutes that a flight made up on its way. It receives flights as tables of some thousand rows.
* ``store`` writes rows to the table ``flights``, and their offsets in the same transaction. It skips rows that the
  table already has, however often the processes die.

With ``kafka.offset_store``, the spout keeps its offsets in the database as well. ``make sql-demo`` does that, kills the
topology ten times, and counts; by hand::

    sqlite3 flights.db "CREATE TABLE flights (carrier TEXT NOT NULL, flight INTEGER, from_airport TEXT, to_airport TEXT,
                        distance INTEGER, dep_delay INTEGER, arr_delay INTEGER, made_up INTEGER)"
    downspout run topologies/flight_sql.py --until end
"""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from streamparse import Topology

from bolts.parse import JsonParseBolt
from bolts.sql import SqlBolt
from bolts.table import TableBolt
from spouts.kafka import KafkaSpout

TYPES = {
    "carrier": "string", "flight": "int32", "from_airport": "string", "to_airport": "string", "distance": "int32",
    "dep_delay": "int32", "arr_delay": "int32",
}  # fmt: skip
FIELDS = list(TYPES)


class MadeUpBolt(TableBolt):
    """Adds the minutes that a flight made up; null if it did not arrive."""

    outputs: ClassVar[list[str]] = ["origin", *FIELDS, "made_up"]

    def process_table(self, table: pa.Table) -> pa.Table:
        """Return the flights with the added column."""
        return table.append_column("made_up", pc.subtract(table.column("dep_delay"), table.column("arr_delay")))


class FlightSql(Topology):
    """Kafka in, a database out."""

    config = {"topology.max.spout.pending": 50_000}  # noqa: RUF012 - streamparse wants a plain class attribute

    spout = KafkaSpout.spec(topics=["flights"], fields=["origin", "value"], commit_period_ms=1_000)
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=[
            {"from_airport": "from_airport=origin", "to_airport": "to_airport=dest"}.get(name, name) for name in FIELDS
        ],
        types=TYPES,
        on_null="filter",
    )
    made_up = MadeUpBolt.spec(inputs=[parse])
    store = SqlBolt.spec(inputs=[made_up], database="sqlite:///flights.db", table="flights", flush_rows=5_000)
