"""What the client calls in the middle of a poll: rebalance callbacks, written down as facts.

The spout acts on them in its own turn: ``PartitionAssignment.apply_callbacks``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.ledger.epochs import Fact


class Listener:
    """Writes rebalance callbacks down. Called on the client's thread while the spout's own thread waits in ``poll``."""

    def __init__(self, consumer: ConsumerPort) -> None:
        self._consumer = consumer
        self._known: Collection[TopicPartition] = ()
        self.facts: deque[Fact[TopicPartition]] = deque()

    def expect(self, known: Collection[TopicPartition]) -> None:
        """Before a poll: what need not be paused if it is assigned, because it only stays or returns."""
        self._known = known

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Note it, and let nothing new be read before its start is decided."""
        self._consumer.pause([tp for tp in partitions if tp not in self._known])
        self.facts.append(Fact("assigned", frozenset(partitions)))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Note it."""
        self.facts.append(Fact("revoked", frozenset(partitions)))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Note it."""
        self.facts.append(Fact("lost", frozenset(partitions)))
