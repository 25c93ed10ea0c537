"""Replays and purges of dead letters (``downspout dlq``).

Dead letters are at-least-once, so each origin counts once
(:func:`~downspout.dead_letters.dead_letter.read_dead_letters`). A change has two steps: a plan to show, and its
execution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kafka.errors import KafkaError, MessageSizeTooLargeError

from downspout.dead_letters.claims import PREFIX, claim, identity_headers
from downspout.dead_letters.dead_letter import PRODUCER, DeadLetter, read_copies, read_dead_letters
from downspout.errors import BrokerError, ConfigError, coordinates
from downspout.formatting import MessageForms, counted
from downspout.kafka.port import Cluster, TopicPartition
from downspout.kafka.retry_gate import describe
from downspout.ledger.origin import Origin

FLUSH_RECORDS = 500
FLUSH_BYTES = 8 * 1024 * 1024
EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """Conditions that select dead letters; None selects all."""

    topic: str | None = None  # of the failed record
    partition: int | None = None  # likewise
    start: int | None = None  # its lowest offset
    end: int | None = None  # one more than its highest offset
    exception: re.Pattern[str] | None = None  # searched in ``class: message`` of the error
    since_ms: int | None = None  # last failure at or after this, milliseconds since the epoch
    until_ms: int | None = None  # last failure before this

    def takes(self, dead_letter: DeadLetter) -> bool:
        """Return whether the dead letter is selected; missing values meet no condition."""
        return (
            self.topic in (None, dead_letter.topic)
            and self.partition in (None, dead_letter.partition)
            and _within(dead_letter.offset, self.start, self.end)
            and _within(dead_letter.last_failure_ms, self.since_ms, self.until_ms)
            and (self.exception is None or self.exception.search(error_text(dead_letter)) is not None)
        )

    def read(self, cluster: Cluster, dead_letters: str) -> Iterator[DeadLetter]:
        """Yield the selected dead letters of a topic, each origin once.

        Raises:
            BrokerError: there is no such topic, or it cannot be read.
        """
        yield from filter(self.takes, read_topic(cluster, dead_letters))


@dataclass(slots=True)
class Sorts:
    """Counts the records of a topic that Downspout wrote, and others."""

    ours: int = 0  # dead letters
    foreign: int = 0  # other records
    example: str = ""  # coordinates of the first of these

    def count(self, dead_letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """Yield the dead letters that Downspout wrote."""
        for dead_letter in dead_letters:
            if dead_letter.is_ours:
                self.ours += 1
                yield dead_letter
            else:
                record = dead_letter.record
                self.example = self.example or coordinates(record.topic, record.partition, record.offset)
                self.foreign += 1


def read_topic(cluster: Cluster, dead_letters: str) -> Iterator[DeadLetter]:
    """Yield all records of a dead-letter topic, each origin once.

    Raises:
        BrokerError: there is no such topic, or it cannot be read.
    """
    partitions_of(cluster, dead_letters)
    yield from read_dead_letters(cluster, dead_letters)


def _within(value: int | None, low: int | None, high: int | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value < high)


def error_text(dead_letter: DeadLetter) -> str:
    """Return ``class: message`` of the error, as far as known."""
    return ": ".join(part for part in (dead_letter.error_class, dead_letter.error) if part)


def place_of(dead_letter: DeadLetter) -> str:
    """Return the coordinates of the failed record, or else of the dead letter."""
    if dead_letter.topic is not None and dead_letter.partition is not None and dead_letter.offset is not None:
        return coordinates(dead_letter.topic, dead_letter.partition, dead_letter.offset)
    return (
        f"dead letter {coordinates(dead_letter.record.topic, dead_letter.record.partition, dead_letter.record.offset)}"
    )


# --- groups ---


@dataclass(slots=True)
class LetterGroup:
    """Dead letters of one topic whose errors are of one class and differ only in numbers and quoted values."""

    topic: str | None  # of the records; None: unknown
    error_class: str  # of the exception, or the kind of failure (``timeout``, ``fail``)
    count: int = 0  # dead letters
    first_ms: int | None = None  # the earliest first failure, milliseconds since the epoch
    last_ms: int | None = None  # the latest last failure
    example: str = ""  # the coordinates of one record
    message: str = ""  # that record's error

    def add(self, dead_letter: DeadLetter) -> None:
        """Count a dead letter."""
        if not self.count:
            self.example, self.message = place_of(dead_letter), dead_letter.error or ""
        self.count += 1
        self.first_ms = _extreme(min, self.first_ms, dead_letter.first_failure_ms)
        self.last_ms = _extreme(max, self.last_ms, dead_letter.last_failure_ms)


def _extreme(pick: Callable[[list[int]], int], one: int | None, other: int | None) -> int | None:
    known = [time_ms for time_ms in (one, other) if time_ms is not None]
    return pick(known) if known else None


def group_dead_letters(dead_letters: Iterable[DeadLetter]) -> list[LetterGroup]:
    """Group dead letters by topic, exception and form of message, the largest group first. Memory: the groups."""
    groups: dict[tuple[str | None, str, str], LetterGroup] = {}
    forms = MessageForms()
    for dead_letter in dead_letters:
        key = (dead_letter.topic, dead_letter.error_class or dead_letter.kind or "unknown")
        form = forms.of(key, dead_letter.error or "")
        groups.setdefault((*key, form), LetterGroup(*key)).add(dead_letter)
    return sorted(groups.values(), key=lambda group: (-group.count, group.topic or "", group.error_class))


# --- replay ---


def identity_of(dead_letter: DeadLetter) -> Origin | None:
    """Return the original record for a replay of this dead letter."""
    if dead_letter.origin is None:
        return None
    own = Origin(*dead_letter.origin)
    # If the failed record was a replay itself, this is its original.
    stands_for = claim(dead_letter.headers, own.topic, own.topic_id, own.partition, own.offset)
    return stands_for or own


@dataclass(slots=True)
class Replay:
    """The records that a replay writes, or has written."""

    counts: dict[str, int] = field(default_factory=dict)  # records by target topic
    examples: list[tuple[str, str]] = field(default_factory=list)  # the first records: coordinates, target topic
    without_origin: int = 0  # dead letters without an origin, which cannot be replayed
    repeated: int = 0  # dead letters whose original is already written for another one
    cut: int = 0  # omitted dead letters that hold only the beginning of a record, or nothing

    @property
    def total(self) -> int:
        """Number of records."""
        return sum(self.counts.values())

    @property
    def left_out(self) -> int:
        """Number of selected dead letters that are not written."""
        return self.without_origin + self.repeated + self.cut


def plan_replay(
    cluster: Cluster,  # Kafka
    dead_letters: str,  # the dead-letter topic
    chosen: Iterable[DeadLetter],  # the selected dead letters
    *,
    to: str | None = None,  # the target, if not the record's topic
    write: bool = False,  # write the records, and wait until all are acknowledged
    skip_cut: bool = False,  # omit dead letters whose records were never read whole
) -> Replay:
    """Plan a replay of dead letters, and write the records if ``write``.

    Each goes to its own topic and partition (with ``to``: to that topic, by its key), with its key, value, timestamp
    and headers. Further headers name its original (:mod:`downspout.dead_letters.claims`).

    Raises:
        BrokerError: a topic does not exist, or a write failed; the message has the number of records written.
    """
    if to == dead_letters:
        raise ConfigError(f"--to {to} is the dead-letter topic itself", cure="the topic that the topology reads")
    writer = _Writer(cluster, dead_letters) if write else None
    known: dict[str, frozenset[int]] = {}
    seen: set[Origin] = set()
    plan = Replay()
    try:
        for dead_letter in chosen:
            if dead_letter.is_cut:
                if not skip_cut:
                    raise _not_whole(dead_letter)
                plan.cut += 1
                continue
            if (origin := identity_of(dead_letter)) is None:
                plan.without_origin += 1
                continue
            if origin in seen:
                plan.repeated += 1
                continue
            seen.add(origin)
            target = to or origin.topic
            if target == dead_letters:
                plan.without_origin += 1  # its record is in the dead-letter topic itself, which no spout reads
                continue
            if target not in known:
                known[target] = partitions_of(cluster, target)
            partition = origin.partition if to is None and origin.partition in known[target] else None
            plan.counts[target] = plan.counts.get(target, 0) + 1
            if len(plan.examples) < EXAMPLES:
                plan.examples.append((coordinates(origin.topic, origin.partition, origin.offset), target))
            if writer is not None:
                writer.write(dead_letter, origin, target, partition)
        if writer is not None:
            writer.flush()
    finally:
        if writer is not None:
            writer.close()
    return plan


def _not_whole(dead_letter: DeadLetter) -> ConfigError:
    end = dead_letter.offsets.stop - 1
    others = f" to {end}" if end > dead_letter.offsets.start else ""
    return ConfigError(
        f"{place_of(dead_letter)}{others}: the dead letter does not hold the whole record ({dead_letter.incomplete}), "
        "so it cannot be replayed",
        cure="--skip-truncated replays the others; what is still in Kafka can be read again, with higher "
        "kafka.record_bytes_max and kafka.start_offsets",
    )


class _Writer:
    """Writes replayed records, a few hundred per flush."""

    def __init__(self, cluster: Cluster, dead_letters: str) -> None:
        self._producer = cluster.producer(client=PRODUCER)
        self._dead_letters = dead_letters
        self._queued = self._bytes = self._written = 0
        self._largest = (0, "")

    def write(self, dead_letter: DeadLetter, origin: Origin, topic: str, partition: int | None) -> None:
        """Queue one record."""
        record = dead_letter.record
        size, place = (
            len(record.key or b"") + len(record.value or b""),
            coordinates(origin.topic, origin.partition, origin.offset),
        )
        self._largest = max(self._largest, (size, f"{place}, {size:,} bytes, for topic {topic}"))
        own = [(name, value) for name, value in dead_letter.headers if not name.startswith(PREFIX)]
        try:
            self._producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=[*own, *identity_headers(origin, topic)],
                partition=partition,
                timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
            )
        except KafkaError as error:
            raise self._failed(error) from error
        self._queued += 1
        self._bytes += size
        if self._queued >= FLUSH_RECORDS or self._bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Wait until all queued records are acknowledged."""
        try:
            self._producer.flush()
        except KafkaError as error:
            raise self._failed(error) from error
        self._written += self._queued
        self._queued = self._bytes = 0
        self._largest = (0, "")

    def _failed(self, error: KafkaError) -> BrokerError:
        if isinstance(error, MessageSizeTooLargeError):
            return BrokerError(
                f"replay of {self._dead_letters}: {counted(self._written, 'record')} written, and perhaps some "
                f"of the next {self._queued + 1:,}: a record is too large: {self._largest[1]}",
                cure="a higher max.message.bytes of that topic, then replay again; sinks drop rows that they have",
            )
        return BrokerError(
            f"replay of {self._dead_letters}: {counted(self._written, 'record')} written, and perhaps some of the "
            f"next {self._queued + 1:,}: {describe(error)}",
            cure="repair it and replay again; sinks drop rows that they have",
        )

    def close(self) -> None:
        """Release the producer."""
        self._producer.close()


