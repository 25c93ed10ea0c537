"""The finished table of each output: rows without their origins, finished aggregates, records, or states."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from downspout.batches.core.protocol import committed, partition_id
from downspout.batches.sql_state import read_state
from downspout.batches.stores import BatchStoreContext, open_batch_store
from downspout.engine.graph import Component, Graph
from downspout.engine.load import load
from downspout.engine.settings import reads, resolve
from downspout.errors import ConfigError, coordinates
from downspout.kafka.client import KafkaCluster, connection_properties
from downspout.kafka.clusters import access_with, cluster_for
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.kafka.scan import scan
from downspout.producing.mapper import fields_of
from downspout.settings.secrets import is_secret, resolve_client
from downspout.settings.table import CLIENT_PREFIX, parse_scope
from downspout.sink.aggregation import Aggregation
from downspout.sink.schema import Columns
from downspout.spout.settings import dead_letter_topic, offsets_of, reading
from downspout.spout.starting import missing_topics, no_topic, partitions_of, topics_of

ROUNDING = 1e-9
"""Sums of floats depend on the order of addition. Their relative difference may be as large as this."""


@dataclass(frozen=True)
class Sink:
    """A Parquet sink of a topology, and its finished table."""

    name: str
    schema: pa.Schema  # of the finished table
    folders: tuple[str, ...] = ()  # columns that name Hive folders
    aggregation: Aggregation | None = None  # of an AggregateBolt
    read_back: Callable[[Path], pa.Table | None] = lambda directory: None  # see ``RowSink.read_back``

    @classmethod
    def of(cls, component: Component, settings: Mapping[str, Any]) -> Sink:
        """Return the sink for a component with these ``parquet`` settings.

        Raises:
            ConfigError: they contradict each other.
        """
        columns, folders = Columns.parse(settings["schema"] or ()), tuple(settings["partition_by"])
        if not settings["aggregates"]:
            read_back = getattr(component.cls, "read_back", cls.read_back)
            return cls(component.name, pa.schema(list(columns.schema)), folders, read_back=read_back)
        aggregation = Aggregation.parse(settings["keys"], settings["aggregates"], columns)
        schema = aggregation.finish(aggregation.schema(columns).empty_table()).schema
        return cls(component.name, schema, folders, aggregation)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns of an AggregateBolt."""
        return self.aggregation.keys if self.aggregation else ()

    def read(self, directory: Path) -> pa.Table:
        """Return the finished table of a directory that the sink wrote; empty without files.

        Raises:
            OSError, ValueError: a file cannot be read (Arrow's errors are of these kinds).
        """
        if not directory.is_dir():
            return self.schema.empty_table()
        if (own := self.read_back(directory)) is not None:
            return own.select(self.schema.names).cast(self.schema) if own.num_rows else self.schema.empty_table()
        folders = pa.schema([self.schema.field(name) for name in self.folders])
        rows = ds.dataset(
            directory,
            format="parquet",
            schema=self.schema,
            partitioning=ds.partitioning(folders, flavor="hive") if self.folders else None,
        ).to_table(columns=self.schema.names)
        return self.aggregation.finish(rows) if self.aggregation else rows

    @property
    def float_sums(self) -> list[str]:
        """The columns that hold sums of floats."""
        aggregates = self.aggregation.aggregates if self.aggregation else ()
        named = [each.name for each in aggregates if each.function == "sum"]
        return [name for name in named if pa.types.is_floating(self.schema.field(name).type)]


def read_finished(directory: Path) -> pa.Table:
    """Return a table that is already finished, with the columns of its files."""
    return ds.dataset(directory, format="parquet").to_table()


