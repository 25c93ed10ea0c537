"""What the contract of the consumer port needs: a cluster, what is done behind its back, and patience.

A test never waits by itself: it polls, and on the fake a poll takes virtual time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import pytest

from downspout.kafka import Cluster, ConsumerPort, Record, TopicPartition

CLIENT = {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 200, "metadata_max_age_ms": 300}
POLLS_MAX = 300
PATIENCE_S = 60.0
"""So many polls, and at least so long on a real clock, may it take that something comes true."""
POLL_MS = 100


class Stage(Protocol):
    """A cluster, and what a test does to it behind the port's back."""

    cluster: Cluster

    def create(self, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        pass

    def delete(self, topic: str) -> None:
        pass

    def add_partitions(self, topic: str, total: int) -> None:
        pass

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        pass

    def transaction(self, partition: TopicPartition, values: Sequence[bytes]) -> Any:
        """Begin a transaction, write these, and return what has ``commit()`` and ``abort()``."""

    def wait(self, seconds: float) -> None:
        pass


class Deaf:
    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


class Facts:
    """A rebalance listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[int]]] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", frozenset(tp.partition for tp in partitions)))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", frozenset(tp.partition for tp in partitions)))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("lost", frozenset(tp.partition for tp in partitions)))

    def real(self) -> list[tuple[str, set[int]]]:
        """What was told, without empty sets: an eager join may send those at any time."""
        return [(kind, set(numbers)) for kind, numbers in self.told if numbers]


def unique(prefix: str = "t") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def fill(stage: Stage, topic: str, count: int, partition: int = 0) -> TopicPartition:
    """Write records 0, 1, 2 … with timestamps 1000, 1001, 1002 … and return where."""
    producer = stage.cluster.producer()
    for number in range(count):
        producer.send(topic, key=None, value=b"%d" % number, partition=partition, timestamp_ms=1000 + number)
    producer.flush()
    producer.close()
    return TopicPartition(topic, partition)


def poll_until(
    consumers: ConsumerPort | Sequence[ConsumerPort], done: Callable[[list[Record]], bool], limit: int = 1000
) -> list[Record]:
    """Poll in turns until ``done`` says so of all records so far, and return these."""
    everyone = [consumers] if not isinstance(consumers, list | tuple) else list(consumers)
    found: list[Record] = []
    polls, until = 0, time.monotonic() + PATIENCE_S
    while polls < POLLS_MAX or time.monotonic() < until:
        if done(found):
            return found
        for consumer in everyone:
            for records in consumer.poll(POLL_MS, limit).values():
                found.extend(records)
        polls += 1
    raise AssertionError(f"not done after {polls} polls: {found}")


def read(consumer: ConsumerPort, count: int, limit: int = 1000) -> list[Record]:
    """Poll until there are ``count`` records, and return all that came."""
    return poll_until(consumer, lambda found: len(found) >= count, limit)


def die_between_two_rounds(member: Callable[[str], ConsumerPort]) -> list[ConsumerPort]:
    """Let a static member of a cooperative group let go of a partition for another and die, and come back.

    Returns the two members, once all partitions of a topic with two are theirs again.
    """
    first = member("first")
    poll_until(first, lambda _: len(first.assignment()) == 2 and not first.rejoin_pending())
    second = member("second")
    poll_until([second, first], lambda _: len(first.assignment()) == 1)
    assert not second.assignment()
    first.close(leave_group=False)
    again = member("first")
    poll_until([again, second], lambda _: len(again.assignment()) == len(second.assignment()) == 1)
    return [again, second]


def fall_out_while_joining(member: Callable[[Facts], ConsumerPort], expel: Callable[[], None]) -> Facts:
    """Throw all members of a cooperative group out while one of them waits for a join; ``expel`` does it.

    Returns what this one was told since, once a partition is its own again.
    """
    told = Facts()
    first, second = member(told), member(Facts())
    poll_until([first, second], lambda _: len(first.assignment()) == len(second.assignment()) == 1)
    poll_until([first, second], lambda _: not (first.rejoin_pending() or second.rejoin_pending()))
    third = member(Facts())
    poll_until(third, lambda _: first.rejoin_pending())
    for _ in range(5):  # it joins again, and waits for the second
        first.poll(POLL_MS, 1)
    assert len(first.assignment()) == 1
    del told.told[:]
    expel()
    poll_until([first, second, third], lambda _: not (first.rejoin_pending() or second.rejoin_pending()))
    return told


class Staged:
    """Makes consumers and closes them at the end, whatever happens.

    Attributes:
        columns: whether what they read comes as columns.
    """

    columns = False

    @pytest.fixture(autouse=True)
    def _consumers(self, stage: Stage) -> Any:
        self.stage = stage
        self._open: list[ConsumerPort] = []
        yield
        for consumer in self._open:
            consumer.close()

    def consumer(
        self, group: str | None, instance: str | None = None, *, auto_commit_ms: int | None = None, **client: Any
    ) -> ConsumerPort:
        """Return a consumer that is closed at the end of the test."""
        made = self.stage.cluster.consumer(
            group=group,
            instance_id=instance,
            client=CLIENT | client,
            auto_commit_ms=auto_commit_ms,
            columns=self.columns,
        )
        self._open.append(made)
        return made

    def member(self, topic: str, group: str, instance: str | None = None, **client: Any) -> tuple[ConsumerPort, Facts]:
        """Return a consumer that has subscribed to the topic, and what it is told."""
        consumer, facts = self.consumer(group, instance, **client), Facts()
        consumer.subscribe([topic], facts)
        return consumer, facts

    def reader(self, partition: TopicPartition, at: int | None = 0, group: str | None = None) -> ConsumerPort:
        consumer = self.consumer(group)
        consumer.assign([partition])
        if at is not None:
            consumer.seek(partition, at)
        return consumer

    def topic(self, records: int = 0, partitions: int = 1) -> TopicPartition:
        """Create a topic, fill its first partition and return that."""
        name = unique()
        self.stage.create(name, partitions)
        return fill(self.stage, name, records)
