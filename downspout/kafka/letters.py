"""What is done with dead letters: choose, group, write back. ``downspout dlq`` is the command line for it.

Letters are at-least-once and an origin counts once (:func:`~downspout.kafka.deadletter.read_dead_letters`). Whatever
changes something comes in two steps: a plan that can be shown, and its execution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kafka.errors import KafkaError

from downspout.errors import BrokerError, ConfigError, coordinates
from downspout.kafka import replayed
from downspout.kafka.deadletter import PRODUCER, DeadLetter, read_dead_letters
from downspout.kafka.patience import describe
from downspout.kafka.port import Cluster
from downspout.ledger.origin import Origin
from downspout.wording import counted

__all__ = ["Choice", "Group", "Replay", "group_letters", "identity_of", "plan_replay"]

FLUSH_RECORDS = 500
FLUSH_BYTES = 8 * 1024 * 1024
EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters; what is not given does not matter.

    Attributes:
        topic: of the record that failed.
        partition: likewise.
        start: its lowest offset.
        end: one more than its highest offset.
        exception: found in ``class: message`` of the error.
        since_ms: failed last at or after this, milliseconds since the epoch.
        until_ms: failed last before this.
    """

    topic: str | None = None
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    exception: re.Pattern[str] | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether the letter is chosen; what it does not tell fits no condition."""
        return (
            self.topic in (None, letter.topic)
            and self.partition in (None, letter.partition)
            and _within(letter.offset, self.start, self.end)
            and _within(letter.last_failure_ms, self.since_ms, self.until_ms)
            and (self.exception is None or self.exception.search(error_text(letter)) is not None)
        )

    def read(self, cluster: Cluster, letters: str) -> Iterator[DeadLetter]:
        """Yield the chosen letters of a dead-letter topic, each origin once.

        Raises:
            BrokerError: there is no such topic, or it cannot be read.
        """
        yield from filter(self.takes, read_letters(cluster, letters))


@dataclass(slots=True)
class Sorts:
    """How many records of a topic are letters of ours, counted as they pass.

    Attributes:
        ours: letters.
        foreign: other records.
        example: the place of the first of these.
    """

    ours: int = 0
    foreign: int = 0
    example: str = ""

    def count(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """Yield the letters of ours."""
        for letter in letters:
            if letter.is_ours:
                self.ours += 1
                yield letter
            else:
                record = letter.letter
                self.example = self.example or coordinates(record.topic, record.partition, record.offset)
                self.foreign += 1


def read_letters(cluster: Cluster, letters: str) -> Iterator[DeadLetter]:
    """Yield all letters of a dead-letter topic, each origin once, and records that are none.

    Raises:
        BrokerError: there is no such topic, or it cannot be read.
    """
    partitions_of(cluster, letters)
    yield from read_dead_letters(cluster, letters)


def _within(value: int | None, low: int | None, high: int | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value < high)


def error_text(letter: DeadLetter) -> str:
    """Return ``class: message`` of the error, as far as the letter tells it."""
    return ": ".join(part for part in (letter.error_class, letter.error) if part)


def place_of(letter: DeadLetter) -> str:
    """Name the record that failed, or else the letter."""
    if letter.topic is not None and letter.partition is not None and letter.offset is not None:
        return coordinates(letter.topic, letter.partition, letter.offset)
    return f"letter {coordinates(letter.letter.topic, letter.letter.partition, letter.letter.offset)}"


# --- groups ---


@dataclass(slots=True)
class Group:
    """Letters of one topic that failed in the same way.

    Attributes:
        topic: of the records; None: not told.
        error_class: of the exception, else how it failed (``timeout``, ``fail``).
        count: letters.
        first_ms: the earliest first failure, milliseconds since the epoch; None: none is told.
        last_ms: the latest last failure.
        example: the place of one of the records.
        message: that record's error.
    """

    topic: str | None
    error_class: str
    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    example: str = ""
    message: str = ""

    def add(self, letter: DeadLetter) -> None:
        """Count a letter."""
        if not self.count:
            self.example, self.message = place_of(letter), letter.error or ""
        self.count += 1
        self.first_ms = _extreme(min, self.first_ms, letter.first_failure_ms)
        self.last_ms = _extreme(max, self.last_ms, letter.last_failure_ms)


def _extreme(pick: Callable[[list[int]], int], one: int | None, other: int | None) -> int | None:
    told = [time_ms for time_ms in (one, other) if time_ms is not None]
    return pick(told) if told else None


def group_letters(letters: Iterable[DeadLetter]) -> list[Group]:
    """Return the letters by topic and exception, the largest group first. Memory: the groups."""
    groups: dict[tuple[str | None, str], Group] = {}
    for letter in letters:
        key = (letter.topic, letter.error_class or letter.kind or "unknown")
        groups.setdefault(key, Group(*key)).add(letter)
    return sorted(groups.values(), key=lambda group: (-group.count, group.topic or "", group.error_class))


# --- replay ---


def identity_of(letter: DeadLetter) -> Origin | None:
    """Return the record that a replay of this letter stands for.

    If the record that failed was a replay itself, that is the record which it stood for.
    """
    if letter.origin is None:
        return None
    own = Origin(*letter.origin)
    stands_for = replayed.claim(letter.headers, own.topic, own.topic_id, own.partition, own.offset)
    return stands_for or own


@dataclass(slots=True)
class Replay:
    """What a replay writes, or has written.

    Attributes:
        counts: records by the topic they go to.
        examples: the first of them: from where, to where.
        without_origin: letters that do not tell where they came from, and so cannot be replayed.
        repeated: letters whose record is written already, for another letter.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[tuple[str, str]] = field(default_factory=list)
    without_origin: int = 0
    repeated: int = 0

    @property
    def total(self) -> int:
        """How many records."""
        return sum(self.counts.values())


