"""What is compared: one topology, frozen ranges of offsets, its sinks, and settings that keep a run to itself."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout import config
from downspout.compare.tables import Sink
from downspout.errors import ConfigError, coordinates
from downspout.kafka.bounds import no_topic
from downspout.kafka.explicit import offsets_of
from downspout.kafka.port import ConsumerPort, TopicPartition, cluster_for
from downspout.kafka.sense import dead_letter_topic
from downspout.local.graph import Graph
from downspout.local.load import load
from downspout.local.settings import reads, resolve

__all__ = ["Frozen", "Job", "freeze"]

Range = tuple[int, int]
"""The first offset, and the one after the last."""


@dataclass(frozen=True)
class Frozen:
    """A spout: where it reads, and from where to where in each partition.

    Attributes:
        name: of the component.
        bootstrap: the brokers; never ``embedded``.
        client: properties of the client, in kafka-python's spelling; secrets are references.
        group: the consumer group that the user's settings name.
        has_letters: whether it has a topic for dead letters.
        ranges: by partition.
    """

    name: str
    bootstrap: str
    client: Mapping[str, Any] = field(repr=False)
    group: str
    has_letters: bool
    ranges: Mapping[TopicPartition, Range]

    def offsets(self, place: int) -> str:
        """Return the starts (0) or the ends (1) of the ranges as settings have them."""
        return ",".join(f"{coordinates(*tp)}={given[place]}" for tp, given in self.ranges.items())


@dataclass(frozen=True)
class Job:
    """A comparison that is to be made.

    Attributes:
        target: a file, or ``module:Class``.
        topology: which class, where the file holds several.
        graph: the topology.
        overrides: ``--set`` options of the user's.
        confs: the settings of each component that somebody gave, as Storm hands them over.
        spouts: frozen.
        sinks: those that write Parquet.
        directory: where all that is written goes; made by whoever runs the job.
        id: in the names of groups, topics and topologies.
    """

    target: str
    topology: str | None
    graph: Graph
    overrides: Sequence[str]
    confs: Mapping[str, Mapping[str, Any]]
    spouts: Sequence[Frozen]
    sinks: Sequence[Sink]
    directory: Path
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def records(self) -> int:
        """How many offsets are read."""
        return sum(end - start for spout in self.spouts for start, end in spout.ranges.values())

    @property
    def letter_bolts(self) -> list[str]:
        """The bolts that write to Kafka, dead letters of rejects, as the first spout would."""
        return [bolt.name for bolt in self.graph.bolts if reads(bolt, "kafka")]

    def output(self, engine: str, sink: str) -> Path:
        """Return where an engine's sink writes."""
        return self.directory / engine / sink

    def group(self, engine: str, spout: Frozen) -> str:
        """Return the consumer group that stands for a spout's own."""
        number = sorted({each.group for each in self.spouts}).index(spout.group)
        return f"compare-{self.graph.name}-{engine}-{self.id}{f'-{number}' if number else ''}"

    def letters(self, engine: str, spout: Frozen) -> str:
        """Return the topic for the dead letters of an engine's run."""
        return f"{self.group(engine, spout)}.dead-letters"

    def isolation(self, engine: str) -> dict[str, dict[str, Any]]:
        """Return the settings, by component, by which a run reads the ranges and touches nothing of the user's."""
        settings: dict[str, dict[str, Any]] = {}
        for spout in self.spouts:
            settings[spout.name] = {
                "kafka.bootstrap": spout.bootstrap,
                **{config.CLIENT_PREFIX + name: value for name, value in spout.client.items()},
                "kafka.group": self.group(engine, spout),
                "kafka.start": "OFFSETS",
                "kafka.start_offsets": spout.offsets(0),
                "kafka.stop_offsets": spout.offsets(1),
                **({"kafka.dead_letter_topic": self.letters(engine, spout)} if spout.has_letters else {}),
            }
        for name in self.letter_bolts:
            first = self.spouts[0]
            settings[name] = {
                "kafka.bootstrap": first.bootstrap,
                **{config.CLIENT_PREFIX + key: value for key, value in first.client.items()},
                "kafka.group": self.group(engine, first),
                "kafka.dead_letter_topic": self.letters(engine, first) if first.has_letters else "",
            }
        for sink in self.sinks:
            settings[sink.name] = {"parquet.directory": str(self.output(engine, sink.name))}
        return settings

    def options(self, engine: str) -> list[str]:
        """Return the ``--set`` options of a run; ours come last, and for a component each, so nothing is stronger."""
        ours = [
            f"--set={name}:{key}={value if isinstance(value, str) else json.dumps(value)}"
            for name, settings in self.isolation(engine).items()
            for key, value in settings.items()
        ]
        return [*(f"--set={each}" for each in self.overrides), *ours]


