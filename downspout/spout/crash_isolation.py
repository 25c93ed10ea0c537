"""Records that kill their process: who is suspected after an unclean start, and what may leave while they are searched.

The rules of the search are in ``downspout.ledger.isolation``; its state travels in the metadata of commits. Each
partition has a :class:`CrashIsolation`, which says what may leave and what the next commit says.
:class:`UncleanStarts` decides with which state that begins.

The last commit says that a process died, not which. A worker that is killed takes the spout with it, and all that the
spout knew of the record that was out. So the processes' notes (``downspout.system.process_notes``) are read:

* One that died with a record in its hands makes that record a suspect: it is tried alone.
* A record that was out alone has failed only if a process has died with it. Where no note says so, and all processes
  that keep one ended together, it was another death: a kill of the worker, the spout, another component. But not for
  ever (:data:`STRANGERS_MAX`): a record may kill what keeps no note, the worker's JVM or a component that is not ours.
* Where a task keeps no note (bolts on other machines, components that are not ours) and others outlived the death, the
  commit alone decides, as it does where no task keeps one, and the record counts as failed. It takes several deaths at
  one offset until a record is out alone, and more than ``kafka.retries_max`` with that very record until it is given
  up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from downspout.errors import coordinates
from downspout.kafka.port import TopicPartition
from downspout.ledger.isolation import AT_WORK, Isolation
from downspout.ledger.metadata import CommitMetadata
from downspout.ledger.offsets import PartitionLedger
from downspout.spout.cursor import PartitionCursor, index_of
from downspout.spout.ports import SpoutMetrics
from downspout.system.process_notes import Death, NoteReader

STRANGERS_MAX = 25
"""So many deaths in a row are no accident: a record may kill what keeps no note: a stock bolt, or by its size the
worker's JVM."""
WAITS_MS_MAX = 10_000
"""So long after its last turn other partitions keep back for one with a record that failed before and waits to be out
alone."""
CAUGHT_UP = 1_000  # A partition that is so few records behind the end of its log has caught up
HURRY_MS_MAX = 60_000  # What takes longer to catch up with goes at its usual pace then: short steps make small files


