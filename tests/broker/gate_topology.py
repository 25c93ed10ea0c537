"""KafkaSpout → a bolt that stops at a gate → ParquetBolt: a place where a worker surely has records in flight.

In the folder GATE: a process that has seen so many records as ``after`` says writes ``waits-PID``, and waits for
``open``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

GATE = "GATE_FOLDER"


class GateBolt(Bolt):
    outputs: ClassVar = ["origin", "number"]

    def initialize(self, conf, context):
        self.folder = Path(os.environ[GATE])
        self.left = int((self.folder / "after").read_text())

    def process(self, tup):
        self.left -= 1
        if self.left == 0:
            (self.folder / f"waits-{os.getpid()}").touch()
            while not (self.folder / "open").exists():
                time.sleep(0.01)
        self.emit([tup.values.origin, int(tup.values.value)])


class Gate(Topology):
    config = {"kafka.commit_period_ms": 500, "parquet.flush_rows": 300, "parquet.flush_age_s": 0.5}  # noqa: RUF012

    spout = KafkaSpout.spec(topics=["gate"], fields=["origin", "value"], session_timeout_ms=30_000)
    gate = GateBolt.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[gate], directory="output/gate", schema=["number:int64"])
