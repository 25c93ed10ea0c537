"""The topologies of batches that `make soak` simulates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from streamparse import Grouping, Topology

from bolts.state import StateBolt
from downspout.testing import Message, ProducedRecord, Scenario
from spouts.batches import KafkaBatches
from tests.batches.counting import Split


class Counted(Topology):
    """Words counted in batches, by two tasks of everything."""

    coordinator, lines = KafkaBatches.spec(topics=["lines"], fields=["value"], par=2, store="memory://set-later")
    split = Split.spec(inputs=[lines], par=2)
    counts = StateBolt.spec(
        coordinator=coordinator, inputs={split: Grouping.fields("word")}, par=2, store="memory://set-later",
        key="word", update="count",
    )  # fmt: skip


def counted_line(rng: random.Random, number: int) -> Message:
    """Return a line of some words, all of which come again and again."""
    return Message(" ".join(rng.choices("abcdef", k=rng.randrange(4))).encode())


def counts_of(sent: Sequence[ProducedRecord]) -> Counter[str]:
    """Return how often each word is in what was sent."""
    return Counter(word for record in sent for word in (record.value or b"").decode().split())


opaque = Scenario(Counted, counted_line, states=counts_of, config={"batch.kind": "opaque", "state.kind": "opaque"})
transactional = Scenario(
    Counted, counted_line, states=counts_of, config={"batch.kind": "transactional", "state.kind": "transactional"}
)
