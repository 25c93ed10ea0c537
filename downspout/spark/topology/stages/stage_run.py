"""One run of a stage over its part of a batch: a local engine around the components that run in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from downspout.engine.graph import Component, Graph, Input, OutputStream
from downspout.engine.lifecycle import build_tasks, calm_gc
from downspout.engine.loop import Engine
from downspout.engine.result import counts_of
from downspout.engine.runtime import Runtime
from downspout.engine.task import Task
from downspout.errors import DownspoutError
from downspout.sink.sink_bolt import SinkBolt
from downspout.sink.writer import StagingWriter
from downspout.spark.topology.plan import Plan, Stage, part_of
from downspout.spark.topology.rows import ERROR, METRICS, STAGED, BatchMetrics, Row
from downspout.spark.topology.stages.bolt_state import separate
from downspout.spark.topology.stages.stage_output import OutputBolt, StageOutput
from downspout.spark.topology.stages.task_input import InputSpout, TaskInput

INPUT = "__input"  # The component that feeds the stateful bolt of a later stage


class StatefulTask(NamedTuple):
    """A task of a stateful bolt."""

    name: str
    number: int


class StageRun:
    """Runs a stage once."""

    def __init__(
        self,
        plan: Plan,
        stage: Stage,
        task_input: TaskInput,
        output: StageOutput,
        metrics: BatchMetrics,
        stateful: StatefulTask | None = None,
    ) -> None:
        self._stage, self._input, self._output, self._metrics = stage, task_input, output, metrics
        graph = _graph_of(plan.graph, stage, stateful)
        # No limit on what is in flight: a sink holds its tuples until a flush, and waiting for time to pass helps none.
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
            # Components see the context that they would have on the other engines: all tasks of the topology.
            if (original := originals.get((task.name, task.index))) is not None:
                task.context = original.context

    def _created(self, task: Any) -> None:
        instance = task.instance
        if isinstance(instance, InputSpout):
            instance.task_input, instance.task = self._input, task
            task.forest.replays = self._stage.level == 0  # behind it, the whole batch is computed again
        elif task.name in self._stage.entries:
            separate(instance)
        elif isinstance(instance, OutputBolt):
            instance.stand_in(self._output, task)
        elif isinstance(instance, SinkBolt):
            instance.writer_class = StagingWriter

    def rows(self) -> Iterator[Row]:
        """Run until everything that came in is done or exhausted; yield what leaves."""
        try:
            with calm_gc(), self.engine.open():
                self.begin()
                while True:
                    while not self._input.idle:
                        self.engine.round()
                        yield from self._output.take()
                    self.finish()  # a flush may fail records, which are tried again then
                    if self._input.idle:
                        break
                self.end()
                self._note_what_is_staged()
        except DownspoutError as error:
            # An error that is the topology's becomes a row: the driver raises it, without Spark's pages around it.
            self._output.put(ERROR, "", (type(error).__name__, error.message, error.cure))
            self._note_what_is_staged()  # for the driver to delete
        yield from self._output.take(whole=True)

    def begin(self) -> None:
        """All components are there."""

    def finish(self) -> None:
        """All that came in has been emitted."""
        self.engine.finish_batch()

    def end(self) -> None:
        """The run is over; say what was done."""
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
    """Return the part of the graph that runs in one task."""
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


def whole_topology(plan: Plan) -> dict[tuple[str, int], Task]:
    """Return the tasks of the whole topology by component and index, as the other engines have them; none is built."""
    tasks = build_tasks(plan.graph, plan.confs, Runtime(), random.Random(0), ackers=1)
    return {(task.name, task.index): task for task in tasks}
