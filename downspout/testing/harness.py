"""Run a topology or one bolt inside a test: in virtual time, with rows instead of spouts, and with faults.

    def test_counts():
        result = run_topology(WordCount, spouts={"word_spout": [["dog"], ["cat"], ["dog"]]})
        assert result.emitted("count_bolt")[-1] == ("dog", 2)

Nothing is mocked: the engine of ``downspout run`` builds, wires and drives the components. The same seed gives the same
run, tuple by tuple.

:func:`run_on_records` runs a topology on given records, each at its own offset (``downspout audit``).
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import random
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import streamparse
from streamparse.dsl.component import ComponentSpec

from downspout.clock import Clock
from downspout.component import Bolt, Failure
from downspout.dead_letters.dead_letter import DeadLetter, read_dead_letters
from downspout.engine.bolt_task import BoltTask
from downspout.engine.graph import Component, Graph, Input, OutputStream, component_of, from_class, nearest
from downspout.engine.load import name_of
from downspout.engine.loop import Bounds, Engine
from downspout.engine.result import Counts, RunResult
from downspout.engine.settings import Settings, reads, resolve
from downspout.errors import TopologyError
from downspout.kafka.clusters import is_scheme
from downspout.kafka.port import Record, TopicPartition
from downspout.settings import folders
from downspout.settings.folders import local_folder
from downspout.settings.object_path import place
from downspout.settings.table import SETTINGS
from downspout.sink.notes import hand_over_run
from downspout.testing.fake_kafka import FakeKafka
from downspout.testing.virtual_clock import VirtualClock

ROUND_S = 0.001
"""Virtual seconds per round of the engine, so that time passes in a busy run too."""
VIRTUAL_S_MAX = 3600.0
"""Time limit, in virtual seconds, of a run that should end by itself."""
REPLAYS_MAX = 10
"""How often a failed row of a stub spout is emitted again."""
Row = Sequence[Any] | Mapping[str, Any] | pa.RecordBatch


@dataclass(frozen=True)
class Fault:
    """A fault at a bolt's ``nth`` tuple, counted from 1 over all tasks."""

    component: str
    nth: int


class Fail(Fault):
    """The bolt fails the tuple instead of processing it."""


class Crash(Fault):
    """The bolt raises instead of processing the tuple."""


class Lose(Fault):
    """The bolt neither processes nor acks the tuple, so its tree times out."""


@dataclass(frozen=True)
class On:
    """A row for a stream other than ``default``."""

    stream: str
    values: Row


class StubSpout(streamparse.Spout):
    """Emits given rows in order, each with an id, and again if they fail."""

    outputs: ClassVar[list[str]] = []

    def load(self, rows: Sequence[tuple[str, Any]]) -> None:
        """Set the rows, as (stream, values)."""
        self.rows = rows
        self._waiting = deque(range(len(rows)))
        self._replays: dict[int, int] = {}
        self._open = 0
        self.given_up: list[Any] = []

    def next_tuple(self) -> None:
        """Emit the next row."""
        if self._waiting:
            index = self._waiting.popleft()
            self._open += 1
            stream, values = self.rows[index]
            self.emit(values if isinstance(values, pa.RecordBatch) else list(values), tup_id=str(index), stream=stream)

    def ack(self, tup_id: str) -> None:
        """Complete a row."""
        self._open -= 1

    def fail(self, tup_id: str) -> None:
        """Emit a row again, up to a limit."""
        index = int(tup_id)
        self._open -= 1
        self._replays[index] = self._replays.get(index, 0) + 1
        if self._replays[index] > REPLAYS_MAX:
            self.given_up.append(self.rows[index][1])
        else:
            self._waiting.append(index)

    def exhausted(self) -> bool:
        """Whether no row waits."""
        return not self._waiting

    def end_reached(self) -> bool:
        """Whether no row waits or is in flight."""
        return not self._waiting and self._open <= 0


@dataclass
class TopologyResult:
    """The result of a run, by component.

    Attributes:
        run: the engine's own result: why it stopped, counters, latencies.
        clock: the clock of the run.
        components: the component objects at the end, by name, in the order of their tasks.
        sinks: the directory of each sink, by name.
    """

    run: RunResult
    clock: Clock
    components: Mapping[str, list[Any]]
    _emitted: Mapping[str, list[tuple[str, Any]]]
    _acked: Mapping[str, list[Any]]
    _failed: Mapping[str, list[Any]]
    sinks: Mapping[str, Path]

    def emitted(self, component: str, stream: str = "default") -> list[Any]:
        """Return the values that a component emitted on a stream, in order, as named tuples."""
        self._known(component)
        return [values for name, values in self._emitted.get(component, []) if name == stream]

    def acked(self, component: str) -> list[Any]:
        """Return the values that a bolt acked; for a spout, the rows or message ids of completed trees."""
        self._known(component)
        return list(self._acked.get(component, []))

    def failed(self, component: str) -> list[Any]:
        """Return the values that a bolt failed or raised on; for a spout, the failed or timed-out rows or ids."""
        self._known(component)
        return list(self._failed.get(component, []))

    def counts(self, component: str) -> Counts:
        """Return a component's counters."""
        self._known(component)
        return self.run.components[component]

    @property
    def errors(self) -> list[str]:
        """One line per kind of error that components raised."""
        return self.run.errors

    def _known(self, component: str) -> None:
        if component not in self.components:
            raise KeyError(f"no component {component!r}; try {nearest(component, self.components)}")


