"""A bolt's task: its queue, its unsettled tuples, and error handling."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pystorm.bolt
from pystorm.component import Tuple

from downspout.component import Bolt as OurBolt
from downspout.engine import acker
from downspout.engine.acker import Held, Tree, make_process_batch
from downspout.engine.bulk_calls import (
    MANY_MAX,
    RecordBatch,
    bolt_acks_many,
    bolt_emits_many,
    deliver,
    for_many,
    run_many,
)
from downspout.engine.graph import Component
from downspout.engine.runtime import TICK, UNTRACKED, BrokenBoltDetector, Runtime
from downspout.engine.task import StreamTargets, Target, Task, describe, failure_of
from downspout.errors import USER_ERRORS, ComponentError, DownspoutError, RecordError, UnavailableError, UserError
from downspout.protocols import BoltEngine, BoltOffers, Failure, offered, takes_chunks
from downspout.wire.tuple_io import READING

SLICE_S = 0.05  # Roughly how long a slice of the queue should take
LOOK_EVERY = 8  # Tuples between two reads of the clock inside a slice
_FEW = range(LOOK_EVERY)
SLICE_FIRST = 16
_new = tuple.__new__
_SEQUENCES = (list, tuple)  # an inline ``list | tuple`` would be built by each call


class BoltTask(Task):
    """One instance of a bolt."""

    stock = (pystorm.bolt.Bolt, pystorm.bolt.BatchingBolt, pystorm.bolt.TicklessBatchingBolt)

    def __init__(self, component: Component, task_id: int, world: Runtime, conf: Mapping[str, Any]) -> None:
        super().__init__(component, task_id, world, conf)
        self.queue: deque[Any] = deque()
        self.held: Held = {}
        self.target: Target = (task_id, self.held, self.queue.append, self.queue.extend)
        self.tick_s = float(conf.get("topology.tick.tuple.freq.secs") or 0)
        self.tick_due = float("inf")
        self.batch_due = float("inf")
        self.raised = 0  # Records on which ``process`` raised
        self.lost = 0  # Failed records that belong to no tree: they are not retried
        restarts_max = int(conf.get("run.restarts_max", 3))
        self._breakage = world.breakages.setdefault(
            self.name, BrokenBoltDetector(self.name, restarts_max, world.clock, world.log)
        )
        self._breakage.add(self)
        self._failure: Failure | None = None
        self._process_many: Any = None
        self.has_chunks = False  # Whether a chunk ever arrived: then the type of each tuple is checked
        self._slice = SLICE_FIRST
        self.sizes: dict[str, int] = {}  # Records of each held chunk: counters count records

    # --- set-up -----------------------------------------------------------------------------------------

    def build(self) -> None:
        """Build the bolt, and check whether it takes chunks: its ``initialize`` may decide that."""
        super().build()
        self.sizes.clear()
        self.world.takes_chunks.pop(self.task_id, None)
        is_ours = isinstance(self.instance, OurBolt) and not self.is_batching
        self._process_many = for_many(self.instance, "process_many", "process") if is_ours else None
        may = self._direct and not self.is_batching and takes_chunks(type(self.instance))
        if may and offered(self.instance, BoltOffers.process_chunk):
            self.world.takes_chunks[self.task_id] = self

    def shortcut(self) -> None:
        """Route emit, ack, fail and reading to the engine, unless the class overrides pystorm's methods."""
        bolt = self.instance
        self.is_batching = isinstance(bolt, pystorm.bolt.BatchingBolt)
        self.is_tickless = isinstance(bolt, pystorm.bolt.TicklessBatchingBolt)
        self._direct = not self.overrides(*READING)
        self._drain_at = offered(bolt, BoltOffers.drain_at)
        self.is_waiting = offered(bolt, BoltOffers.is_waiting) or (lambda: False)
        self._emit = make_emit(self, bolt, returns_ids=True)
        self._ack_one = make_ack(self)
        if not self.overrides("emit", "send_message"):
            bolt.emit = make_emit(self, bolt, returns_ids=not self.is_batching)
        self._acks_directly = not self.overrides("ack", "send_message")
        if self._acks_directly:
            bolt.ack = self._ack_one
        if not self.overrides("fail", "send_message"):
            bolt.fail = self._fail_one
        if not self.overrides("raise_exception", "send_message"):
            bolt.raise_exception = self._raise_exception
        if self.is_batching:
            bolt.process_batch = make_process_batch(self)

    def services(self) -> BoltEngine:
        """Return the engine's services for the bolt."""
        return BoltEngine(bolt_emits_many(self), bolt_acks_many(self), self._fail_because, self._record_at)

    def _record_at(self, origin: Any) -> Any:
        """Return the whole record of an origin, if a spout has it in memory."""
        for spout in self.world.spouts:
            if spout.record_at is not None and (found := spout.record_at(origin)) is not None:
                return found
        return None

    def deliver(self, tree: Tree, source: str, stream: str, task_id: int, values: Any) -> None:
        """Enqueue a tuple that comes from outside this engine, as part of ``tree``."""
        tuple_id = self.world.next_id()
        self.held[tuple_id] = tree
        tree.pending += 1
        self.queue.append(_new(Tuple, (tuple_id, source, stream, task_id, values)))

    def start_timers(self, now: float) -> None:
        """Start the tick period, and a TicklessBatchingBolt's batch period."""
        if self.tick_s:
            self.tick_due = now + self.tick_s
        if self.is_tickless:
            self.batch_due = now + float(self.instance.secs_between_batches)

    # --- messages of the component ------------------------------------------------------------------------

    def receive(self, message: dict[str, Any]) -> None:
        """Handle acks and fails, and the messages that every component sends."""
        command = message.get("command")
        if command == "ack":
            self._ack_one(message["id"])
        elif command == "fail":
            self._fail_one(message["id"])
        else:
            super().receive(message)

    def _fail_one(self, tup: Any) -> None:
        tuple_id = tup.id if isinstance(tup, Tuple) else tup
        reason = self._failure or Failure("fail", self.name, self.task_id)
        is_untracked = tuple_id.startswith(UNTRACKED)
        if acker.fail(self.held, tuple_id, reason) or is_untracked:
            size = self.sizes.pop(tuple_id, 1)
            self.failed += size
            self.lost += size * is_untracked
            if self.world.observer is not None:
                self.world.observer.on_fail(self, tuple_id)

    def _fail_because(self, tup: Any, error: Exception) -> None:
        """Fail a tuple and pass the reason to the spout, without restarting the component."""
        self.errors += 1
        self.world.errors.report(self.name, error, lambda: self._about(tup))
        self._failure = failure_of(self, error)
        try:
            self.instance.fail(tup)
        finally:
            self._failure = None

    def _raise_exception(self, exception: Any, tup: Any = None) -> None:
        """Report an error as pystorm does, unless the engine has reported it already."""
        if not self._muted:
            type(self.instance).raise_exception(self.instance, exception, tup)

    # --- work ---------------------------------------------------------------------------------------------

    def run_queue(self, turn_s: float) -> None:
        """Process the tuples queued now, for about ``turn_s``; later arrivals wait for the next call."""
        clock, count = self.world.clock, len(self.queue)
        now = clock.monotonic()
        begun, until = now, now + turn_s
        while count > 0 and now < until:
            taken = self._run_slice(min(count, self._slice), until)
            count -= taken
            before, now = now, clock.monotonic()
            # The duration of this slice decides the size of the next. A bolt may suddenly become slow, for example if
            # its service is gone, so the clock is also read inside a slice.
            fitting = int(SLICE_S / max(now - before, 1e-9) * taken)
            self._slice = max(1, min(2 * self._slice, fitting, MANY_MAX))
        self.busy_s += now - begun

    def _run_slice(self, most: int, until: float) -> int:
        """Process up to ``most`` queued tuples and stop soon after ``until``; return how many were taken."""
        if not self._direct:
            self._run_message(self.queue.popleft())
            return 1
        if self._process_many is None or self.has_chunks:
            # An error leaves the inner loop, which therefore needs no handler per tuple, and may replace the component.
            return self._run_directly(most, until)
        taken = run_many(self, self._process_many, most)
        return taken + self._run_directly(1, until) if taken < most else taken

    def _run_directly(self, count: int, until: float) -> int:
        """Process up to ``count`` tuples as pystorm's own ``_run`` would; return how many were taken."""
        monotonic = self.world.clock.monotonic
        bolt, popleft, pop, tup = self.instance, self.queue.popleft, self.held.pop, None
        process, ack = self._process_either if self.has_chunks else bolt.process, bolt.ack
        acks = not self.is_batching
        # An ack removes the tuple from ``held`` at once, so a second ack or a fail has no effect. Acks are counted at
        # the end of the slice: nothing reads ``pending`` before the bolt's turn is over.
        gathers = self._acks_directly and self.world.observer is None and not self.has_chunks
        done = 0
        root: Any
        acked: list[Tree] = []
        try:
            try:
                while done < count:
                    for _ in _FEW if count - done >= LOOK_EVERY else range(count - done):
                        tup = popleft()
                        done += 1
                        bolt._current_tups = [tup]
                        process(tup)
                        if acks and bolt.auto_ack:
                            if not gathers:
                                ack(tup)
                            elif type(root := pop(tup[0], None)) is Tree:
                                acked.append(root)
                            else:
                                self.settle_one(tup[0], root)
                    if monotonic() >= until:
                        break
                bolt._current_tups = []
            finally:
                # Before the error is handled: tuples processed before the one that raised are done.
                self.executed += done
                self.acked += acker.settle_many(acked)
        except USER_ERRORS as error:
            self.crashed(error, tup)
        return done

    def _process_either(self, tup: Any) -> None:
        """Process a record or a chunk."""
        if isinstance(tup[4], RecordBatch):
            size = self.sizes[tup[0]] = tup[4].num_rows
            self.executed += size - 1
            self.instance.process_chunk(tup)
        else:
            self.instance.process(tup)

    def drop_queued(self) -> None:
        """Drop queued tuples whose trees have all failed and will be emitted again."""
        held = self.held
        kept = [tup for tup in self.queue if (root := held.get(tup[0])) is None or not acker.is_retried(root)]
        if len(kept) < len(self.queue):
            self.queue.clear()
            self.queue.extend(kept)

    def sweep(self) -> int:
        """Drop tuples whose trees are closed; return how many."""
        dropped = acker.sweep(self.held)
        self.sizes = {tuple_id: size for tuple_id, size in self.sizes.items() if tuple_id in self.held}
        return dropped

    def settle_one(self, tuple_id: str, root: Any) -> None:
        """Count an ack for the trees that ``held`` had under this id."""
        if root is not None:
            acker.settle_many(acker.trees_of(root))
        elif not tuple_id.startswith(UNTRACKED):
            return  # a tick, or settled before
        self.acked += self.sizes.pop(tuple_id, 1) if self.sizes else 1
        if self.world.observer is not None:
            self.world.observer.on_ack(self, tuple_id)

    def _run_message(self, tup: Any) -> None:
        """Feed one tuple as the message that Storm would send, for classes that override reading."""
        tuple_id, source, stream, task, values = tup
        message = {"id": tuple_id, "comp": source, "stream": stream, "task": task, "tuple": list(values)}
        self.instance._pending_commands.append(message)
        if tuple_id != TICK:
            self.executed += 1
        try:
            self.instance._run()
        except USER_ERRORS as error:
            self.crashed(error, tup)

    def tick(self) -> None:
        """Deliver a tick tuple at once."""
        begun = self.world.clock.monotonic()
        self._tick()
        self.busy_s += self.world.clock.monotonic() - begun

    def _tick(self) -> None:
        tup = Tuple(TICK, "__system", "__tick", -1, (int(self.tick_s) if self.tick_s.is_integer() else self.tick_s,))
        if not self._direct:
            self._run_message(tup)
            return
        bolt = self.instance
        try:
            bolt._current_tups = [tup]
            bolt.process_tick(tup)
            if not self.is_batching and bolt.auto_ack:
                bolt.ack(tup)
            bolt._current_tups = []
        except USER_ERRORS as error:
            self.crashed(error, tup)

    def run_batches(self, now: float) -> None:
        """Process batches in place of a TicklessBatchingBolt's timer thread."""
        self._guarded(self.instance.process_batches)
        self.batch_due = now + float(self.instance.secs_between_batches)

    def drain(self, *, wait: bool = False, due: bool = False) -> bool:
        """Make the bolt write out its buffer, by ``drain`` or by processing its batches.

        Return whether the bolt can hold anything.

        Args:
            wait: return only after the buffer is written, if the bolt offers that.
            due: write only the part that is due, if the bolt offers that.
        """
        other = BoltOffers.drain_and_wait if wait else BoltOffers.drain_old if due else None
        special = offered(self.instance, other) if other is not None else None
        if (drain := special or offered(self.instance, BoltOffers.drain)) is not None:
            self._guarded(drain)
        elif self.is_batching:
            for _ in range(len(self.instance._batches)):  # a batch that raises leaves the later ones unprocessed
                if self.instance._batches:
                    self._guarded(self.instance.process_batches)
        return drain is not None or self.is_batching

    def drain_due(self) -> float:
        """Return when the bolt wants to be drained; infinity if it does not.

        Raises:
            ComponentError: ``drain_at`` raised; a DownspoutError is passed on unchanged.
        """
        try:
            moment = self._drain_at() if self._drain_at is not None else None
        except DownspoutError:
            raise
        except USER_ERRORS as error:
            raise self.reported(error, "drain_at") from error
        return float("inf") if moment is None else float(moment)

    def _guarded(self, call: Callable[[], Any]) -> None:
        begun = self.world.clock.monotonic()
        try:
            call()
            self.instance._current_tups = []
        except USER_ERRORS as error:
            self.crashed(error, None)
        self.busy_s += self.world.clock.monotonic() - begun

    # --- errors -------------------------------------------------------------------------------------------

    def _about(self, tup: Any) -> str:
        return f"{self.place}: {describe(tup)}" if tup is not None else self.place

    def crashed(self, error: UserError, tup: Any, *, in_batch: bool = True) -> None:
        """Handle a bolt's exception as pystorm and Storm do: report, fail, and restart if it exits on exceptions.

        Args:
            error: the exception.
            tup: the tuple or tick being processed; None if there were several, or none.
            in_batch: without ``tup``, whether a timer or drain raised, not ``process_many``.

        Raises:
            DownspoutError: ``error`` itself, if it is not about one record: other records would raise it too.
            ComponentError: the bolt is broken (:mod:`downspout.engine.runtime`).
        """
        self.errors += 1
        if isinstance(error, DownspoutError) and not isinstance(error, RecordError):
            raise error
        self.world.errors.report(self.name, error, lambda: self._about(tup))
        in_batch = in_batch if tup is None else tup.id == TICK
        in_a_row = 0 if isinstance(error, UnavailableError) else self._judge(tup, in_batch)
        self._failure = failure_of(self, error)
        self._muted = True  # pystorm's own report of the error would be a second one
        try:
            self.instance._handle_run_exception(error)
        except USER_ERRORS:
            self.world.log.exception("%s: another error, while the first one was handled", self.place)
        finally:
            self._muted = False
            self.instance._current_tups = []
        try:
            if self.instance.exit_on_exception:
                self._restart(error, self._failure, tup, in_a_row)
        finally:
            self._failure = None

    def _judge(self, tup: Any, in_batch: bool) -> int:
        """Record a failure. Return the number of consecutive failed first attempts if the bolt is broken, else 0."""
        given = self.instance._current_tups or [tup]
        tups = [each for each in given if isinstance(each, Tuple) and each.id != TICK]
        if not in_batch:
            self.raised += sum(records_in(each) for each in tups)
        if not self.instance.auto_fail:  # with auto_fail, failing them counts them
            self.lost += sum(records_in(each) for each in tups if each.id.startswith(UNTRACKED))
        if any(records_in(each) > 1 for each in tups):
            return 0
        return self._breakage.raised([self.held.get(each.id) for each in tups], in_batch=in_batch)

    def _restart(self, error: UserError, failure: Failure, tup: Any, in_a_row: int) -> None:
        """Replace the component, as Storm replaces its process; fail the tuples that the old one held."""
        waiting = {queued.id for queued in self.queue}
        innocent = Failure("timeout", self.name, self.task_id, "held by a task that was restarted")
        for tuple_id in [held for held in self.held if held not in waiting]:
            guilty = tup is not None and tuple_id == tup.id
            acker.fail(self.held, tuple_id, failure if guilty else innocent)
            self.failed += self.sizes.pop(tuple_id, 1)
            if self.world.observer is not None:
                self.world.observer.on_fail(self, tuple_id)
        if in_a_row:
            raise ComponentError(
                f"{self.error(error, 'process', tup).message}; on {in_a_row} different tuples in a row",
                cure="correct the bolt, or set exit_on_exception = False so that it goes on after a bad tuple",
            ) from error
        self.restarts += 1
        self._breakage.restarted(self.place)
        self.build()


