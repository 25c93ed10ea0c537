"""Builds a graph's tasks, wires them, and shuts them down: last acks, deactivation, close.

If one task raises or is interrupted at shutdown, the others are still shut down. A spout that was interrupted inside
one of its calls may be in any state: it is only closed, without acks or deactivation.
"""

from __future__ import annotations

import contextlib
import gc
import random
import re
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from downspout.engine.bolt_task import BoltTask
from downspout.engine.bulk_calls import make_spread
from downspout.engine.graph import Component, Graph, OutputStream
from downspout.engine.groupings import combine, make_route
from downspout.engine.runtime import Runtime
from downspout.engine.spout_task import SpoutTask
from downspout.engine.task import StreamTargets, Target, Task


def build_tasks(
    graph: Graph,
    confs: Mapping[str, Mapping[str, Any]],
    world: Runtime,
    rng: random.Random,
    ackers: int,
    task_ids: Mapping[tuple[str, int], int] | None = None,
) -> list[Task]:
    """Return all tasks, wired and not yet built.

    Without ``task_ids`` (by component and index), ids are assigned as on Storm: from 1, ackers first, then the
    components by name.
    """
    tasks: list[Task] = []
    task_id = ackers
    for name in sorted(graph.components):
        component = graph.components[name]
        kind = SpoutTask if component.is_spout else BoltTask
        for index in range(component.par):
            task_id += 1
            given = task_id if task_ids is None else task_ids[name, index]
            tasks.append(kind(component, given, world, confs[name]))
            tasks[-1].index = index
    world.names = {task.task_id: task.name for task in tasks}
    world.readers = {
        (component.name, stream): [reader.name for reader, _ in graph.subscribers(component.name, stream)]
        for component in graph.components.values()
        for stream in component.streams
    }
    acker_names = {str(number): "__acker" for number in range(1, ackers + 1)}
    names = acker_names | {str(task.task_id): task.name for task in tasks}
    targets: dict[str, list[Target]] = {}
    for task in tasks:
        if isinstance(task, BoltTask):
            targets.setdefault(task.name, []).append(task.target)
    for task in tasks:
        task.context = _context(graph, task.component, task.task_id, names)
        for stream in task.component.streams.values():
            task.outlets[stream.name] = _outlet(graph, task.name, stream, targets, rng)
        if "default" in task.outlets:
            task.outlets[None] = task.outlets["default"]
    return tasks


def _outlet(
    graph: Graph, source: str, stream: OutputStream, targets: Mapping[str, list[Target]], rng: random.Random
) -> StreamTargets:
    routes, spreads, direct = [], [], {}
    for reader, given in graph.subscribers(source, stream.name):
        indexes = [stream.fields.index(name) for name in given.fields]
        routes.append(make_route(given.grouping, targets[reader.name], indexes, rng))
        spreads.append(make_spread(given.grouping, targets[reader.name], indexes, routes[-1][1]))
        if given.grouping == "direct":
            direct.update({target[0]: target for target in targets[reader.name]})
    fixed, route = combine(routes) if routes else ((), lambda values: ())
    kind = namedtuple(_type_name(source, stream.name), stream.fields)  # type: ignore[misc]
    return StreamTargets(stream.name, kind, len(stream.fields), fixed, route, direct, stream.direct, spreads)


def _type_name(source: str, stream: str) -> str:
    """Return the name that pystorm gives to the values' namedtuple."""
    return "".join(re.sub(r"\W|^(?=\d)", "_", part.title()) for part in (source, stream)) + "Tuple"


def _context(graph: Graph, component: Component, task_id: int, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the ``context`` of Storm's multilang handshake."""
    fields: dict[str, dict[str, list[str]]] = {}
    groupings: dict[str, dict[str, dict[str, Any]]] = {}
    for given in component.inputs:
        # Like Storm (TopologyContext.getThisInputFields): all streams of each source, even those it does not read.
        streams = graph.components[given.source].streams.values()
        fields[given.source] = {stream.name: list(stream.fields) for stream in streams}
        groupings.setdefault(given.source, {})[given.stream] = _grouping(given.grouping, given.fields)
    return {
        "taskid": task_id,
        "componentid": component.name,
        "task->component": dict(names),
        "streams": list(component.streams),
        "stream->outputfields": {stream.name: list(stream.fields) for stream in component.streams.values()},
        "stream->target->grouping": {
            stream: {
                reader.name: _grouping(given.grouping, given.fields)
                for reader, given in graph.subscribers(component.name, stream)
            }
            for stream in component.streams
        },
        "source->stream->fields": fields,
        "source->stream->grouping": groupings,
    }


def _grouping(kind: str, fields: tuple[str, ...]) -> dict[str, Any]:
    return {"type": kind.upper()} | ({"fields": list(fields)} if fields else {})


GC_THRESHOLDS = (200_000, 20, 50)
"""Most tuples live for microseconds and are freed by reference counting, but each collection scans the tuples in
flight. With Python's default thresholds that took 40 % of a run (10.8 against 6.4 CPU-seconds per million records), and
with 100,000 still 4 %: more tuples than that wait for a flush. Cycles, such as those of tracebacks, are collected, but
rarely."""


@contextlib.contextmanager
def calm_gc() -> Iterator[None]:
    """Collect garbage rarely (see GC_THRESHOLDS), and freeze the objects that existed before."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class Shutdown:
    """Shuts tasks down, once."""

    def __init__(self, spouts: Sequence[SpoutTask], bolts: Sequence[BoltTask]) -> None:
        self._spouts = spouts
        self._bolts = bolts
        self._deactivating = threading.Lock()
        """Two threads may deactivate spouts: the run's own, and :meth:`force_shutdown`'s."""
        self.has_begun = False
        self._struck: set[Task] = set()

    def interrupted(self, trace: TracebackType | None) -> None:
        """Record the tasks that an interrupt's traceback leads through."""
        while trace is not None:
            task = trace.tb_frame.f_locals.get("self")
            if isinstance(task, Task):
                self._struck.add(task)
            trace = trace.tb_next

    def deactivate_spouts(self, *, settle: bool, errors: list[BaseException]) -> None:
        """Deactivate the spouts, after passing them their acks and fails if ``settle`` is set."""
        with self._deactivating:
            for spout in self._spouts:
                if spout.instance is None or spout in self._struck:
                    continue
                with _for_itself(errors):
                    if settle:
                        spout.settle()
                    spout.deactivate()

    def close(self, errors: list[BaseException]) -> None:
        """Close all tasks, interrupted ones last."""
        for task in sorted([*self._spouts, *self._bolts], key=self._struck.__contains__):
            if task.instance is not None:
                with _for_itself(errors):
                    task.close()

    def end(self, *, work: Callable[[], object] | None, is_active: bool) -> list[BaseException]:
        """Shut all tasks down; return the errors that they raised.

        Args:
            work: called first; None after an error or abort.
            is_active: whether spouts must be deactivated.
        """
        self.has_begun = True
        errors: list[BaseException] = []
        if work is not None:
            with _for_itself(errors):
                work()
        if is_active:
            self.deactivate_spouts(settle=work is None, errors=errors)
        self.close(errors)
        return errors

    def force_shutdown(self, seconds: float) -> None:
        """Deactivate the spouts within ``seconds``, from another thread, if a bolt blocks the run's own."""
        if self.has_begun:
            return
        self.has_begun = True
        thread = threading.Thread(target=self.deactivate_spouts, kwargs={"settle": True, "errors": []}, daemon=True)
        thread.start()
        thread.join(seconds)


@contextlib.contextmanager
def _for_itself(errors: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        errors.append(error)
