"""What is measured: KafkaSpout → JsonParseBolt → ParquetBolt, every tuple acked, exactly once in the files."""

from __future__ import annotations

from streamparse import Topology

from bench.flights import FIELDS, SCHEMA
from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout


class FlightsToParquet(Topology):
    """One spout, three bolts, one task each."""

    spout = KafkaSpout.spec(topics=["bench-flights"], fields=["origin", "value"], value_format="bytes")
    parse = JsonParseBolt.spec(inputs=[spout], fields=list(FIELDS))
    letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
    sink = ParquetBolt.spec(inputs=[parse], directory="output/bench", schema=SCHEMA)
