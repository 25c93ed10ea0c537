"""Delays of real flights: the main job's topology, and an introduction to topologies.

    spout ──▶ parse ──▶ enrich ──▶ flights         every flight, one row each
                          └──────▶ route_delays    delays added up by route and hour

* ``spout`` reads the topic ``flights`` and emits each record's identity (``origin``) and its value, which is JSON text.
* ``parse`` turns the JSON into fields, ``enrich`` adds the names for the codes. Both are stateless, so any of their
  tasks can process any tuple: a *shuffle* grouping, the default.
* ``flights`` writes rows. ``route_delays`` aggregates, with two tasks and a *fields* grouping: tuples with the same
  route and hour go to the same task.

A tuple from ``enrich`` goes to both sinks, and its record is done (acked, then committed to Kafka) when both have
written it to a file. A sink acks after a flush, so records stay in flight until the slower sink has flushed. If the
process dies, they are read again, and the sinks drop the rows they already have: each flight is in the files once.

``flight_delays_report.py`` finishes the sinks' tables. Run both with ``make demo``, or this one alone, on a topic
``flights`` with records in the form of ``flights_data.py``::

    downspout run topologies/flight_delays.py --until end
    downspout run topologies/flight_delays.py --set flights:parquet.directory=/data/flights
    downspout check topologies/flight_delays.py     # all settings, with the sources of their values

Its native Spark version, ``flight_delays_spark.py``, makes the same tables from the same topic.
"""

from __future__ import annotations

from streamparse import Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout
from topologies.flight_enrich import FLIGHT_FIELDS, FlightEnrichBolt

KEYS = {"from_airport": "origin", "to_airport": "dest"}
"""Fields with other names in the JSON, where ``origin`` is an airport; here, it is a row's identity."""

FLIGHT = {
    "scheduled_at": "timestamp",
    "year": "int16",
    "month": "int8",
    "day": "int8",
    "hour": "int8",
    "minute": "int8",
    "carrier": "string",
    "airline": "string",
    "flight": "int16",
    "tailnum": "string",
    "manufacturer": "string",
    "model": "string",
    "plane_year": "int16",
    "route": "string",
    "from_airport": "string",
    "from_name": "string",
    "to_airport": "string",
    "to_name": "string",
    "to_lat": "float64",
    "to_lon": "float64",
    "to_zone": "string",
    "dep_time": "int16",
    "sched_dep_time": "int16",
    "dep_delay": "int16",
    "arr_time": "int16",
    "sched_arr_time": "int16",
    "arr_delay": "int16",
    "air_time": "int16",
    "distance": "int16",
}
"""The columns of a flight. ``year`` to ``minute`` are the scheduled local time, ``scheduled_at`` is the same in UTC,
delays and ``air_time`` are in minutes, ``distance`` in miles."""

TYPES = {field: FLIGHT.get(field, "string") for field in FLIGHT_FIELDS}
"""The types of the JSON's fields. With types, whole chunks of records are parsed, enriched and written at once."""

DELAYS = ["count", "count:dep_delay", "count:arr_delay"] + [
    f"{function}:{column}" for column in ("dep_delay", "arr_delay") for function in ("sum", "max")
]
"""The aggregates. A cancelled flight has no delay (null): ``count`` counts it, ``count:dep_delay`` does not."""


class FlightDelays(Topology):
    """Kafka in, two Parquet directories out."""

    # Acks arrive per flush. Commits every 5 s limit the records read again after a crash, and the limit on tuples in
    # flight bounds the memory; it must exceed the rows that the sinks hold together before they flush.
    config = {  # noqa: RUF012 - streamparse wants a plain class attribute
        "topology.max.spout.pending": 120_000,
        "kafka.commit_period_ms": 5_000,
        "parquet.flush_rows": 30_000,
    }

    spout = KafkaSpout.spec(topics=["flights"], fields=["origin", "value"])
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=[f"{field}={KEYS[field]}" if field in KEYS else field for field in FLIGHT_FIELDS],
        types=TYPES,
        on_null="filter",  # a record without a value is not a flight
    )
    enrich = FlightEnrichBolt.spec(inputs=[parse])
    flights = ParquetBolt.spec(inputs=[enrich], directory="output/flights", schema=FLIGHT, partition_by=["month"])
    route_delays = AggregateBolt.spec(
        inputs={enrich: Grouping.fields("route", "hour")},
        par=2,
        directory="output/route_delays",
        schema={"route": "string", "hour": "int8", "dep_delay": "int16", "arr_delay": "int16"},
        keys=["route", "hour"],
        aggregates=DELAYS,
    )
