"""Dead letters: records that failed for good, kept whole in a topic of their own.

The letter's key, value, timestamp and headers are the record's; where it came from and why it failed is appended as
headers (:data:`PREFIX`, in the manner of Kafka Connect), ``unknown`` where that is not known. Dead letters are
at-least-once: a crash between the write and the commit of the spout writes a record again, so readers count an origin
once.

The topic is made to keep what it gets: no retention (a letter keeps its record's timestamp, which may be years old),
and room for any record that another topic took, with our headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from kafka.errors import KafkaError, OffsetOutOfRangeError

from downspout.component import Failure
from downspout.errors import BrokerError, coordinates
from downspout.kafka.patience import cure_of, describe
from downspout.kafka.port import Cluster, ConsumerPort, ProducerPort, Record, TopicPartition

PREFIX = "__downspout.errors."
UNKNOWN = "unknown"
RECORD_BYTES_MAX = 64 * 1024 * 1024
MESSAGE_CHARS_MAX = 1_000
STACK_CHARS_MAX = 8_000
POLL_MS = 200
IDLE_POLLS_MAX = 150
"""Polls in a row that bring nothing (30 s) before a reader gives up on a broker that claims to have more."""

_OFFSET, _ATTEMPTS = PREFIX + "offset", PREFIX + "attempts"
_FIRST_FAILURE, _LAST_FAILURE = PREFIX + "first.failure.ms", PREFIX + "last.failure.ms"
_MESSAGE, _STACK = PREFIX + "exception.message", PREFIX + "exception.stacktrace"
INCOMPLETE = PREFIX + "incomplete"
"""A header that only letters have which do not hold the whole record; it says why."""
Header = tuple[str, bytes]

PRODUCER = {
    "max_request_size": RECORD_BYTES_MAX,
    "max_block_ms": 1000,
    "linger_ms": 0,  # letters come in batches, and a batch is sent as it is
    "retry_backoff_ms": 20,  # also what a new producer waits before it asks for the topic: the first letter waits too
}
TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(RECORD_BYTES_MAX),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


class DeadLetters:
    """Writes dead letters to one topic, which is created (with one partition) on first use where it is missing.

    Args:
        cluster: where the topic is.
        topic: its name.
        timeout_s: how long a letter may take to be acknowledged. Under Storm no call of a spout may take longer than
            5 s, and giving up takes another.
    """

    def __init__(self, cluster: Cluster, topic: str, *, timeout_s: float = 3.0) -> None:
        self.topic = topic
        self._cluster = cluster
        self.timeout_s = timeout_s
        self._producer: ProducerPort | None = None
        self._queued: list[Record] = []

    def write(
        self,
        record: Record,
        *,
        attempts: int,
        first_failure_ms: int | None,
        last_failure_ms: int | None,
        failure: Failure | None,
        topic_id: str = "",
    ) -> None:
        """Write one letter; it is acknowledged by all replicas when this returns.

        Args:
            record: what failed.
            attempts: how often it was tried.
            first_failure_ms: when it failed first, milliseconds since the epoch.
            last_failure_ms: when it failed last.
            failure: why, as far as the engine knows.
            topic_id: Kafka's id of the record's topic.

        Raises:
            BrokerError: the write is not known to be durable; the record must not be counted as resolved.
        """
        self.queue(
            record,
            attempts=attempts,
            first_failure_ms=first_failure_ms,
            last_failure_ms=last_failure_ms,
            failure=failure,
            topic_id=topic_id,
        )
        self.flush()

    def queue(
        self,
        record: Record,
        *,
        attempts: int,
        first_failure_ms: int | None,
        last_failure_ms: int | None,
        failure: Failure | None,
        topic_id: str = "",
    ) -> None:
        """Take one letter; nothing is known of it before :meth:`flush` has returned. Arguments as for :meth:`write`.

        Raises:
            BrokerError: it, or one that was queued before, cannot be written: all that were queued are dropped.
        """
        own = [
            *_place(record.topic, topic_id, record.partition),
            (_OFFSET, b"%d" % record.offset),
            (_ATTEMPTS, b"%d" % attempts),
            (_FIRST_FAILURE, _encode(first_failure_ms)),
            (_LAST_FAILURE, _encode(last_failure_ms)),
            *_describe(failure),
        ]
        self._queued.append(record)
        try:
            self._ready().send(
                self.topic,
                key=record.key,
                value=record.value,
                headers=[*record.headers, *own],
                timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
            )
        except (KafkaError, BrokerError) as error:
            raise self._drop(error) from error

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all queued letters are acknowledged by all replicas.

        Args:
            timeout_s: how long, where that is not what the constructor was given.

        Raises:
            BrokerError: they are not known to be durable; none of their records may be counted as resolved.
        """
        try:
            self._ready().flush(self.timeout_s if timeout_s is None else timeout_s)
        except (KafkaError, BrokerError) as error:
            raise self._drop(error) from error
        self._queued.clear()

    def settled(self) -> bool:
        """Return whether all queued letters are acknowledged by all replicas, without waiting.

        Raises:
            BrokerError: as in :meth:`flush`.
        """
        try:
            settled = not self._queued or self._ready().acknowledged()
        except (KafkaError, BrokerError) as error:
            raise self._drop(error) from error
        if settled:
            self._queued.clear()
        return settled

    def answered(self, *, late: bool, wait_s: float = 0.0) -> bool:
        """Return whether all queued letters are acknowledged by all replicas; hand over those that wait for a batch.

        Args:
            late: whether it is too late for an answer: what has none by now is given up.
            wait_s: how long to wait for one, in seconds.

        Raises:
            BrokerError: as in :meth:`flush`.
        """
        if self.settled():
            return True
        if late or wait_s:
            self.flush(wait_s)
        return late or wait_s > 0

    @property
    def is_open(self) -> bool:
        """Whether there is a producer, so that a letter needs no more than its own time."""
        return self._producer is not None

    def _drop(self, error: KafkaError | BrokerError) -> BrokerError:
        """Give the producer up, with all that it may hold; return the error to raise."""
        at, others = self._queued[0] if self._queued else None, len(self._queued) - 1
        first = coordinates(at.topic, at.partition, at.offset) if at is not None else "?"
        self._queued.clear()
        self.close()
        what = f"{first}: its dead letter" if others < 1 else f"{first} and {others:,} others: their dead letters"
        return BrokerError(
            f"{what} could not be written to topic {self.topic}: {_one_line(error)}",
            cure=getattr(error, "cure", None)
            or cure_of(error, "look at the broker, and at the topic's max.message.bytes"),
        )

    def close(self) -> None:
        """Release the producer; the next write makes another."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaError, BrokerError):
                producer.close()

    def _ready(self) -> ProducerPort:
        if self._producer is None:
            self._cluster.ensure_topic(self.topic, 1, TOPIC_CONFIG)
            self._producer = self._cluster.producer(client=PRODUCER)
        return self._producer


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One letter as it was read. What its headers do not tell, or tell in a way that makes no sense, is None.

    Attributes:
        topic: of the record that failed, like ``partition`` and ``offset``.
        topic_id: Kafka's id of that topic.
        attempts: how often the record was tried.
        first_failure_ms: milliseconds since the epoch.
        last_failure_ms: likewise.
        kind: ``fail``, ``exception``, ``timeout``, ``crash``, or ``reject`` (a bolt put it aside).
        component: the bolt that failed it.
        task: that bolt's task.
        error_class: class of the exception.
        error: its message, or else a description of the failure.
        stack: its traceback.
        incomplete: why the letter does not hold the whole record; None: it does.
        letter: the letter itself, in the dead-letter topic.
    """

    topic: str | None
    topic_id: str | None
    partition: int | None
    offset: int | None
    attempts: int | None
    first_failure_ms: int | None
    last_failure_ms: int | None
    kind: str | None
    component: str | None
    task: int | None
    error_class: str | None
    error: str | None
    stack: str | None
    incomplete: str | None
    letter: Record

    @property
    def origin(self) -> tuple[str, str, int, int] | None:
        """Topic, topic id, partition and offset of the record that failed; None where that is not told."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return (self.topic, self.topic_id or "", self.partition, self.offset)

    @property
    def is_ours(self) -> bool:
        """Whether it is a letter of ours at all: it tells which record failed, and how often."""
        return self.origin is not None and self.attempts is not None

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The record's own headers, without ours."""
        return [(name, value) for name, value in self.letter.headers if not name.startswith(PREFIX)]


