"""Flights as Avro, by a schema registry, into Parquet.

    spout ──▶ parse ──▶ flights

``parse`` requests each schema from the registry once. A producer's later schema may add fields: here ``tailnum``, which
is null in flights written without it. ``make formats-demo`` runs it; by hand::

    downspout run topologies/flight_avro.py --until end --set parse.registry=http://localhost:8081
"""

from __future__ import annotations

from streamparse import Topology

from bolts.parquet import ParquetBolt
from bolts.parse import RegistryParseBolt
from spouts.kafka import KafkaSpout

TYPES = {
    "carrier": "string",
    "flight": "int32",
    "from_airport": "string",
    "to_airport": "string",
    "distance": "int32",
    "dep_delay": "int32",
    "arr_delay": "int32",
    "month": "int32",
    "tailnum": "string",
}
KEYS = {"from_airport": "origin", "to_airport": "dest"}


class FlightAvro(Topology):
    """Kafka in, a Parquet directory out."""

    config = {"topology.max.spout.pending": 120_000, "kafka.commit_period_ms": 1_000}  # noqa: RUF012 - plain attribute

    spout = KafkaSpout.spec(topics=["flights-avro"], fields=["origin", "value"], value_format="bytes")
    parse = RegistryParseBolt.spec(
        inputs=[spout],
        registry="http://localhost:8081",
        fields=[f"{name}={KEYS[name]}" if name in KEYS else name for name in TYPES],
        types=TYPES,
    )
    flights = ParquetBolt.spec(
        inputs=[parse], directory="output/flights_avro", schema=TYPES, partition_by=["month"], flush_rows=20_000
    )