class Sinks(dict[str, Path]):
    """The directories of sinks by component; keeps their temporary folder alive."""

    temporary: tempfile.TemporaryDirectory[str] | None = None


@dataclass
class _Recorder:
    """Records events, and injects faults."""

    faults: Sequence[Fault]
    rows: Mapping[str, list[tuple[str, Any]]]
    tasks: dict[tuple[str, int], Any] = field(default_factory=dict)
    emitted: dict[str, list[tuple[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    _values: dict[str, Any] = field(default_factory=dict)
    _given: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def on_emit(self, task: Any, stream: str, values: tuple[Any, ...], targets: list[str]) -> None:
        self.emitted[task.name].append((stream, values))
        self._values.update(dict.fromkeys(targets, values))

    def on_ack(self, task: Any, tuple_id: str) -> None:
        self.acked[task.name].append(self._values.get(tuple_id, tuple_id))

    def on_fail(self, task: Any, tuple_id: str) -> None:
        self.failed[task.name].append(self._values.get(tuple_id, tuple_id))

    def on_tree(self, task: Any, msg_id: Any, failure: Failure | None) -> None:
        stub = isinstance(task.instance, StubSpout)
        what = task.instance.rows[int(msg_id)][1] if stub else msg_id
        (self.acked if failure is None else self.failed)[task.name].append(what)

    def created(self, task: Any) -> None:
        self.tasks[task.name, task.task_id] = task
        if isinstance(task.instance, StubSpout):
            siblings = sorted(number for number, name in task.world.names.items() if name == task.name)
            task.instance.load(self.rows[task.name][siblings.index(task.task_id) :: len(siblings)])
        planned = {fault.nth: fault for fault in self.faults if fault.component == task.name}
        if planned and isinstance(task, BoltTask):
            self._plant(task, planned)

    def _plant(self, task: BoltTask, planned: Mapping[int, Fault]) -> None:
        real = task.instance.process

        def process(tup: Any) -> None:
            self._given[task.name] += 1
            fault = planned.get(self._given[task.name])
            if isinstance(fault, Fail):
                task.instance.fail(tup)
            elif isinstance(fault, Crash):
                raise RuntimeError(f"injected: {fault}")
            elif isinstance(fault, Lose):
                task.held.pop(tup.id, None)
            else:
                real(tup)

        task.instance.process = process


def run_topology(
    topology: Any,
    *,
    spouts: Mapping[str, Iterable[Row | On]] | None = None,
    config: Mapping[str, Any] | None = None,
    output: Path | str | None = None,
    clock: Clock | None = None,
    seed: int = 0,
    until: str | None = "end",
    records: int | None = None,
    for_s: float | None = None,
    faults: Sequence[Fault] = (),
) -> TopologyResult:
    """Run a topology to its end and return the result.

    Args:
        topology: a streamparse Topology class, or a graph.
        spouts: rows that replace a spout, by its name: lists of values, dicts by field name, or chunks
            (RecordBatches). They are emitted again if they fail.
        config: settings and Storm's keys, which override those of the topology; ``"flights:parquet.directory"`` is
            only for the component ``flights``.
        output: a folder with a subfolder for each sink. Without it, sinks inside your project write to a temporary
            folder, which is deleted with the result.
        clock: default: a VirtualClock.
        seed: seed of shuffles.
        until: ``"end"`` needs spouts with an end: rows, or a KafkaSpout. Ignored with ``records`` or ``for_s``.
        records: stop after this many tuple trees.
        for_s: stop after this many (virtual) seconds.
        faults: faults to inject.

    Raises:
        DownspoutError: as from ``downspout run``; also an unknown setting or component in ``config``.
        TimeoutError: the run did not end within an hour of virtual time.
    """
    graph = topology if isinstance(topology, Graph) else from_class(topology, name_of(topology))
    graph, rows = _with_stubs(graph, spouts or {})
    _check_faults(graph, faults)
    clock = clock or VirtualClock()
    until = until if records is None and for_s is None else None
    virtual = isinstance(clock, VirtualClock)
    limit = VIRTUAL_S_MAX if for_s is None and virtual else for_s
    bounds = {"run.seed": seed, "run.until": until, "run.records": records, "run.for_s": for_s}
    confs, sinks = _confs(
        graph, {**{k: v for k, v in bounds.items() if v is not None}, **(config or {})}, clock, output
    )
    drain_s = float(next(iter(confs.values()))["run.drain_s"])
    recorder = _Recorder(faults, rows)
    engine = Engine(
        graph,
        confs,
        bounds=Bounds(until, limit, records, drain_s),
        clock=clock,
        rng=random.Random(seed),
        observer=recorder,
        created=recorder.created,
        round_s=ROUND_S if virtual else 0.0,
    )
    run = engine.run()
    if for_s is None and run.reason == "for":
        raise TimeoutError(f"{graph.name} did not end within {limit:g} s; {run.in_flight} tuple trees are open")
    instances: dict[str, list[Any]] = {name: [] for name in graph.components}
    for task in engine.tasks:
        instances[task.name].append(task.instance)
    return TopologyResult(run, clock, instances, recorder.emitted, recorder.acked, recorder.failed, sinks)


def run_bolt(
    bolt: Any,
    tuples: Iterable[Row],
    config: Mapping[str, Any] | None = None,
    *,
    fields: Sequence[str] = (),
    **options: Any,
) -> TopologyResult:
    """Run one bolt on tuples and return the result, in which its name is ``"bolt"``.

    Args:
        bolt: the class, or its ``spec(...)`` if it takes settings.
        tuples: the values of each tuple: a list, or a dict by field name.
        config: settings, Storm's keys, and the bolt's own keys.
        fields: field names for ``tuples`` that are lists (default: ``field_0``, ``field_1``, …).
        options: as for :func:`run_topology`.

    >>> class Shout(streamparse.Bolt):
    ...     outputs = ["word"]
    ...     def process(self, tup):
    ...         self.emit([tup.values.word.upper()])
    >>> run_bolt(Shout, [{"word": "dog"}]).emitted("bolt")
    [BoltDefaultTuple(word='DOG')]
    """
    rows = list(tuples)
    if not fields and rows:
        first = rows[0]
        fields = list(first) if isinstance(first, Mapping) else [f"field_{index}" for index in range(len(first))]
    under_test = replace(
        component_of(bolt if isinstance(bolt, ComponentSpec) else bolt.spec()),
        name="bolt",
        inputs=(Input("input", "default"),),
        par=1,
    )
    source = Component("input", StubSpout, streams={"default": OutputStream("default", tuple(fields))})
    graph = Graph("run_bolt", {"input": source, "bolt": under_test}, _own_keys(config or {}))
    return run_topology(graph, spouts={"input": rows}, config=config, **options)


def _own_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bolt's own keys: those that are not settings, nor similar to one."""
    settings = SETTINGS
    scopes = {setting.scope for setting in settings.values()}
    return {
        key: value
        for key, value in given.items()
        if key.partition(".")[0].rpartition(":")[2] not in scopes and not difflib.get_close_matches(key, settings, n=1)
    }


def _with_stubs(
    graph: Graph, spouts: Mapping[str, Iterable[Row | On]]
) -> tuple[Graph, dict[str, list[tuple[str, Any]]]]:
    components, rows = dict(graph.components), {}
    for name, given in spouts.items():
        if name not in components or not components[name].is_spout:
            names = [spout.name for spout in graph.spouts]
            raise TopologyError(f"there is no spout {name!r} to put rows in place of", cure=nearest(name, names))
        component = components[name]
        components[name] = replace(component, cls=StubSpout)
        rows[name] = [_row(component, item) for item in given]
    return replace(graph, components=components), rows


def _row(component: Component, item: Row | On) -> tuple[str, Any]:
    stream, values = (item.stream, item.values) if isinstance(item, On) else ("default", item)
    if stream not in component.streams:
        raise TopologyError(f"{component.name} has no stream {stream!r}", cure=nearest(stream, component.streams))
    fields = component.streams[stream].fields
    if isinstance(values, pa.RecordBatch):
        return stream, values
    if isinstance(values, Mapping):
        if set(values) != set(fields):
            raise TopologyError(f"{component.name}: {dict(values)!r} has not the fields {', '.join(fields)}")
        return stream, tuple(values[name] for name in fields)
    if isinstance(values, str | bytes):
        raise TopologyError(f"{component.name}: a row is a list of values, not {values!r}", cure=f"[{values!r}]")
    return stream, tuple(values)


def _check_faults(graph: Graph, faults: Sequence[Fault]) -> None:
    bolts = [bolt.name for bolt in graph.bolts]
    for fault in faults:
        if fault.component not in bolts:
            raise TopologyError(f"{fault}: there is no such bolt", cure=nearest(fault.component, bolts))


def _confs(
    graph: Graph, given: Mapping[str, Any], clock: Clock, output: Path | str | None
) -> tuple[dict[str, dict[str, Any]], Sinks]:
    settings = resolve(graph, given, environ={}, file=Path("/nonexistent"))
    confs = settings.confs()
    for name, conf in confs.items():
        conf["topology.name"] = graph.name
        conf["storm.id"] = f"{graph.name}-1-{int(clock.wall())}"
        if reads(graph.components[name], "kafka") and is_scheme(conf["kafka.bootstrap"]):
            raise TopologyError(
                f"{name} would read from the embedded broker",
                cure='config={"kafka.bootstrap": "fake://test"} with a FakeKafka of that name',
            )
    sinks = _place(graph, settings, confs, output)
    hand_over_run(graph, settings, confs)
    return confs, sinks


def _place(graph: Graph, settings: Settings, confs: dict[str, dict[str, Any]], output: Path | str | None) -> Sinks:
    """Set and return the sinks' directories: a test must not write among the results of real runs."""
    sinks, root = Sinks({}), _project_root()
    for name, conf in confs.items():
        directory = conf.get(key := "parquet.directory")
        if not directory or not reads(graph.components[name], "parquet"):
            continue
        if settings.components[name].sources[key] != "config":
            if output is not None:
                conf[key] = str(local_folder(output, "output") / name)
            elif root is not None and _lies_in(directory, root):
                sinks.temporary = sinks.temporary or tempfile.TemporaryDirectory(prefix=f"{graph.name}-")
                conf[key] = str(Path(sinks.temporary.name) / name)
        sinks[name] = place(conf[key])
    return sinks


def _project_root() -> Path | None:
    """Return the root of the current project; None: not in a project."""
    marks = ("project.clj", "pyproject.toml", "config.json")
    folder = folders.project().resolve()
    return next((place for place in (folder, *folder.parents) if any((place / m).is_file() for m in marks)), None)


def _lies_in(directory: str, root: Path) -> bool:
    path = Path(directory.removeprefix("file://"))
    return not path.is_absolute() or path.resolve().is_relative_to(root)


LETTERS = "given-records.dead-letters"
BOUNDS = ("kafka.start_offsets", "kafka.stop_offsets", "kafka.partitions", "kafka.offset_store")


def run_on_records(graph: Graph, sinks: type[Bolt], records: Sequence[Record]) -> list[DeadLetter]:
    """Run a topology with another class for all its sinks, and return the dead letters of failed records.

    Each record is tried once. Spouts that do not read Kafka emit nothing.
    """
    components = {
        bolt.name: replace(bolt, cls=sinks, par=1, config={}) for bolt in graph.bolts if reads(bolt, "parquet")
    }
    others = [spout.name for spout in graph.spouts if not reads(spout, "kafka")]
    with FakeKafka(f"given-{id(components)}") as kafka, _silence():
        _fill(kafka, graph, records)
        run_topology(
            replace(graph, components={**graph.components, **components}),
            spouts={name: [] for name in others},
            config={
                "kafka.bootstrap": kafka.bootstrap,
                "kafka.group": "given-records",
                "kafka.start": "EARLIEST",
                "kafka.on_data_loss": "earliest",
                "kafka.guarantee": "AT_LEAST_ONCE",
                "kafka.dead_letter_topic": LETTERS,
                "kafka.retries_max": 0,
                "kafka.emit": "record",
                # All of the records may be bad.
                "kafka.breaker_ratio": 0.0,
                "run.restarts_max": len(records),
                # The bounds of the original run do not apply to these records.
                **{key: SETTINGS[key].default for key in BOUNDS},
                "topology.acker.executors": 1,
            },
        )
        return list(read_dead_letters(kafka, LETTERS))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the bolts' errors out of the log: the dead letters hold them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _fill(kafka: FakeKafka, graph: Graph, records: Sequence[Record]) -> None:
    """Put each record at its own offset; also create the topology's other topics, empty."""
    partitions: dict[str, int] = {}
    for spout in graph.spouts:
        for topic in spout.config.get("kafka.topics") or ():
            partitions[str(topic)] = 1
    for record in records:
        partitions[record.topic] = max(partitions.get(record.topic, 1), record.partition + 1)
    for topic, count in partitions.items():
        kafka.create_topic(topic, count)
    for record in sorted(records, key=lambda r: (r.topic, r.partition, r.offset)):
        log = kafka.log(TopicPartition(record.topic, record.partition))
        if record.offset > log.end:
            kafka.gap(record.topic, record.partition, record.offset - log.end)
        kafka.produce(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            headers=record.headers,
            timestamp_ms=record.timestamp,
        )
