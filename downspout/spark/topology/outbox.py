"""What leaves a stage for the next one: nothing of a record before all that came of it here is done.

A tuple for a stateful bolt waits with its record. Once the record's tree is complete, it goes; if the tree failed, it
is dropped, because the next try makes it again. So a stateful bolt never sees what a failed try has made. A tuple that
came of several records goes when all of them are settled and one of them is complete; one that had failed before the
tuple was emitted does not count.
"""

from __future__ import annotations

from typing import Any

import streamparse

from downspout.local.acker import trees_of
from downspout.spark.topology.rows import TUPLE, Item, Place, Row

__all__ = ["Outbound", "Outbox", "Root"]

ITEMS_PER_ROW = 512
"""Tuples that travel in one row."""


class Root:
    """What a tree of this stage came from: a record, or a tuple of an earlier stage.

    Attributes:
        left: answers that are outstanding.
        waiting: what goes when this is done.
    """

    __slots__ = ("left", "waiting")

    def __init__(self) -> None:
        self.left = 0
        self.waiting: list[_Parcel] = []

    @property
    def places(self) -> tuple[Place, ...]:
        """The records behind it."""
        raise NotImplementedError


class _Parcel:
    """What waits for one set of roots."""

    __slots__ = ("complete", "items", "left", "places", "roots")

    def __init__(self, roots: tuple[Root, ...]) -> None:
        self.roots, self.left, self.complete = roots, len(roots), False
        self.places = tuple(dict.fromkeys(place for root in roots for place in root.places))
        self.items: list[tuple[str, int, Item]] = []


class Outbox:
    """Collects rows."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._items: dict[tuple[str, int], list[Item]] = {}
        self._last: _Parcel | None = None

    def put(self, kind: str, component: str, what: Any) -> None:
        """Add a row of another kind than tuples."""
        self._rows.append(Row.of(kind, component, what))

    def hold(self, to: str, task: int, tup: Any, roots: tuple[Root, ...]) -> None:
        """Take a tuple for a task of a stateful bolt, until its roots are settled.

        Tuples in a row that came of the same roots wait together. A batching bolt anchors each tuple that it emits to
        its whole batch: apart, a thousand tuples of a thousand records would be a million things to keep.
        """
        parcel = self._last
        if parcel is None or parcel.roots != roots or parcel.left != len(roots):
            self._last = parcel = _Parcel(roots)
            for root in roots:
                root.waiting.append(parcel)
        item = Item(parcel.places, tup.component, tup.task, tup.stream, tuple(tup.values))
        if roots:
            parcel.items.append((to, task, item))
        else:
            self._send(to, task, item)

    def settle(self, root: Root, *, complete: bool) -> None:
        """Take note that a tree is complete, or failed."""
        if not root.waiting:
            return
        waiting, root.waiting = root.waiting, []
        for parcel in waiting:
            parcel.left -= 1
            parcel.complete |= complete
            if not parcel.left and parcel.complete:
                for to, task, item in parcel.items:
                    self._send(to, task, item)

    def _send(self, to: str, task: int, item: Item) -> None:
        items = self._items.setdefault((to, task), [])
        items.append(item)
        if len(items) >= ITEMS_PER_ROW:
            del self._items[to, task]
            self._rows.append(Row.of(TUPLE, to, items, task))

    def take(self, *, whole: bool = False) -> list[Row]:
        """Return what can go now.

        Args:
            whole: also items that do not fill a row.
        """
        if whole:
            for (to, task), items in self._items.items():
                self._rows.append(Row.of(TUPLE, to, items, task))
            self._items.clear()
        rows, self._rows = self._rows, []
        return rows


class Outbound(streamparse.Bolt):
    """Stands in a stage for a task of a stateful bolt of a later one, and sends on what that would get."""

    def stand_in(self, outbox: Outbox, task: Any) -> None:
        """Say where to, and for which task."""
        self._outbox, self._task = outbox, task

    def process(self, tup: Any) -> None:
        """Hand the tuple to the outbox."""
        root = self._task.held.get(tup.id)
        trees = trees_of(root) if root is not None else ()
        # A bolt that holds tuples may emit when the trees of some have failed. Those were told of it and tried again,
        # or given up: nobody will settle this tuple for them, and what came of them alone comes again.
        roots = tuple(tree.msg_id for tree in trees if not tree.closed)
        if roots or not trees:
            self._outbox.hold(self._task.name, self._task.index, tup, roots)
