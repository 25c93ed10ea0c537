"""Which results of an input partition are committed, and which are in the transaction that is open.

Results are told apart by their origin, as rows are in the Parquet sink, and by the topic they go to. Those of a chunk
are kept as columns as long as no other result has an offset between its first and its last: so a chunk is asked about
as a whole. Where another one has, all are kept one by one, until the transaction ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from downspout.errors import RecordError
from downspout.ledger.origin import Origin
from downspout.producing.mapper import Outgoing
from downspout.producing.messages import Done, Progress
from downspout.producing.sending import Row

Offsets = NDArray[np.int64]


class _Run(NamedTuple):
    """The results of a chunk."""

    offsets: Offsets  # They increase
    topics: Sequence[str]
    path: str  # Of all
    contents: Sequence[int]  # Hashes

    @property
    def last(self) -> int:
        return int(self.offsets[-1])


class PartitionResults:
    """The results of one partition.

    >>> results = PartitionResults(Progress("", 10))
    >>> [results.is_new(Origin("in", "", 0, offset), "out", Outgoing(None, b"x")) for offset in (9, 10, 10)]
    [False, True, False]
    """

    def __init__(self, progress: Progress) -> None:
        self._one_by_one: dict[tuple[int, str, str], int] = {}
        """Hashes of what is in the transaction, by offset, topic and path."""
        self._runs: list[_Run] = []
        """The others, by their offsets. None of them lies between the first and the last one of another."""
        self.committed(progress)

    def committed(self, progress: Progress) -> None:
        """Go on from what is committed now."""
        self.done = Done(progress)
        self.forget()

    def forget(self) -> None:
        """Go on without what is in the transaction: it is ended."""
        self._one_by_one.clear()
        self._runs.clear()

    # --- results in -------------------------------------------------------------------------------------

    def is_new(self, origin: Origin, topic: str, record: Outgoing) -> bool:
        """Take note of a result; return whether it is neither committed nor in the transaction.

        It runs for each record.

        Raises:
            RecordError: another result has the same origin.
        """
        _, _, _, offset, path = origin
        if offset < self.done.end and offset in self.done:
            return False
        if self._runs and self._run_between(offset, offset) is not None:
            self._keep_one_by_one()
        identity, content = (offset, topic, path), hash(record[:2])
        before = self._one_by_one.get(identity)
        if before is None:
            self._one_by_one[identity] = content
            return True
        if before != content:
            raise RecordError(
                f"two results for topic {topic} have the same origin, and differ",
                cure="a bolt that makes several tuples of one gives each origin.child(name, number)",
            )
        return False

    def are_new(self, offsets: Offsets, path: str, rows: Sequence[Row]) -> bool:
        """Take note of the results of a chunk, if it can be seen from their offsets that each is new; else of none.

        Returns:
            Whether they are; if not, each is to be asked about.
        """
        first, last = int(offsets[0]), int(offsets[-1])
        if self._one_by_one or first < self.done.end or not bool((offsets[1:] > offsets[:-1]).all()):
            return False
        if self._run_between(first, last) is not None:
            return False
        contents = array("q", [hash(record[:2]) for _, _, record in rows])
        self._runs.insert(self._place(first), _Run(offsets, [topic for _, topic, _ in rows], path, contents))
        return True

    def _place(self, offset: int) -> int:
        """Return which run is the first that ends at an offset or behind it."""
        return bisect_left(self._runs, offset, key=lambda run: run.last)

    def _run_between(self, first: int, last: int) -> _Run | None:
        """Return a run that has something in common with these offsets, or lies between them, or around them."""
        at = self._place(first)
        return self._runs[at] if at < len(self._runs) and self._runs[at].offsets[0] <= last else None

    def _keep_one_by_one(self) -> None:
        for run in self._runs:
            identities = zip(run.offsets.tolist(), run.topics, repeat(run.path), strict=False)
            self._one_by_one.update(zip(identities, run.contents, strict=True))
        self._runs.clear()

    # --- the end ----------------------------------------------------------------------------------------

    def not_in(self, done: Done, dead: Collection[int]) -> int | None:
        """Return an offset with a result in the transaction that is not done, or dead; None: there is none."""
        if dead:
            self._keep_one_by_one()
        beyond = [offset for offset, _, _ in self._one_by_one if offset >= done.base or offset in dead]
        for run in self._runs:
            beyond += run.offsets[run.offsets >= done.base].tolist()
        return next((offset for offset in beyond if offset in dead or offset not in done), None)
