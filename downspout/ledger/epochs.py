"""Assignments of one member: rebalance callbacks as facts, an epoch for each gain, and where reading starts.

The client calls back (revoked, assigned, lost) during a poll, on its own thread. The listener only records these facts,
in order; the spout applies them to its :class:`AssignmentEpochs` after the poll.

*Eager* rebalances revoke all partitions of a member, then assign its full new set. *Cooperative* ones revoke and assign
only the differences. One rule covers both: a revoked partition is set aside; an assigned partition that was set aside
*returns* with its state; one already owned *stays*; any other is *gained*. A partition that returns may have had
another owner in between (a cooperative rebalance does not say): the spout keeps its state only if the group's commit is
still its own.

Each gain starts an *epoch*. Message ids carry it: an ack or fail of an earlier epoch finds no owner and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class Fact(Generic[P]):
    """One callback: ``kind`` is ``"assigned"``, ``"revoked"`` or ``"lost"``."""

    kind: str
    partitions: frozenset[P]


@dataclass
class Changes(Generic[P]):
    """The changes that a series of facts makes."""

    gained: set[P] = field(default_factory=set)  # newly owned: reading starts by :data:`STARTS`
    returned: set[P] = field(default_factory=set)  # revoked, then assigned again
    forgotten: set[P] = field(default_factory=set)  # no longer owned: commit nothing for them


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
        """The latest epoch started; a later membership of this process continues the count."""
        self.arrived = False  # Whether any assignment, even an empty one, has arrived

    @property
    def owned(self) -> Collection[P]:
        """Partitions owned now."""
        return self._owned.keys()

    @property
    def aside(self) -> Collection[P]:
        """Revoked partitions that may return in the same rebalance."""
        return self._aside.keys()

    def epoch(self, partition: P) -> int:
        """Return the epoch of an owned partition."""
        return self._owned[partition]

    def renew(self, partition: P) -> int:
        """Start a new epoch for an owned partition; acks and fails of earlier tuples are then ignored."""
        self.last_epoch += 1
        self._owned[partition] = self.last_epoch
        return self.last_epoch

    def apply(self, facts: Iterable[Fact[P]]) -> Changes[P]:
        """Apply facts in order. O(partitions)."""
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
        # Partitions set aside that this assignment does not return have gone to another member.
        returned.difference_update(self._aside)
        self._aside.clear()


# --- Where reading starts: the table of Storm's ``FirstPollOffsetStrategy`` ---


class Start(Enum):
    """The position at which reading of a partition starts."""

    COMMITTED = "committed"
    BEGINNING = "beginning"
    END = "end"
    TIMESTAMP = "timestamp"
    OFFSET = "offset"


# strategy: (committed by this topology id, committed by another, not committed)
STARTS: dict[str, tuple[Start, Start, Start]] = {
    "EARLIEST": (Start.COMMITTED, Start.BEGINNING, Start.BEGINNING),
    "LATEST": (Start.COMMITTED, Start.END, Start.END),
    "UNCOMMITTED_EARLIEST": (Start.COMMITTED, Start.COMMITTED, Start.BEGINNING),
    "UNCOMMITTED_LATEST": (Start.COMMITTED, Start.COMMITTED, Start.END),
    "TIMESTAMP": (Start.COMMITTED, Start.TIMESTAMP, Start.TIMESTAMP),
    "UNCOMMITTED_TIMESTAMP": (Start.COMMITTED, Start.COMMITTED, Start.TIMESTAMP),
    "OFFSETS": (Start.COMMITTED, Start.OFFSET, Start.OFFSET),
    "UNCOMMITTED_OFFSETS": (Start.COMMITTED, Start.COMMITTED, Start.OFFSET),
}


def start_at(strategy: str, *, committed: bool, by_this_topology: bool) -> Start:
    """Return where reading of a partition starts after an assignment.

    The TIMESTAMP strategies start at the first record at or after a time, or at the end if none exists. The OFFSETS
    strategies, which Storm lacks, start at the offset configured for the partition, or at its beginning.

    Args:
        committed: whether the group has a commit for it.
        by_this_topology: whether that commit carries this topology's id; a redeploy has a new one, a restart keeps it.

    >>> start_at("EARLIEST", committed=True, by_this_topology=False)
    <Start.BEGINNING: 'beginning'>
    """
    column = 2 if not committed else 0 if by_this_topology else 1
    return STARTS[strategy][column]