def freeze(target: str, topology: str | None, overrides: Sequence[str], directory: Path) -> Job:
    """Return the job: the topology as it is, and the offsets as of now.

    Reading starts where ``kafka.start`` says for a group that has committed nothing; LATEST, by which there would be
    nothing to compare, counts as EARLIEST. It ends at the end of each log as of now, or before ``kafka.stop_offsets``.

    Raises:
        TopologyError: the topology cannot be loaded, or reads from something else than KafkaSpouts.
        ConfigError: a setting is wrong, or there is nothing to compare.
        BrokerError: no broker answers, or a topic does not exist.
    """
    graph = load(target, topology)
    settings = resolve(graph, overrides)
    confs = {name: resolved.values for name, resolved in settings.components.items()}
    if others := [spout.name for spout in graph.spouts if not reads(spout, "kafka")]:
        raise ConfigError(
            f"{graph.name}: only Kafka gives the same records again, and {', '.join(others)} is no KafkaSpout",
            cure="a topology whose spouts are KafkaSpouts",
        )
    sinks = [
        Sink.of(component, config.parse_scope(confs[name], "parquet"))
        for name, component in graph.components.items()
        if reads(component, "parquet")
    ]
    if not sinks:
        raise ConfigError(f"{graph.name} has no sink whose table could be compared", cure="a ParquetBolt")
    given = {
        name: {key: value for key, value in resolved.values.items() if resolved.sources.get(key) != "default"}
        for name, resolved in settings.components.items()
    }
    spouts = [_freeze(spout.name, graph.name, confs[spout.name]) for spout in graph.spouts]
    job = Job(target, topology, graph, overrides, given, spouts, sinks, directory)
    if not job.records:
        raise ConfigError(f"{graph.name}: there is no record to compare by", cure="publish some, or set kafka.start")
    return job


def _freeze(name: str, topology: str, conf: Mapping[str, Any]) -> Frozen:
    _check_secrets(name, conf)
    settings = config.parse_scope(conf, "kafka")
    bootstrap, given = settings["bootstrap"], settings["client"]
    if bootstrap == "embedded":
        from downspout.kafka.embedded import find_access

        bootstrap, own = find_access()
        given = {**own, **given}
    client = config.resolve_client(given)
    consumer = cluster_for(bootstrap, client).consumer(group=None, client=client)
    try:
        ranges = _ranges(consumer, settings, bootstrap)
    finally:
        consumer.close()
    group = settings["group"] or topology
    return Frozen(name, bootstrap, given, group, bool(dead_letter_topic(settings, group)), ranges)


def _check_secrets(spout: str, conf: Mapping[str, Any]) -> None:
    """Refuse secrets in plain text: settings are written to files, and onto command lines."""
    for key, value in conf.items():
        if config.is_secret(key, value):
            raise ConfigError(
                f"{spout}: {key} is given in plain text, and a comparison writes settings into files",
                cure=f"{key}=env:NAME, or file:PATH",
            )


def _ranges(consumer: ConsumerPort, settings: Mapping[str, Any], bootstrap: str) -> dict[TopicPartition, Range]:
    """Return where each partition begins and ends for this comparison."""
    pattern = settings["pattern"]
    topics = settings["topics"] or sorted(t for t in consumer.topic_names() if re.fullmatch(pattern, t))
    places = []
    for topic in topics:
        numbers = consumer.partitions_for(topic)
        if not numbers:
            raise no_topic(topic, bootstrap)
        places += [TopicPartition(topic, number) for number in sorted(numbers)]
    begins, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    starts, stops = dict(begins), offsets_of("kafka.stop_offsets", settings["stop_offsets"])
    if settings["start"].endswith("OFFSETS"):
        starts |= offsets_of("kafka.start_offsets", settings["start_offsets"])
    elif settings["start"].endswith("TIMESTAMP"):
        times = consumer.offsets_for_times(dict.fromkeys(places, settings["start_timestamp_ms"] or 0))
        starts |= {tp: ends[tp] if found is None else found for tp, found in times.items()}
    ranges = {}
    for tp in places:
        end = min(ends[tp], stops.get(tp, ends[tp]))
        ranges[tp] = (min(max(starts[tp], begins[tp]), end), end)
    return ranges