def columns_wrong(found: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return how the columns of a table differ from those of the sink's settings, in any order.

    >>> wanted = pa.schema({"hour": pa.int8(), "route": pa.string()})
    >>> columns_wrong(pa.schema({"hour": pa.int64(), "gate": pa.string()}), wanted)
    ['hour is int64 instead of int8', 'no column route', 'a column gate too many']
    """
    wrong = []
    for each in wanted:
        if each.name not in found.names:
            wrong.append(f"no column {each.name}")
        elif (kind := found.field(each.name).type) != each.type:
            wrong.append(f"{each.name} is {kind} instead of {each.type}")
    return wrong + [f"a column {name} too many" for name in found.names if name not in wanted.names]


def rounded_alike(tables: Mapping[str, pa.Table], keys: Sequence[str], columns: Sequence[str]) -> dict[str, pa.Table]:
    """Return the tables with equal values for all float sums of a key that differ only by rounding.

    >>> one, other = pa.table({"k": ["a"], "s": [0.1 + 0.2]}), pa.table({"k": ["a"], "s": [0.3]})
    >>> rounded_alike({"one": one, "other": other}, ["k"], ["s"])["other"]["s"].to_pylist()
    [0.3]
    >>> rounded_alike({"one": one, "other": other}, ["k"], ["s"])["one"]["s"].to_pylist()
    [0.3]
    """
    if not columns:
        return dict(tables)
    everything = pa.concat_tables(tables.values()).combine_chunks()
    groups = _group_numbers(everything.select(list(keys)))
    for name in columns:
        column = everything.column(name).combine_chunks()
        kind, nulls = column.type, np.asarray(column.is_null())
        values = np.asarray(column.cast(pa.float64()).fill_null(np.nan), dtype=np.float64).copy()
        lowest, highest = np.full(groups.max(initial=-1) + 1, np.inf), np.full(groups.max(initial=-1) + 1, -np.inf)
        np.fmin.at(lowest, groups, values)
        np.fmax.at(highest, groups, values)
        finite = np.isfinite(lowest) & np.isfinite(highest)
        width = np.where(finite, highest, 0.0) - np.where(finite, lowest, 0.0)
        alike = finite & (width <= ROUNDING * np.maximum(np.abs(lowest), np.abs(highest)))
        take = alike[groups] & np.isfinite(values)
        values[take] = lowest[groups][take]
        made = pa.array(values, mask=nulls, from_pandas=False).cast(kind)
        everything = everything.set_column(everything.schema.get_field_index(name), name, made)
    parts, start = {}, 0
    for name, table in tables.items():
        parts[name] = everything.slice(start, table.num_rows)
        start += table.num_rows
    return parts


def _group_numbers(keys: pa.Table) -> Any:
    """Return a group number for each row; rows with equal keys share it, and null is a key."""
    numbers = np.zeros(keys.num_rows, dtype=np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = np.asarray(encoded.indices, dtype=np.int64)
        numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1]
    return numbers


# --- topics ---


@dataclass(frozen=True)
class WrittenTopic:
    """A KafkaBolt of a topology, and the table of its records, whose partitions are ignored."""

    name: str  # of the bolt
    bootstrap: str
    client: Mapping[str, Any] = field(repr=False)  # secrets are references
    partitions: int  # of the topic that the user's settings name

    schema: ClassVar[pa.Schema] = pa.schema({"key": pa.string(), "message": pa.string(), "headers": pa.string()})
    keys: ClassVar[tuple[str, ...]] = ()
    float_sums: ClassVar[list[str]] = []

    @classmethod
    def of(cls, name: str, conf: Mapping[str, Any], bootstrap: str, client: Mapping[str, Any]) -> WrittenTopic:
        """Return the output of a bolt with these settings, which connects like the first spout."""
        settings = parse_scope(conf, "produce")
        if settings["mapper"] is not None or "topic" in fields_of(settings):
            way = "mapper" if settings["mapper"] is not None else "fields"
            raise ConfigError(
                f"{name}: produce.{way} may name any topic, and a comparison must not write to yours",
                cure="a bolt with produce.topic alone",
            )
        made = cls(name, settings["bootstrap"] or bootstrap, client, 1)
        return cls(name, made.bootstrap, client, made.cluster().topics().get(settings["topic"], 1))

    def cluster(self) -> KafkaCluster:
        """Return the cluster that the bolt writes to."""
        return KafkaCluster(self.bootstrap, connection_properties(resolve_client(self.client)))

    def read(self, topic: str) -> pa.Table:
        """Return the records of a topic."""
        rows = []
        with closing(self.cluster().consumer(group=None)) as consumer:
            places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for(topic))]
            ends = consumer.end_offsets(places)
            for tp, start in consumer.beginning_offsets(places).items():
                consumer.assign([tp])
                for records in scan(consumer, tp, start, ends[tp]):
                    rows += [(_text(r.key), _text(r.value), _headers(r.headers)) for r in records]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.Table.from_pydict(dict(zip(self.schema.names, map(list, columns), strict=True)), schema=self.schema)


def _text(data: bytes | None) -> str | None:
    r"""Convert bytes to text injectively.

    >>> _text(b"\xc3\xa4\xff \\xff")
    'ä\\xff \\\\xff'
    """
    return None if data is None else data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def _headers(pairs: Any) -> str | None:
    return "; ".join(f"{name}={_text(value)}" for name, value in pairs) if pairs else None


# --- states ---


@dataclass(frozen=True)
class KeptState:
    """A StateBolt of a topology, and the table of its values by key."""

    name: str  # of the bolt
    state: str  # of the state

    schema: ClassVar[pa.Schema] = pa.schema({"key": pa.string(), "value": pa.string()})
    keys: ClassVar[tuple[str, ...]] = ("key",)
    float_sums: ClassVar[list[str]] = []

    @classmethod
    def of(cls, name: str, conf: Mapping[str, Any]) -> KeptState:
        """Return the state of a bolt with these settings."""
        return cls(name, parse_scope(conf, "state")["name"] or name)

    def read(self, file: Path) -> pa.Table:
        """Return the values of all keys, as JSON.

        Raises:
            BatchStoreError: there is no such state, or it cannot be read.
        """
        found = read_state(url_of(file), self.state)
        texts = {
            json.dumps(key, ensure_ascii=False): json.dumps(value, ensure_ascii=False) for key, value in found.items()
        }
        columns: list[Any] = [pa.array(texts.keys(), pa.string()), pa.array(texts.values(), pa.string())]
        return pa.Table.from_arrays(columns, schema=self.schema)


def url_of(file: Path) -> str:
    """Return the URL of a file that holds the states and batches of an engine's run."""
    return f"sqlite:///{file}"


def committed_in(file: Path, batch_id: str, partitions: Collection[TopicPartition]) -> Mapping[tuple[str, int], int]:
    """Return the start of the first uncommitted batch by partition; empty without batches."""
    if not file.exists():
        return {}
    with closing(open_batch_store(url_of(file), BatchStoreContext(batch_id))) as store:
        state = store.load_coordinator()
        ranges = store.load_ranges([partition_id(*tp) for tp in partitions])
    return committed(state, ranges, partitions)


# --- the job ---

Range = tuple[int, int]  # First offset, and the one after the last


@dataclass(frozen=True)
class Frozen:
    """A spout with its brokers, and the range to read in each partition."""

    name: str
    bootstrap: str  # the brokers; never ``embedded``
    # properties of the client, in kafka-python's spelling; secrets are references
    client: Mapping[str, Any] = field(repr=False)
    group: str  # the consumer group that the user's settings name
    has_dead_letters: bool  # whether it has a topic for dead letters
    ranges: Mapping[TopicPartition, Range]  # by partition
    emitters: tuple[str, ...] = ()  # of a batch coordinator, which emits no records itself
    batch_id: str = ""  # likewise

    def offsets(self, place: int) -> str:
        """Return the starts (0) or the ends (1) of the ranges in the format of settings."""
        return ",".join(f"{coordinates(*tp)}={given[place]}" for tp, given in self.ranges.items())


@dataclass(frozen=True)
class Job:
    """A comparison to run."""

    target: str  # a file, or ``module:Class``
    topology: str | None  # the class, if the file defines several
    graph: Graph
    overrides: Sequence[str]  # the user's ``--set`` options
    # by component, all settings but defaults, in the form that Storm passes on
    confs: Mapping[str, Mapping[str, Any]]
    spouts: Sequence[Frozen]
    sinks: Sequence[Sink]  # Parquet sinks
    directory: Path  # for all output; created by the run
    topics: Sequence[WrittenTopic] = ()  # outputs of KafkaBolts
    states: Sequence[KeptState] = ()  # states of StateBolts
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])  # in the names of groups, topics and topologies

    @property
    def records(self) -> int:
        """Number of offsets to read."""
        return sum(end - start for spout in self.spouts for start, end in spout.ranges.values())

    @property
    def dead_letter_bolts(self) -> list[str]:
        """The bolts that write dead letters of rejects, with the connection of the first spout."""
        emitters = {name for spout in self.spouts for name in spout.emitters}
        return [bolt.name for bolt in self.graph.bolts if reads(bolt, "kafka") and bolt.name not in emitters]

    def output(self, engine: str, sink: str) -> Path:
        """Return the directory of an engine's sink."""
        return self.directory / engine / sink

    def store(self, engine: str) -> Path:
        """Return the file for an engine's states and batches."""
        return self.directory / engine / "states.db"

    def topic(self, engine: str, bolt: str) -> str:
        """Return the topic that an engine's KafkaBolt writes to."""
        return f"compare-{self.graph.name}-{engine}-{self.id}.{bolt}"

    def group(self, engine: str, spout: Frozen) -> str:
        """Return the consumer group that replaces a spout's own."""
        number = sorted({each.group for each in self.spouts}).index(spout.group)
        return f"compare-{self.graph.name}-{engine}-{self.id}{f'-{number}' if number else ''}"

    def dead_letter_topic(self, engine: str, spout: Frozen) -> str:
        """Return the topic for the dead letters of an engine's run."""
        return f"{self.group(engine, spout)}.dead-letters"

    def isolation(self, engine: str) -> dict[str, dict[str, Any]]:
        """Return the settings, by component, that make a run read the ranges and leave the user's data alone."""
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
                # The id defaults to the topology's name, which differs on Storm.
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
        """Return the id of a state's batches."""
        heard = {given.source for given in self.graph.components[state].inputs}
        return next((spout.batch_id for spout in self.spouts if spout.name in heard), "")

    def options(self, engine: str) -> list[str]:
        """Return the ``--set`` options of a run; ours are last and per component, so they take precedence."""
        ours = [
            f"--set={name}:{key}={value if isinstance(value, str) else json.dumps(value)}"
            for name, settings in self.isolation(engine).items()
            for key, value in settings.items()
        ]
        return [*(f"--set={each}" for each in self.overrides), *ours]


