"""What a consumer cannot give whole: a record that is too large, a batch that is damaged or unpacks to too much.

A compressed batch of some kilobytes may hold gigabytes. So nothing is unpacked beyond limits, and what is beyond them
is an error, unless the reader has asked for a note instead: then a record with the same offset stands in its place, so
that the reader hears of it in order, and goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kafka.errors import CorruptRecordError
from kafka.structs import TopicPartition

from downspout.errors import coordinates

MIB = 1024 * 1024
CUT_BYTES = 64 * 1024  # How much is kept of a record that is too large
_SKIP = "kafka.on_corrupt_batch=dead_letter goes on behind it, and notes its offsets in the dead-letter topic"


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be unpacked, in bytes."""

    record_bytes: int = 64 * MIB  # of one record: key, value and headers
    batch_bytes: int = 256 * MIB  # of the records of one batch together, without those that are too large by themselves

    @classmethod
    def of(cls, record_bytes: int) -> Limits:
        """Return the limits of a setting: a batch may unpack to four times what a record may.

        >>> Limits.of(1024)
        Limits(record_bytes=1024, batch_bytes=4096)
        """
        return cls(record_bytes, 4 * record_bytes)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets whose records cannot be given whole."""

    partition: TopicPartition  # of the records
    offset: int  # the first of them
    end: int  # one more than the last of them
    why: str  # in words
    # bytes of the record, where it is a single one that is too large; None: nothing of these records is known
    size: int | None = None

    @property
    def count(self) -> int:
        """How many offsets."""
        return self.end - self.offset

    def __str__(self) -> str:
        place = coordinates(self.partition.topic, self.partition.partition, self.offset)
        return f"{place}: {self.why}"


class UnreadableBatchError(CorruptRecordError):
    """Something cannot be read, and the reader has not asked to go on behind it."""

    def __init__(self, what: str, cure: str = _SKIP) -> None:
        super().__init__(what)
        self.cure = cure


class UnreadableRecordError(UnreadableBatchError):
    """A record is too large, and the reader has not asked to go on behind it."""


@dataclass(slots=True)
class Tolerance:
    """How a consumer reads what may be too large or damaged."""

    limits: Limits = field(default_factory=Limits)  # what may be unpacked
    notes_large: bool = False  # whether a record that is too large is noted; otherwise it is an error
    notes_corrupt: bool = False  # whether a batch that cannot be read is noted; otherwise it is an error
    found: list[Unreadable] = field(default_factory=list)  # what was noted and not yet taken
    # returns the end of a partition's log, as of the last fetch
    highwater: Callable[[TopicPartition], int | None] = lambda partition: None

    def take(self) -> list[Unreadable]:
        """Return what was noted since the last call."""
        found, self.found = self.found, []
        return found
