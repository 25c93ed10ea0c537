"""From a graph to tasks that are wired to each other: ids, contexts, streams."""

from __future__ import annotations

import random
import re
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from downspout.engine.bolt_task import BoltTask
from downspout.engine.chunks import make_spread
from downspout.engine.graph import Component, Graph, Stream
from downspout.engine.groupings import combine, make_route
from downspout.engine.spout_task import SpoutTask
from downspout.engine.task import Outlet, Target, Task
from downspout.engine.world import World


def build_tasks(
    graph: Graph,
    confs: Mapping[str, Mapping[str, Any]],
    world: World,
    rng: random.Random,
    ackers: int,
    task_ids: Mapping[tuple[str, int], int] | None = None,
) -> list[Task]:
    """Return all tasks, wired and not yet built.

    Task ids are Storm's: ackers first, then the components by name, from 1; unless ``task_ids`` has them by component
    and index.
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
    graph: Graph, source: str, stream: Stream, targets: Mapping[str, list[Target]], rng: random.Random
) -> Outlet:
    routes, spreads, direct = [], [], {}
    for reader, given in graph.subscribers(source, stream.name):
        indexes = [stream.fields.index(name) for name in given.fields]
        routes.append(make_route(given.grouping, targets[reader.name], indexes, rng))
        spreads.append(make_spread(given.grouping, targets[reader.name], indexes, routes[-1][1]))
        if given.grouping == "direct":
            direct.update({target[0]: target for target in targets[reader.name]})
    fixed, route = combine(routes) if routes else ((), lambda values: ())
    kind = namedtuple(_type_name(source, stream.name), stream.fields)  # type: ignore[misc]
    return Outlet(stream.name, kind, len(stream.fields), fixed, route, direct, stream.direct, spreads)


def _type_name(source: str, stream: str) -> str:
    """Return the name that pystorm gives to the values' namedtuple."""
    return "".join(re.sub(r"\W|^(?=\d)", "_", part.title()) for part in (source, stream)) + "Tuple"


def _context(graph: Graph, component: Component, task_id: int, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what Storm's multilang handshake calls the context."""
    fields: dict[str, dict[str, list[str]]] = {}
    groupings: dict[str, dict[str, dict[str, Any]]] = {}
    for given in component.inputs:
        # Like Storm (TopologyContext.getThisInputFields): all streams of each source, those too that it does not read.
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
