"""The stages as Spark's operators: stage 0 as a function for ``mapInArrow``, the others as stateful processors."""

from __future__ import annotations

import importlib
import itertools
import pickle
import random
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from downspout.component import Failure
from downspout.engine.graph import Component, Graph, Input, OutputStream
from downspout.engine.lifecycle import build_tasks, calm_gc
from downspout.engine.loop import Engine
from downspout.engine.result import counts_of
from downspout.engine.runtime import Runtime, error_line
from downspout.engine.task import Task
from downspout.errors import USER_ERRORS, DownspoutError, TopologyError
from downspout.sink.sink_bolt import SinkBolt
from downspout.sink.writer import StagingWriter
from downspout.spark.topology.bolt_state import (
    ENTRY_SCHEMA,
    KEY_SCHEMA,
    Entries,
    attributes,
    keep_by_key,
    restore,
    save,
    separate,
    write_keys,
)
from downspout.spark.topology.record_input import ChunkLimits, RecordInput
from downspout.spark.topology.stage_rows import (
    ERROR,
    METRICS,
    STAGED,
    STATE,
    TICK,
    ChunkPlace,
    RecordPlace,
    Row,
    ShuffledTuple,
    StageMetrics,
    load,
    to_batch,
)
from downspout.spark.topology.stage_tuples import InputSpout, OutputBolt, StageOutput, TaskInput, TupleInput
from downspout.spark.topology.stages import Stage, StagePlan, held_of, is_state, part_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


# --- one run of a stage ---

INPUT = "__input"  # The component that feeds the stateful bolt of a later stage


class StatefulTask(NamedTuple):
    """A task of a stateful bolt."""

    name: str
    number: int


class StageRun:
    """Runs a stage once."""

    def __init__(
        self,
        plan: StagePlan,
        stage: Stage,
        task_input: TaskInput,
        output: StageOutput,
        metrics: StageMetrics,
        stateful: StatefulTask | None = None,
    ) -> None:
        self._stage, self._input, self._output, self._metrics = stage, task_input, output, metrics
        graph = _graph_of(plan.graph, stage, stateful)
        # No limit on tuples in flight: a sink holds them until a flush, and waiting would not free any.
        no_limits = {"topology.max.spout.pending": None, "topology.enable.message.timeouts": False}
        confs = {name: {**plan.confs.get(name, {}), **no_limits} for name in graph.components}
        originals = whole_topology(plan)
        self.kinds = {(t.name, outlet.stream): outlet.kind for t in originals.values() for outlet in t.outlets.values()}
        ids = {place: task.task_id for place, task in originals.items()} | {(INPUT, 0): 0}
        if stateful is not None:
            confs[stateful.name]["topology.tick.tuple.freq.secs"] = None  # its ticks come from Spark's timers
            ids[stateful.name, 0] = ids[stateful]
        self.engine = Engine(graph, confs, rng=random.Random(0), created=self._created, task_ids=ids)
        for task in self.engine.tasks:
            if stateful is not None and task.name == stateful.name:
                task.index = stateful.number
            # Components see the context of the other engines, with all tasks of the topology.
            if (original := originals.get((task.name, task.index))) is not None:
                task.context = original.context

    def _created(self, task: Any) -> None:
        instance = task.instance
        if isinstance(instance, InputSpout):
            instance.task_input, instance.task = self._input, task
            task.forest.replays = self._stage.level == 0  # in later stages, the whole batch is computed again
        elif task.name in self._stage.entries:
            separate(instance)
        elif isinstance(instance, OutputBolt):
            instance.stand_in(self._output, task)
        elif isinstance(instance, SinkBolt):
            instance.writer_class = StagingWriter

    def rows(self) -> Iterator[Row]:
        """Run until all input is done or exhausted; yield the stage's rows."""
        try:
            with calm_gc(), self.engine.open():
                self.begin()
                while True:
                    while not self._input.idle:
                        self.engine.round()
                        yield from self._output.take()
                    self.finish()  # a flush may fail records, which are then retried
                    if self._input.idle:
                        break
                self.end()
                self._note_what_is_staged()
        except DownspoutError as error:
            # An error of the topology becomes a row, which the driver raises without Spark's pages around it.
            self._output.put(ERROR, "", (type(error).__name__, error.message, error.cure))
            self._note_what_is_staged()  # for the driver to delete
        yield from self._output.take(whole=True)

    def begin(self) -> None:
        """Called once all components are created."""

    def finish(self) -> None:
        """Called once all input has been emitted."""
        self.engine.finish_batch()

    def end(self) -> None:
        """Put the metrics at the end of the run."""
        metrics, names = self._metrics, {*self._stage.inside, *self._stage.entries}
        counts = counts_of(self.engine.graph, self.engine.tasks)
        metrics.counts = {name: counts[name] for name in counts if name in names}
        metrics.reports = {task.name: dict(task.report()) for task in self.engine.tasks if task.name in names}
        metrics.errors = self.engine.world.errors.summary()
        self._output.put(METRICS, "", metrics)

    def _note_what_is_staged(self) -> None:
        for bolt in self.engine.bolts:
            writer = getattr(bolt.instance, "writer", None)
            if isinstance(bolt.instance, SinkBolt) and isinstance(writer, StagingWriter):
                self._output.put(STAGED, bolt.name, writer.staged)


