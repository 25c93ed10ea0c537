"""One pass of a stage over its part of a batch: a local engine around the components that run in it."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from downspout.errors import DownspoutError
from downspout.local.build import build_tasks
from downspout.local.engine import Engine
from downspout.local.graph import Component, Graph, Input, Stream
from downspout.local.result import counts_of
from downspout.local.runner import calm_gc
from downspout.local.task import Task
from downspout.local.world import World
from downspout.parquet.sink_bolt import SinkBolt
from downspout.parquet.staged import StagingWriter
from downspout.spark.topology.outbox import Outbound, Outbox
from downspout.spark.topology.plan import Plan, Stage, part_of
from downspout.spark.topology.records import Feed, Inlet
from downspout.spark.topology.rows import ERROR, FIGURES, STAGED, Figures, Row
from downspout.spark.topology.state import separate

__all__ = ["Head", "Pass", "Shipment", "whole_topology"]

INLET = "__inlet"
"""The component that feeds the stateful bolt of a pass."""


@dataclass(frozen=True)
class Shipment:
    """What an executor needs to know; travels with the query.

    Attributes:
        plan: the topology and its stages.
        confs: the configuration of each component.
    """

    plan: Plan
    confs: Mapping[str, Mapping[str, Any]]


def arrive(path: Sequence[str], modules: Sequence[str]) -> None:
    """Make the user's modules importable as they were on the driver.

    Args:
        path: where Python looks there; what it knows here comes first.
        modules: those that hold the components.
    """
    sys.path += [place for place in path if place not in sys.path]
    for module in modules:
        importlib.import_module(module)


class Head(NamedTuple):
    """The stateful bolt that a pass is for, and the index of the task."""

    name: str
    task: int


class Pass:
    """Runs a stage once.

    Args:
        shipment: the topology.
        stage: what to run.
        inlet: where its tuples come from.
        outbox: where rows go.
        figures: what it did.
        head: in a later stage, which task of which stateful bolt is run; None in stage 0.
    """

    def __init__(
        self,
        shipment: Shipment,
        stage: Stage,
        inlet: Inlet,
        outbox: Outbox,
        figures: Figures,
        head: Head | None = None,
    ) -> None:
        self._stage, self._inlet, self._outbox, self._figures = stage, inlet, outbox, figures
        graph = _graph_of(shipment.plan.graph, stage, head)
        confs = {
            name: _conf_of(shipment.confs.get(name, {}), is_head=head is not None and head.name == name)
            for name in graph.components
        }
        there = whole_topology(shipment.plan.graph, shipment.confs)
        self.kinds = {(t.name, outlet.stream): outlet.kind for t in there.values() for outlet in t.outlets.values()}
        ids = {place: task.task_id for place, task in there.items()} | {(INLET, 0): 0}
        if head is not None:
            ids[head.name, 0] = ids[head]
        self.engine = Engine(graph, confs, rng=random.Random(0), created=self._created, task_ids=ids)
        for task in self.engine.tasks:
            if head is not None and task.name == head.name:
                task.index = head.task
            if (original := there.get((task.name, task.index))) is not None:
                task.context = original.context

    def _created(self, task: Any) -> None:
        instance = task.instance
        if task.name in self._stage.heads and not isinstance(instance, Feed):
            separate(instance)
        if isinstance(instance, Feed):
            instance.inlet, instance.task = self._inlet, task
            task.forest.replays = self._stage.level == 0  # behind it, the whole batch is computed again
        elif isinstance(instance, Outbound):
            instance.stand_in(self._outbox, task)
        elif isinstance(instance, SinkBolt):
            instance.writer_class = StagingWriter

    def rows(self) -> Iterator[Row]:
        """Run until everything that came in is done or given up; yield what leaves.

        An error that is the topology's becomes a row: the driver says it, without Spark's pages around it.
        """
        try:
            with calm_gc(collect=False), self.engine.open():
                self.begin()
                while True:
                    while not self._inlet.idle:
                        self.engine.round()
                        yield from self._outbox.take()
                    self.finish()
                    if self._inlet.idle:
                        break
                self.end()
                self._note_what_is_staged()
        except DownspoutError as error:
            self._outbox.put(ERROR, "", (type(error).__name__, error.message, error.cure))
            self._note_what_is_staged()  # for the driver to delete
        yield from self._outbox.take(whole=True)

    def begin(self) -> None:
        """All components are there."""

    def finish(self) -> None:
        """All that came in has been emitted."""
        self.engine.finish_batch()

    def end(self) -> None:
        """The pass is over; say what was done."""
        figures, names = self._figures, {*self._stage.inside, *self._stage.heads}
        for name, counts in counts_of(self.engine.graph, self.engine.tasks).items():
            if name in names:
                figures.counts[name] = (
                    counts.emitted, counts.executed, counts.acked, counts.failed, counts.errors, counts.restarts,
                )  # fmt: skip
        for task in self.engine.tasks:
            if task.name in names:
                figures.reports[task.name] = dict(task.report())
        figures.errors = self.engine.world.errors.summary()
        self._outbox.put(FIGURES, "", figures)

    def _note_what_is_staged(self) -> None:
        for bolt in self.engine.bolts:
            writer = getattr(bolt.instance, "writer", None)
            if isinstance(bolt.instance, SinkBolt) and isinstance(writer, StagingWriter):
                self._outbox.put(STAGED, bolt.name, writer.staged)


def _graph_of(graph: Graph, stage: Stage, head: Head | None) -> Graph:
    """Return the part of the graph that runs in one pass."""
    keep = {name: replace(graph.components[name], par=1) for name in stage.inside}
    emitters = {*stage.inside, *stage.heads}
    for name in stage.exits:
        keep[name] = replace(graph.components[name], cls=Outbound, streams={})
    if head is None:
        keep |= {name: replace(graph.components[name], cls=Feed, par=1) for name in stage.heads}
        return part_of(graph, keep, emitters)
    reached = {head.name}
    for bolt in graph.bolts:  # sources before their readers
        if bolt.name in keep and any(i.source in reached and i.source in emitters for i in bolt.inputs):
            reached.add(bolt.name)
    keep = {name: component for name, component in keep.items() if name in reached}
    inputs = (Input(INLET, "default", "global"),)
    keep[head.name] = replace(graph.components[head.name], par=1, inputs=inputs)
    keep[INLET] = Component(INLET, Feed, streams={"default": Stream("default", ("item",))})
    return part_of(graph, keep, {INLET, *(reached & emitters)})


def _conf_of(conf: Mapping[str, Any], *, is_head: bool) -> dict[str, Any]:
    """Return a component's configuration for one pass.

    No limit on what is in flight: a sink holds its tuples until a flush, and waiting for time to pass helps nobody. A
    stateful bolt's ticks come from Spark's timers.
    """
    changed: dict[str, Any] = {"topology.max.spout.pending": None, "topology.enable.message.timeouts": False}
    if is_head:
        changed["topology.tick.tuple.freq.secs"] = None
    return {**conf, **changed}


def whole_topology(graph: Graph, confs: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int], Task]:
    """Return the tasks of the whole topology by component and index, as the other engines have them; none is built."""
    tasks = build_tasks(graph, confs, World(), random.Random(0), ackers=1)
    return {(task.name, task.index): task for task in tasks}
