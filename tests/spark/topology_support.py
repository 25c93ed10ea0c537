"""A topology on Spark without Spark: the real stages and the real driver's side, and lists in place of shuffles.

What stands in for Spark keeps its promises and no others: equal keys meet, rows come in any order, state and timers are
of the key, a batch that failed is computed again from the state before it, and nothing of it is kept.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from streamparse import Grouping

from downspout.dead_letters import DeadLetter, read_dead_letters
from downspout.engine import Graph, configurations, from_class, resolve
from downspout.spark import (
    CommittedBatch,
    EndPartition,
    KafkaStreamReader,
    OffsetRange,
    RangePartition,
    StagePlan,
    data_source,
    parse_options,
    plan,
    source_options,
)
from downspout.spark.topology.batch_commit import BatchCommitter, RecomputeError
from downspout.spark.topology.operators import FirstStage, PickledPlan, StatefulStage
from downspout.spark.topology.stage_rows import ARROW
from downspout.testing import FakeKafka
from tests.sink.support import rows_of
from tests.spark import topology_bolts as b

Key = tuple[str, int]


@dataclass
class Store:
    """What a state store holds after a batch: values and timers, by level and key."""

    values: dict[tuple[int, Key], tuple[bytes]] = field(default_factory=dict)
    timers: dict[tuple[int, Key], list[int]] = field(default_factory=dict)
    maps: dict[tuple[int, Key], dict[tuple[str], tuple[bytes]]] = field(default_factory=dict)

    def copy(self) -> Store:
        timers = {key: list(due) for key, due in self.timers.items()}
        return Store(dict(self.values), timers, {key: dict(entries) for key, entries in self.maps.items()})


class Handle:
    """What Spark gives to a stateful processor, for the key that is its turn."""

    def __init__(self, store: Store, level: int, now_ms: int) -> None:
        self._store, self._level, self._now_ms = store, level, now_ms
        self.key: Key = ("", 0)

    def getValueState(self, name: str, schema: str) -> Handle:
        return self

    def getMapState(self, name: str, key_schema: str, value_schema: str) -> MapState:
        """The only other one is a map of the key's."""
        return MapState(self, self._store, self._level)

    def get(self) -> tuple[bytes] | None:
        return self._store.values.get((self._level, self.key))

    def update(self, value: tuple[bytes]) -> None:
        self._store.values[self._level, self.key] = value

    def registerTimer(self, at_ms: int) -> None:
        self._store.timers.setdefault((self._level, self.key), []).append(at_ms)

    def listTimers(self) -> Iterator[int]:
        return iter(self._store.timers.get((self._level, self.key), []))

    def getCurrentProcessingTimeInMs(self) -> int:
        return self._now_ms


class MapState:
    """What Spark gives as a map, of the key that is its turn; ``calls`` counts what was asked for."""

    calls: ClassVar[Counter[str]] = Counter()

    def __init__(self, handle: Handle, store: Store, level: int) -> None:
        self._handle, self._store, self._level = handle, store, level

    @property
    def _entries(self) -> dict[tuple[str], tuple[bytes]]:
        return self._store.maps.setdefault((self._level, self._handle.key), {})

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:
        self.calls["get"] += 1
        return self._entries.get(key)

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:
        self.calls["update"] += 1
        self._entries[key] = value

    def removeKey(self, key: tuple[str]) -> None:
        self.calls["remove"] += 1
        self._entries.pop(key, None)

    def values(self) -> Iterator[tuple[bytes]]:
        self.calls["values"] += 1
        return iter(list(self._entries.values()))

    def clear(self) -> None:
        self.calls["clear"] += 1
        self._entries.clear()