def partitions_of(cluster: Cluster, topic: str) -> frozenset[int]:
    """Return the numbers of a topic's partitions."""
    consumer = cluster.consumer(group=None)
    try:
        found = consumer.partitions_for(topic)
    except KafkaError as error:
        raise BrokerError(f"{topic}: {describe(error)}", cure="check the broker") from error
    finally:
        consumer.close()
    if not found:
        raise BrokerError(f"there is no topic {topic}", cure="`downspout kafka topics`")
    return found


# --- Purges ---


@dataclass(frozen=True, slots=True)
class Purge:
    """The dead letters to delete from one partition: ``[start, before)``."""

    partition: int
    start: int
    before: int

    @property
    def count(self) -> int:
        """Number of offsets."""
        return self.before - self.start


def plan_purge(cluster: Cluster, topic: str, before: Mapping[int | None, int], *, force: bool = False) -> list[Purge]:
    """Plan a purge; :func:`purge` executes it.

    Reads all its records first: in a mistyped topic, there may be records that Downspout did not write.

    Args:
        before: delete the dead letters below this offset, by partition; the key None is for all others.
        force: also delete records that Downspout did not write.

    Raises:
        ConfigError: an offset is beyond the end, or Downspout did not write a record below it.
    """
    numbers = partitions_of(cluster, topic)
    if unknown := sorted(number for number in before if number is not None and number not in numbers):
        raise BrokerError(f"{coordinates(topic, unknown[0])} does not exist", cure=f"a partition below {len(numbers)}")
    partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
    consumer = cluster.consumer(group=None)
    try:
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    except KafkaError as error:
        raise BrokerError(f"{topic}: {describe(error)}", cure="check the broker") from error
    finally:
        consumer.close()
    plan = _ranges(topic, before, starts, ends)
    if not force:
        _refuse_foreign(cluster, topic, plan)
    return plan


