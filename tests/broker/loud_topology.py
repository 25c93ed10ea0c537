"""From Kafka to Kafka, for the tests of KafkaBolt in runs of their own."""

from __future__ import annotations

from typing import ClassVar

import streamparse
from streamparse import Topology

from bolts.kafka import KafkaBolt
from spouts.kafka import KafkaSpout


class Shout(streamparse.Bolt):
    outputs: ClassVar = ["key", "message"]

    def process(self, tup):
        self.emit([tup.values.key, tup.values.value.upper()])


class Loud(Topology):
    spout = KafkaSpout.spec(fields=["origin", "key", "value"])
    shout = Shout.spec(inputs=[spout], par=2)
    out = KafkaBolt.spec(inputs=[shout], par=2)