class InProcess:
    """A query on one checkpoint.

    Args:
        topology: a class, or a graph.
        kafka: the records come from there, and dead letters go there.
        config: settings, as strong as ``--set``.
        seed: of the order in which rows arrive.

    Attributes:
        batch_rows: records in one RecordBatch of the source's.
    """

    def __init__(
        self, topology: Any, kafka: FakeKafka, config: Mapping[str, Any] | None = None, *, seed: int = 0
    ) -> None:
        graph = topology if isinstance(topology, Graph) else from_class(topology, topology.__name__)
        quick = {"kafka.retry_delay_ms": 0, "kafka.retries_max": 2}
        options = {"kafka.bootstrap": kafka.bootstrap, **quick, **(config or {})}
        confs = configurations(graph, resolve(graph, options=options, environ={}, file=Path("/nonexistent")))
        self.kafka, self.graph, self.confs = kafka, graph, confs
        self.plan: StagePlan = plan(graph, confs)
        self.groups = dict.fromkeys(self.plan.spouts, graph.name)
        self.store, self.done = Store(), []
        self.number, self._read = 0, defaultdict[tuple[str, int], int](int)
        self.rng = random.Random(seed)
        self.folder = tempfile.TemporaryDirectory()
        self.now_ms = 1_000_000
        self.batch_rows = 3
        self.start()

    def start(self) -> None:
        """Start the driver, or start it again after a crash."""
        committed: list[CommittedBatch] = self.done
        self.batches = BatchCommitter(
            self.plan, "query", self.groups, committed.append, checkpoint=Path(self.folder.name)
        )
        self.batches.open()

    def run(self, records_max: int | None = None, *, at_end: bool = False) -> None:
        """Compute and commit one batch of what is new in the topics, again where it failed.

        Args:
            records_max: of each partition.
            at_end: whether it ends a bounded run.
        """
        ranges = self._plan_ranges(records_max)
        while True:
            frame = Frame(self, ranges, at_end)
            try:
                self.batches(frame, self.number)
            except RecomputeError:
                self.batches.error = None
                continue
            break
        self.store = frame.store
        self.number += 1
        self._read.update({where: end for where, (_, end) in ranges.items()})

    def drain(self, records_max: int) -> None:
        while any(start < end for start, end in self._plan_ranges(None).values()):
            self.run(records_max)

    def _plan_ranges(self, records_max: int | None) -> dict[tuple[str, int], tuple[int, int]]:
        ranges = {}
        for name in self.plan.spouts:
            for topic in self.confs[name]["kafka.topics"]:
                for tp in self.kafka.partitions(topic):
                    start, end = self._read[topic, tp.partition], len(self.kafka.records(topic, tp.partition))
                    ranges[topic, tp.partition] = start, min(end, start + records_max) if records_max else end
        return ranges

    def letters(self) -> list[Any]:
        topic = f"{self.graph.name}.dead-letters"
        return self.kafka.records(topic) if topic in self.kafka.topic_names() else []

    def rows(self, directory: Path, *columns: str) -> list[Any]:
        """Return what a reader of a sink's directory sees, sorted."""
        return rows_in(directory, *columns)


def rows_in(directory: Path, *columns: str) -> list[Any]:
    """Return some columns of all rows that a reader sees, sorted."""
    found = [tuple(row[column] for column in columns) for row in rows_of(directory)]
    return sorted(row[0] if len(columns) == 1 else row for row in found)


