"""KafkaSpout → brake → JsonParseBolt → ParquetBolt. No bolt reads the rejects: invalid JSON fails, and is retried."""

from __future__ import annotations

import os
import time
from typing import ClassVar

from streamparse import Topology

from bench.flights import FIELDS, SCHEMA
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

BRAKE = "BRAKE_S"


class BrakeBolt(Bolt):
    """Hands records on, each after so many seconds as the environment says: so that a run can be killed half-way."""

    outputs: ClassVar = ["origin", "value"]

    def initialize(self, conf, context):
        self.seconds = float(os.environ.get(BRAKE, "0"))

    def process(self, tup):
        if self.seconds:
            time.sleep(self.seconds)
        self.emit([tup.values.origin, tup.values.value])


class Poison(Topology):
    spout = KafkaSpout.spec(topics=["flights"], fields=["origin", "value"], value_format="bytes", retries_max=3)
    brake = BrakeBolt.spec(inputs=[spout])
    parse = JsonParseBolt.spec(inputs=[brake], fields=list(FIELDS))
    sink = ParquetBolt.spec(inputs=[parse], directory="output/poison", schema=SCHEMA)
