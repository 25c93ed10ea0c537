"""Dead letters: records that failed for good, kept whole in their own topic.

A dead letter has the key, value, timestamp and headers of its record. Further headers (:data:`PREFIX`, as in Kafka
Connect) name its origin and the failure, or ``unknown``.

Dead letters are at-least-once: after a crash between the write and the spout's commit, a record is written again, so
readers count each origin once. If a KafkaBolt commits for the spout, they are exactly-once: each is in the transaction
of its record's offset (``downspout/spout/spout_transactions.py``). There, a replay counts as a new record, because the
commit does not cover the original.

The topic has no retention, because a dead letter's timestamp is that of its record and may be years old. It accepts
records as large as any topic does, plus our headers.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from kafka.errors import KafkaError

from downspout.component import Failure
from downspout.errors import BrokerError, coordinates
from downspout.kafka.port import Cluster, ConsumerPort, ProducerPort, Record, TopicPartition
from downspout.kafka.retry_gate import cure_of, describe
from downspout.kafka.scan import scan
from downspout.kafka.unreadable import CUT_BYTES, Unreadable

# --- Recent dead letters ---


LAST_MAX = 10
ERRORS_MAX = 50  # Exceptions counted separately; all others are counted together
OTHERS = "other exceptions"


@dataclass(frozen=True, slots=True)
class WrittenLetter:
    """A dead letter that is durable."""

    topic: str  # of the failed record, like partition and offset
    partition: int
    offset: int
    error: str  # class and message of the exception, or the kind of failure
    component: str  # the bolt that failed it; empty if unknown
    attempts: int
    at_ms: int | None  # last failure, milliseconds since the epoch


class WrittenLetters:
    """Counts dead letters by exception, and keeps the last ones, in bounded memory.

    >>> letters = WrittenLetters("shop.dead-letters")
    >>> letters.add([WrittenLetter("orders", 3, 918, "KeyError: 'sku'", "price", 4, 1_700_000_000_000)])
    >>> letters.report()["by_error"], letters.report()["last"][0]["offset"]
    ({'KeyError': 1}, 918)
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._by_error: Counter[str] = Counter()
        self._last: deque[WrittenLetter] = deque(maxlen=LAST_MAX)

    def add(self, written: Iterable[WrittenLetter]) -> None:
        """Add durable dead letters."""
        for each in written:
            kind = each.error.partition(": ")[0]
            self._by_error[kind if kind in self._by_error or len(self._by_error) < ERRORS_MAX else OTHERS] += 1
            self._last.append(each)

    def report(self) -> dict[str, Any]:
        """Return it as JSON values; the newest dead letter is last."""
        return {"topic": self._topic, "by_error": dict(self._by_error), "last": [asdict(each) for each in self._last]}


# --- The topic ---


PREFIX = "__downspout.errors."
UNKNOWN = "unknown"
RECORD_BYTES_MAX = 64 * 1024 * 1024
MESSAGE_CHARS_MAX = 1_000
STACK_CHARS_MAX = 8_000
OFFSETS_MAX = 1 << 31  # Limit of a batch's offsets, against malformed dead letters

_OFFSET, _ATTEMPTS = PREFIX + "offset", PREFIX + "attempts"
_FIRST_FAILURE, _LAST_FAILURE = PREFIX + "first.failure.ms", PREFIX + "last.failure.ms"
_MESSAGE, _STACK = PREFIX + "exception.message", PREFIX + "exception.stacktrace"
INCOMPLETE = PREFIX + "incomplete"  # Why a dead letter does not hold the whole record
_END, _SIZE = PREFIX + "offset.end", PREFIX + "record.bytes"
"""Headers for records that Kafka could not return in full: one more than the last offset that the dead letter covers,
and the size of a record that was too large."""
Header = tuple[str, bytes]

PRODUCER = {
    "max_request_size": RECORD_BYTES_MAX,
    "max_block_ms": 1000,
    "linger_ms": 0,  # dead letters are batched already
    "retry_backoff_ms": 20,  # also the wait before a new producer requests the topic's metadata
}
TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(RECORD_BYTES_MAX),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