def _graph_of(graph: Graph, stage: Stage, stateful: StatefulTask | None) -> Graph:
    """Return the subgraph that runs in one task."""
    keep = {name: replace(graph.components[name], par=1) for name in stage.inside}
    emitters = {*stage.inside, *stage.entries}
    for name in stage.exits:
        keep[name] = replace(graph.components[name], cls=OutputBolt, streams={})
    if stateful is None:
        keep |= {name: replace(graph.components[name], cls=InputSpout, par=1) for name in stage.entries}
        return part_of(graph, keep, emitters)
    reached = {stateful.name}
    for bolt in graph.bolts:  # sources before their readers
        if bolt.name in keep and any(i.source in reached and i.source in emitters for i in bolt.inputs):
            reached.add(bolt.name)
    keep = {name: component for name, component in keep.items() if name in reached}
    inputs = (Input(INPUT, "default", "global"),)
    keep[stateful.name] = replace(graph.components[stateful.name], par=1, inputs=inputs)
    keep[INPUT] = Component(INPUT, InputSpout, streams={"default": OutputStream("default", ("item",))})
    return part_of(graph, keep, {INPUT, *(reached & emitters)})


def whole_topology(plan: StagePlan) -> dict[tuple[str, int], Task]:
    """Return the tasks of the whole topology by component and index, as on the other engines; none is built."""
    tasks = build_tasks(plan.graph, plan.confs, Runtime(), random.Random(0), ackers=1)
    return {(task.name, task.index): task for task in tasks}


# --- Spark's operators ---


class PickledPlan:
    """A pickled plan for executors. Raises TopologyError: a component's class cannot be imported by name."""

    def __init__(self, plan: StagePlan, path: Sequence[str], modules: Sequence[str]) -> None:
        for component in plan.graph.components.values():
            if (name := component.cls.__qualname__) != component.cls.__name__ or "__main__" in component.cls.__module__:
                raise TopologyError(
                    f"{component.name}: executors cannot find its class {component.cls.__module__}.{name}",
                    cure="define the class at the top of a module that can be imported, not in a function or a script",
                )
        self._bytes = pickle.dumps(plan, pickle.HIGHEST_PROTOCOL)
        self._path, self._modules = tuple(path), tuple(modules)

    def load(self) -> StagePlan:
        """Return the plan, on an executor."""
        # Unpickling imports the user's modules, so the driver's path is added, after the executor's own.
        sys.path += [place for place in self._path if place not in sys.path]
        for module in self._modules:
            importlib.import_module(module)
        plan: StagePlan = pickle.loads(self._bytes)
        return plan


class FirstStage:
    """Stage 0: turns the source's columns into rows, without records exhausted by later stages (``skip``)."""

    def __init__(
        self, pickled: PickledPlan, skip: Collection[RecordPlace] = (), chunk_limits: ChunkLimits | None = None
    ) -> None:
        self._pickled, self._skip, self._chunk_limits = pickled, tuple(skip), dict(chunk_limits or {})

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stage over the records of one task; for the end marker, make later stages tick instead."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        plan = self._pickled.load()
        if not first.column("topic")[0].is_valid:
            yield to_batch(last_ticks(plan))
            return
        output, metrics = StageOutput(), StageMetrics()
        confs = {name: plan.confs[name] for name in plan.spouts}
        records = RecordInput(itertools.chain([first], batches), confs, self._skip, output, metrics, self._chunk_limits)
        for row in StageRun(plan, plan.stages[0], records, output, metrics).rows():
            yield to_batch([row])


def last_ticks(plan: StagePlan) -> list[Row]:
    """Return rows that make each task of each stateful bolt with ticks tick after all tuples of its batch."""
    ticking = [(name, par) for name, par in plan.stateful.items() if plan.tick_s(name)]
    return [Row.of(TICK, name, None, index) for name, par in ticking for index in range(par)]


class TaskState(NamedTuple):
    """The stored state of a stateful bolt's task between two batches."""

    next_id: int = 1  # of the next tuple
    held: Mapping[str, tuple[RecordPlace | ChunkPlace, ...]] = {}
    """ids of tuples that the bolt has neither acked nor failed, with the records they came from"""
    attributes: bytes | None = None