def freeze(target: str, topology: str | None, overrides: Sequence[str], directory: Path) -> Job:
    """Return the job: the topology, and the ranges of offsets as of now.

    Reading starts according to ``kafka.start`` for a group without commits; LATEST counts as EARLIEST, so that there is
    something to compare. It ends at the current end of each log, or before ``kafka.stop_offsets``.

    Raises:
        TopologyError: the topology cannot be loaded.
        ConfigError: a spout does not read Kafka, or there are no records or no outputs to compare.
        BrokerError: no broker answers, or a topic does not exist.
    """
    graph = load(target, topology)
    settings = resolve(graph, overrides)
    confs = {name: resolved.values for name, resolved in settings.components.items()}
    if others := [spout.name for spout in graph.spouts if not reads(spout, "kafka")]:
        raise ConfigError(
            f"{graph.name}: only Kafka can return the same records again, but {', '.join(others)} reads something else",
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
    """Reject secrets in plain text: settings are written to files and command lines."""
    for key, value in conf.items():
        if is_secret(key, value):
            raise ConfigError(
                f"{spout}: {key} is given in plain text, and a comparison writes settings into files",
                cure=f"{key}=env:NAME, or file:PATH",
            )


def _ranges(consumer: ConsumerPort, settings: Mapping[str, Any], bootstrap: str) -> dict[TopicPartition, Range]:
    """Return the range of each partition to compare."""
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
