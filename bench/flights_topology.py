"""The topology under test: KafkaSpout → JsonParseBolt → ParquetBolt, every tuple acked, exactly once in the files."""

from __future__ import annotations

import os

from streamparse import Topology

from bench.flights import FIELDS, SCHEMA
from bench.shapes import shapes_of
from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout

# The shape of the records; by default, plain flights.
_shapes = shapes_of(os.environ["BENCH_SHAPE"]) if "BENCH_SHAPE" in os.environ else []
FIELDS_HERE, SCHEMA_HERE = (_shapes[0].fields, _shapes[0].types) if _shapes else (list(FIELDS), SCHEMA)


class FlightsToParquet(Topology):
    """One spout, three bolts, one task each."""

    spout = KafkaSpout.spec(topics=["bench-flights"], fields=["origin", "value"], value_format="bytes")
    parse = JsonParseBolt.spec(inputs=[spout], fields=FIELDS_HERE)
    letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
    sink = ParquetBolt.spec(inputs=[parse], directory="output/bench", schema=SCHEMA_HERE)