class _StatefulRun(StageRun):
    """One batch of one task of a stateful bolt."""

    def __init__(
        self,
        plan: StagePlan,
        level: int,
        task: StatefulTask,
        items: list[ShuffledTuple],
        state: bytes | None,
        tick_s: float,
        skip: Collection[RecordPlace] = (),
        entries: Entries | None = None,
    ) -> None:
        self._before = TaskState() if state is None else TaskState(*pickle.loads(state))
        self._tick_s, self._entries = tick_s, entries
        self._by_key = plan.stateful_keys.get(task.name, "")
        output = StageOutput()
        self._tuples = TupleInput(items, output, skip)
        super().__init__(plan, plan.stages[level], self._tuples, output, StageMetrics(), task)
        # Ids continue from the last batch, of which the bolt may still hold tuples.
        self.engine.world.next_id = map(str, itertools.count(self._before.next_id)).__next__
        self._bolt = next(bolt for bolt in self.engine.bolts if bolt.name == task.name)
        self._tuples.bolt, self._tuples.spout = self._bolt, self.engine.spouts[0]
        self._tuples.kinds = self.kinds
        self.new_state = state

    def begin(self) -> None:
        """Restore the bolt's state."""
        self._fresh = attributes(self._bolt.instance)
        if self._before.attributes is not None:
            restore(self._bolt.instance, self._before.attributes)
        if self._by_key:
            assert self._entries is not None
            is_new = self._before.attributes is None
            self._stored = keep_by_key(self._bolt.name, self._bolt.instance, self._by_key, self._entries, is_new=is_new)
        self._tuples.restore(self._before.held)

    def finish(self) -> None:
        """Process batches, tick if due, and let the downstream bolts finish."""
        bolt = self._bolt
        self.engine.work()
        if bolt.is_batching:
            bolt.drain()
        if self._tick_s:
            bolt.tick_s, self._tick_s = self._tick_s, 0.0
            bolt.tick()
        self.engine.finish_batch(keep=[bolt])

    def end(self) -> None:
        """Save the state unless the batch failed. Tuples that the bolt still holds are in it, so their records are
        done."""
        tuples = self._tuples
        if self._bolt.restarts and all(failure.kind == "timeout" for failure in tuples.failures):
            # A restarted bolt has lost its state. It raised outside of a tuple (in a tick, or between batches), so
            # nothing has failed the batch yet.
            why = self.engine.world.errors.summary()
            tuples.fail((), Failure("exception", self._bolt.name, error=why[-1] if why else ""))
        if not tuples.failures:
            held = tuples.held()
            for tree in list(self.engine.spouts[0].forest.open):
                tuples.done(tree.msg_id)
            if self._by_key:
                write_keys(self._bolt.instance, self._by_key, self._stored)
            state = save(self._bolt.name, self._bolt.instance, self._fresh, self._by_key)
            after = TaskState(int(self.engine.world.next_id()), held, state)
            self.new_state = pickle.dumps(tuple(after), pickle.HIGHEST_PROTOCOL)
        super().end()


class StatefulStage(StatefulProcessor):
    """A later stage, with one state key per task of its stateful bolts. Other rows pass through."""

    def __init__(self, pickled: PickledPlan, level: int, skip: Collection[RecordPlace] = ()) -> None:
        self._pickled, self._level, self._skip = pickled, level, tuple(skip)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._handle = handle
        self._state = handle.getValueState("component", "data binary")
        self._plan = self._pickled.load()
        self._entries: Entries | None = None
        if self._plan.stateful_keys.keys() & set(self._plan.stages[self._level].entries):
            self._entries = handle.getMapState("keys", KEY_SCHEMA, ENTRY_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Run the bolt over its tuples of this batch."""
        name, index = key
        if name not in self._plan.stages[self._level].entries:
            yield from rows
            return
        items: list[ShuffledTuple] = []
        is_last = False
        for frame in rows:
            for kind, payload in zip(frame["kind"], frame["payload"], strict=True):
                if kind == TICK:
                    is_last = True
                else:
                    items += load(payload)
        if is_state(self._plan.graph.components[name]):
            yield to_batch([self._held(name, int(index), items)]).to_pandas()
            return
        yield self._run(StatefulTask(name, int(index)), items, timerValues, ticks=is_last, expired=False)

    def _held(self, name: str, index: int, items: list[ShuffledTuple]) -> Row:
        """Return a row with the values that a state's task holds of the batch, or with the error."""
        try:
            return Row.of(STATE, name, held_of(self._plan.graph, self._plan.confs[name], name, items), index)
        except DownspoutError as error:
            return Row.of(ERROR, name, (type(error).__name__, error.message, error.cure), index)
        except USER_ERRORS as error:
            said = f"{name}: its update raised {error_line(error)}"
            return Row.of(ERROR, name, ("ComponentError", said, "correct state.update"), index)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Tick."""
        yield self._run(StatefulTask(key[0], int(key[1])), [], timerValues, ticks=True, expired=True)

    def _run(
        self, task: StatefulTask, items: list[ShuffledTuple], timers: Any, *, ticks: bool, expired: bool
    ) -> pd.DataFrame:
        """Run the bolt over tuples, then tick on request; set a new timer if the last one expired or none exists."""
        held = self._state.get()
        period_s = self._plan.tick_s(task.name)
        state = bytes(held[0]) if held is not None else None
        tick_s = period_s if ticks else 0.0
        run = _StatefulRun(self._plan, self._level, task, items, state, tick_s, self._skip, self._entries)
        rows = list(run.rows())
        if run.new_state is not None:
            self._state.update((run.new_state,))
        if period_s and (expired or not any(self._handle.listTimers())):
            self._handle.registerTimer(timers.getCurrentProcessingTimeInMs() + int(period_s * 1000))
        return to_batch(rows).to_pandas()

    def close(self) -> None:
        """Do nothing."""
