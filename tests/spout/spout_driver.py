"""Drives a KafkaSpout by its methods, as Storm would, and notes what it emits."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from downspout.kafka import TopicPartition
from downspout.ledger import Origin, split_id
from downspout.protocols import SpoutEngine
from downspout.spout import GroupSession
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests.kafka.broker_stage import wait_until
from tests.spout.broker_kafka import BrokerKafka

EitherKafka = FakeKafka | BrokerKafka
if TYPE_CHECKING:
    Kafka = FakeKafka  # what tests that also run on a broker may call: the BrokerKafka has those of its methods
else:
    Kafka = EitherKafka

GROUP = "readers"
TOPIC = "orders"
MANY = 100_000
"""As `topology.max.spout.pending`, so that tuples carry ids whatever the guarantee."""
FEW_AT_A_TIME: dict[str, Any] = {"client.max_partition_fetch_bytes": 1}
"""Settings with which the client fetches one batch (here: one record) at a time, and holds no others."""
PARTITIONS = 4
RECORDS = 30
"""What the topic of the fixture ``wide`` has, and how many are in each."""


class Driver:
    """One task of a spout: ``task`` is its number and how many there are.

    ``emitted`` holds (message id, values) in order; ``offsets`` the offsets of these.
    """

    def __init__(
        self,
        kafka: EitherKafka,
        member: int | None = 1,
        topology_id: str = "orders-1",
        task: tuple[int, int] = (0, 1),
        **settings: Any,
    ) -> None:
        self.kafka = kafka
        self.emitted: list[tuple[Any, Any]] = []  # values: a chunk, or those of one record
        self.spout = KafkaSpout(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
        self.spout.clock = kafka.clock
        self.spout.component_name = "reader"
        self.spout.logger = logging.getLogger("tests.spout")
        self.spout.emit = self._emit  # type: ignore[assignment]
        if isinstance(kafka, FakeKafka):  # as the local engine does; with a real broker tuples leave one by one
            self.spout.engine_services = SpoutEngine(self.emit_many)
        conf = {"topology.name": "shop", "storm.id": topology_id, "run.member": member, "kafka.group": GROUP}
        conf |= {"kafka.topics": [TOPIC], "kafka.bootstrap": kafka.bootstrap, "kafka.fields": ["offset", "value"]}
        conf |= getattr(kafka, "settings", {}) | getattr(kafka, "emits", {})
        conf["kafka.retry_cache_bytes"] = 0  # the reference's way: what failed is read again
        for name, value in settings.items():
            conf[name.replace("__", ".") if "__" in name else f"kafka.{name}"] = value
        self.conf = {key: value for key, value in conf.items() if value is not None}
        index, tasks = task
        names = {str(3 + number): "reader" for number in range(tasks)}
        self.spout.initialize(self.conf, {"taskid": 3 + index, "componentid": "reader", "task->component": names})
        self.spout.activate()
        if isinstance(kafka, BrokerKafka):
            kafka.opened(self)

    def _emit(self, values: Any, tup_id: str | None = None, **_: Any) -> None:
        if isinstance(values, pa.RecordBatch) and self.conf["kafka.chunk_records_max"] == 1:
            values = rows_of(values)[0]
        self.emitted.append((tup_id, values))

    def emit_many(self, rows: Iterable[Sequence[Any]], tup_ids: Iterable[str]) -> None:
        """Emit a tuple of each row, as the local engine does."""
        for row, tup_id in zip(rows, tup_ids, strict=True):
            self.spout.emit(list(row), tup_id=tup_id)

    def run(self, turns: int = 8) -> list[int]:
        """Call ``next_tuple`` so often; return the offsets emitted meanwhile, of tuples with an id."""
        before = len(self.emitted)
        if isinstance(self.kafka, BrokerKafka):
            self.kafka.drive(self, turns)
        else:
            for _ in range(turns):
                self.spout.next_tuple()
        return [offset_of(tup_id) for tup_id, _ in self.emitted[before:] if tup_id is not None]

    def ask_to_join(self) -> None:
        """Ask to join a group that has members; return when they know of it, and have let go of nothing yet."""
        self.spout.next_tuple()
        if isinstance(self.kafka, BrokerKafka):
            self.kafka.announce(self)

    @property
    def session(self) -> GroupSession:
        assert self.spout.session is not None
        return self.spout.session

    @property
    def offsets(self) -> list[int]:
        return [offset_of(tup_id) for tup_id, _ in self.emitted]

    def last_id(self, offset: int, partition: int = 0) -> str:
        """Return the message id under which an offset was last emitted."""
        place = partition, offset
        return next(tup_id for tup_id, _ in reversed(self.emitted) if place_of(tup_id) == place)

    def ack(self, offsets: Iterable[int], partition: int = 0) -> None:
        self._ack([self.last_id(offset, partition) for offset in offsets])

    def fail(self, offsets: Iterable[int], partition: int = 0) -> None:
        for offset in offsets:
            self.spout.fail(self.last_id(offset, partition))

    def ack_all(self) -> None:
        """Ack everything emitted; those that were acked before are double acks."""
        self._ack([tup_id for tup_id, _ in self.emitted])

    def _ack(self, tup_ids: list[Any]) -> None:
        if isinstance(self.kafka, FakeKafka):
            self.spout.ack_many(tup_ids)
        else:
            for tup_id in tup_ids:
                self.spout.ack(tup_id)

    def commit(self) -> None:
        """Let the commit period pass and the spout take a turn."""
        self.kafka.clock.sleep(31)
        if isinstance(self.kafka, BrokerKafka):
            self.kafka.commit(self)
        else:
            self.spout.next_tuple()

    def committed(self, partition: int = 0) -> int | None:
        found = {tp.partition: meta.offset for tp, meta in self.kafka.committed(GROUP).items() if tp.topic == TOPIC}
        return found.get(partition)

    def commit_becomes(self, offset: int) -> bool:
        """Return whether that is the group's commit; on a broker one that is not waited for takes a moment."""
        if isinstance(self.kafka, BrokerKafka):
            wait_until(lambda: self.committed() == offset)
        return self.committed() == offset

    def kill(self) -> None:
        """Vanish as with ``kill -9``: neither a commit nor a farewell, and its place in the group stays taken."""
        member, self.spout._session = self.spout._session, None
        if member is not None:
            member.consumer.close(leave_group=False)

    def crash(self) -> None:
        if isinstance(self.kafka, BrokerKafka):
            self.kill()
        else:
            self.session.consumer.crash()

    def die(self) -> None:
        """Die without a word, and be given up by the group."""
        self.crash()
        self.kafka.expire_members(GROUP)
        self.kafka.clock.sleep(60)

    def figure(self, name: str) -> float:
        return self.spout.report()[name]


def offset_of(tup_id: str) -> int:
    parsed = split_id(tup_id)
    assert parsed is not None
    return parsed[1]


def place_of(tup_id: str) -> tuple[int, int]:
    """Return partition and offset in a message id; of a chunk, its first offset."""
    return int(tup_id.split("/")[-2]), offset_of(tup_id)


def rows_of(chunk: pa.RecordBatch) -> list[list[Any]]:
    """Return what the tuples of a chunk's records would hold."""
    rows = [list(row.values()) for row in chunk.to_pylist()]
    for at in [at for at, name in enumerate(chunk.schema.names) if name == "origin"]:
        for row in rows:
            row[at] = Origin(**row[at])
    return rows


def end(kafka: EitherKafka, partition: int = 0, topic: str = TOPIC) -> int:
    where = TopicPartition(topic, partition)
    return kafka.end(where) if isinstance(kafka, BrokerKafka) else kafka.log(where).end


def fill(kafka: EitherKafka, count: int, partition: int = 0, topic: str = TOPIC) -> None:
    if isinstance(kafka, BrokerKafka):
        kafka.fill(count, partition, topic)
        return
    for number in range(count):
        kafka.produce(topic, str(number).encode(), partition=partition)