def _ranges(
    topic: str,
    before: Mapping[int | None, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[Purge]:
    plan = []
    for tp in sorted(starts):
        offset = before.get(tp.partition, before.get(None, 0))
        if offset > ends[tp] and tp.partition in before:
            raise ConfigError(
                f"{coordinates(topic, tp.partition)} ends at {ends[tp]}: {offset} is beyond that",
                cure=f"at most {ends[tp]}",
            )
        if (offset := min(offset, ends[tp])) > starts[tp]:
            plan.append(Purge(tp.partition, starts[tp], offset))
    return plan


def _refuse_foreign(cluster: Cluster, topic: str, plan: Iterable[Purge]) -> None:
    for dead_letter in read_copies(cluster, topic, {part.partition: part.before for part in plan}):
        if not dead_letter.is_ours:
            record = dead_letter.record
            raise ConfigError(
                f"{coordinates(record.topic, record.partition, record.offset)} was not written by Downspout, and a "
                "purge would delete it. Nothing was deleted",
                cure="the dead-letter topic (kafka.dead_letter_topic), or --force if the topic also holds other "
                "records",
            )


def purge(cluster: Cluster, topic: str, plan: Iterable[Purge]) -> None:
    """Execute a plan; deletion is final. Raises BrokerError: the broker refuses."""
    for part in plan:
        cluster.delete_records(topic, part.partition, part.before)
