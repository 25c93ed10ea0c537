"""Flights in windows of event time, exactly once, without state.

    spout ──▶ parse ──┬──▶ carrier_hours   each hour, by carrier: a flight is in one window
                      └──▶ airport_days    24 hours, each hour anew, by airport: a flight is in 24

A window is a key of an AggregateBolt. Each flush writes the sums of its own flights by window, and readers add them up.
So there is no state between flushes, and flights may be read in any order. The commit log determines which windows are
final: ``read_table(…, closed=True)`` returns these, and ``downspout windows`` lists them (docs/how-to/windows.md)::

    downspout run topologies/flight_hours.py --until end
    downspout windows output/airport_days

``make windows-demo`` kills it five times. ``demos/flight_windows.py`` computes the same windows in PySpark.
"""

from __future__ import annotations

from streamparse import Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout

TYPES = {"carrier": "string", "airport": "string", "departure": "timestamp", "dep_delay": "int16"}
DELAYS = ["count", "count:dep_delay", "sum:dep_delay", "max:dep_delay"]


class FlightHours(Topology):
    """Kafka in, two Parquet directories out."""

    config = {"topology.max.spout.pending": 50_000}  # noqa: RUF012 - streamparse wants a plain class attribute

    spout = KafkaSpout.spec(topics=["flights"], fields=["origin", "value"])
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=["carrier", "airport=origin", "departure=time_hour", "dep_delay"],
        types=TYPES,
        on_null="filter",  # a record without a value is not a flight
    )
    carrier_hours = AggregateBolt.spec(
        inputs={parse: Grouping.fields("carrier")},
        par=2,
        directory="output/carrier_hours",
        schema={name: kind for name, kind in TYPES.items() if name != "airport"},
        keys=["carrier", "window(departure, 1 hour)"],
        aggregates=DELAYS,
    )
    airport_days = AggregateBolt.spec(
        inputs=[parse],
        directory="output/airport_days",
        schema={name: kind for name, kind in TYPES.items() if name != "carrier"},
        keys=["airport", "window(departure, 24 hours, 1 hour)"],
        aggregates=DELAYS,
    )
