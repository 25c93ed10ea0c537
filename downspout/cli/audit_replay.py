"""Run a topology again on a few records, to learn which rows it makes of them.

A Kafka in memory holds the records at their own offsets. The topology is the user's, but for its sinks: each is
replaced by a bolt that notes origins and writes nothing. Bolts in between run as they are; they must be
deterministic per record, as exactly-once needs anyway. The inputs of the sink have the steps that its directory knows.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from downspout.component import Bolt
from downspout.errors import TopologyError, coordinates
from downspout.kafka.deadletter import DeadLetter, read_dead_letters
from downspout.kafka.port import Record, TopicPartition
from downspout.ledger.origin import Origin
from downspout.local.graph import Component, Graph
from downspout.local.load import load
from downspout.local.runner import dead_letter_topics
from downspout.local.settings import Settings, reads
from downspout.local.settings import resolve as settings_of
from downspout.parquet.audit import Failed
from downspout.parquet.inputs import check_names, name_of, resolve, with_step
from downspout.parquet.log import CommitLog
from downspout.testing.fake_kafka import FakeKafka
from downspout.testing.harness import run_topology

__all__ = ["TopologyReplay", "make_replay"]

Steps = Mapping[tuple[str, str, str], str]
"""Of each input of a sink, as (sink, component, stream), the step that its rows' paths end in."""

GROUP = "audit"
LETTERS = f"{GROUP}.dead-letters"


@dataclass(frozen=True)
class TopologyReplay:
    """A :data:`Replay` of one topology for one of its directories.

    Attributes:
        graph: the topology, with all values it is run with.
        steps: of the inputs of the sink that writes to the directory.
        dead_letters: the dead-letter topics of its Kafka spouts.
        topics: what the spouts that lead to that sink read, where they name it.
        patterns: and where they say by ``kafka.pattern``.
    """

    graph: Graph
    steps: Steps
    dead_letters: tuple[str, ...]
    topics: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def several(self) -> bool:
        """Whether a record may have a row through each of several inputs."""
        return len(self.steps) > 1

    def __call__(self, records: Sequence[Record]) -> Mapping[tuple[str, int, int], Iterable[str] | Failed]:
        """Run the topology on the records."""
        return _run(self.graph, self.steps, records)


def make_replay(
    target: str, directory: Path, *, topology: str | None = None, overrides: Sequence[str] = ()
) -> TopologyReplay:
    """Return what runs a topology on records and tells which rows reach the sink of a directory.

    Args:
        target: ``topologies/x.py``, or module:Class.
        directory: the sink's.
        topology: which class, where the file holds several.
        overrides: ``--set`` options.

    Raises:
        TopologyError: it cannot be loaded, or none of its sinks writes to that directory.
        SinkError: the directory's log is damaged, or it cannot be told which of its rows came through which input.
    """
    graph = load(target, topology)
    settings = settings_of(graph, overrides)
    sinks = {c.name: str(settings.components[c.name].values["parquet.directory"]) for c in _sinks(graph)}
    ours = [name for name, place in sinks.items() if Path(place).absolute() == directory.absolute()]
    if not ours:
        written = ", ".join(f"{name} to {place}" for name, place in sinks.items()) or "it has no sink"
        raise TopologyError(
            f"{target}: no sink writes to {directory} ({written})",
            cure="--set SINK:parquet.directory=DIR, as it was run",
        )

    letters = dict.fromkeys(topic for topic in dead_letter_topics(graph, overrides).values() if topic)
    steps = {key: step for name in ours for key, step in _steps(graph, settings, name, directory).items()}
    upstream = graph.upstream(ours)
    spouts = [spout.name for spout in graph.spouts if spout.name in upstream and reads(spout, "kafka")]
    given = [settings.components[name].values for name in spouts]
    topics = dict.fromkeys(topic for values in given for topic in values["kafka.topics"] or ())
    patterns = tuple(values["kafka.pattern"] for values in given if values["kafka.pattern"])
    return TopologyReplay(_as_it_was_run(graph, settings), steps, tuple(letters), tuple(topics), patterns)


