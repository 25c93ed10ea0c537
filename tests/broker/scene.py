"""A topic on a real broker and spouts that are driven by hand: what the tests of the spout on the broker share.

Spouts look at a clock that tests can send ahead, so commit periods and back-offs need no waiting. What the broker has
to do (sessions, the log cleaner, expiry) takes the time it takes: tests wait for conditions, never for a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaProducer, errors
from kafka.admin import KafkaAdminClient

from downspout.kafka import Cluster, ConsumerPort, OffsetAndMetadata, TopicPartition, cluster_for
from tests.jumping import JumpingClock
from tests.kafka.broker_stage import read_whole
from tests.spout.spout_driver import Driver, place_of

PATIENCE_S = 90.0
"""How long a condition may take to come true, on a machine that does much else."""
UNHURRIED_MS = 30_000
"""The session of a member that nobody kills: one that has no time to run for some seconds is not thrown out."""
KILLED_MS = 10_000
"""That of one whose place others are to get when it is killed."""


class Member(Driver):
    """A spout that answers each of its tuples once.

    ``answered`` is how many of ``emitted`` had their answer; ``streams`` says where each of them went.
    """

    answered = 0

    def __init__(self, *given: Any, **settings: Any) -> None:
        self.streams: list[str] = []
        super().__init__(*given, **settings)

    def _emit(self, values: list[Any], tup_id: str | None = None, **how: Any) -> None:
        self.streams.append(how.get("stream") or "default")
        super()._emit(values, tup_id)

    def answer(self, fails: Callable[[tuple[int, int]], bool] = lambda place: False) -> None:
        """Ack what was emitted since the last call, and fail what ``fails`` says by (partition, offset)."""
        new = self.emitted[self.answered :]
        self.answered += len(new)
        for tup_id, _ in new:
            (self.spout.fail if fails(place_of(tup_id)) else self.spout.ack)(tup_id)

    @property
    def places(self) -> list[tuple[int, int]]:
        return [place_of(tup_id) for tup_id, _ in self.emitted]


class Scene:
    """A topic, the group that reads it, and its members.

    Args:
        bootstrap: of the broker.
        topic: is created where it does not exist.
        partitions: how many it has.
        config: of the topic.
        group: default: one of its own for each topic.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None, group: str = ""
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = group or f"{topic}-group"
        self.clock = JumpingClock()
        self.cluster: Cluster = cluster_for(bootstrap)
        self.cluster.ensure_topic(topic, partitions, config)
        self._members: list[Member] = []
        self._asker: ConsumerPort | None = None

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def tp(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    # --- the log ---

    def fill(
        self,
        count: int,
        partition: int = 0,
        value: Callable[[int], bytes | None] = lambda n: str(n).encode(),
        *,
        key: Callable[[int], bytes | None] = lambda n: None,
        batch: int = 0,
        topic: str = "",
        start_ms: int = 1000,
    ) -> None:
        """Append records 0, 1, 2 … stamped from ``start_ms`` on; at most ``batch`` of them in one batch."""
        producer = self.cluster.producer()
        for number in range(count):
            stamp = start_ms + number
            producer.send(
                topic or self.topic, key=key(number), value=value(number), partition=partition, timestamp_ms=stamp
            )
            if batch and number % batch == batch - 1:
                producer.flush()
        producer.flush()
        producer.close()

    def transaction(self, values: Sequence[bytes], *, commit: bool, partition: int = 0) -> None:
        """Append records and the marker of a transaction that was committed or aborted."""
        end = self.bounds(partition)[1] + len(values) + 1
        name = f"{self.topic}-{time.monotonic_ns()}"
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=name)
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(self.topic, value=value, partition=partition).get(timeout=PATIENCE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)()
        producer.close()
        run_until(lambda: self.bounds(partition)[1] == end)  # the answer comes before the marker is in the log

    def topic_id(self) -> str:
        return self._ask().topic_id(self.topic)

    def bounds(self, partition: int = 0) -> tuple[int, int]:
        """Return the first and the next offset of a partition."""
        asker, tp = self._ask(), self.tp(partition)
        return asker.beginning_offsets([tp])[tp], asker.end_offsets([tp])[tp]

    def offsets(self, partition: int = 0) -> list[int]:
        """Return the offsets that are in the log, and can be read, now."""
        return [record.offset for record in read_whole(self.cluster, [self.tp(partition)])]

    def recreate(self, partitions: int, *members: Member) -> None:
        """Delete the topic and create it again as soon as it is gone; members take turns meanwhile."""
        with self.admin() as admin:
            admin.delete_topics([self.topic])
            run_until(lambda: self.topic not in admin.list_topics(), *members, answer=True)
        self.cluster.ensure_topic(self.topic, partitions)

    @contextmanager
    def admin(self) -> Iterator[Any]:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            yield admin
        finally:
            admin.close()

    # --- the group ---

    def member(self, member: int | None = 1, **settings: Any) -> Member:
        """Start a spout; it is closed when the test ends."""
        given = {"topics": [self.topic], "group": self.group, "session_timeout_ms": UNHURRIED_MS, **settings}
        made = Member(self, member, **given)
        self._members.append(made)
        return made

    def commits(self, partitions: Collection[int] = (0,)) -> dict[int, OffsetAndMetadata | None]:
        asked = [self.tp(partition) for partition in partitions]
        found: Mapping[TopicPartition, OffsetAndMetadata | None] = {}

        def told() -> bool:  # a broker that has just come back may not answer in time
            nonlocal found
            with suppress(errors.RetriableError):
                found = self._ask().committed(asked)
            return bool(found)

        run_until(told)
        return {tp.partition: commit for tp, commit in found.items()}

    def committed(self, partition: int = 0) -> int | None:
        found = self.commits([partition])[partition]
        return None if found is None else found.offset

    def put_commit(self, commit: OffsetAndMetadata, partition: int = 0) -> None:
        self._ask().commit({self.tp(partition): commit})

    def commit_all(self, *members: Member, **expected: int) -> None:
        """Let commit periods pass until partitions (``p0=10``) have these commits."""
        wanted = {int(name[1:]): offset for name, offset in expected.items()}

        def done() -> bool:
            found = {number: commit and commit.offset for number, commit in self.commits(wanted).items()}
            self.clock.sleep(0 if found == wanted else 31)
            return found == wanted

        run_until(done, *members)

    def _ask(self) -> ConsumerPort:
        if self._asker is None:
            self._asker = self.cluster.consumer(group=self.group)
        return self._asker

    def close(self) -> None:
        for member in self._members:
            member.spout.close()
        if self._asker is not None:
            self._asker.close()


def polled(consumer: Any) -> bool:
    consumer.poll(20, 10)
    return True


def run_until(
    holds: Callable[[], object],
    *members: Member,
    answer: bool = False,
    fails: Callable[[tuple[int, int]], bool] = lambda place: False,
    each: Callable[[], None] = lambda: None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Let spouts take turns, and answer their tuples if asked to, until a condition holds."""
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, f"it did not happen: {[member.spout.report() for member in members]}"
        for member in members:
            member.spout.next_tuple()
            if answer:
                member.answer(fails)
        each()
        if not members:
            time.sleep(0.05)


def repeated(*members: Member) -> dict[tuple[int, int], int]:
    """Return what was emitted more than once, by whomever, and how often."""
    counts = Counter(place for member in members for place in member.places)
    return {place: count for place, count in counts.items() if count > 1}