class DeadLetters:
    """Writes dead letters to one topic; a missing topic is created on first use, with one partition."""

    def __init__(self, cluster: Cluster, topic: str, *, timeout_s: float = 3.0) -> None:
        self.topic = topic
        self._cluster = cluster
        # Longest wait for the broker's acknowledgement. On Storm, a spout's call may take 5 s at most, including the
        # close of the producer.
        self.timeout_s = timeout_s
        self._producer: ProducerPort | None = None
        self._queued: list[Record] = []
        self._notes: list[WrittenLetter] = []  # of the queued ones
        self.written = WrittenLetters(topic)

    def write(
        self,
        record: Record,  # the failed record
        *,
        attempts: int,  # how often it was tried
        first_failure_ms: int | None,  # milliseconds since the epoch
        last_failure_ms: int | None,  # likewise
        failure: Failure | None,  # the reason, if the engine knows it
        topic_id: str = "",  # Kafka's id of the record's topic
    ) -> None:
        """Write one dead letter, and wait until all replicas have acknowledged it.

        Raises:
            BrokerError: the write may not be durable; the record must not be counted as done.
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
        unreadable: Unreadable | None = None,
    ) -> None:
        """Queue one dead letter; it is durable only after :meth:`flush`. Arguments as for :meth:`write`.

        ``unreadable``: the data that Kafka could not return in full, if the record represents that.

        Raises:
            BrokerError: it, or one queued before, cannot be written: all queued ones are dropped.
        """
        own = [
            *_place(record.topic, topic_id, record.partition),
            (_OFFSET, b"%d" % record.offset),
            (_ATTEMPTS, b"%d" % attempts),
            (_FIRST_FAILURE, _encode(first_failure_ms)),
            (_LAST_FAILURE, _encode(last_failure_ms)),
            *_describe(failure),
            *_describe_cut(unreadable),
        ]
        self._queued.append(record)
        self._notes.append(_note(record, attempts, last_failure_ms, failure, unreadable))
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
        """Wait until all queued dead letters are acknowledged by all replicas.

        Args:
            timeout_s: instead of the constructor's.

        Raises:
            BrokerError: they may not be durable; none of their records may be counted as done.
        """
        try:
            self._ready().flush(self.timeout_s if timeout_s is None else timeout_s)
        except (KafkaError, BrokerError) as error:
            raise self._drop(error) from error
        self._are_durable()

    def acknowledged(self) -> bool:
        """Return whether all queued dead letters are acknowledged by all replicas, without waiting.

        Raises:
            BrokerError: as in :meth:`flush`.
        """
        try:
            acknowledged = not self._queued or self._ready().acknowledged()
        except (KafkaError, BrokerError) as error:
            raise self._drop(error) from error
        if acknowledged:
            self._are_durable()
        return acknowledged

    def _are_durable(self) -> None:
        """Record that all queued dead letters are durable."""
        self.written.add(self._notes)
        self._queued.clear()
        self._notes.clear()

    def answered(self, *, late: bool, wait_s: float) -> bool:
        """Send incomplete batches; return whether all replicas have acknowledged all queued dead letters.

        Args:
            late: whether the deadline has passed: dead letters without an answer have then failed.
            wait_s: longest wait for an answer, in seconds.

        Raises:
            BrokerError: as in :meth:`flush`.
        """
        if self.acknowledged():
            return True
        if late or wait_s:
            self.flush(wait_s)
        return late or wait_s > 0

    @property
    def is_open(self) -> bool:
        """Whether the producer exists, so that a write need not create it."""
        return self._producer is not None

    def _drop(self, error: KafkaError | BrokerError) -> BrokerError:
        """Drop the producer with all queued dead letters; return the error to raise."""
        at, others = self._queued[0] if self._queued else None, len(self._queued) - 1
        first = coordinates(at.topic, at.partition, at.offset) if at is not None else "?"
        self._queued.clear()
        self._notes.clear()
        self.close()
        what = f"{first}: its dead letter" if others < 1 else f"{first} and {others:,} others: their dead letters"
        return BrokerError(
            f"{what} could not be written to topic {self.topic}: {_one_line(error)}",
            cure=getattr(error, "cure", None) or cure_of(error, "check the broker, and the topic's max.message.bytes"),
        )

    def close(self) -> None:
        """Release the producer; the next write creates another."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaError, BrokerError):
                producer.close()

    def _ready(self) -> ProducerPort:
        if self._producer is None:
            self._cluster.ensure_topic(self.topic, 1, TOPIC_CONFIG)
            self._producer = self._cluster.producer(client=PRODUCER)
        return self._producer