def parse_dead_letter(letter: Record) -> DeadLetter:
    """Return what a record of a dead-letter topic says; anybody may have written it, so nothing in it is trusted."""
    told = {name.removeprefix(PREFIX): value for name, value in letter.headers if name.startswith(PREFIX)}
    return DeadLetter(
        topic=_text(told.get("topic"), unknown=None),
        topic_id=_text(told.get("topic.id")),
        partition=_number(told.get("partition")),
        offset=_number(told.get("offset")),
        attempts=_number(told.get("attempts")),
        first_failure_ms=_number(told.get("first.failure.ms")),
        last_failure_ms=_number(told.get("last.failure.ms")),
        kind=_text(told.get("kind")),
        component=_text(told.get("component")),
        task=_number(told.get("task")),
        error_class=_text(told.get("exception.class")),
        error=_text(told.get("exception.message")),
        stack=_text(told.get("exception.stacktrace")),
        incomplete=_text(told.get("incomplete")),
        letter=letter,
    )


def read_dead_letters(cluster: Cluster, topic: str) -> Iterator[DeadLetter]:
    """Yield the letters that are in the topic now, partition by partition, each origin once; none if there is no topic.

    Records without an origin in their headers are yielded too, each of them. Memory: one entry per origin.

    Raises:
        BrokerError: the topic cannot be read to its end.
    """
    seen: set[tuple[str, str, int, int]] = set()
    for letter in read_copies(cluster, topic):
        if letter.origin is None or letter.origin not in seen:
            yield letter
        if letter.origin is not None:
            seen.add(letter.origin)


