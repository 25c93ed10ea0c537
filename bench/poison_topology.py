"""KafkaSpout → a bolt that raises on poison → ParquetBolt. Which records are poison, their values say."""

from __future__ import annotations

from typing import ClassVar

from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

POISON = b"poison"


class PoisonBolt(Bolt):
    """Hands numbers on."""

    outputs: ClassVar = ["origin", "number"]

    def process(self, tup):
        """Raise where the value is no number."""
        self.emit([tup.values.origin, int(tup.values.value)])


class Poison(Topology):
    """One spout, two bolts, one task each."""

    spout = KafkaSpout.spec(topics=["bench-poison"], fields=["origin", "value"], value_format="bytes", retries_max=3)
    check = PoisonBolt.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[check], directory="output/poison", schema=["number:int64"])
