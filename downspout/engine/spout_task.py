"""A spout's task: it starts trees, and gets their acks and fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pystorm.spout
from pystorm.component import Tuple

from downspout.engine.acker import PendingTrees, Tree, new_tree, trees_of
from downspout.engine.bulk_calls import RecordBatch, deliver, for_many, spout_emits_many
from downspout.engine.graph import Component
from downspout.engine.runtime import Runtime
from downspout.engine.task import StreamTargets, Task
from downspout.errors import USER_ERRORS, DownspoutError, UserError
from downspout.protocols import Failure, SpoutEngine, SpoutOffers, offered

FREE_S_MAX = 1.0  # Longest wait of a spout in one call if nothing else is due; it also delays a stop
_READING = ("_run", "read_command", "read_message")
_new = tuple.__new__
_SEQUENCES = (list, tuple)  # an inline ``list | tuple`` would be built by each call


class SpoutTask(Task):
    """One instance of a spout."""

    stock = (pystorm.spout.Spout,)

    def __init__(self, component: Component, task_id: int, world: Runtime, conf: Mapping[str, Any]) -> None:
        super().__init__(component, task_id, world, conf)
        self.forest = PendingTrees()
        self.pending_max = int(conf.get("topology.max.spout.pending") or 0) or float("inf")
        self.timeout_s = float(conf.get("topology.message.timeout.secs") or 30)
        if conf.get("topology.enable.message.timeouts") is False:
            self.timeout_s = float("inf")
        self.untracked = 0
        self.timeouts = 0
        self.stamp: float | None = None
        self.rest_until = 0.0

    def shortcut(self) -> None:
        """Route emit to the engine, and call methods directly, unless the class overrides pystorm's."""
        spout = self.instance
        self._emit = make_emit(self)
        if not self.overrides("emit", "send_message"):
            spout.emit = self._emit
        self._waits = offered(spout, SpoutOffers.waits_for_acks)
        self._run_timers = offered(spout, SpoutOffers.run_timers)
        self._finish = offered(spout, SpoutOffers.finish)
        self.record_at = offered(spout, SpoutOffers.record_at)
        self._direct = not self.overrides(*_READING)
        self._takes_many = self._direct and hasattr(type(spout), "engine_services")
        self._fail_with = offered(spout, SpoutOffers.fail_with) if self._direct else None

    def build(self) -> None:
        """Build the spout, and ask how it retries: its ``initialize`` may decide that."""
        super().build()
        self.forest.retries = bool(getattr(self.instance, "retries_failed", False))
        self.forest.tried = offered(self.instance, SpoutOffers.tried_before)

    def services(self) -> SpoutEngine:
        """Return the engine's services for the spout."""
        return SpoutEngine(spout_emits_many(self), self._bolts_with, self._other_spouts, self._free_s)

    def _bolts_with(self, tup_id: Any) -> str:
        """Return the names of the bolts that hold tuples of a tree. O(open trees + held tuples)."""
        if (tree := next((tree for tree in self.forest.open if tree.msg_id == tup_id), None)) is None:
            return ""
        bolts = (bolt for bolt in self.world.bolts if any(tree in trees_of(root) for root in bolt.held.values()))
        return ", ".join(dict.fromkeys(bolt.name for bolt in bolts))

    def _other_spouts(self) -> list[Any]:
        return [spout.instance for spout in self.world.spouts if spout is not self]

    def _free_s(self) -> float:
        """Return how long this spout may wait without delaying a bolt, another spout or a timeout."""
        world = self.world
        if len(world.spouts) > 1 or self._waits is None or self._ask("waits_for_acks"):
            return 0.0
        if any(bolt.queue for bolt in world.bolts):
            return 0.0
        due = [world.ends_at, world.clock.monotonic() + FREE_S_MAX]
        due += [min(bolt.tick_due, bolt.batch_due, bolt.drain_due()) for bolt in world.bolts]
        if (oldest := self.forest.oldest()) is not None:
            due.append(oldest + self.timeout_s)
        end: float = min(due)
        return max(0.0, end - world.clock.monotonic())

    def stamped(self) -> float:
        """Read the clock, once per call of next_tuple and after its wait for records."""
        self.stamp = self.world.clock.monotonic()
        return self.stamp

    @property
    def in_flight(self) -> int:
        """How many records are in open trees; a chunk counts with all its records."""
        sizes = self.forest.sizes
        return len(self.forest.open) + sum(sizes.values()) - len(sizes)

    @property
    def may_emit(self) -> bool:
        """Whether fewer records are in flight than ``topology.max.spout.pending``."""
        return self.in_flight < self.pending_max

    def next_tuple(self) -> bool:
        """Call the spout's ``next_tuple``; return whether it emitted."""
        before = self.emitted
        self.stamp = None
        self._call("next_tuple", "next")
        return self.emitted != before

    def run_timers(self, is_busy: bool) -> None:
        """Run the spout's timers while ``next_tuple`` is not called: too much is in flight, or bolts are busy."""
        if self._run_timers is not None and (is_busy or not self.may_emit):
            self._ask("run_timers")

    def finish(self) -> bool:
        """Let the spout make its last commit; return whether nothing is left to commit."""
        return self._finish is None or self._ask("finish")

    def is_late(self, now: float) -> bool:
        """Return whether a tree's timeout is over."""
        oldest = self.forest.oldest()
        return oldest is not None and oldest <= now - self.timeout_s

    def activate(self) -> None:
        """Activate the spout."""
        self._call("activate", "activate")

    def deactivate(self) -> None:
        """Deactivate the spout; ours commit then."""
        self._call("deactivate", "deactivate")

    def settle(self) -> int:
        """Pass acks and fails to the spout; return how many."""
        forest = self.forest
        completed, forest.completed = forest.completed, []
        failed, forest.failed = forest.failed, []
        self.stamp = None
        if (observer := self.world.observer) is not None:
            for tree in completed:
                observer.on_tree(self, tree.msg_id, None)
            for tree, failure in failed:
                observer.on_tree(self, tree.msg_id, failure)
        if self._direct and completed:
            try:
                if self._takes_many and (ack_many := for_many(self.instance, "ack_many", "ack")) is not None:
                    ack_many([tree.msg_id for tree in completed])
                else:
                    ack = self.instance.ack
                    for tree in completed:
                        ack(tree.msg_id)
            except USER_ERRORS as error:
                raise self._fatal(error, "ack") from error
        else:
            for tree in completed:
                self._call("ack", "ack", tree.msg_id)
        self.acked += forest.records(completed)
        self.failed += len(failed)  # trees, as timeouts are: halving a chunk does not fail each of its records
        for tree, failure in failed:
            forest.sizes.pop(tree, None)
            self._fail(tree, failure)
        self.world.latencies.add(completed, self.world.clock.monotonic)
        return len(completed) + len(failed)

    def exhausted(self) -> bool:
        """Return whether a bounded spout has emitted everything up to its end."""
        return self._ask("exhausted")

    def end_reached(self) -> bool:
        """Return whether a bounded spout has everything up to its end acked and committed."""
        return self._ask("end_reached")

    def waits_for_acks(self) -> bool:
        """Return whether the spout emits nothing until all tuples in flight are acked, for a planned hand-over."""
        return self._waits is not None and self._ask("waits_for_acks")

    def _ask(self, question: str) -> bool:
        try:
            return bool(getattr(self.instance, question)())
        except USER_ERRORS as error:
            raise self._fatal(error, question) from error

    def _fail(self, tree: Tree, failure: Failure) -> None:
        self.timeouts += failure.kind == "timeout"
        if self._fail_with is None:
            self._call("fail", "fail", tree.msg_id)
            return
        try:
            self._fail_with(tree.msg_id, failure)
        except USER_ERRORS as error:
            raise self._fatal(error, "fail_with") from error

    def _call(self, method: str, command: str, *msg_id: Any) -> None:
        try:
            if self._direct:
                getattr(self.instance, method)(*msg_id)
            else:
                message = {"command": command, "id": msg_id[0]} if msg_id else {"command": command}
                self.instance._pending_commands.append(message)
                self.instance._run()
        except USER_ERRORS as error:
            raise self._fatal(error, method) from error

    def _fatal(self, error: UserError, doing: str) -> DownspoutError:
        """Return the error that ends the run: after an exception, a spout's position cannot be trusted."""
        self.errors += 1
        if isinstance(error, DownspoutError):
            return error
        return self.reported(error, doing)


