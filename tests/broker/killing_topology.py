"""KafkaSpout → a bolt that kills the process, as a crash of native code or the kernel does → ParquetBolt."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

KILLER = b"killer"


class KilledBolt(Bolt):
    outputs: ClassVar = ["origin", "number"]

    def process(self, tup):
        if tup.values.value == KILLER:
            os.kill(os.getpid(), signal.SIGKILL)
        self.emit([tup.values.origin, int(tup.values.value)])


class Killing(Topology):
    spout = KafkaSpout.spec(topics=["killing"], fields=["origin", "value"], value_format="bytes", retries_max=2)
    check = KilledBolt.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[check], directory="output/killing", schema=["number:int64"])
