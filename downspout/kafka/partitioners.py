"""Choose a record's partition like Kafka's own producer, and detect partitions that do not answer.

1. An explicit partition is used as it is (:func:`check_partition`).
2. A key decides: the same bytes go to the same partition as with Kafka's Java client (:func:`partition_of_key`). All
   partitions count, even without a leader: a keyed record waits or fails, and never goes elsewhere. When a topic gets
   more partitions, keys move.
3. The partitioner chooses for a record without a key: :class:`Sticky` keeps a partition until its batch is full,
   :class:`RoundRobin` takes the next one each time. Both choose among partitions with a leader.

A user's function decides for all records without an explicit partition. No I/O; randomness is an argument.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, Protocol

import numpy as np
from kafka import errors
from numpy.typing import NDArray

from downspout.errors import USER_ERRORS, ConfigError
from downspout.settings.table import load

SEED, M, R = 0x9747B28C, 0x5BD1E995, 24
MASK = 0xFFFFFFFF
POSITIVE = 0x7FFFFFFF
LONG_KEY = (
    256  # Longer keys are hashed one by one: the vectorised loop takes as many steps as the longest key has words
)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a topic; they are numbered from 0."""

    count: int
    available: Sequence[int]  # Those with a leader

    def choices(self) -> Sequence[int]:
        """Return the partitions for records without a key: all, while none has a leader."""
        return self.available or range(self.count)


@lru_cache(maxsize=8_192)
def murmur2(data: bytes) -> int:
    """Return Kafka's hash of a key, as Java's signed int.

    >>> murmur2(b"foobar"), murmur2(b"21")
    (-790332482, -973932308)
    """
    length = len(data)
    h = SEED ^ length
    for word in struct.unpack_from(f"<{length >> 2}I", data):
        k = word * M & MASK
        h = (h * M & MASK) ^ ((k ^ k >> R) * M & MASK)
    if rest := data[length & ~3 :]:
        h = (h ^ int.from_bytes(rest, "little")) * M & MASK
    h = (h ^ h >> 13) * M & MASK
    h ^= h >> 15
    return h - (1 << 32) if h > POSITIVE else h


def murmur2_many(data: bytes | memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Hash many keys in one buffer like :func:`murmur2`.

    >>> murmur2_many(b"21foobar", np.array([0, 2]), np.array([2, 6])).tolist()
    [-973932308, -790332482]
    """
    short = lengths <= LONG_KEY
    found = _short_hashes(data, starts, np.where(short, lengths, 0))
    for row in np.flatnonzero(~short):
        start = int(starts[row])
        found[row] = murmur2(bytes(data[start : start + int(lengths[row])]))
    return found


def _short_hashes(data: bytes | memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    raw = np.frombuffer(bytes(data) + b"\0\0\0\0", dtype=np.uint8)  # a word may extend beyond the last key
    words = np.ndarray((len(raw) - 3,), dtype="<u4", buffer=raw, strides=(1,))
    m = np.uint32(M)
    h = np.uint32(SEED) ^ lengths.astype(np.uint32)
    counts = lengths >> 2
    longest = int(counts.max(initial=0))
    for number in range(longest):
        rows: Any = np.flatnonzero(counts > number)
        k = words[starts[rows] + 4 * number] * m
        k = (k ^ (k >> np.uint32(R))) * m
        h[rows] = h[rows] * m ^ k
    left = lengths & 3
    rows = np.flatnonzero(left)
    rest = words[starts[rows] + 4 * counts[rows]] & (
        (np.uint32(1) << (8 * left[rows]).astype(np.uint32)) - np.uint32(1)
    )
    h[rows] = (h[rows] ^ rest) * m
    h = (h ^ (h >> np.uint32(13))) * m
    hashes: NDArray[np.int32] = (h ^ (h >> np.uint32(15))).view(np.int32)
    return hashes


def partition_of_key(key: bytes, count: int) -> int:
    """Return the partition of a key among ``count``.

    >>> partition_of_key(b"abc", 6)
    3
    """
    return (murmur2(key) & POSITIVE) % count


def check_partition(partition: int, topic: str, count: int) -> int:
    """Return an explicit partition as an int. Raises ValueError: the topic does not have it.

    >>> check_partition(4, "orders", 4)
    Traceback (most recent call last):
        ...
    ValueError: orders has no partition 4: it has 4, numbered from 0 to 3
    """
    if type(partition) is int:
        number = partition
    else:  # a numpy integer is valid, too
        number = -1 if isinstance(partition, bool) or not hasattr(partition, "__index__") else index(partition)
    if 0 <= number < count:
        return number
    raise ValueError(f"{topic} has no partition {partition!r}: it has {count:,}, numbered from 0 to {count - 1}")


class Partitioner(Protocol):
    """Chooses the partition of records without an explicit one."""

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partitions: Partitions) -> int:
        """Return the partition of a record. Raises ValueError: no such partition."""

    def batch_full(self, topic: str, partition: int) -> None:
        """Called when a batch is complete: the next record without a key may go elsewhere."""


class Sticky:
    """Keeps a partition for records without a key until its batch is full. Kafka's default."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng  # chooses the partitions
        self._chosen: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partitions: Partitions) -> int:
        """Return the partition of a record."""
        if key is not None:
            return (murmur2(key) & POSITIVE) % partitions.count
        chosen = self._chosen.get(topic)
        if (
            chosen is None
            or chosen >= partitions.count
            or (partitions.available and chosen not in partitions.available)
        ):
            chosen = self._chosen[topic] = self._rng.choice(partitions.choices())
        return chosen

    def batch_full(self, topic: str, partition: int) -> None:
        """Choose a new partition for the next record without a key."""
        if self._chosen.get(topic) == partition:
            del self._chosen[topic]


