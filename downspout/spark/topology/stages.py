"""Divide a topology into stages for Spark, from the graph alone, before anything runs.

A bolt is *stateful* if equal tuples must meet in one task: it has an input with a fields, global or all grouping, or
sets ``stateful = True``. Any copy of another bolt can process any tuple. Sinks are never stateful here: their commit
log prevents duplicates.

The *level* of a stateful bolt is the number of stateful bolts on the longest path to it, itself included. Stage 0 is
everything that records reach before a stateful bolt; stage n is the stateful bolts of level n and everything their
tuples reach before the next one. A stateless bolt or a sink that both reach runs in both stages.

**Batches.** A batch is a micro-batch, so Spark's log replaces coordinator and emitter. The emitter becomes the source,
whose records carry the number of the micro-batch as their attempt. A state's tuples are sent to its tasks like those of
any stateful bolt. The tasks only combine them by key; the driver applies the values of all tasks in one transaction of
the database (``batch_commit.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from downspout.batches.core.protocol import CONTROL, FIRST_TXID, MICRO_BATCHES, Attempt
from downspout.batches.stores import Key
from downspout.batches.updates import key_maker, update_of
from downspout.engine.graph import Component, Graph
from downspout.engine.settings import reads
from downspout.errors import TopologyError
from downspout.protocols import stateful_keys, wrong_stateful_keys
from downspout.settings.table import parse_scope
from downspout.sink.sink_bolt import SinkBolt
from downspout.spark.topology.stage_rows import ShuffledTuple, values_type
from downspout.spout.ports import KAFKA

MEETING = ("fields", "global", "all")  # Groupings that determine which tuples meet in one task


@dataclass(frozen=True)
class Stage:
    """The components of one pass over a batch."""

    level: int  # its number, from 0
    entries: tuple[str, ...]  # the sources of its tuples: the spouts, or the stateful bolts of this level
    inside: tuple[str, ...]  # the stateless bolts and sinks that these tuples reach
    exits: tuple[str, ...]  # the stateful bolts of later stages that read from this one


@dataclass(frozen=True)
class StagePlan:
    """A topology divided into stages, with the configuration of each component; sent to executors."""

    graph: Graph
    stages: tuple[Stage, ...]
    confs: Mapping[str, Mapping[str, Any]]

    @property
    def sinks(self) -> list[Component]:
        """The sinks, in the order of the graph."""
        return [component for component in self.graph.components.values() if is_sink(component)]

    @property
    def kafka_bolts(self) -> list[str]:
        """The names of the bolts that write to Kafka, outside of a batch's transaction."""
        return [component.name for component in self.graph.bolts if reads(component, "produce")]

    @property
    def states(self) -> list[str]:
        """The names of the bolts that apply batches to keyed values."""
        return [component.name for component in self.graph.bolts if is_state(component)]

    @property
    def stateful_keys(self) -> dict[str, str]:
        """The attribute that each stateful bolt keeps by key, if any."""
        found = {name: stateful_keys(self.graph.components[name].cls) for name in self.stateful}
        return {name: attribute for name, attribute in found.items() if attribute}

    @property
    def spouts(self) -> tuple[str, ...]:
        """The spouts' names."""
        return self.stages[0].entries

    @property
    def ticks(self) -> bool:
        """Whether a stateful bolt has ticks, which use Spark's timers."""
        return any(map(self.tick_s, self.stateful))

    def tick_s(self, name: str) -> float:
        """Return a component's tick period; 0: no ticks."""
        return float(self.confs[name].get("topology.tick.tuple.freq.secs") or 0)

    @property
    def stateful(self) -> dict[str, int]:
        """The stateful bolts, each with its number of tasks."""
        return {name: self.graph.components[name].par for stage in self.stages[1:] for name in stage.entries}


def is_sink(component: Component) -> bool:
    """Return whether the component writes Parquet with a commit log."""
    return issubclass(component.cls, SinkBolt)


def is_stateful(component: Component) -> bool:
    """Return whether tuples must meet in the component's tasks; a class attribute ``stateful`` overrides the rule."""
    if component.is_spout or is_sink(component):
        return False
    if is_state(component):  # its keys must meet; between batches, its values are only in its database
        return True
    said = getattr(component.cls, "stateful", None)
    if said is None and stateful_keys(component.cls):
        return True
    return bool(said) if said is not None else any(given.grouping in MEETING for given in component.inputs)


def plan(graph: Graph, confs: Mapping[str, Mapping[str, Any]]) -> StagePlan:
    """Divide a topology into stages. Raises TopologyError: Spark cannot run it."""
    graph, confs = of_micro_batches(graph, confs)
    if problems := [*_cycles(graph), *(p for c in graph.components.values() for p in _refusals(c, confs[c.name]))]:
        raise TopologyError(
            f"topology {graph.name!r} cannot run on Spark: " + "; ".join(problems),
            cure="`downspout run` runs it in one process, `sparse submit` on Storm; docs/how-to/run-on-spark.md",
        )
    levels: dict[str, int] = {}
    for bolt in graph.bolts:  # sources before their readers
        levels[bolt.name] = max((levels.get(given.source, 0) for given in bolt.inputs), default=0) + is_stateful(bolt)
    depth = max(levels.values(), default=0)
    entries = [[spout.name for spout in graph.spouts]]
    entries += [[b.name for b in graph.bolts if is_stateful(b) and levels[b.name] == n] for n in range(1, depth + 1)]
    return StagePlan(graph, tuple(_stage(graph, level, names) for level, names in enumerate(entries)), confs)


