"""A topology whose records may be bad: one row for each good one, a dead letter for each other."""

from __future__ import annotations

from streamparse import Grouping, Topology

from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout


class Shop(Topology):
    orders = KafkaSpout.spec(fields=["value", "origin"], poll_timeout_ms=50, retries_max=0)
    parse = JsonParseBolt.spec(fields=["id", "city"], inputs={orders: Grouping.SHUFFLE})
    sink = ParquetBolt.spec(
        directory="output/orders", schema=["id:int64", "city:string"], inputs={parse: Grouping.SHUFFLE}
    )
