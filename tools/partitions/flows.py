"""The topologies on the machines: numbers from Kafka, through a bolt, into one sink of each kind."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from streamparse import Topology

from bolts.kafka import KafkaBolt
from bolts.parquet import ParquetBolt
from bolts.sql import SqlBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

SETTINGS = {
    "kafka.session_timeout_ms": 6_000, "topology.message.timeout.secs": 9, "produce.transaction_timeout_ms": 10_000
}  # fmt: skip
"""Settings of a run besides addresses, with timeouts shorter than the faults."""


class Read(Bolt):
    """Reads the JSON of a record."""

    outputs: ClassVar = ["origin", "id", "text", "message"]

    def process(self, tup: Any) -> None:
        """Hand on both columns, and the record as it is."""
        row = json.loads(tup.values.value)
        self.emit([tup.values.origin, row["id"], row["text"], tup.values.value])


def _spout() -> Any:
    """Return a spout that sends a record to the dead-letter topic after its first failure."""
    return KafkaSpout.spec(
        topics=["numbers"], group="partitions", fields=["origin", "value"], retries_max=0,
        commit_period_ms=1_000, transaction_ms=500,
    )  # fmt: skip


class ToFiles(Topology):
    """Parquet, on a disk or in a bucket."""

    spout = _spout()
    numbers = Read.spec(inputs=[spout])
    sink = ParquetBolt.spec(
        inputs=[numbers], directory="set-later", schema={"id": "int64", "text": "string"}, flush_age_s=1.0,
        compact_every_s=20.0,
    )  # fmt: skip


class ToKafka(Topology):
    """Another topic, in transactions."""

    spout = _spout()
    numbers = Read.spec(inputs=[spout])
    sink = KafkaBolt.spec(inputs=[numbers], topic="copies", transactional=True, par=2)


class ToSql(Topology):
    """A table."""

    spout = _spout()
    numbers = Read.spec(inputs=[spout])
    sink = SqlBolt.spec(inputs=[numbers], database="sqlite:///set-later.db", table="numbers", flush_age_s=1.0)