def _stage(graph: Graph, level: int, entries: list[str]) -> Stage:
    """Follow the streams from the entries up to the next stateful bolts."""
    inside: dict[str, None] = {}
    exits: dict[str, None] = {}
    for bolt in graph.bolts:
        if bolt.name in entries or not any(given.source in entries or given.source in inside for given in bolt.inputs):
            continue
        (exits if is_stateful(bolt) else inside)[bolt.name] = None
    return Stage(level, tuple(entries), tuple(inside), tuple(exits))


def _cycles(graph: Graph) -> Iterator[str]:
    done: set[str] = set()
    for name in graph.components:
        if name not in done and (cycle := _cycle_from(graph, name, [], done)):
            yield f"{' → '.join(cycle)} is a cycle, in which a batch would never end"
            return


def _cycle_from(graph: Graph, name: str, path: list[str], done: set[str]) -> list[str] | None:
    if name in path:
        return [*reversed(path[path.index(name) :]), path[-1]]
    if name in done:
        return None
    for given in graph.components[name].inputs:
        if cycle := _cycle_from(graph, given.source, [*path, name], done):
            return cycle
    done.add(name)
    return None


def _refusals(component: Component, conf: Mapping[str, Any]) -> Iterator[str]:
    """Yield the features of a component that Spark does not support."""
    name = component.name
    if component.is_spout:
        if not reads(component, "kafka"):
            yield f"{name} ({component.cls.__name__}) is not a KafkaSpout: Spark can only plan batches of offsets"
            return
        if str(conf.get("kafka.guarantee")).upper() == "AT_MOST_ONCE":
            yield f"{name} demands AT_MOST_ONCE, and Spark repeats a batch that did not finish"
        if conf.get("kafka.listener"):
            yield f"{name} has a kafka.listener, which needs single tuples"
        if (how := str(conf.get("kafka.commit") or "sync")) != "sync":
            yield f"{name} has kafka.commit = {how}, and the offsets of a query are in Spark's checkpoint"
        if (conf.get("kafka.offset_store") or KAFKA) != KAFKA:
            yield f"{name} has a kafka.offset_store, and the offsets of a query are in Spark's checkpoint"
        return
    if str(conf.get("produce.transactional", False)).lower() == "true":
        yield (
            f"{name} has produce.transactional = true, and no transaction of Kafka's can hold a batch of Spark's: "
            "without it, the bolt writes at least once"
        )
    if wrong := wrong_stateful_keys(component.cls):
        yield f"{name} has {wrong}"
    for given in component.inputs:
        if given.grouping == "direct":
            yield f"{name} has a direct grouping on {given.source}: emitters do not know the tasks of another stage"
    for stream in component.streams.values():
        if stream.direct:
            yield f"{name} emits directly on stream {stream.name!r}: it does not know the tasks of another stage"


def part_of(graph: Graph, keep: Mapping[str, Component], emitters: Collection[str]) -> Graph:
    """Return a graph of some components, with only the inputs from ``emitters``."""
    made = {}
    for name, component in keep.items():
        inputs = tuple(given for given in component.inputs if given.source in emitters)
        made[name] = replace(component, inputs=inputs)
    return Graph(graph.name, made, graph.config)


# --- topologies of batches ---

APPLY = "apply_attempt"
TAKES_TUPLES = ("process", "process_many", "process_chunk", "process_tick")
BATCH_ID = "streaming.sql.batchId"  # Spark's local property with a micro-batch's number


def is_state(component: Component) -> bool:
    """Return whether the component applies batches to values by key."""
    return not component.is_spout and reads(component, "state")


def of_micro_batches(
    graph: Graph, confs: Mapping[str, Mapping[str, Any]]
) -> tuple[Graph, Mapping[str, Mapping[str, Any]]]:
    """Replace coordinators and emitters of a topology by plain sources; return it with its settings.

    Raises:
        TopologyError: a component depends on more than the batches' content.
    """
    coordinators = {spout.name: spout for spout in graph.spouts if reads(spout, "batch")}
    if not coordinators:
        return graph, confs
    if problems := list(_refusals_of_batches(graph, coordinators)):
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


def _refusals_of_batches(graph: Graph, coordinators: Mapping[str, Component]) -> Iterator[str]:
    for component in graph.components.values():
        name = component.name
        is_ours = name in coordinators or _is_emitter(component)
        if is_ours and not vars(component.cls).get("replaced_by_micro_batches"):
            yield f"{name} ({component.cls.__name__}) makes its own batches, but on Spark the batches are Spark's"
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
    # The tasks never create an instance, so they would ignore methods of classes before the one that applies batches.
    heirs = cls.__mro__[: next(place for place, each in enumerate(cls.__mro__) if APPLY in vars(each))]
    for method in TAKES_TUPLES:
        if any(method in vars(each) for each in heirs):
            yield f"{name} has a method {method} of its own, which Spark would not call"


def current_attempt() -> Attempt:
    """Return the attempt of the micro-batch of this Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return attempt_of(int((context.getLocalProperty(BATCH_ID) if context else None) or 0))


def attempt_of(number: int) -> Attempt:
    """Return the attempt of a micro-batch, the same for every repetition, as that has the same records.

    >>> attempt_of(0)
    Attempt(txid=1, attempt=0)
    """
    return Attempt(FIRST_TXID + number, 0)


def with_attempt(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a maker of tuples to put the attempt in their first field."""
    attempt = current_attempt()
    return lambda record: [attempt, *make(record)]


def held_of(graph: Graph, conf: Mapping[str, Any], name: str, items: Iterable[ShuffledTuple]) -> dict[Key, Any]:
    """Combine one task's tuples by key with a state's update.

    Raises:
        TopologyError: a tuple is a chunk, which has no attempt.
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
