"""Which partitions a member has, each since which epoch: rebalance callbacks as facts.

The client calls back in the middle of a poll, on its own thread: revoked, assigned, lost. The listener only
writes these facts down, in order; the spout applies them to its :class:`AssignmentEpochs` after the poll.

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

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class Fact(Generic[P]):
    """One callback: ``kind`` is ``"assigned"``, ``"revoked"`` or ``"lost"``."""

    kind: str
    partitions: frozenset[P]


@dataclass
class Changes(Generic[P]):
    """What a series of facts comes to."""

    # ours now and not before: they start by the table in ``downspout.ledger.start``
    gained: set[P] = field(default_factory=set)
    returned: set[P] = field(default_factory=set)  # were revoked and are ours again
    forgotten: set[P] = field(default_factory=set)  # no longer ours. Nothing may be committed for them.


class AssignmentEpochs(Generic[P]):
    """The partitions of one member, over time.

    >>> mine = AssignmentEpochs()
    >>> sorted(mine.apply([Fact("assigned", frozenset({"a", "b"}))]).gained)
    ['a', 'b']
    >>> eager = [Fact("revoked", frozenset({"a", "b"})), Fact("assigned", frozenset({"b", "c"}))]
    >>> mine.apply(eager)
    Changes(gained={'c'}, returned={'b'}, forgotten={'a'})
    >>> mine.epoch("b"), mine.epoch("c")
    (1, 2)
    """

    def __init__(self, last_epoch: int = 0) -> None:
        self._owned: dict[P, int] = {}
        self._aside: dict[P, int] = {}
        self.last_epoch = last_epoch
        """The latest epoch that was started; a later membership of the same process goes on counting from it."""
        self.arrived = False  # Whether any assignment, even an empty one, has arrived

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

    def apply(self, facts: Iterable[Fact[P]]) -> Changes[P]:
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
        self.arrived = True
        for partition in partitions:
            if partition in self._owned:
                continue
            if (epoch := self._aside.pop(partition, None)) is None:
                self._owned[partition] = self.last_epoch
                gained.add(partition)
            else:
                self._owned[partition] = epoch
                returned.add(partition)
        # Whatever was set aside and did not return with this assignment has gone to another member.
        returned.difference_update(self._aside)
        self._aside.clear()
