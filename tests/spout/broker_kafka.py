"""A real broker under the methods of FakeKafka, so that one test runs on both.

A test has the broker to itself: topics and groups that it leaves behind are deleted after it, so names need not
differ. Three things cannot be as on the fake:

* *Time.* The clock is real, and jumps where a test sleeps: the spout's own periods pass at once. The broker's and the
  client's (sessions, fetches, the age of metadata) do not; those are set short.
* *Turns.* What takes one call on the fake takes several here, since answers travel. So a turn is a call that has done
  something, or one after which nothing is left to do: all has joined, and all that may be read is read.
* *FakeFaults.* They are injected between the spout and the real client; the broker itself does what it does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import errors
from kafka.admin import MemberToRemove

from downspout.kafka import (
    ConsumerPort,
    GroupDescription,
    OffsetAndMetadata,
    ProducerPort,
    Record,
    TopicPartition,
    TopicState,
    clusters,
)
from downspout.spout import SessionState
from downspout.testing import FakeFaults
from tests.jumping import JumpingClock
from tests.kafka.broker_stage import RealStage, RealTransaction, patiently, read_whole, wait_until
from tests.kafka.commit_log import Commit, CommitLog
from tests.kafka.stage import Deaf
from tests.spout.between import Between, Faulty
from tests.spout.resting import at_rest, has_joined

if TYPE_CHECKING:
    from tests.spout.spout_driver import Driver

T = TypeVar("T")
TURN_S_MAX = 20.0
"""How long a turn may wait for the broker."""
SHARED_TURN_S, SHARED_TURN_GROWTH, SHARED_TURN_S_MAX = 0.03, 1.15, 1.0
"""How long it may where other members must have their turn before anything can happen: longer with each in vain."""
RESTS_ENOUGH = 2
"""Turns of a spout that is alone and at rest: one may still commit what the one before has found."""
MANY = 100
"""So many records are written in batches; fewer one by one, so that a fetch can be kept small."""
SETTINGS = {
    "kafka.session_timeout_ms": 10_000,
    "kafka.poll_timeout_ms": 10,
    "kafka.client.heartbeat_interval_ms": 50,
    "kafka.client.metadata_max_age_ms": 150,
    "kafka.client.fetch_max_wait_ms": 20,
    "kafka.client.retry_backoff_ms": 20,
}


class BrokerGroup:
    """A consumer group, as its coordinator describes it."""

    def __init__(self, stage: RealStage, name: str) -> None:
        self._stage = stage
        self._name = name

    @property
    def members(self) -> list[dict[str, Any]]:
        members: list[dict[str, Any]] = self._stage.admin.describe_groups([self._name])[self._name]["members"]
        return members

    def expire_members(self) -> None:
        members = [MemberToRemove(m["member_id"], m["group_instance_id"], reason=None) for m in self.members]
        self._stage.admin.remove_group_members(self._name, members)


class Backstage:
    """The clients by which the tests ask the broker and change it; one test after the other uses them."""

    def __init__(self, bootstrap: str) -> None:
        self.stage = RealStage(bootstrap)
        self.asker: ConsumerPort = self.stage.cluster.consumer(group=None)
        self.log = CommitLog(bootstrap)

    def close(self) -> None:
        for client in (self.asker, self.log, self.stage):
            client.close()


class BrokerKafka:
    """What the tests of the spout do to Kafka, on a real broker; see :class:`~downspout.testing.FakeKafka`."""

    settings = SETTINGS

    def __init__(self, backstage: Backstage) -> None:
        self._stage, self._asker, self._log = backstage.stage, backstage.asker, backstage.log
        self.bootstrap = bootstrap = self._stage.bootstrap
        self.clock = JumpingClock()
        self._between = Between(self.clock)
        self._log.forget()
        self._producer = self._new_producer()
        self._drivers: list[Driver] = []
        self._partitions: dict[str, list[TopicPartition]] = {}  # of topics that are there
        self._in_vain = 0
        self._cluster = Faulty(self._stage.cluster, self._between)
        clusters.register(bootstrap, self._cluster)

    def _new_producer(self) -> ProducerPort:
        return self._stage.cluster.producer(client={"linger_ms": 0, "batch_size": 0})

    @property
    def faults(self) -> FakeFaults:
        return self._between.faults

    @property
    def acks_after_s(self) -> float:
        """How long a record that a spout sends is held back before it is on its way, unless it is flushed."""
        return self._between.acks_after_s

    @acks_after_s.setter
    def acks_after_s(self, seconds: float) -> None:
        self._between.acks_after_s = seconds

    # --- the Cluster port ---

    def consumer(self, **given: Any) -> ConsumerPort:
        made: ConsumerPort = self._cluster.consumer(**given)
        return made

    def producer(self, **given: Any) -> ProducerPort:
        made: ProducerPort = self._cluster.producer(**given)
        return made

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        self._partitions.clear()
        return bool(self._cluster.ensure_topic(topic, partitions, config))

    def group_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self._stage.cluster.group_offsets(group)

    def group_members(self, group: str) -> Sequence[str]:
        return self._stage.cluster.group_members(group)

    def describe_group(self, group: str) -> GroupDescription | None:
        return self._stage.cluster.describe_group(group)

    def describe_logs(self, topics: Collection[str]) -> Mapping[str, TopicState]:
        return self._stage.cluster.describe_logs(topics)

    # --- topics ---

    def create_topic(self, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        self._partitions.clear()
        self._stage.create(topic, partitions, config)

    def delete_topic(self, topic: str) -> None:
        self._stage.delete(topic)
        self._partitions.clear()

    def add_partitions(self, topic: str, total: int) -> None:
        self._stage.add_partitions(topic, total)

        def are_there() -> bool:
            self._partitions.clear()
            return len(self.partitions(topic)) == total

        wait_until(are_there)
        self._producer.close()
        self._producer = self._new_producer()  # the old one would not know of them for minutes

    def topic_names(self) -> list[str]:
        return sorted(patiently(self._asker.topic_names))

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions; the broker is asked once, since only the test changes them."""
        if topic not in self._partitions:
            found = sorted(patiently(lambda: self._asker.partitions_for(topic)))
            if not found:
                return []
            self._partitions[topic] = [TopicPartition(topic, number) for number in found]
        return self._partitions[topic]

    def topic_id(self, topic: str) -> str:
        return patiently(lambda: self._asker.topic_id(topic))

    # --- records ---

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Append one record; the topic is created where it is missing."""
        if not self.partitions(topic):
            self.create_topic(topic)
        self._producer.send(
            topic, value=value, key=key, partition=partition, headers=list(headers), timestamp_ms=timestamp_ms
        )
        self._producer.flush()

    def fill(self, count: int, partition: int, topic: str) -> None:
        producer = self._producer if count < MANY else self._stage.cluster.producer()
        for number in range(count):
            producer.send(topic, key=None, value=str(number).encode(), partition=partition)
        producer.flush()
        if count >= MANY:
            producer.close()

    def transaction(self) -> RealTransaction:
        return self._stage.open_transaction()

    def gap(self, topic: str, partition: int = 0, count: int = 2) -> None:
        """Let ``count`` offsets at the end of the log hold nothing: aborted records, and the mark that ends them."""
        assert count > 1, "a mark alone cannot be written"
        where = TopicPartition(topic, partition)
        wanted = self.end(where) + count
        self._stage.transaction(where, [b"aborted"] * (count - 1)).abort()
        wait_until(lambda: self.end(where) == wanted)  # the coordinator answers before the mark is in the log

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._stage.delete_records(TopicPartition(topic, partition), before)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where reading ends for now; nothing of topics that are gone."""
        asked = list(partitions)
        return patiently(lambda: self._ends(asked))  # of a topic that was made again it may tell nothing for a moment

    def _ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = [tp for tp in partitions if tp in self.partitions(tp.topic)]
        return dict(self._asker.end_offsets(wanted)) if wanted else {}

    def end(self, partition: TopicPartition) -> int:
        return self.ends([partition])[partition]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        wanted = [tp for tp in self.partitions(topic) if partition in (None, tp.partition)]
        return [record for tp in wanted for record in read_whole(self._stage.cluster, [tp])]

    # --- groups ---

    def group(self, name: str) -> BrokerGroup:
        return BrokerGroup(self._stage, name)

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return dict(self._stage.admin.list_group_offsets({group: None})[group])

    def commits(self, group: str) -> Sequence[Commit]:
        """Return every commit that was accepted since the test began, in order."""
        return self._log.commits(group)

    def expire_members(self, group: str) -> None:
        """Throw all members out; each has learned it, by a heartbeat, when this returns."""
        self.group(group).expire_members()
        setups = [(driver, driver.spout.services.setup) for driver in self.live()]
        mine = [driver for driver, setup in setups if setup.group == group and setup.joins]
        wait_until(lambda: all(driver.session.consumer.rejoin_pending() for driver in mine))

    def rebalance(self, group: str) -> None:
        """Let all members join again: somebody comes, and goes before anything was given to it."""
        guest = self._stage.cluster.consumer(group=group, client={"session_timeout_ms": 30_000})
        guest.subscribe(["nothing"], Deaf())
        before = len(self.group(group).members)
        wait_until(lambda: guest.poll(10, 1) or len(self.group(group).members) > before)
        guest.close(leave_group=True)
        wait_until(lambda: all(driver.session.consumer.rejoin_pending() for driver in self.live()))

    # --- the spouts ---

    def opened(self, driver: Driver) -> None:
        self._drivers.append(driver)

    def live(self) -> list[Driver]:
        return [driver for driver in self._drivers if driver.spout.session is not None]

    def drive(self, driver: Driver, turns: int) -> None:
        """Let a spout take so many turns, or fewer where it is alone and the last ones have found nothing to do."""
        rests = 0
        for _ in range(turns):
            emitted = len(driver.emitted)
            rests = rests + 1 if self._turn(driver) and len(driver.emitted) == emitted else 0
            if rests == RESTS_ENOUGH and self.live() == [driver] and not self.faults.pending():
                break

    def _turn(self, driver: Driver) -> bool:
        """Call a spout until it has done something or is at rest, and not for ever; return whether it is at rest."""
        emitted, joined, until = len(driver.emitted), has_joined(driver), time.monotonic() + self._limit(driver)
        self._in_vain += 1
        while time.monotonic() < until:
            driver.spout.next_tuple()
            rests = False
            if len(driver.emitted) > emitted or (has_joined(driver) and not joined) or (rests := at_rest(self, driver)):
                if not (rests and self._joining()):  # where one rests, another may still be on its way into the group
                    self._in_vain = 0
                return rests
        return False

    def _joining(self) -> bool:
        return any(driver.session.consumer.rejoin_pending() for driver in self.live())

    def _limit(self, driver: Driver) -> float:
        if self.live() == [driver]:
            return TURN_S_MAX
        return min(SHARED_TURN_S * SHARED_TURN_GROWTH**self._in_vain, SHARED_TURN_S_MAX)

    def commit(self, driver: Driver) -> None:
        """Let a spout take a turn, and more of them until it has committed what is due.

        On a busy machine the first may not: a turn in which the broker took its time for a dead letter asks nothing
        more, and a commit without an answer is sent again later. One that meets an injected fault was tried.
        """
        faults = self._faults_of_commits()

        def was_tried() -> bool:
            driver.spout.next_tuple()
            session, services = driver.spout.session, driver.spout.services
            if session is None or session.state is SessionState.DRAINING:
                return True
            return not services.commit_timer.due(driver.spout.services.now()) or self._faults_of_commits() != faults

        wait_until(was_tried)

    def _faults_of_commits(self) -> dict[str, int]:
        pending = self.faults.pending()
        return {name: pending.get(name, 0) for name in ("commit", "commit_async", "topic_id")}

    def announce(self, driver: Driver) -> None:
        """Let a spout ask to join until the other members know of it."""

        def asked() -> bool:
            driver.spout.next_tuple()
            return all(other.session.consumer.rejoin_pending() for other in self.live())

        wait_until(asked)

    # --- the end ---

    def close(self) -> None:
        clusters.unregister(self.bootstrap)
        for driver in self._drivers:
            if driver.spout.session is not None:
                driver.session.consumer.close(leave_group=True)
            driver.spout.services.dead_lettering.close()
        admin = self._stage.admin
        for group in [found["group_id"] for found in admin.list_groups()]:
            with contextlib.suppress(errors.KafkaError):
                self.group(group).expire_members()
            admin.delete_groups([group])
        if topics := self.topic_names():
            admin.delete_topics(topics)
            wait_until(lambda: not self.topic_names())
        self._producer.close()