def _steps(graph: Graph, settings: Settings, sink: str, directory: Path) -> Steps:
    """Return the steps of a sink's inputs, as the sink itself finds them when it opens the directory."""
    inputs = {
        name_of(given.source, given.stream): (sink, given.source, given.stream)
        for given in graph.components[sink].inputs
        if "origin" in graph.components[given.source].streams[given.stream].fields
    }
    log = CommitLog(directory)
    log.refresh()
    names = check_names(settings.components[sink].values["parquet.input_names"], list(inputs))
    steps = resolve(directory, list(inputs), names, log.inputs, has_rows=len(log.coverage) > 0)
    return {inputs[name]: step for name, step in steps.items()}


def _sinks(graph: Graph) -> list[Component]:
    return [component for component in graph.bolts if reads(component, "parquet")]


def _as_it_was_run(graph: Graph, settings: Settings) -> Graph:
    """Return the graph with all values that were given for its components, from wherever."""
    components = {}
    for name, component in graph.components.items():
        found = settings.components[name]
        given = {key: value for key, value in found.values.items() if found.sources[key] != "default"}
        components[name] = replace(component, config={k: v for k, v in given.items() if not k.startswith("run.")})
    return replace(graph, components=components, config={})


def _run(graph: Graph, steps: Steps, records: Sequence[Record]) -> dict[tuple[str, int, int], list[str] | Failed]:
    """Run the graph on the records; return the paths that reach our sinks, and the failures, by coordinates."""
    seen: dict[tuple[str, int, int], list[str]] = {}

    class Notes(Bolt):
        """Stands for a sink."""

        def process(self, tup: Any) -> None:
            """Note the tuple's origin; an input without one is not in ``steps``."""
            step = steps.get((self.component_name, tup.component, tup.stream))
            if step is not None:
                origin = Origin.of(tup.values.origin)
                place = (origin.topic, origin.partition, origin.offset)
                seen.setdefault(place, []).append(with_step(origin.path, step))

    components = dict(graph.components)
    for sink in _sinks(graph):
        components[sink.name] = replace(sink, cls=Notes, par=1, config={})
    kafka_spouts = [spout.name for spout in graph.spouts if reads(spout, "kafka")]
    with FakeKafka(f"audit-{id(seen)}") as kafka, _silence():
        _fill(kafka, graph, records)
        run_topology(
            replace(graph, components=components),
            spouts={spout.name: [] for spout in graph.spouts if spout.name not in kafka_spouts},
            config={
                "kafka.bootstrap": kafka.bootstrap,
                "kafka.group": GROUP,
                "kafka.start": "EARLIEST",
                "kafka.on_data_loss": "earliest",
                "kafka.guarantee": "AT_LEAST_ONCE",
                "kafka.dead_letter_topic": LETTERS,
                "kafka.retries_max": 0,
                # All of the records may be bad: that is what is asked.
                "kafka.breaker_ratio": 0.0,
                "run.restarts_max": len(records),
                "topology.acker.executors": 1,
            },
        )
        outcome: dict[tuple[str, int, int], list[str] | Failed] = {**seen}
        for letter in read_dead_letters(kafka, LETTERS):
            if letter.topic is not None and letter.partition is not None and letter.offset is not None:
                place = (letter.topic, letter.partition, letter.offset)
                outcome[place] = Failed(_reason(letter, coordinates(*place)), tuple(seen.get(place, ())))
    return outcome


def _reason(letter: DeadLetter, place: str) -> str:
    """Return why a record failed, without its place, so that the same reason reads the same."""
    text = " ".join((letter.error or letter.kind or "").split()).removeprefix(f"{place}: ")
    where = f"fails in {letter.component}" if letter.component else "fails"
    kind = (letter.error_class or "").rpartition(".")[2]
    text = text.removeprefix(f"{letter.component}: ")
    return f"{where}: {kind}: {text}" if kind else f"{where}: {text}"


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the bolts' errors out of the log: the report tells them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _fill(kafka: FakeKafka, graph: Graph, records: Sequence[Record]) -> None:
    """Put each record at its own offset; topics of the topology that have none are there and empty."""
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
