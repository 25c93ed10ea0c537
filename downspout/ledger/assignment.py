"""Who owns what since when: rebalance callbacks as facts, and message ids that know their assignment.

The client calls back in the middle of a poll, on its own thread: revoked, assigned, lost. The listener only
writes these facts down, in order; the spout folds them into its :class:`Assignment` after the poll.

*Eager* rebalances revoke all that a member has, then assign its full new set. *Cooperative* ones revoke and
assign only the differences. One rule reads both: what is revoked is set aside; what is assigned and was set
aside *returns*, with all that is known about it; what is assigned and is owned already *stays*; anything
else is *gained*. What returns may have had another owner in between (a cooperative rebalance cannot tell):
the spout keeps it only if the group's commit is still its own.

Each gain starts an *epoch*. Message ids carry it: an ack or fail from an earlier epoch finds no owner, and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Assignment", "Changes", "Fact", "id_prefix", "span_id", "span_of", "split_id"]

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class Fact(Generic[P]):
    """One callback: ``kind`` is ``"assigned"``, ``"revoked"`` or ``"lost"``."""

    kind: str
    partitions: frozenset[P]


@dataclass
class Changes(Generic[P]):
    """What a series of facts comes to.

    Attributes:
        gained: ours now and not before: they start by the table in ``downspout.ledger.start``.
        returned: were revoked and are ours again.
        forgotten: no longer ours. Nothing may be committed for them.
    """

    gained: set[P] = field(default_factory=set)
    returned: set[P] = field(default_factory=set)
    forgotten: set[P] = field(default_factory=set)


class Assignment(Generic[P]):
    """The partitions of one member, over time.

    >>> mine = Assignment()
    >>> sorted(mine.fold([Fact("assigned", frozenset({"a", "b"}))]).gained)
    ['a', 'b']
    >>> eager = [Fact("revoked", frozenset({"a", "b"})), Fact("assigned", frozenset({"b", "c"}))]
    >>> mine.fold(eager)
    Changes(gained={'c'}, returned={'b'}, forgotten={'a'})
    >>> mine.epoch("b"), mine.epoch("c")
    (1, 2)
    """

    def __init__(self, last_epoch: int = 0) -> None:
        self._owned: dict[P, int] = {}
        self._aside: dict[P, int] = {}
        self.last_epoch = last_epoch
        """The latest epoch that was started; a later membership of the same process goes on counting from it."""
        self.settled = False
        """Whether any assignment, even an empty one, has arrived."""

    @property
    def owned(self) -> Collection[P]:
        """Return what is ours now."""
        return self._owned.keys()

    @property
    def aside(self) -> Collection[P]:
        """Return what was revoked and may return in the same rebalance."""
        return self._aside.keys()

    def epoch(self, partition: P) -> int:
        """Return the epoch of a partition that is ours."""
        return self._owned[partition]

    def renew(self, partition: P) -> int:
        """Start a new epoch for a partition that is ours: what is out from before no longer counts."""
        self.last_epoch += 1
        self._owned[partition] = self.last_epoch
        return self.last_epoch

    def fold(self, facts: Iterable[Fact[P]]) -> Changes[P]:
        """Apply facts in order and return what they come to. O(partitions)."""
        before = set(self._owned) | set(self._aside)
        gained: set[P] = set()
        returned: set[P] = set()
        opened = False
        for fact in facts:
            if fact.kind == "revoked":
                for partition in fact.partitions & self._owned.keys():
                    self._aside[partition] = self._owned.pop(partition)
            elif fact.kind == "lost":
                for partition in fact.partitions:
                    self._owned.pop(partition, None)
                    self._aside.pop(partition, None)
                    gained.discard(partition)
                    returned.discard(partition)
            else:
                if not opened:
                    self.last_epoch += 1
                    opened = True
                self._assign(fact.partitions, gained, returned)
        held = self._owned.keys() | self._aside.keys()
        return Changes(gained & self._owned.keys(), returned & self._owned.keys(), before - held)

    def _assign(self, partitions: Iterable[P], gained: set[P], returned: set[P]) -> None:
        self.settled = True
        for partition in partitions:
            if partition in self._owned:
                continue
            if (epoch := self._aside.pop(partition, None)) is None:
                self._owned[partition] = self.last_epoch
                gained.add(partition)
            else:
                self._owned[partition] = epoch
                returned.add(partition)
        # Whatever was set aside and did not return with this assignment has gone to somebody else.
        for partition in self._aside:
            gained.discard(partition)
            returned.discard(partition)
        self._aside.clear()


def id_prefix(epoch: int, topic: str, topic_id: str, partition: int) -> str:
    """Return what all message ids of one assignment of a partition start with.

    An id is this and the offset in decimal, so making one is a single concatenation. No part of it contains a slash.
    The topic's name is in it because brokers before 2.8 give topics no id.

    >>> id_prefix(3, "orders", "6jPMvg1sQ2uJmzGz1yRHQw", 0) + str(17)
    '3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17'
    """
    return f"{epoch}/{topic}/{topic_id}/{partition}/"


def span_id(start: int, end: int) -> str:
    """Return what follows the prefix in the id of a range ``[start, end)``."""
    return f"{start}-{end}"


def span_of(text: str) -> tuple[int, int]:
    """Return the range that :func:`span_id` wrote.

    Raises:
        ValueError: it is none.

    >>> span_of(span_id(17, 42))
    (17, 42)
    """
    start, _, end = text.partition("-")
    return int(start), int(end)


def split_id(message_id: object) -> tuple[str, int] | None:
    """Return the prefix (without its last slash) and the first offset of a message id; None where it is none of ours.

    >>> split_id("3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17")
    ('3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0', 17)
    >>> split_id("3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17-42")
    ('3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0', 17)
    >>> split_id("from elsewhere") is None
    True
    """
    if not isinstance(message_id, str):
        return None
    prefix, _, place = message_id.rpartition("/")
    try:
        return prefix, int(place) if "-" not in place[1:] else span_of(place)[0]
    except ValueError:
        return None