def records_in(tup: Any) -> int:
    """Return how many records a tuple holds: a chunk may hold several."""
    values = tup[4]
    return int(values.num_rows) if isinstance(values, RecordBatch) else 1


def make_ack(task: BoltTask) -> Callable[[Any], None]:
    """Return the function that acks a tuple or an id."""
    pop, settle = task.held.pop, task.settle_one

    def ack(tup: Any) -> None:
        """Indicate that processing of a tuple has succeeded."""
        tuple_id = tup[0] if isinstance(tup, Tuple) else tup
        settle(tuple_id, pop(tuple_id, None))

    return ack


def emit_chunk(
    task: BoltTask, bolt: Any, outlet: StreamTargets, batch: Any, anchors: Any, direct_task: int | None
) -> list[int]:
    """Emit a chunk; return the ids of the tasks that received part of it."""
    if anchors is None:
        anchors = bolt._current_tups if bolt.auto_anchor else ()
    root = acker.join(task.held, [anchor[0] if isinstance(anchor, Tuple) else anchor for anchor in anchors])
    return deliver(task, outlet, batch, root, direct_task)


def make_emit(task: BoltTask, bolt: Any, *, returns_ids: bool) -> Callable[..., list[int] | None]:
    """Return the function that emits for a bolt. It is one long function because calls would dominate its cost."""
    outlets, held, world = task.outlets, task.held, task.world
    name, task_id, observer = task.name, task.task_id, world.observer
    next_id, next_untracked = world.next_id, world.next_untracked

    def emit(
        tup: Any, stream: Any = None, anchors: Any = None, direct_task: Any = None, need_task_ids: bool = False
    ) -> list[int] | None:
        """Emit a new tuple to a stream."""
        outlet = outlets.get(stream)
        if outlet is None or not isinstance(tup, _SEQUENCES) or len(tup) != outlet[2]:
            if outlet is not None and isinstance(tup, RecordBatch):
                reached = emit_chunk(task, bolt, outlet, tup, anchors, direct_task)
                return reached if need_task_ids and returns_ids else None
            raise task.wrong_emit(outlet, stream, tup)
        stream_name, kind, _, targets, route, _, is_direct, _ = outlet
        if anchors is None:
            anchors = bolt._current_tups if bolt.auto_anchor else ()
        root: Any
        if len(anchors) == 1:
            anchor = anchors[0]
            root = held.get(anchor[0] if isinstance(anchor, Tuple) else anchor)
        else:
            root = acker.join(held, [a[0] if isinstance(a, Tuple) else a for a in anchors])
        values = _new(kind, tup)
        if direct_task is not None:
            targets = task.direct_targets(outlet, direct_task)
        elif is_direct:
            raise task.wrong_emit(outlet, stream, tup)
        elif targets is None:
            targets = route(values)
        task.emitted += 1
        ids: list[str] | None = None if observer is None else []
        for _, target_held, put, _ in targets:
            if root is None:
                tuple_id = next_untracked()
            else:
                tuple_id = next_id()
                if type(root) is Tree:
                    target_held[tuple_id] = root
                    root.pending += 1
                else:
                    acker.attach(target_held, tuple_id, root)
            put(_new(Tuple, (tuple_id, name, stream_name, task_id, values)))
            if ids is not None:
                ids.append(tuple_id)
        if observer is not None and ids is not None:
            observer.on_emit(task, stream_name, values, ids)
        if need_task_ids and returns_ids:
            return [direct_task] if direct_task is not None else [target[0] for target in targets]
        return None

    return emit
