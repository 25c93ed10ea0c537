"""Processes that run a topology from Kafka to Kafka, and die or freeze at a step of their work with Kafka."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import streamparse
from streamparse import Topology

from bolts.kafka import KafkaBolt
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests import killing

IN, OUT, GROUP = "in", "out", "copies"
RECORDS = 16
SENDS_EVERY = 5
"""Only every so many-th send is a step: one is like the next."""


def fill(kafka: FakeKafka) -> None:
    kafka.create_topic(IN, 2)
    for number in range(RECORDS):
        kafka.produce(IN, b"bad" if number == 9 else b"%d" % number, partition=number % 2)


class Split(streamparse.Bolt):
    """Two results of each record; a record ``bad…`` fails between them."""

    outputs: ClassVar[list[str]] = ["origin", "key", "message"]

    def process(self, tup: Any) -> None:
        value = tup.values.value
        for number in range(2):
            self.emit([tup.values.origin.child("split", number), value, f"{value}.{number}"])
            if value.startswith("bad"):
                raise ValueError(value)


class Copies(Topology):
    lines = KafkaSpout.spec(
        topics=[IN], group=GROUP, fields=["origin", "value"], transaction_ms=100, poll_records_max=4, retries_max=1
    )
    split = Split.spec(inputs=[lines])
    out = KafkaBolt.spec(inputs=[split], topic=OUT, transactional=True, auto_create=False)


class World(killing.World):
    steps = ("transactional_producer", "begin", "flush", "send_offsets", "commit", "abort", "committed", "poll")
    takes_over = True

    def __init__(self) -> None:
        super().__init__(Copies)
        fill(self.kafka)
        self.kafka.create_topic(OUT, 2)
        self._sends = 0

    def is_step(self, call: str) -> bool:
        self._sends += call == "send"
        return super().is_step(call) or (call == "send" and self._sends % SENDS_EVERY == 0)

    def is_open(self) -> bool:
        """Return whether a transaction is open, with records in it or not."""
        return any(each.under_way is not None for each in self.kafka.transactional.values())

    def violations(self) -> list[str]:
        """Return what is wrong now: results that are there twice, not at all, or that should not be."""
        found = self.committed(OUT)
        expected = Counter(f"{n}.{half}" for n in range(RECORDS) if n != 9 for half in range(2))
        wrong = [
            f"{value}: {found[value]} times" for value in sorted(found | expected) if found[value] != expected[value]
        ]
        dead = self.committed(f"{GROUP}.dead-letters")
        return wrong + ([] if dead == {"bad": 1} else [f"dead letters: {dict(dead)}"])
