"""The Python components of ``bench/storm.py``. A class on our wire differs from the stock one only by its base."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import orjson
import streamparse
from kafka import KafkaConsumer

from downspout.wire import MultilangComponent

FIELDS = ["topic", "partition", "offset", "key", "value"]
"""The default fields of Storm's own KafkaSpout."""


class StockSpout(streamparse.Spout):
    """A minimal spout: poll, emit, and auto-commit.

    Unlike the others, it loses failed records, and those in flight at a crash.
    """

    outputs: ClassVar = FIELDS
    each = 1

    def initialize(self, conf: Any, context: Any) -> None:
        self.waiting: deque[Any] = deque()
        self.consumer = KafkaConsumer(
            *conf["kafka.topics"],
            bootstrap_servers=conf["kafka.bootstrap"],
            group_id=conf["kafka.group"],
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1_000,
        )

    def next_tuple(self) -> None:
        if not self.waiting:
            # With 10 ms, kafka-python 3 often never reads: each poll times out before the consumer has started.
            for records in self.consumer.poll(100).values():
                self.waiting.extend(records)
        for _ in range(min(self.each, len(self.waiting))):
            record = self.waiting.popleft()
            values = [record.topic, record.partition, record.offset, record.key.decode(), record.value.decode()]
            self.emit(values, tup_id=f"{record.partition}/{record.offset}")


class StockSpoutOf100(StockSpout):
    """The same with up to 100 emits per ``next``, a known optimisation."""

    each = 100


class StockBolt(streamparse.Bolt):
    """Parses each record and sums two of its numbers; writes its progress to a file at each tick."""

    outputs: ClassVar = ["nothing"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.count = self.places = self.delay = 0
        self.ends = [0] * conf["bench.partitions"]
        self.notes = Path(conf["bench.notes"]).open("a", encoding="utf-8")  # noqa: SIM115 - until the process ends

    def process(self, tup: Any) -> None:
        _, partition, offset, _, value = tup.values
        flight = orjson.loads(value)
        self.delay += flight["dep_delay"] or 0
        self.places += (offset << 2) + partition
        self.ends[partition] = offset + 1
        self.count += 1

    def process_tick(self, tup: Any) -> None:
        note = {"time": time.time(), "count": self.count, "places": self.places, "delay": self.delay, "ends": self.ends}
        self.notes.write(orjson.dumps(note).decode() + "\n")
        self.notes.flush()


class WireBolt(MultilangComponent, StockBolt):
    """The same on our wire."""


class ChunkBolt(WireBolt):
    """The same with chunks: it still parses each record."""

    def process_chunk(self, tup: Any) -> None:
        chunk = tup.values
        rows = zip(*(chunk.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)
        for partition, offset, value in rows:
            self.process(Row(values=(None, partition, offset, None, value)))


class Row(NamedTuple):
    """The part of a tuple that the bolt uses."""

    values: Any
