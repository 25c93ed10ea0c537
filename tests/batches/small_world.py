"""A small world of batches: one partition, a coordinator, an emitter, some state tasks, and all that goes wrong.

The real core decides: ``Coordinator``, ``EmitterBatches``, ``Held``, ``Commit``. The model adds what lies between them,
with as many orders of events as Storm allows: tuples in order from one task to another and in any order otherwise;
tuple trees that complete, fail, or time out, also without need; processes that die, with or without the tuples that
wait for them; stores that keep what was written. A value is how often each record was counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sortedcontainers import SortedDict

from downspout.batches import (
    BATCH,
    COMMIT,
    SUCCESS,
    Action,
    Attempt,
    BatchRange,
    Commit,
    Coordinator,
    CoordinatorState,
    EmitBatch,
    EmitCommit,
    EmitterBatches,
    Held,
    StateKind,
    Store,
)
from tests.ledger.explorer import Violation

EMITTER, DATA = "emitter", "data"
FAULTS = ("kill", "slow")


@dataclass(frozen=True)
class Bounds:
    records: int = 2
    tasks: int = 1  # of the state
    active: int = 2
    kills: int = 1
    timeouts: int = 1  # of trees that would have completed
    beyond: int = 0  # transactions beyond one for each record
    is_transactional: bool = False
    kind: StateKind = StateKind.OPAQUE


class Tree(NamedTuple):
    stream: str
    attempt: Attempt
    epoch: int


class Message(NamedTuple):
    tree: Tree | None  # None: it is not tracked
    stream: str
    attempt: Attempt
    record: int = -1


class Place(NamedTuple):
    """Where a message is: from a task to a task."""

    source: str
    target: str


@dataclass
class OfBatch:
    """What a state task holds of a batch."""

    records: list[int] = field(default_factory=list)
    early: list[Tree | None] = field(default_factory=list)


@dataclass
class Parts:
    """All that there is; the world is this with an identity."""

    kills: int
    timeouts: int
    coordinator: Coordinator | None
    stored: CoordinatorState = field(default_factory=CoordinatorState)
    epoch: int = 1
    ranges: dict[int, BatchRange] = field(default_factory=dict)
    emitter: EmitterBatches[str] = field(default_factory=EmitterBatches)
    states: list[Held[OfBatch]] = field(default_factory=list)
    values: dict[int, tuple[Any, Attempt]] = field(default_factory=dict)
    newest: Attempt = Attempt(0, 0)  # noqa: RUF009 - immutable
    queues: dict[Place, tuple[Message, ...]] = field(default_factory=dict)
    trees: dict[Tree, int] = field(default_factory=dict)  # how many tuples are not acked; -1: it has failed
    done: int = 0  # how many records are in transactions that succeeded


class World:
    __slots__ = ("_key", "parts")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._key = key_of(parts)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, World) and self._key == other._key


def key_of(parts: Parts) -> Any:
    coordinator = parts.coordinator
    return (
        parts.kills, parts.timeouts, parts.epoch, parts.newest, parts.done,
        coordinator and (coordinator.current, frozen(coordinator.state().attempts), tuple(coordinator.active)),
        parts.stored.current, frozen(parts.stored.attempts), frozen(parts.ranges), frozen_held(parts.emitter._held),
        tuple(map(frozen_held, parts.states)), repr(sorted(parts.values.items())), frozen(parts.queues),
        frozen(parts.trees),
    )  # fmt: skip


def copied(parts: Parts) -> Parts:
    new = copy(parts)
    if parts.coordinator is not None:
        new.coordinator = copy(parts.coordinator)
        new.coordinator._attempts, new.coordinator._active = (
            dict(parts.coordinator._attempts), dict(parts.coordinator._active),
        )  # fmt: skip
    new.emitter = EmitterBatches()
    new.emitter._held = copied_held(parts.emitter._held, dict)
    new.states = [copied_held(held, lambda it: OfBatch([*it.records], [*it.early])) for held in parts.states]
    new.ranges, new.values, new.queues, new.trees = (
        dict(parts.ranges), dict(parts.values), dict(parts.queues), dict(parts.trees),
    )  # fmt: skip
    return new


def copied_held(held: Held[Any], copy_content: Callable[[Any], Any]) -> Held[Any]:
    new = copy(held)
    new._batches = SortedDict()
    for txid, batch in held._batches.items():
        same = new._batches[txid] = type(batch)(batch.attempt, copy_content(batch.content))
        same.has_begun = batch.has_begun
    return new


def frozen(given: Mapping[Any, Any]) -> frozenset[Any]:
    return frozenset((key, value) for key, value in given.items() if value != ())


def frozen_held(held: Held[Any]) -> Any:
    batches = held._batches.items()
    return held._done, tuple((txid, each.attempt, each.has_begun, repr(each.content)) for txid, each in batches)


class SmallWorld:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    def start(self) -> World:
        bounds = self.bounds
        parts = Parts(bounds.kills, bounds.timeouts, Coordinator(CoordinatorState(), bounds.active))
        parts.states = [Held(OfBatch) for _ in range(bounds.tasks)]
        return World(parts)

    def is_good(self, world: World) -> bool:
        return world.parts.done == self.bounds.records

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for label, change in self._changes(world.parts):
            parts = copied(world.parts)
            try:
                change(parts)
            except Violation as error:
                raise Violation(f"{error}; the last step: {label}") from None
            yield label, World(parts)

    def _changes(self, parts: Parts) -> Iterator[tuple[str, Callable[[Parts], None]]]:
        for place, queue in parts.queues.items():
            if queue:
                yield from self._deliveries(parts, place, queue[0])
        for tree, pending in parts.trees.items():
            name = f"{tree.stream} {tree.attempt.txid}/{tree.attempt.attempt}"
            if pending <= 0:
                yield f"answer {name}", lambda p, tree=tree: self._answer(p, tree)
            elif not any(message.tree == tree for queue in parts.queues.values() for message in queue):
                yield f"time out {name}", lambda p, tree=tree: self._time_out(p, tree, 0)
            if pending > 0 and parts.timeouts:
                yield f"slow {name}", lambda p, tree=tree: self._time_out(p, tree, 1)
        if parts.coordinator is None:
            yield "restart coordinator", self._restart
        elif (txid := parts.coordinator.next_txid()) is not None and txid <= self.bounds.records + self.bounds.beyond:
            yield f"begin {txid}", lambda p: self._do(p, p.coordinator.begin(txid))
        if parts.kills:
            for victim in ("coordinator", EMITTER, *map(str, range(self.bounds.tasks))):
                for loses in (False, True):
                    what = f"kill {victim}{' and what waits for it' if loses else ''}"
                    yield what, lambda p, victim=victim, loses=loses: self._kill(p, victim, loses)

    # --- faults ---

    def _kill(self, parts: Parts, victim: str, loses: bool) -> None:
        parts.kills -= 1
        if victim == "coordinator":
            parts.coordinator = None
            parts.trees.clear()
        elif victim == EMITTER:
            parts.emitter = EmitterBatches()
        else:
            parts.states[int(victim)] = Held(OfBatch)
        if loses:
            for place in parts.queues:
                if victim in (place.target, place.source):
                    parts.queues[place] = ()

    def _restart(self, parts: Parts) -> None:
        parts.epoch += 1
        parts.coordinator = Coordinator(parts.stored, self.bounds.active)

    def _time_out(self, parts: Parts, tree: Tree, cost: int) -> None:
        parts.timeouts -= cost
        parts.trees[tree] = -1

    # --- the coordinator ---

    def _do(self, parts: Parts, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Store):
                parts.stored = action.state
            elif isinstance(action, EmitBatch | EmitCommit):
                stream = BATCH if isinstance(action, EmitBatch) else COMMIT
                self._send_all(parts, Tree(stream, action.attempt, parts.epoch), stream, action.attempt)
            else:
                self._look(parts, action.attempt)
                self._send_all(parts, None, SUCCESS, action.attempt)

    def _send_all(self, parts: Parts, tree: Tree | None, stream: str, attempt: Attempt) -> None:
        for target in (EMITTER, *map(str, range(self.bounds.tasks))):
            self._send(parts, Place("coordinator", target), Message(tree, stream, attempt))

    def _send(self, parts: Parts, place: Place, message: Message) -> None:
        parts.queues[place] = (*parts.queues.get(place, ()), message)
        is_root = message.tree is not None and place.source == "coordinator"
        if message.tree is not None and (is_root or parts.trees.get(message.tree, -1) >= 0):
            parts.trees[message.tree] = parts.trees.get(message.tree, 0) + 1

    def _answer(self, parts: Parts, tree: Tree) -> None:
        pending, coordinator = parts.trees.pop(tree), parts.coordinator
        assert coordinator is not None
        if pending < 0:
            coordinator.failed(tree.attempt)
        else:
            done = coordinator.processed if tree.stream == BATCH else coordinator.committed
            self._do(parts, done(tree.attempt))

    def _look(self, parts: Parts, attempt: Attempt) -> None:
        """A transaction succeeded: each record up to its end was counted once, and none beyond."""
        known = [found.next for txid, found in parts.ranges.items() if txid <= attempt.txid]
        parts.done = max(known, default=0)
        counted = [0] * self.bounds.records
        for form, _ in parts.values.values():
            counts = form if self.bounds.kind is StateKind.NON_TRANSACTIONAL else form[1]
            for record, count in enumerate(counts or ()):
                counted[record] += count
        wanted = [int(record < parts.done) for record in range(self.bounds.records)]
        if counted != wanted:
            raise Violation(f"after {attempt} the counts are {counted}, not {wanted}")

    # --- the others ---

    def _acked(self, parts: Parts, tree: Tree | None) -> None:
        if tree in parts.trees and parts.trees[tree] > 0:
            parts.trees[tree] -= 1

    def _failed(self, parts: Parts, tree: Tree | None) -> None:
        if tree in parts.trees:
            parts.trees[tree] = -1

    def _deliveries(
        self, parts: Parts, place: Place, message: Message
    ) -> Iterator[tuple[str, Callable[[Parts], None]]]:
        name = f"{place.target} takes {message.stream} {message.attempt.txid}/{message.attempt.attempt}"
        if place.target != EMITTER:
            yield name, lambda p: self._state(p, int(place.target), self._take(p, place))
        elif message.stream == BATCH:
            for count in range(1, self.bounds.records + 1):
                yield f"{name}, {count} records", lambda p, count=count: self._emit(p, self._take(p, place), count)
        else:
            yield name, lambda p: self._emitter_hears(p, self._take(p, place))

    def _take(self, parts: Parts, place: Place) -> Message:
        first, *rest = parts.queues[place]
        parts.queues[place] = tuple(rest)
        return first

    def _emit(self, parts: Parts, message: Message, count: int) -> None:
        attempt = message.attempt
        if parts.emitter.hear(attempt):
            found = self._range(parts, attempt.txid, count)
            if found is not None:
                parts.emitter.begin(attempt, {"p": found})
                for record in range(found.first, found.next):
                    to = Place(EMITTER, str(record % self.bounds.tasks))
                    self._send(parts, to, Message(message.tree, DATA, attempt, record))
            else:
                parts.emitter.begin(attempt, {})
        self._acked(parts, message.tree)

    def _range(self, parts: Parts, txid: int, count: int) -> BatchRange | None:
        """Return what an attempt reads, at most so many records."""
        emitter, stored = parts.emitter, parts.ranges
        if self.bounds.is_transactional:
            plan = emitter.plan("p", txid, stored)
            if plan.again is not None or not plan.is_new:
                return plan.again
        before = emitter.before("p", txid, stored)
        start = before.next if before else 0
        found = BatchRange(start, min(start + count, self.bounds.records) - 1)
        if self.bounds.is_transactional:
            stored[txid] = found
        return found

    def _emitter_hears(self, parts: Parts, message: Message) -> None:
        txid = message.attempt.txid
        if message.stream == SUCCESS:
            parts.emitter.success(txid)
            parts.ranges = {each: found for each, found in parts.ranges.items() if each >= txid}
            return
        ranges = parts.emitter.to_commit(message.attempt)
        if ranges is None:
            self._failed(parts, message.tree)
            return
        if not self.bounds.is_transactional and ranges:
            parts.ranges[txid] = ranges["p"]
        self._acked(parts, message.tree)

    def _state(self, parts: Parts, task: int, message: Message) -> None:
        held, attempt = parts.states[task], message.attempt
        batch = held.of(attempt) if message.stream != SUCCESS else None
        if message.stream == SUCCESS:
            held.success(attempt.txid)
        elif message.stream == COMMIT:
            self._commit(parts, task, message, batch)
        elif batch is None:
            self._acked(parts, message.tree)
        elif message.stream == BATCH:
            held.begin(attempt)
            for tree in [*batch.early, message.tree]:
                self._acked(parts, tree)
            batch.early.clear()
        else:
            batch.records.append(message.record)
            if held.has_begun(attempt):
                self._acked(parts, message.tree)
            else:
                batch.early.append(message.tree)

    def _commit(self, parts: Parts, task: int, message: Message, batch: OfBatch | None) -> None:
        attempt, kind = message.attempt, self.bounds.kind
        if batch is None or not parts.states[task].may_commit(attempt) or attempt < parts.newest:
            self._failed(parts, message.tree)
            return
        parts.newest = attempt
        stored = {task: parts.values[task][0]} if task in parts.values else {}
        by = parts.values.get(task, (None, Attempt(0, 0)))[1]
        replaced = [task] if by.txid == attempt.txid and by.attempt < attempt.attempt else []
        commit = Commit(kind, attempt.txid, stored, replaced)
        for record in batch.records:
            commit.update(task, lambda before, record=record: added(before, record, self.bounds.records))
        for key, form in commit.changes().items():
            parts.values[key] = (form, attempt)
        self._acked(parts, message.tree)


def added(counts: tuple[int, ...] | None, record: int, records: int) -> tuple[int, ...]:
    before = counts or (0,) * records
    return tuple(count + (each == record) for each, count in enumerate(before))