def emit_chunk(
    task: SpoutTask, outlet: StreamTargets, batch: Any, tup_id: Any, direct_task: int | None, need_task_ids: bool
) -> list[int] | None:
    """Emit a chunk; with an id, it is the root of one tree, even if bolts get single records."""
    forest, tree = task.forest, None
    if tup_id is not None and task.world.ackers:
        tree = Tree(forest, tup_id, task.stamp or task.stamped())
    reached = deliver(task, outlet, batch, tree, direct_task)
    if tree is not None:
        forest.replays = True  # a spout of chunks always replays: no bolt knows which record of a chunk failed
        forest.planted(tree, batch.num_rows)
    else:
        task.untracked += batch.num_rows
        if tup_id is not None:  # no ackers: Storm acks inside emit
            task.instance.ack(tup_id)
    return reached if need_task_ids else None


def make_emit(task: SpoutTask) -> Callable[..., list[int] | None]:
    """Return the function that emits for a spout."""
    outlets, world, forest = task.outlets, task.world, task.forest
    name, task_id, observer = task.name, task.task_id, world.observer
    next_id, next_untracked, roots = world.next_id, world.next_untracked, forest.open

    def emit(
        tup: Any, tup_id: Any = None, stream: Any = None, direct_task: Any = None, need_task_ids: bool = False
    ) -> list[int] | None:
        """Emit a spout tuple."""
        outlet = outlets.get(stream)
        if outlet is None or not isinstance(tup, _SEQUENCES) or len(tup) != outlet[2]:
            if outlet is not None and isinstance(tup, RecordBatch):
                return emit_chunk(task, outlet, tup, tup_id, direct_task, need_task_ids)
            raise task.wrong_emit(outlet, stream, tup)
        stream_name, kind, _, targets, route, _, is_direct, _ = outlet
        values = _new(kind, tup)
        if direct_task is not None:
            targets = task.direct_targets(outlet, direct_task)
        elif is_direct:
            raise task.wrong_emit(outlet, stream, tup)
        elif targets is None:
            targets = route(values)
        task.emitted += 1
        ids: list[str] | None = None if observer is None else []
        tree = None
        if tup_id is not None and world.ackers:
            tree = new_tree(Tree)
            tree.forest, tree.msg_id, tree.started, tree.pending = forest, tup_id, task.stamp or task.stamped(), 0
        for _, target_held, put, _ in targets:
            if tree is None:
                tuple_id = next_untracked()
            else:
                tuple_id = next_id()
                target_held[tuple_id] = tree
                tree.pending += 1
            put(_new(Tuple, (tuple_id, name, stream_name, task_id, values)))
            if ids is not None:
                ids.append(tuple_id)
        if observer is not None and ids is not None:
            observer.on_emit(task, stream_name, values, ids)
        if tree is not None:
            if tree.pending:
                roots[tree] = None
            else:
                forest.completed.append(tree)
        else:
            task.untracked += 1
            if tup_id is not None:  # no ackers: Storm acks inside emit
                task.instance.ack(tup_id)
        if need_task_ids:
            return [direct_task] if direct_task is not None else [target[0] for target in targets]
        return None

    return emit