def _note(
    record: Record, attempts: int, at_ms: int | None, failure: Failure | None, unreadable: Unreadable | None
) -> WrittenLetter:
    error = (failure.error or failure.kind) if failure is not None else UNKNOWN
    if unreadable is not None:
        error = f"unreadable: {unreadable.why}"
    component = failure.component if failure is not None else ""
    short = error[:MESSAGE_CHARS_MAX]
    return WrittenLetter(record.topic, record.partition, record.offset, short, component, attempts, at_ms)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as read; values that its headers lack, or that are malformed, are None."""

    topic: str | None  # of the failed record, like ``partition`` and ``offset``
    topic_id: str | None  # Kafka's id of that topic
    partition: int | None
    offset: int | None
    attempts: int | None  # attempts of the record
    first_failure_ms: int | None  # milliseconds since the epoch
    last_failure_ms: int | None  # likewise
    kind: str | None  # ``fail``, ``exception``, ``timeout``, ``crash``, or ``reject`` (a bolt rejected it)
    component: str | None  # the bolt that failed it
    task: int | None  # that bolt's task
    error_class: str | None  # class of the exception
    error: str | None  # its message, or a description of the failure
    stack: str | None  # its traceback
    incomplete: str | None  # why the dead letter does not hold the whole record; None: it does
    end: int | None  # one more than the last offset that it covers; None: it covers one record
    record_bytes: int | None  # size of a record that was too large; the dead letter has its beginning
    record: Record  # the dead letter itself, in its topic

    @property
    def origin(self) -> tuple[str, str, int, int] | None:
        """Topic, topic id, partition and offset of the failed record; None if unknown."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return (self.topic, self.topic_id or "", self.partition, self.offset)

    @property
    def is_cut(self) -> bool:
        """Whether its records were never read whole, so that it cannot be processed."""
        return self.end is not None or self.record_bytes is not None

    @property
    def offsets(self) -> range:
        """The offsets that it covers; empty if unknown."""
        if self.offset is None:
            return range(0)
        end = self.offset + 1
        return range(self.offset, end if self.end is None else min(max(end, self.end), self.offset + OFFSETS_MAX))

    @property
    def is_ours(self) -> bool:
        """Whether Downspout wrote it: it names the failed record and its attempts."""
        return self.origin is not None and self.attempts is not None

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The record's own headers, without ours."""
        return [(name, value) for name, value in self.record.headers if not name.startswith(PREFIX)]


def parse_dead_letter(record: Record) -> DeadLetter:
    """Parse a record of a dead-letter topic, whose headers may be malformed."""
    headers = {name.removeprefix(PREFIX): value for name, value in record.headers if name.startswith(PREFIX)}
    return DeadLetter(
        topic=_text(headers.get("topic"), unknown=None),
        topic_id=_text(headers.get("topic.id")),
        partition=_number(headers.get("partition")),
        offset=_number(headers.get("offset")),
        attempts=_number(headers.get("attempts")),
        first_failure_ms=_number(headers.get("first.failure.ms")),
        last_failure_ms=_number(headers.get("last.failure.ms")),
        kind=_text(headers.get("kind")),
        component=_text(headers.get("component")),
        task=_number(headers.get("task")),
        error_class=_text(headers.get("exception.class")),
        error=_text(headers.get("exception.message")),
        stack=_text(headers.get("exception.stacktrace")),
        incomplete=_text(headers.get("incomplete")),
        end=_number(headers.get("offset.end")),
        record_bytes=_number(headers.get("record.bytes")),
        record=record,
    )


def read_dead_letters(cluster: Cluster, topic: str) -> Iterator[DeadLetter]:
    """Yield the current dead letters of a topic, partition by partition, each origin once; none without a topic.

    Also yields all records without an origin in their headers. Memory: one entry per origin.

    Raises:
        BrokerError: the topic cannot be read to its end.
    """
    seen: set[tuple[str, str, int, int]] = set()
    for dead_letter in read_copies(cluster, topic):
        if dead_letter.origin is None or dead_letter.origin not in seen:
            yield dead_letter
        if dead_letter.origin is not None:
            seen.add(dead_letter.origin)


def read_copies(cluster: Cluster, topic: str, before: Mapping[int, int] | None = None) -> Iterator[DeadLetter]:
    """Yield all records of the topic as dead letters, including repeated origins.

    Args:
        before: read only these partitions, each up to this offset; by default, all current records.
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
        start = consumer.beginning_offsets([partition])[partition]
        for records in scan(consumer, partition, start, ends[partition]):
            yield from records


@lru_cache(maxsize=1_000)
def _place(topic: str, topic_id: str, partition: int) -> tuple[Header, ...]:
    """Return the headers that all dead letters of one partition share."""
    return (_header("topic", topic), _header("topic.id", topic_id), _header("partition", partition))


@lru_cache(maxsize=1_000)
def _culprit(kind: str | None, component: str | None, task: int | None, error: str | None) -> tuple[Header, ...]:
    """Return the headers that all dead letters of one bolt and error class share."""
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


def _describe_cut(unreadable: Unreadable | None) -> tuple[Header, ...]:
    """Return the headers for records that were not read whole."""
    if unreadable is None:
        return ()
    if unreadable.size is not None:
        cut = f"{unreadable.why}; key and value are cut after {CUT_BYTES:,} bytes, headers are left out"
        return ((INCOMPLETE, _encode(cut)), (_SIZE, b"%d" % unreadable.size))
    return ((INCOMPLETE, _encode(unreadable.why)), (_END, b"%d" % unreadable.end))


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
