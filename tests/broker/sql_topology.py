"""The topology for tests of workers: numbers into a table, through a stock streamparse bolt."""

from __future__ import annotations

from typing import Any, ClassVar

import streamparse
from streamparse import Topology

from bolts.sql import SqlBolt
from spouts.kafka import KafkaSpout


class Double(streamparse.Bolt):
    outputs: ClassVar = ["origin", "number"]

    def process(self, tup: Any) -> None:
        self.emit([tup.values.origin, 2 * int(tup.values.value)])


class Doubles(Topology):
    spout = KafkaSpout.spec(topics=["set-later"], fields=["origin", "value"])
    double = Double.spec(inputs=[spout])
    store = SqlBolt.spec(inputs=[double], database="sqlite:///set-later.db", table="doubles", flush_rows=200)
