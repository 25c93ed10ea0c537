"""KafkaSpout → a bolt that writes down which records it has done, and keeps some of them back for ever."""

from __future__ import annotations

import os
from typing import ClassVar

from streamparse import Topology

from downspout.component import Bolt
from spouts.kafka import KafkaSpout

DONE, HELD = "HANDOVER_DONE", "HANDOVER_HELD"
"""Environment: the file to write to, and the values that are neither done nor acked, separated by commas."""


class HoldingBolt(Bolt):
    """Writes ``partition offset`` of each record that it acks."""

    auto_ack = False
    outputs: ClassVar = []

    def process(self, tup):
        if tup.values.value in os.environ[HELD].split(","):
            return
        with open(os.environ[DONE], "a", encoding="utf-8") as file:
            file.write(f"{tup.values.partition} {tup.values.offset}\n")
        self.ack(tup)


class Handover(Topology):
    spout = KafkaSpout.spec(
        topics=["handed"], fields=["partition", "offset", "value"], commit_period_ms=100, session_timeout_ms=6000
    )
    done = HoldingBolt.spec(inputs=[spout])