class Frame:
    """One computation of a batch; ``store`` is what its stages leave."""

    def __init__(
        self, query: InProcess, ranges: Mapping[tuple[str, int], tuple[int, int]], at_end: bool = False
    ) -> None:
        self._query, self._ranges, self._at_end = query, ranges, at_end
        self.store = query.store.copy()

    def collect(self) -> list[tuple[str, str, int, bytes]]:
        query = self._query
        pickled = PickledPlan(query.plan, [], [])
        front = FirstStage(pickled, query.batches.exhausted, query.batches.chunk_limits)
        rows: list[tuple[str, str, int, bytes]] = []
        pieces: list[tuple[str, InputPartition]] = []
        for spout in query.plan.spouts:
            for topic in query.confs[spout]["kafka.topics"]:
                for tp in query.kafka.partitions(topic):
                    span = OffsetRange.of(tp, *self._ranges[topic, tp.partition])
                    pieces.append((spout, RangePartition(span, topic_id=query.kafka.topic_id(topic))))
        if self._at_end:
            pieces.append((spout, EndPartition()))
        for spout, piece in pieces:
            rows += [row for batch in front(columns_of(query, spout, piece)) for row in rows_from(batch)]
        for stage in query.plan.stages[1:]:
            rows = self._stateful(pickled, stage.level, rows)
        return rows

    def _stateful(self, pickled: PickledPlan, level: int, rows: Sequence[Any]) -> list[Any]:
        """Do what Spark does around one stateful operator: shuffle, input, then timers."""
        rng, now_ms = self._query.rng, self._query.now_ms
        handle = Handle(self.store, level, now_ms)
        processor = StatefulStage(pickled, level, self._query.batches.exhausted)
        processor.init(handle)
        groups: dict[Key, list[Any]] = defaultdict(list)
        for row in rows:
            groups[row[1], row[2]].append(row)
        found: list[Any] = []
        for key in rng.sample(sorted(groups), len(groups)):
            handle.key = key
            group = rng.sample(groups[key], len(groups[key]))
            frames = [pd.DataFrame(group[:1], columns=ARROW.names), pd.DataFrame(group[1:], columns=ARROW.names)]
            found += [r for f in processor.handleInputRows(key, iter(frames), handle) for r in frame_rows(f)]
        for (at, key), dues in list(self.store.timers.items()):
            for due in [due for due in dues if at == level and due <= now_ms]:
                handle.key = key
                found += [r for f in processor.handleExpiredTimer(key, handle, None) for r in frame_rows(f)]
                self.store.timers[at, key].remove(due)
        processor.close()
        return found


def rows_from(batch: pa.RecordBatch) -> list[tuple[str, str, int, bytes]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def frame_rows(frame: pd.DataFrame) -> list[tuple[str, str, int, bytes]]:
    return [(kind, name, int(task), payload) for kind, name, task, payload in frame.itertuples(index=False)]


def columns_of(query: InProcess, spout: str, piece: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield what the source gives of a range of offsets, or at the end of a run, with the spout that it is for."""
    given = source_options(query.confs[spout], query.groups[spout], bounded=False, records_max=None)
    for batch in KafkaStreamReader(parse_options(given, streaming=True)).read(piece):
        named = batch.append_column("spout", pa.array([spout] * batch.num_rows))
        yield from (named.slice(n, query.batch_rows) for n in range(0, named.num_rows, query.batch_rows))
    data_source.idle.clear()  # another Kafka of the same name may come


def send(kafka: FakeKafka, *values: str | None) -> None:
    for value in values:
        kafka.produce("lines", None if value is None else value.encode())


def counted(*words: str) -> list[tuple[str, int]]:
    seen: Counter[str] = Counter()
    rows = []
    for word in words:
        seen[word] += 1
        rows.append((word, seen[word]))
    return sorted(rows)


def failure_of(letter: Any) -> str:
    return dict(letter.headers)["__downspout.errors.exception.message"].decode()


def letters_of(query: InProcess) -> list[DeadLetter]:
    """Return the dead letters, as readers of them have them."""
    return list(read_dead_letters(query.kafka, f"{query.graph.name}.dead-letters"))


def chain(out: Path) -> Any:
    """Return a topology with two stateful bolts, one behind the other, and two inputs on the second."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    tag = b.Tag.spec(inputs=[split["long"]])
    first = b.Count.spec(inputs={split: Grouping.fields("word")}, par=3)
    second = b.Count.spec(inputs={first: Grouping.fields("word"), tag: Grouping.fields("word")}, par=2)
    return b.graph_of(spout=spout, split=split, tag=tag, first=first, second=second, out=b.sink([second], out))