class UncleanStarts:
    """Counts them, warns, and decides with which state a partition begins."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topology_id: str,
        tasks: Collection[int],
        metrics: SpoutMetrics,
        log: logging.Logger,
    ) -> None:
        self._tracks = settings["guarantee"] == "AT_LEAST_ONCE"
        self._reach = settings["uncommitted_max"] + settings["poll_records_max"]
        self._notes = NoteReader(topology_id)
        self._tasks = frozenset(tasks)
        self._metrics = metrics
        self._log = log

    def look_back(
        self, tp: TopicPartition, base: int, end: int, found: CommitMetadata, *, ours: bool
    ) -> tuple[Isolation, CommitMetadata]:
        """Return the state to start with; and what was found, with a death while a record was alone as its attempt.

        Args:
            ours: whether this process made that commit: then it lives, and its session ran out.
        """
        if not self._tracks:
            return AT_WORK, found
        before = found.isolation.end() if ours else found.isolation
        deaths = [] if before.ended else self._deaths(tp)
        suspects = [death.first for death in deaths if death.topic and death.first == death.last >= base]
        isolation = before.start(base, self._reach, end, min(suspects, default=None))
        blamed = before.alone is not None and (
            before.starts >= STRANGERS_MAX or self._is_to_blame(before.alone, deaths)
        )
        if not before.ended and isolation.starts:
            self._metrics.unclean += 1
            self._log.warning(
                "%s: the process before did not end in order%s: it was killed, it crashed, or another one took over "
                "from it%s",
                coordinates(tp.topic, tp.partition, base),
                f" ({isolation.starts} in a row)" if isolation.starts > 1 else "", _consequence(isolation),
            )  # fmt: skip
        failures = found.failures
        if blamed and before.alone is not None:
            failures = {**failures, before.alone: failures.get(before.alone, 0) + 1}
        else:
            before = replace(before, alone=None)
        return isolation, replace(found, failures=failures, isolation=before)

    def _deaths(self, tp: TopicPartition) -> list[Death]:
        """Return the deaths with records of a partition, or with something unknown; the former are counted now."""
        found = [death for death in self._notes.deaths() if death.topic in ("", tp.topic)]
        found = [death for death in found if not death.topic or death.partition == tp.partition]
        for death in found:
            if death.topic:
                self._notes.forget(death)
        return found

    def _is_to_blame(self, alone: int, deaths: Collection[Death]) -> bool:
        """Return whether a process has died with a record that was out alone, as far as can be known."""
        if any(not death.topic or death.first <= alone <= death.last for death in deaths):
            return True
        keeping = self._tasks & self._notes.tasks()
        return not keeping or (keeping < self._tasks and self._notes.outlived())


def _consequence(isolation: Isolation) -> str:
    if isolation.single:
        return f"; records up to @{isolation.narrow_until - 1} are tried one at a time"
    return f"; records up to @{isolation.until - 1} are tried {isolation.window:,} at a time" if isolation.until else ""


class CrashIsolation:
    """The search for a record that kills its process, in one partition; passive where no process has died."""

    def __init__(
        self,
        ledger: PartitionLedger,
        cursor: PartitionCursor,
        state: Isolation = AT_WORK,
        killed_by: int | None = None,  # the record that was out alone when an earlier owner died
        behind_until: int = 0,  # after a death, where the log ended at our start; 0: there is nothing to catch up with
    ) -> None:
        self.state = state
        self.killed_by = killed_by
        self.alone: int | None = None  # The record that is out alone, or about to be
        self._ledger = ledger
        self._cursor = cursor
        self._began = ledger.next
        self._window_end = state.window_end(ledger.base)  # Nothing from there on may be out
        self._waits_since: int | None = None
        """Since when a record that failed before waits until no other is out alone, in ms; None: none does."""
        self._asked_at = 0  # When it last asked whether it may leave
        self.behind_until = behind_until  # 0: it has caught up
        self._hurries_until: int | None = None  # For how long it catches up in short steps, in ms; None: not asked yet

    # --- what may leave ---

    @property
    def searches(self) -> bool:
        """Return whether records leave in windows."""
        return self.state.until > 0

    @property
    def single(self) -> bool:
        """Return whether one record may be out at a time."""
        return self.state.window == 1

    def emit_end(self) -> int:
        """Return the index behind the last waiting record that may leave before the next commit."""
        cursor = self._cursor
        if not self.state.until:
            return len(cursor.waiting)
        if self.single:
            return min(len(cursor.waiting), cursor.at + 1)
        return self._end_of_window()

    @property
    def full(self) -> bool:
        """Return whether nothing that waits may leave before the next commit, which begins another window."""
        return self.searches and self._cursor.has_waiting and self._cursor.at >= self._end_of_window()

    @property
    def held_up(self) -> bool:
        """Return whether nothing more may leave before what is out has its answer."""
        return self._ledger.in_flight > 0 and (self.single or self.full)

    def may_leave_alone(self, offset: int, others: Iterable[CrashIsolation], now: int) -> bool:
        """Return whether a record may be out alone in its partition beside those of other partitions."""
        others = [other for other in others if other is not self]
        out = [other for other in others if other.single and other._ledger.in_flight]
        waiting = [other._waits_since for other in others if other._waits(now)]
        # Partitions try single records at the same time, those of other spouts of the process too: 100 of each, one
        # after the other, would take too long. A death then counts for the record that each has out. So a record that
        # failed before, perhaps by being out at a death, is out while no other is: from the second death on, only the
        # culprit is blamed. Until it is out no other leaves, or a partition that is never at rest would keep it
        # waiting; of several such records the one goes first that has waited longest.
        if not self._failed_before(offset):
            self._waits_since = None
            return not waiting and not any(other._failed_before(other.alone) for other in out)
        self._waits_since, self._asked_at = now if self._waits_since is None else self._waits_since, now
        if out or any(since is not None and since < self._waits_since for since in waiting):
            return False
        self._waits_since = None
        return True

    def waits_no_more(self) -> None:
        """What waits next will not be emitted, so that no other partition need wait for it."""
        self._waits_since = None

    @property
    def concerns_others(self) -> bool:
        """Return whether a record is out alone, or about to be, or waiting to be."""
        return self.alone is not None or self._waits_since is not None

    def _waits(self, now: int) -> bool:
        """Return whether a record that failed before waits here, and will go as soon as it may."""
        waits = self._waits_since is not None and self._cursor.has_waiting and self.single
        # A partition that gets no turns any more (its spout is deactivated, or hears nothing of its broker) is soon no
        # reason to wait.
        return waits and not self._ledger.in_flight and now - self._asked_at < WAITS_MS_MAX

    def _failed_before(self, offset: int | None) -> bool:
        if offset is None:
            return False
        retry = self._ledger.retry_state(offset)
        return bool(self._ledger.earlier_failures.get(offset) or (retry is not None and retry.failures))

    def _end_of_window(self) -> int:
        return index_of(self._cursor.waiting, self._window_end)

    # --- what is committed ---

    def to_commit(self, point: int) -> Isolation:
        """Return the state that a commit at ``point`` holds."""
        if not self.state.starts:
            return self.state
        alone = self.alone
        if alone is not None and self._ledger.emitted_at(alone) is None and self._cursor.next_waiting != alone:
            alone = None  # it has its answer, and this is not the commit that must be there before its emit
        return self.state.at(point, moved=point > self._ledger.base, through=self.is_through(point), alone=alone)

    def at_end(self, state: Isolation) -> Isolation:
        """Return the state that a commit holds which ends our ownership in order."""
        return state.end(idle=self._ledger.next == self._began)

    def committed(self, point: int, state: Isolation) -> None:
        """A commit at ``point`` holds this state: where it ends a window, begin the next."""
        self.state, self.alone = state, state.alone
        if state.until and self.is_through(point):
            self._window_end = state.window_end(point)

    def is_through(self, point: int) -> bool:
        """Return whether a commit at ``point`` ends a window."""
        return point >= self._window_end

    @property
    def is_answered(self) -> bool:
        """Return whether the record that was out alone has its answer, and no other commit will soon say so."""
        return self.alone is not None and not self._ledger.in_flight and not self._cursor.has_waiting

    # --- how fast ---

    @property
    def awaited(self) -> bool:
        """Return whether a process has died here, and nothing, or not all that may be the reason, is committed since.

        The sooner what is out has its answer, the less will be suspected at the next death.
        """
        return self.state.starts > 0 and self._ledger.in_flight > 0

    def hurries(self, now: int, end: int | None) -> bool:
        """Return whether sinks should flush as soon as they can: a search, or what a death has left to catch up with.

        Else each round of ``topology.max.spout.pending`` tuples would take as long as a sink may hold a row.
        """
        if self.state.starts or not self.behind_until:
            return self.state.starts > 0
        if self._hurries_until is None:
            self._hurries_until = now + HURRY_MS_MAX
        base = self._ledger.base
        if now >= self._hurries_until or (base >= self.behind_until and (end or 0) - base < CAUGHT_UP):
            self.behind_until = 0
        return self.behind_until > 0
