"""A topology of batches on Spark: a batch is a micro-batch, so Spark's log stands in for coordinator and emitter.

The emitter becomes the source, whose records carry the number of the micro-batch as their attempt. A state's tuples go
to its tasks as those of any stateful bolt do. There they are only added up by key; the driver applies what all tasks
have, in one transaction of the database (``driver/states.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from downspout.batches.core.attempt import FIRST_TXID, Attempt
from downspout.batches.keys import key_maker
from downspout.batches.stores import Key
from downspout.batches.streams import CONTROL, MICRO_BATCHES
from downspout.batches.updates import update_of
from downspout.engine.graph import Component, Graph
from downspout.engine.settings import reads
from downspout.errors import TopologyError
from downspout.settings.table import parse_scope
from downspout.spark.topology.rows import ShuffledTuple, values_type

APPLY = "apply_attempt"
TAKES_TUPLES = ("process", "process_many", "process_chunk", "process_tick")
BATCH_ID = "streaming.sql.batchId"  # Spark's name of a micro-batch's number, in its tasks


def is_state(component: Component) -> bool:
    """Return whether the component keeps values by key, and applies batches to them."""
    return not component.is_spout and reads(component, "state")


def of_micro_batches(
    graph: Graph, confs: Mapping[str, Mapping[str, Any]]
) -> tuple[Graph, Mapping[str, Mapping[str, Any]]]:
    """Return a topology with plain sources in the place of coordinators and emitters, and its settings.

    Raises:
        TopologyError: something in it does more than take the batches as they come.
    """
    coordinators = {spout.name: spout for spout in graph.spouts if reads(spout, "batch")}
    if not coordinators:
        return graph, confs
    if problems := list(_refusals(graph, coordinators)):
        raise TopologyError(
            f"topology {graph.name!r} cannot run on Spark: " + "; ".join(problems),
            cure="`downspout run` runs it in one process, `sparse submit` on Storm; docs/how-to/count-in-batches.md",
        )
    components, new_confs = {}, dict(confs)
    for name, component in graph.components.items():
        if name in coordinators:
            continue
        inputs = tuple(given for given in component.inputs if given.source not in coordinators)
        if _is_emitter(component):
            head = coordinators[next(given.source for given in component.inputs if given.source in coordinators)]
            components[name] = replace(component, cls=head.cls, inputs=())
            # A batch writes no dead letters: a record that cannot be processed stops the run, as on the other engines.
            new_confs[name] = {**confs[name], "kafka.dead_letter_topic": "", MICRO_BATCHES: True}
        else:
            components[name] = replace(component, inputs=inputs)
            if is_state(component):
                new_confs[name] = {**confs[name], "batch.kind": "transactional", MICRO_BATCHES: True}
    return replace(graph, components=components), new_confs


def _is_emitter(component: Component) -> bool:
    return not component.is_spout and reads(component, "batch") and reads(component, "kafka")


def _refusals(graph: Graph, coordinators: Mapping[str, Component]) -> Iterator[str]:
    for component in graph.components.values():
        name = component.name
        is_ours = name in coordinators or _is_emitter(component)
        if is_ours and not vars(component.cls).get("replaced_by_micro_batches"):
            yield f"{name} ({component.cls.__name__}) makes batches of its own, and on Spark they are Spark's"
        if is_state(component):
            yield from _refusals_of_state(component)
        for given in component.inputs:
            if given.source in coordinators and not (is_ours or is_state(component)):
                yield f"{name} reads {given.stream!r} of {given.source}, and Spark sends no such tuples"
            elif given.stream not in CONTROL and is_state(graph.components[given.source]):
                yield f"{name} reads from the state {given.source}, which emits nothing on Spark"


def _refusals_of_state(component: Component) -> Iterator[str]:
    name, cls = f"{component.name} ({component.cls.__name__})", component.cls
    if not hasattr(cls, APPLY):
        yield f"{name} is not a StateBolt: it has no method {APPLY}"
        return
    # The tasks never make an instance: what comes before the class that applies batches, they would pass over.
    heirs = cls.__mro__[: next(place for place, each in enumerate(cls.__mro__) if APPLY in vars(each))]
    for method in TAKES_TUPLES:
        if any(method in vars(each) for each in heirs):
            yield f"{name} has a method {method} of its own, which Spark would not call"


def current_attempt() -> Attempt:
    """Return the attempt of the micro-batch that this task of Spark's is in."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return attempt_of(int((context.getLocalProperty(BATCH_ID) if context else None) or 0))


def attempt_of(number: int) -> Attempt:
    """Return the attempt of a micro-batch: one that comes again holds the same records, and is the same attempt.

    >>> attempt_of(0)
    Attempt(txid=1, attempt=0)
    """
    return Attempt(FIRST_TXID + number, 0)


def with_attempt(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what makes tuples with the attempt as their first field."""
    attempt = current_attempt()
    return lambda record: [attempt, *make(record)]


def held_of(graph: Graph, conf: Mapping[str, Any], name: str, items: Iterable[ShuffledTuple]) -> dict[Key, Any]:
    """Return by key what a state's update holds of one task's tuples.

    Raises:
        TopologyError: a chunk came, which has no attempt.
    """
    settings = parse_scope(conf, "state")
    update, held, types = update_of(settings["update"]), dict[Key, Any](), dict[tuple[str, str], Any]()
    for item in items:
        if isinstance(item.values, bytes):
            raise TopologyError(f"{name}: a chunk came from {item.source}", cure="emit tuples that hand the attempt on")
        source = item.source, item.stream
        if source not in types:
            fields = graph.components[item.source].streams[item.stream].fields
            key_of = key_maker([fields.index(key) for key in settings["key"]])
            types[source] = values_type("Values", tuple(fields)), key_of
        made, key_of = types[source]
        key = key_of(item.values)
        held[key] = update.add(held.get(key), made(*item.values))
    return held
