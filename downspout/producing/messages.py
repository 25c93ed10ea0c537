"""What a spout tells the transactional sink of its records, over the stream ``downspout.transactions``.

=========  ==================================================  ==================================================
message    what it says                                        what its ack says
=========  ==================================================  ==================================================
open       these partitions are mine; end what is open         nothing of an earlier session can be committed now
start      each partition begins with this commit              its records may come
commit     all records that are out have their answer;         the transaction is committed, with these offsets
           commit with these offsets and dead letters
=========  ==================================================  ==================================================

A fail of any of them says that the transaction is aborted, or that its outcome is not known. Then the spout opens a new
session, and goes on from what Kafka says is committed.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from downspout.kafka.port import GroupMembership, OffsetAndMetadata, TopicPartition
from downspout.ledger.metadata import decode

OPEN, START, COMMIT = "open", "start", "commit"


class Progress(NamedTuple):
    """A commit of one partition; without one, ``offset`` is -1."""

    topic_id: str
    offset: int = -1
    metadata: str = ""

    @property
    def entry(self) -> OffsetAndMetadata:
        """Return it as the producer takes it."""
        return OffsetAndMetadata(self.offset, self.metadata, -1)


class SentDeadLetter(NamedTuple):
    """A dead letter that belongs to a transaction."""

    tp: TopicPartition
    """Of the record that failed."""
    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp_ms: int | None


class Message(NamedTuple):
    """One message.

    >>> tp = TopicPartition("orders", 3)
    >>> failed = SentDeadLetter(tp, 5, "dead", None, b"x", [("why", b"y")], 17)
    >>> sent = Message(COMMIT, "reader:0", "s1", {tp: Progress("id", 7, "m")}, GroupMembership("g", 2, "m-1"), [failed])
    >>> Message.of(sent.text()) == sent
    True
    """

    kind: str
    spout: str
    """Component and index of the task."""
    session: str
    """A new one at each start and after each abort; what belongs to an earlier one is refused."""
    partitions: Mapping[TopicPartition, Progress]
    membership: GroupMembership = GroupMembership("")
    dead_letters: Sequence[SentDeadLetter] = ()

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(
            [
                self.kind, self.spout, self.session, [[*tp, *found] for tp, found in self.partitions.items()],
                list(self.membership), [_dead_letter_values(each) for each in self.dead_letters],
            ]
        )  # fmt: skip

    @classmethod
    def of(cls, text: str) -> Message:
        """Return the message of a text."""
        kind, spout, session, partitions, membership, dead_letters = json.loads(text)
        return cls(
            kind, spout, session,
            {TopicPartition(topic, number): Progress(*found) for topic, number, *found in partitions},
            GroupMembership(*membership), [_dead_letter_of(each) for each in dead_letters],
        )  # fmt: skip


def _dead_letter_values(dead_letter: SentDeadLetter) -> list[object]:
    tp, offset, topic, key, value, headers, timestamp_ms = dead_letter
    return [*tp, offset, topic, _text(key), _text(value), [[name, _text(held)] for name, held in headers], timestamp_ms]


def _dead_letter_of(values: Sequence[object]) -> SentDeadLetter:
    source, number, offset, topic, key, value, headers, at = values
    pairs = [(name, _bytes(held) or b"") for name, held in headers]  # type: ignore[attr-defined]
    return SentDeadLetter(TopicPartition(source, number), offset, topic, _bytes(key), _bytes(value), pairs, at)  # type: ignore[arg-type]


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(str(text))


class Done:
    """Which offsets of a partition a commit says are done. A look-up is O(log ranges).

    >>> done = Done(Progress(""))
    >>> 0 in done
    False
    """

    def __init__(self, progress: Progress) -> None:
        found = (
            decode(progress.offset, progress.metadata, topic_id=progress.topic_id).done if progress.offset >= 0 else ()
        )
        self.base, self._topic_id = progress.offset, progress.topic_id
        self._starts = [start for start, _ in found]
        self._ends = [end for _, end in found]
        self.end = self._ends[-1] if found else self.base  # From here on none is

    def is_of_another_topic(self, topic_id: str) -> bool:
        """Return whether a record is of an earlier topic of this name."""
        return bool(self._topic_id and topic_id) and self._topic_id != topic_id

    def __contains__(self, offset: int) -> bool:
        if offset < self.base:
            return True
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]
