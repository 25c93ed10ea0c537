"""FakeKafka as one process has it: its commits are steps at which it may die, and a dead process reaches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from downspout.kafka import OffsetAndMetadata, Record, TopicPartition, clusters
from downspout.testing import FakeConsumer, FakeKafka
from tests.killing import Stepped
from tests.machine import Process


class KafkaHandle(Stepped):
    """A cluster for one process; a topology reaches it under ``bootstrap``.

    Args:
        process: whose it is.
        kafka: what all processes share.
        committed: called after a commit that was accepted.
        withholds: whether this partition's records are on their way still.
    """

    def __init__(
        self,
        process: Process,
        kafka: FakeKafka,
        committed: Callable[[], None],
        withholds: Callable[[TopicPartition], bool] = lambda _: False,
    ) -> None:
        super().__init__(process, kafka)
        self.bootstrap = f"{kafka.bootstrap}/{process.name}"
        self.consumers: list[FakeConsumer] = []
        self._committed = committed
        self._withholds = withholds
        clusters.register(self.bootstrap, self)

    def consumer(self, **options: Any) -> ConsumerHandle:
        self._process.check()
        real = self._real.consumer(**options)
        self.consumers.append(real)
        return ConsumerHandle(self._process, real, self._committed, self._withholds)

    def close(self) -> None:
        clusters.unregister(self.bootstrap)


class ConsumerHandle(Stepped):
    def __init__(
        self,
        process: Process,
        real: FakeConsumer,
        committed: Callable[[], None],
        withholds: Callable[[TopicPartition], bool],
    ) -> None:
        super().__init__(process, real)
        self._committed = committed
        self._withholds = withholds

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return records; those that are withheld are read again later."""
        self._process.check()
        found = dict(self._real.poll(timeout_ms, max_records))
        for partition in [tp for tp in found if self._withholds(tp)]:
            self._real.seek(partition, found.pop(partition)[0].offset)
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit: a step before it, and a step after it took effect and before the answer is there."""
        self._process.step("commit", "kafka")
        self._real.commit(offsets)
        self._committed()
        self._process.step("committed", "kafka")