def plan_replay(
    cluster: Cluster, letters: str, chosen: Iterable[DeadLetter], *, to: str | None = None, write: bool = False
) -> Replay:
    """Write the records of letters back, or only say what would be written.

    Each goes to its own topic and partition (with ``to``: to that topic, by its key), with its key, value, time and
    headers, and says in headers which record it stands for (:mod:`downspout.kafka.replayed`).

    Args:
        cluster: Kafka.
        letters: the dead-letter topic.
        chosen: its letters.
        to: another topic than that of the record.
        write: do it; all is acknowledged when this returns.

    Raises:
        ConfigError: ``to`` is the dead-letter topic.
        BrokerError: a topic is not there, or a write failed; the message tells how many are known to be written.
    """
    if to == letters:
        raise ConfigError(f"--to {to} is the dead-letter topic itself", cure="the topic that the topology reads")
    writer = _Writer(cluster, letters) if write else None
    known: dict[str, frozenset[int]] = {}
    seen: set[Origin] = set()
    plan = Replay()
    try:
        for letter in chosen:
            if (origin := identity_of(letter)) is None:
                plan.without_origin += 1
                continue
            if origin in seen:
                plan.repeated += 1
                continue
            seen.add(origin)
            target = to or origin.topic
            if target == letters:
                plan.without_origin += 1  # a letter that names this very topic: nobody's record
                continue
            if target not in known:
                known[target] = partitions_of(cluster, target)
            partition = origin.partition if to is None and origin.partition in known[target] else None
            plan.counts[target] = plan.counts.get(target, 0) + 1
            if len(plan.examples) < EXAMPLES:
                plan.examples.append((coordinates(origin.topic, origin.partition, origin.offset), target))
            if writer is not None:
                writer.write(letter, origin, target, partition)
        if writer is not None:
            writer.flush()
    finally:
        if writer is not None:
            writer.close()
    return plan


class _Writer:
    """Writes records back, a few hundred for each flush."""

    def __init__(self, cluster: Cluster, letters: str) -> None:
        self._producer = cluster.producer(client=PRODUCER)
        self._letters = letters
        self._queued = self._bytes = self._written = 0

    def write(self, letter: DeadLetter, origin: Origin, topic: str, partition: int | None) -> None:
        """Queue one."""
        record = letter.letter
        own = [(name, value) for name, value in letter.headers if not name.startswith(replayed.PREFIX)]
        try:
            self._producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=[*own, *replayed.identity_headers(origin, topic)],
                partition=partition,
                timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
            )
        except KafkaError as error:
            raise self._failed(error) from error
        self._queued += 1
        self._bytes += len(record.key or b"") + len(record.value or b"")
        if self._queued >= FLUSH_RECORDS or self._bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Wait until what is queued is written."""
        try:
            self._producer.flush()
        except KafkaError as error:
            raise self._failed(error) from error
        self._written += self._queued
        self._queued = self._bytes = 0

    def _failed(self, error: KafkaError) -> BrokerError:
        return BrokerError(
            f"replay of {self._letters}: {counted(self._written, 'record')} written, of the next {self._queued + 1:,} "
            f"perhaps some: {describe(error)}",
            cure="repair it and replay again; sinks drop what they have seen",
        )

    def close(self) -> None:
        """Release the producer."""
        self._producer.close()


def partitions_of(cluster: Cluster, topic: str) -> frozenset[int]:
    """Return the numbers of a topic's partitions.

    Raises:
        BrokerError: there is no such topic, or no answer.
    """
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
