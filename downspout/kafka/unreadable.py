"""Records that a consumer cannot return whole: too large, in a damaged batch, or in one that unpacks to too much.

A compressed batch of a few kilobytes may hold gigabytes, so unpacking is limited. Exceeding a limit is an error, unless
the reader asks for notes: then a placeholder record with the same offset takes its place, and reading continues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kafka.errors import CorruptRecordError
from kafka.structs import TopicPartition

from downspout.errors import coordinates

MIB = 1024 * 1024
CUT_BYTES = 64 * 1024  # Bytes kept of a record that is too large
_SKIP = "kafka.on_corrupt_batch=dead_letter goes on behind it, and notes its offsets in the dead-letter topic"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of unpacking, in bytes."""

    record_bytes: int = 64 * MIB  # key, value and headers of one record
    batch_bytes: int = 256 * MIB  # all records of one batch, without those above ``record_bytes``

    @classmethod
    def of(cls, record_bytes: int) -> Limits:
        """Return the limits for a maximum record size; a batch may unpack to four times as much.

        >>> Limits.of(1024)
        Limits(record_bytes=1024, batch_bytes=4096)
        """
        return cls(record_bytes, 4 * record_bytes)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets whose records cannot be returned whole."""

    partition: TopicPartition
    offset: int  # the first
    end: int  # one after the last
    why: str
    # bytes of a single record that is too large; None: the records are unknown
    size: int | None = None

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.end - self.offset

    def __str__(self) -> str:
        place = coordinates(self.partition.topic, self.partition.partition, self.offset)
        return f"{place}: {self.why}"


class UnreadableBatchError(CorruptRecordError):
    """A batch cannot be read, and the reader has not asked to skip it."""

    def __init__(self, what: str, cure: str = _SKIP) -> None:
        super().__init__(what)
        self.cure = cure


class UnreadableRecordError(UnreadableBatchError):
    """A record is too large, and the reader has not asked to skip it."""


@dataclass(slots=True)
class Tolerance:
    """How a consumer treats records that are too large or damaged."""

    limits: Limits = field(default_factory=Limits)
    notes_large: bool = False  # note records that are too large, instead of raising
    notes_corrupt: bool = False  # note batches that cannot be read, instead of raising
    found: list[Unreadable] = field(default_factory=list)  # notes not taken yet
    # returns the end of a partition's log, as of the last fetch
    highwater: Callable[[TopicPartition], int | None] = lambda partition: None

    def take(self) -> list[Unreadable]:
        """Return the notes since the last call."""
        found, self.found = self.found, []
        return found
