"""What is compared: one topology, frozen ranges of offsets, its sinks, and settings that keep a run to itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.compare.states import KeptState, url_of
from downspout.compare.tables import Sink
from downspout.compare.topics import WrittenTopic
from downspout.engine.graph import Component, Graph
from downspout.engine.load import load
from downspout.engine.settings import reads, resolve
from downspout.errors import ConfigError, coordinates
from downspout.kafka.clusters import access_with, cluster_for
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.settings.secrets import is_secret, resolve_client
from downspout.settings.table import CLIENT_PREFIX, parse_scope
from downspout.spout.settings import dead_letter_topic, offsets_of, reading
from downspout.spout.starts import missing_topics, no_topic, partitions_of, topics_of

Range = tuple[int, int]  # The first offset, and the one after the last


@dataclass(frozen=True)
class Frozen:
    """A spout: where it reads, and from where to where in each partition."""

    name: str
    bootstrap: str  # the brokers; never ``embedded``
    # properties of the client, in kafka-python's spelling; secrets are references
    client: Mapping[str, Any] = field(repr=False)
    group: str  # the consumer group that the user's settings name
    has_dead_letters: bool  # whether it has a topic for dead letters
    ranges: Mapping[TopicPartition, Range]  # by partition
    emitters: tuple[str, ...] = ()  # of a coordinator of batches, which emits no records itself
    batch_id: str = ""  # likewise

    def offsets(self, place: int) -> str:
        """Return the starts (0) or the ends (1) of the ranges as settings have them."""
        return ",".join(f"{coordinates(*tp)}={given[place]}" for tp, given in self.ranges.items())


@dataclass(frozen=True)
class Job:
    """A comparison that is to be made."""

    target: str  # a file, or ``module:Class``
    topology: str | None  # which class, where the file holds several
    graph: Graph
    overrides: Sequence[str]  # ``--set`` options of the user's
    # the settings of each component that somebody gave, as Storm hands them over
    confs: Mapping[str, Mapping[str, Any]]
    spouts: Sequence[Frozen]  # frozen
    sinks: Sequence[Sink]  # those that write Parquet
    directory: Path  # where all that is written goes; made by the run
    topics: Sequence[WrittenTopic] = ()  # what KafkaBolts write
    states: Sequence[KeptState] = ()  # what StateBolts keep
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])  # in the names of groups, topics and topologies

    @property
    def records(self) -> int:
        """How many offsets are read."""
        return sum(end - start for spout in self.spouts for start, end in spout.ranges.values())

    @property
    def dead_letter_bolts(self) -> list[str]:
        """The bolts that write to Kafka, dead letters of rejects, as the first spout would."""
        emitters = {name for spout in self.spouts for name in spout.emitters}
        return [bolt.name for bolt in self.graph.bolts if reads(bolt, "kafka") and bolt.name not in emitters]

    def output(self, engine: str, sink: str) -> Path:
        """Return where an engine's sink writes."""
        return self.directory / engine / sink

    def store(self, engine: str) -> Path:
        """Return the file in which an engine keeps states and batches."""
        return self.directory / engine / "states.db"

    def topic(self, engine: str, bolt: str) -> str:
        """Return the topic that an engine's KafkaBolt writes to."""
        return f"compare-{self.graph.name}-{engine}-{self.id}.{bolt}"

    def group(self, engine: str, spout: Frozen) -> str:
        """Return the consumer group that stands for a spout's own."""
        number = sorted({each.group for each in self.spouts}).index(spout.group)
        return f"compare-{self.graph.name}-{engine}-{self.id}{f'-{number}' if number else ''}"

    def dead_letter_topic(self, engine: str, spout: Frozen) -> str:
        """Return the topic for the dead letters of an engine's run."""
        return f"{self.group(engine, spout)}.dead-letters"

    def isolation(self, engine: str) -> dict[str, dict[str, Any]]:
        """Return the settings, by component, by which a run reads the ranges and touches nothing of the user's."""
        settings: dict[str, dict[str, Any]] = {}
        for spout in self.spouts:
            settings[spout.name] = {
                "kafka.bootstrap": spout.bootstrap,
                **{CLIENT_PREFIX + name: value for name, value in spout.client.items()},
                "kafka.group": self.group(engine, spout),
                "kafka.start": "OFFSETS",
                "kafka.start_offsets": spout.offsets(0),
                "kafka.stop_offsets": spout.offsets(1),
                **(
                    {"kafka.dead_letter_topic": self.dead_letter_topic(engine, spout)} if spout.has_dead_letters else {}
                ),
            }
            if spout.emitters:
                # The id is the topology's name where nothing else is said, and on Storm ours has another name.
                store = {"batch.store": url_of(self.store(engine)), "batch.id": spout.batch_id}
                settings[spout.name] |= {"kafka.dead_letter_topic": "", **store}
                settings |= {name: dict(settings[spout.name]) for name in spout.emitters}
        for state in self.states:
            settings[state.name] = {"state.store": url_of(self.store(engine)), "batch.id": self._batch_id(state.name)}
        for name in self.dead_letter_bolts:
            first = self.spouts[0]
            settings[name] = {
                "kafka.bootstrap": first.bootstrap,
                **{CLIENT_PREFIX + key: value for key, value in first.client.items()},
                "kafka.group": self.group(engine, first),
                "kafka.dead_letter_topic": self.dead_letter_topic(engine, first) if first.has_dead_letters else "",
            }
        for written in self.topics:
            settings[written.name]["produce.topic"] = self.topic(engine, written.name)
        for sink in self.sinks:
            settings[sink.name] = {"parquet.directory": str(self.output(engine, sink.name))}
        return settings

    def _batch_id(self, state: str) -> str:
        """Return the id of the batches that a state hears of."""
        heard = {given.source for given in self.graph.components[state].inputs}
        return next((spout.batch_id for spout in self.spouts if spout.name in heard), "")

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
        BrokerError: no broker answers, or a topic does not exist.
    """
    graph = load(target, topology)
    settings = resolve(graph, overrides)
    confs = {name: resolved.values for name, resolved in settings.components.items()}
    if others := [spout.name for spout in graph.spouts if not reads(spout, "kafka")]:
        raise ConfigError(
            f"{graph.name}: only Kafka gives the same records again, and {', '.join(others)} reads something else",
            cure="a topology whose spouts are KafkaSpouts, or that counts in batches of KafkaBatches",
        )
    sinks = [
        Sink.of(component, parse_scope(confs[name], "parquet"))
        for name, component in graph.components.items()
        if reads(component, "parquet")
    ]
    to_kafka = [bolt.name for bolt in graph.bolts if reads(bolt, "produce")]
    states = [KeptState.of(bolt.name, confs[bolt.name]) for bolt in graph.bolts if reads(bolt, "state")]
    if not sinks and not to_kafka and not states:
        raise ConfigError(
            f"{graph.name} has no sink whose table can be compared", cure="a ParquetBolt, a KafkaBolt or a StateBolt"
        )
    given = {
        name: {key: value for key, value in resolved.values.items() if resolved.sources.get(key) != "default"}
        for name, resolved in settings.components.items()
    }
    spouts = [_freeze(graph, spout, confs[spout.name]) for spout in graph.spouts]
    first = spouts[0]
    topics = [WrittenTopic.of(name, confs[name], first.bootstrap, first.client) for name in to_kafka]
    job = Job(target, topology, graph, overrides, given, spouts, sinks, directory, topics, states)
    if not job.records:
        raise ConfigError(f"{graph.name}: there are no records to read", cure="publish some, or set kafka.start")
    return job


def _freeze(graph: Graph, spout: Component, conf: Mapping[str, Any]) -> Frozen:
    name, topology = spout.name, graph.name
    _check_secrets(name, conf)
    settings = parse_scope(conf, "kafka")
    bootstrap, given = access_with(settings["bootstrap"], settings["client"], resolved=False)
    client = resolve_client(given)
    group = settings["group"] or topology
    with closing(cluster_for(bootstrap, client).consumer(group=None, client=client)) as consumer:
        ranges = _ranges(consumer, reading(settings, group), bootstrap)
    if not reads(spout, "batch"):
        return Frozen(name, bootstrap, given, group, bool(dead_letter_topic(settings, group)), ranges)
    mine = [bolt for bolt in graph.bolts if any(each.source == name for each in bolt.inputs)]
    emitters = tuple(bolt.name for bolt in mine if reads(bolt, "kafka"))
    return Frozen(name, bootstrap, given, group, False, ranges, emitters, parse_scope(conf, "batch")["id"] or topology)


def _check_secrets(spout: str, conf: Mapping[str, Any]) -> None:
    """Refuse secrets in plain text: settings are written to files, and go on command lines."""
    for key, value in conf.items():
        if is_secret(key, value):
            raise ConfigError(
                f"{spout}: {key} is given in plain text, and a comparison writes settings into files",
                cure=f"{key}=env:NAME, or file:PATH",
            )


def _ranges(consumer: ConsumerPort, settings: Mapping[str, Any], bootstrap: str) -> dict[TopicPartition, Range]:
    """Return where each partition begins and ends for this comparison."""
    topics = topics_of(consumer, settings)
    if missing := missing_topics(consumer, topics):
        raise no_topic(missing[0], bootstrap)
    places = partitions_of(consumer, topics)
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