def read_copies(cluster: Cluster, topic: str, before: Mapping[int, int] | None = None) -> Iterator[DeadLetter]:
    """Yield all records of the topic as letters, an origin as often as it is there.

    Args:
        cluster: where the topic is.
        topic: its name.
        before: read only these partitions, and each only up to this offset; not given: all there is now.

    Raises:
        BrokerError: the topic cannot be read to its end.
    """
    consumer = cluster.consumer(group=None)
    try:
        yield from map(parse_dead_letter, _read_all(consumer, topic, before))
    except KafkaError as error:
        raise BrokerError(
            f"{topic}: its dead letters cannot be read: {_one_line(error)}", cure="check the broker"
        ) from error
    finally:
        consumer.close()


def _read_all(consumer: ConsumerPort, topic: str, before: Mapping[int, int] | None = None) -> Iterator[Record]:
    numbers = consumer.partitions_for(topic) if before is None else before
    partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
    ends = consumer.end_offsets(partitions) if partitions else {}
    if before is not None:
        ends = {partition: min(end, before[partition.partition]) for partition, end in ends.items()}
    for partition in partitions:
        consumer.assign([partition])
        consumer.seek(partition, consumer.beginning_offsets([partition])[partition])
        idle = 0
        while (position := consumer.position(partition)) < ends[partition]:
            try:
                records = consumer.poll(POLL_MS, 500).get(partition, ())
            except OffsetOutOfRangeError:  # its start has moved while we read
                consumer.seek(partition, consumer.beginning_offsets([partition])[partition])
                continue
            yield from (record for record in records if record.offset < ends[partition])
            idle = idle + 1 if consumer.position(partition) == position else 0
            if idle > IDLE_POLLS_MAX:
                place = coordinates(topic, partition.partition, position)
                raise BrokerError(
                    f"{place}: nothing comes, but the log ends at {ends[partition]}", cure="check the broker"
                )


@lru_cache(maxsize=1_000)
def _place(topic: str, topic_id: str, partition: int) -> tuple[Header, ...]:
    """Return the headers that all letters of one partition have."""
    return (_header("topic", topic), _header("topic.id", topic_id), _header("partition", partition))


@lru_cache(maxsize=1_000)
def _culprit(kind: str | None, component: str | None, task: int | None, error: str | None) -> tuple[Header, ...]:
    """Return the headers that all letters of one bolt and class of errors have."""
    return (
        _header("kind", kind),
        _header("component", component),
        _header("task", task),
        _header("exception.class", error),
    )


def _describe(failure: Failure | None) -> tuple[Header, ...]:
    if failure is None:
        return (*_culprit(None, None, None, None), (_MESSAGE, UNKNOWN.encode()), (_STACK, UNKNOWN.encode()))
    name, colon, message = failure.error.partition(": ")
    if not failure.error:
        message = "not acked in time" if failure.kind == "timeout" else "failed without an exception"
    elif not colon:
        message = ""
    return (
        *_culprit(failure.kind, failure.component, failure.task if failure.task >= 0 else None, name),
        (_MESSAGE, _encode(message[:MESSAGE_CHARS_MAX])),
        (_STACK, _encode(failure.stack[-STACK_CHARS_MAX:])),
    )


def _header(name: str, value: object) -> Header:
    return (PREFIX + name, _encode(value))


def _encode(value: object) -> bytes:
    text = UNKNOWN if value is None or value == "" else str(value)
    return text.encode("utf-8", "backslashreplace")


def _text(value: object, unknown: str | None = UNKNOWN) -> str | None:
    if not isinstance(value, bytes) or not value:
        return None
    text = value.decode("utf-8", "replace")
    return None if text == unknown else text


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, bytes) and re.fullmatch(rb"[0-9]{1,18}", value) else None


def _one_line(error: Exception) -> str:
    if isinstance(error, BrokerError):
        return error.message
    return describe(error)
