"""The topology of the crash tests: lines in, their words out, one row for each word, or partial counts."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pyarrow as pa
from streamparse import Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from downspout.kafka import TopicPartition
from downspout.ledger import Origin
from downspout.origins import under
from spouts.kafka import KafkaSpout

TOPIC = "lines"
GROUP = "words"
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
LINES = {0: ["a b", "b", "a"], 1: ["b", "a b"]}
"""By partition. Each word is a Hive folder of the rows; no line has a word twice."""
SHORT = {0: ["a b", "b"], 1: ["a"]}
"""For stories that have much else to tell."""
LATER = ["b", "b a", "a"]
"""What the second partition gets while the replay of the first is on its way."""


def rows_of(partition: int, lines: list[str], first: int = 0) -> Counter[Any]:
    return Counter((partition, first + offset, word) for offset, line in enumerate(lines) for word in line.split())


class Words(Bolt):
    """Emits each word of a line under an identity of its own."""

    outputs: ClassVar[list[str]] = ["origin", "word", "length"]

    def process(self, tup: Any) -> None:
        origin = Origin.of(tup.values.origin)
        for index, word in enumerate(tup.values.value.split()):
            self.emit([origin.child("words", index), word, len(word)])

    def process_chunk(self, tup: Any) -> None:
        lines = [line.split() for line in tup.values.column("value").to_pylist()]
        origins = tup.values.column("origin").take(pa.array([row for row, line in enumerate(lines) for _ in line]))
        words = [word for line in lines for word in line]
        indexes = [index for line in lines for index in range(len(line))]
        lengths = pa.array([len(word) for word in words])
        self.emit(
            pa.RecordBatch.from_arrays([under(origins, "words", indexes), pa.array(words), lengths], self.outputs)
        )


SPOUT: dict[str, Any] = {
    "topics": [TOPIC],
    "fields": ["origin", "value"],
    "group": GROUP,
    "commit_period_ms": 1,
    "session_timeout_ms": 1_000,
    "poll_records_max": 3,
    "emits_per_next_max": 3,
    "emit": "record",  # chunks have worlds of their own: a story says so
}
SINK: dict[str, Any] = {
    "directory": "set by the test",
    "schema": {"word": "string", "length": "int64"},
    "flush_rows": 3,
    "flush_age_s": 1,
}


class Rows(Topology):
    """Two tasks that write rows into Hive folders."""

    lines = KafkaSpout.spec(**SPOUT)
    words = Words.spec(inputs=[lines])
    sink = ParquetBolt.spec(inputs={words: Grouping.SHUFFLE}, par=2, partition_by=["word"], **SINK)


class Halves(Topology):
    """Two tasks that write rows into Hive folders, each its own words: a chunk is in both."""

    lines = KafkaSpout.spec(**SPOUT)
    words = Words.spec(inputs=[lines])
    sink = ParquetBolt.spec(inputs={words: Grouping.fields("word")}, par=2, partition_by=["word"], **SINK)


class Alone(Topology):
    """One task that writes rows into Hive folders."""

    lines = KafkaSpout.spec(**SPOUT)
    words = Words.spec(inputs=[lines])
    sink = ParquetBolt.spec(inputs={words: Grouping.SHUFFLE}, partition_by=["word"], **SINK)


class Counts(Topology):
    lines = KafkaSpout.spec(**SPOUT)
    words = Words.spec(inputs=[lines])
    sink = AggregateBolt.spec(
        inputs={words: Grouping.fields("word")}, keys=["word"], aggregates=["count", "sum:length"], **SINK
    )
