"""A ``send`` that costs too much for a record with many headers.

Wrong: the producer's ``send`` takes 40 µs for a record with a dozen headers, which is what a dead letter is, and
    its thread as much again: it checks and measures each header three times, and keeps a future with a lock and two
    callbacks per record. Nothing public takes a record, or a batch, whose bytes are made.
Patch: batches are filled by us, and put where the client's own are: connections, metadata, sequence numbers,
    compression, retries and expiry stay the client's.
Self-test: the producer's queues and counts, its book of topics, and what a batch is made of.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: ``send`` takes encoded headers, or a batch at a time.
"""

from __future__ import annotations

from typing import Any

from kafka import errors
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import TopicPartition

from downspout.kafka.partitioners import Partitions
from downspout.kafka.patches.endless_transactions import add_partition, is_transactional

PRODUCER = {
    "producer._accumulator.config": "dict",
    "producer._accumulator._appends_in_progress.increment": "method",
    "producer._accumulator._tp_lock": "method",
    "producer._accumulator._closed": "bool",
    "producer._accumulator._batches": "defaultdict",
    "producer._accumulator._incomplete.add": "method",
    "producer._metadata._partitions": "dict",
    "producer._metadata.available_partitions_for_topic": "method",
    "producer._metadata.request_update": "method",
    "producer._metadata.unauthorized_topics": "set",
    "producer._metadata._last_successful_refresh_ms": "float",
    "producer._wait_on_metadata": "method",
    "producer._sender.add_topic": "method",
    "producer._sender.wakeup": "method",
    "producer.config": "dict",
    "batch.records._next_offset": "int",
    "batch.records._builder._buffer": "bytearray",
    "batch.records._builder._first_timestamp": "NoneType",
    "batch.records._builder._max_timestamp": "NoneType",
    "batch.records._builder._num_records": "int",
    "batch.records._builder._last_offset": "int",
}

FORMAT = 2  # Of the records, which brokers take since 0.11


class BatchQueue:
    """Where batches enter a producer, and what it knows of topics."""

    __slots__ = (
        "_accumulator", "_is_transactional", "_known", "_known_of", "_metadata", "_producer", "_sender",
        "wait_on_metadata", "wakeup",
    )  # fmt: skip

    def __init__(self, producer: Any) -> None:
        self._producer, self._is_transactional = producer, is_transactional(producer)
        self._accumulator = producer._accumulator
        self._metadata, self._sender = producer._metadata, producer._sender
        self._known: dict[str, Partitions] = {}
        self._known_of: Any = None
        """The client's book, from which these were taken: it makes a new one whenever it has asked."""
        # has the client learn a topic's partitions, and waits for them
        self.wait_on_metadata: Any = producer._wait_on_metadata
        self.wakeup: Any = producer._sender.wakeup  # has what was put in looked at

    def partitions(self, topic: str) -> Partitions | None:
        """Return a topic's partitions as the client knows them; None where it knows none."""
        if self._known_of is not self._metadata._partitions:
            self._known_of, self._known = self._metadata._partitions, {}
        known = self._known.get(topic)
        if known is None and (found := self._known_of.get(topic)):
            available = sorted(self._metadata.available_partitions_for_topic(topic) or ())
            known = self._known[topic] = Partitions(len(found), available)
        return known

    def ask_for(self, topic: str) -> None:
        """Have the client learn a topic's partitions, and do not wait.

        Raises:
            ValueError: no topic can have this name.
        """
        self._sender.add_topic(topic)
        self._metadata.request_update()
        self.wakeup()

    def is_denied(self, topic: str) -> bool:
        """Return whether the brokers have said that this client may not see a topic."""
        return topic in self._metadata.unauthorized_topics

    def was_answered(self, since: float) -> bool:
        """Return whether a broker has said which topics there are since that moment of the monotonic clock."""
        return bool(self._metadata._last_successful_refresh_ms >= since * 1000)

    def batch(self, tp: TopicPartition, records: list[bytes], first_ms: int, last_ms: int, size_max: int) -> Any:
        """Return a batch of the client's that holds these records, and is in no queue yet."""
        made = MemoryRecordsBuilder(FORMAT, self._accumulator.config["compression_attrs"], size_max)
        made._next_offset = count = len(records)
        builder = made._builder
        builder._buffer += b"".join(records)
        builder._first_timestamp, builder._max_timestamp = first_ms, last_ms
        builder._num_records, builder._last_offset = count, count - 1
        return ProducerBatch(tp, made)

    def put(self, tp: TopicPartition, batch: Any) -> None:
        """Do what ``RecordAccumulator.append`` does for a new batch, with all of its records at once.

        Raises:
            KafkaError: of a transactional one: no transaction is open, or the producer has failed.
        """
        accumulator = self._accumulator
        if self._is_transactional:
            add_partition(self._producer, tp)
        accumulator._appends_in_progress.increment()  # a close that is forced waits for us, and drops this batch too
        try:
            with accumulator._tp_lock(tp):
                if accumulator._closed:
                    raise errors.IllegalStateError("the producer is closed")
                accumulator._batches[tp].append(batch)
                accumulator._incomplete.add(batch)
        finally:
            accumulator._appends_in_progress.decrement()


def empty_batch() -> Any:
    """Return a batch of the client's without records."""
    return ProducerBatch(TopicPartition("", 0), MemoryRecordsBuilder(FORMAT, 0, 0))


def format_of(producer: Any) -> int:
    """Return the format of records that a producer has agreed on with its brokers."""
    found: int = producer._accumulator.config["message_version"]
    return found
