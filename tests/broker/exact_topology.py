"""From Kafka to Kafka in transactions, for the tests of KafkaBolt in runs of their own."""

from __future__ import annotations

from typing import ClassVar

import streamparse
from streamparse import Topology

from bolts.kafka import KafkaBolt
from downspout.ledger import Origin
from spouts.kafka import KafkaSpout


class Twice(streamparse.Bolt):
    """Two results of each record, with their origins."""

    outputs: ClassVar = ["origin", "message"]

    def process(self, tup):
        for number in range(2):
            origin = Origin.of(tup.values.origin).child("twice", number)
            self.emit([origin, f"{tup.values.value}.{number}"])


class Exact(Topology):
    spout = KafkaSpout.spec(fields=["origin", "value"], transaction_ms=100)
    twice = Twice.spec(inputs=[spout], par=2)
    out = KafkaBolt.spec(inputs=[twice], par=3, transactional=True)