class RoundRobin:
    """Sends each record without a key to the next partition, beginning at a random one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partitions: Partitions) -> int:
        """Return the partition of a record."""
        if key is not None:
            return (murmur2(key) & POSITIVE) % partitions.count
        number = self._next.get(topic)
        if number is None:
            number = self._rng.randrange(partitions.count)
        self._next[topic] = number + 1
        choices = partitions.choices()
        return choices[number % len(choices)]

    def batch_full(self, topic: str, partition: int) -> None:
        """Do nothing."""


Choose = Callable[[str, bytes | None, bytes | None, Partitions], int]


class ByFunction:
    """Calls a user's function ``choose(topic, key, value, partitions)``; see :class:`Partitions`."""

    def __init__(self, function: Choose) -> None:
        self._function = function

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partitions: Partitions) -> int:
        """Return the function's choice, if the topic has that partition."""
        try:
            number = self._function(topic, key, value, partitions)
        except USER_ERRORS as error:
            raise ValueError(f"the partitioner raised {type(error).__name__}: {error}") from error
        return check_partition(number, topic, partitions.count)

    def batch_full(self, topic: str, partition: int) -> None:
        """Do nothing."""


PARTITIONERS: dict[str, Callable[[random.Random], Partitioner]] = {
    "sticky": Sticky,
    "round_robin": RoundRobin,
}
"""By their names in settings."""


def make_partitioner(wanted: str | Choose, rng: random.Random, setting: str = "partitioner") -> Partitioner:
    """Return a partitioner by its name, or from a function or its import path."""
    if not isinstance(wanted, str):
        return ByFunction(wanted)
    if wanted in PARTITIONERS:
        return PARTITIONERS[wanted](rng)
    if "." not in wanted:
        raise ConfigError(
            f"{setting} = {wanted!r} is not a partitioner", cure=f"one of {', '.join(PARTITIONERS)}, or module.function"
        )
    return ByFunction(load(setting, wanted))


# --- Partitions that do not answer ---

Slot = tuple[str, int]  # Topic and partition


class StuckPartitions:
    """Partitions that have not answered for some time while others have.

    The records of such a partition would fill the client's buffer, which then refuses those for healthy partitions. It
    takes one batch at a time, as a probe; its other records are refused, and its batch does not count as buffered.

    >>> stuck = StuckPartitions()
    >>> stuck.after_s = 10.0
    >>> stuck.update([(("out", 0), 1.0), (("out", 1), 9.0)], now=12.0); ("out", 0) in stuck
    False
    >>> stuck.answered(("out", 2), now=9.5)
    >>> stuck.update([(("out", 0), 1.0), (("out", 1), 9.0)], now=12.0); ("out", 0) in stuck, ("out", 1) in stuck
    (True, False)
    >>> stuck.takes("out", 0), stuck.takes("out", 1)
    (False, True)
    >>> stuck.update([], now=30.0); stuck.takes("out", 0), stuck.takes("out", 0)  # its records have expired
    (True, False)
    >>> stuck.answered(("out", 0), now=31.0); stuck.takes("out", 0)
    True
    """

    def __init__(self) -> None:
        self.after_s = float("inf")  # How long a partition must be silent to count as stuck
        self._answered_at = float("-inf")  # The last answer of any partition
        self._places: set[Slot] = set()
        self._busy: set[Slot] = set()  # Stuck partitions with a batch in flight

    def __contains__(self, place: Slot) -> bool:
        return place in self._places

    def __bool__(self) -> bool:
        return bool(self._places)

    def answered(self, place: Slot, now: float) -> None:
        """Note an answer from a partition."""
        self._answered_at = now
        self._places.discard(place)

    def update(self, pending: Iterable[tuple[Slot, float]], now: float) -> None:
        """Find the stuck partitions, given batches in flight and when each was begun."""
        late, seen = now - self.after_s, set()
        for place, since in pending:
            seen.add(place)
            if since <= late and since <= self._answered_at:
                self._places.add(place)
        self._busy = self._places & seen

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether a partition takes a record; a stuck one then counts as busy."""
        place = topic, partition
        if place not in self._places:
            return True
        if place in self._busy:
            return False
        self._busy.add(place)
        return True

    def refusal(self, topic: str, partition: int) -> errors.KafkaError:
        """Return the error for a refused record."""
        return errors.KafkaTimeoutError(f"{topic}[{partition}] has not answered for {self.after_s:g} s or more")

    def without(self, topic: str, partitions: Partitions) -> Partitions:
        """Return a topic's partitions without stuck ones, for records that may go to any."""
        free = [number for number in partitions.available if (topic, number) not in self._places]
        return Partitions(partitions.count, free) if self._places and free else partitions
