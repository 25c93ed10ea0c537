"""Batches of records, made here and sent by kafka-python's producer.

Its own ``send`` takes 40 µs for a record with a dozen headers, which is what a dead letter is, and its thread as much
again: it checks and measures each header three times, and keeps a future with a lock and two callbacks per record.
Here a record's bytes are joined at once (message format 2), and there is one answer per batch. All else stays the
client's: connections, metadata, sequence numbers, compression, retries, expiry, and the splitting of batches that a
topic finds too large.

Those parts are private. :func:`_self_test` looks at each when a producer is made: another version fails at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import kafka
from kafka import errors
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import TopicPartition

from downspout.errors import BrokerError

__all__ = ["Answer", "Batches", "encode_record"]

FORMAT = 2
OVERHEAD_BYTES = 61
"""What a batch holds besides its records."""
KEPT_MAX = 4_096
"""Numbers and header names whose bytes are kept."""
_NULL = b"\x01"
"""A length of -1."""

Headers = Sequence[tuple[str, bytes | None]]


def _varint(number: int) -> bytes:
    """Return a number's bytes: zigzag, seven bits to a byte, the lowest first."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(0x80 | (left & 0x7F))
        left >>= 7
    out.append(left)
    return bytes(out)


class _Varints(dict[int, bytes]):
    """The bytes of numbers; the smaller ones, as lengths are, are kept."""

    def __missing__(self, number: int) -> bytes:
        made = _varint(number)
        if 0 <= number < KEPT_MAX:
            self[number] = made
        return made


class _Names(dict[str, bytes]):
    """The bytes of header names, with their length; so many are kept."""

    def __missing__(self, name: str) -> bytes:
        text = name.encode("utf-8")
        made = _varint(len(text)) + text
        if len(self) < KEPT_MAX:
            self[name] = made
        return made


_varints, _names = _Varints(), _Names()


def encode_record(index: int, later_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Return a record's bytes within a batch.

    Args:
        index: its place in the batch.
        later_ms: its time, from that of the first record.
        key: may be null, like the value.
        value: see there.
        headers: in order; a value may be null, which other clients write.

    >>> encode_record(0, 0, None, b"x", [("trace", b"7")]).hex(" ")
    '1e 00 00 00 01 02 78 02 0a 74 72 61 63 65 02 37'
    """
    varints, names = _varints, _names
    parts = [b"\x00", varints[later_ms], varints[index]]
    parts += (_NULL,) if key is None else (varints[len(key)], key)
    parts += (_NULL,) if value is None else (varints[len(value)], value)
    parts.append(varints[len(headers)])
    for name, data in headers:
        parts += (names[name], _NULL) if data is None else (names[name], varints[len(data)], data)
    body = b"".join(parts)
    return varints[len(body)] + body


class Answer:
    """What the broker says of one batch, however often the client splits it.

    A split gives each record another batch, half as large, and the old batch has no answer any more. So records are
    counted: all are answered when the batches that were answered held as many. It is written by the client's thread
    alone, the error before it is done, and read by others.
    """

    def __init__(self, future: Any, count: int) -> None:
        self.since = time.monotonic()
        self.exception: BaseException | None = None
        self._left = count
        self._counts: dict[Any, int] = {}
        self._done = threading.Event()
        self._expect(future, count)

    @property
    def is_done(self) -> bool:
        """Whether all records have their answer; ``exception`` is an error of one of them."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done, for at most so long; return whether it is."""
        return self._done.wait(timeout_s)

    def rebind(self, future: Any, index: int) -> None:
        """Called by the client for each record of a batch that it splits: the record is in that batch now."""
        if future in self._counts:
            self._counts[future] += 1
        else:
            self._expect(future, 1)

    def _expect(self, future: Any, count: int) -> None:
        self._counts[future] = count
        future._add_cb_eb(partial(self._answered, future), partial(self._failed, future))

    def _answered(self, future: Any, result: tuple[int, int, Callable[[int], BaseException] | None]) -> None:
        error_of = result[2]
        if error_of is not None:
            self.exception = self.exception or error_of(0)
        self._count(future)

    def _failed(self, future: Any, error: BaseException) -> None:
        self.exception = self.exception or error
        self._count(future)

    def _count(self, future: Any) -> None:
        self._left -= self._counts.pop(future)
        if self._left <= 0:
            self._done.set()


class _Open:
    """A batch that is being filled, for one partition."""

    __slots__ = ("end_ms", "parts", "size", "start_ms")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = self.end_ms = start_ms
        self.parts: list[bytes] = []
        self.size = OVERHEAD_BYTES


class Batches:
    """Fills batches, one for each partition, and hands them to a producer of kafka-python.

    Args:
        producer: a ``kafka.KafkaProducer``, whose ``send`` nobody calls.

    Raises:
        BrokerError: it is not one that we know, or its brokers are older than this format of records (0.11).
    """

    def __init__(self, producer: Any) -> None:
        _self_test(producer)
        self._producer = producer
        self._accumulator = producer._accumulator
        self._metadata = producer._metadata
        # kafka-python does not hand this property on to the part that makes us wait for a topic that is new to it.
        self._metadata.config["retry_backoff_ms"] = producer.config["retry_backoff_ms"]
        self._size_max: int = producer.config["batch_size"]
        self._record_max: int = producer.config["max_request_size"]
        self._open: dict[TopicPartition, _Open] = {}
        self._chosen: dict[str, int] = {}
        """Where records without key and partition go until the next hand-over."""
        self.answers: deque[Answer] = deque()
        """Of the batches that were handed over, in that order; who has read one takes it out."""

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Take a record; a full batch is handed over.

        Raises:
            KafkaError: the record is too large for a request, or the topic is not known in time.
            ValueError: there is no such partition.
        """
        tp = TopicPartition(topic, self._partition(topic, key, value, partition))
        at = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        batch = self._open.get(tp) or _Open(at)
        made = encode_record(len(batch.parts), at - batch.start_ms, key, value, headers)
        if len(made) + OVERHEAD_BYTES > self._record_max:
            raise errors.MessageSizeTooLargeError(
                f"a record of {len(made):,} bytes, and a request holds {self._record_max:,}"
            )
        if batch.parts and batch.size + len(made) > self._size_max:
            self._hand_over(tp)
            batch, made = _Open(at), encode_record(0, 0, key, value, headers)
        self._open[tp] = batch
        batch.parts.append(made)
        batch.size += len(made)
        batch.end_ms = max(batch.end_ms, at)

    def _partition(self, topic: str, key: bytes | None, value: bytes | None, partition: int | None) -> int:
        if partition is None and key is None and (chosen := self._chosen.get(topic)) is not None:
            return chosen
        producer = self._producer
        if self._metadata.partitions_for_topic(topic) is None:
            producer._wait_on_metadata(topic, producer.config["max_block_ms"])
        found: int = producer._partition(topic, partition, key, value, key, value)
        if partition is None and key is None:
            self._chosen[topic] = found
        return found

    def hand_over(self) -> None:
        """Let all that was taken be sent."""
        for tp in list(self._open):
            self._hand_over(tp)
        self._chosen.clear()

    def waited_s(self) -> float:
        """Return for how long the oldest batch has had no answer, in seconds."""
        return time.monotonic() - self.answers[0].since if self.answers else 0.0

    def flush(self, timeout_s: float) -> bool:
        """Hand over, and wait for all answers, at most so long; return whether they are there.

        The client's own flush waits for batches; the answer of one that is split meanwhile never comes.
        """
        self.hand_over()
        if not self.answers:
            return True
        deadline = time.monotonic() + timeout_s
        self._accumulator.begin_flush()  # nothing lingers
        try:
            self._producer._sender.wakeup()
            return all(answer.wait(max(deadline - time.monotonic(), 0)) for answer in self.answers)
        finally:
            self._accumulator._flushes_in_progress.decrement()

    def _hand_over(self, tp: TopicPartition) -> None:
        """Do what ``RecordAccumulator.append`` does for a new batch, with all of its records at once."""
        filled, accumulator = self._open.pop(tp), self._accumulator
        self._chosen.pop(tp.topic, None)
        count = len(filled.parts)
        records = MemoryRecordsBuilder(FORMAT, accumulator.config["compression_attrs"], self._size_max)
        records._next_offset = count
        builder = records._builder
        builder._buffer += b"".join(filled.parts)
        builder._first_timestamp, builder._max_timestamp = filled.start_ms, filled.end_ms
        builder._num_records, builder._last_offset = count, count - 1
        batch = ProducerBatch(tp, records)
        answer = Answer(batch.produce_future, count)
        batch._record_futures = [answer] * count  # who is told of a split
        accumulator._appends_in_progress.increment()  # a close that is forced waits for us, and drops this batch too
        try:
            with accumulator._tp_lock(tp):
                if accumulator._closed:
                    raise errors.IllegalStateError("the producer is closed")
                accumulator._batches[tp].append(batch)
                accumulator._incomplete.add(batch)
        finally:
            accumulator._appends_in_progress.decrement()
        self.answers.append(answer)
        self._producer._sender.wakeup()


def _self_test(producer: Any) -> None:
    """Raise a BrokerError if the installed kafka-python lacks one of the private parts that we use."""
    batch = ProducerBatch(TopicPartition("", 0), MemoryRecordsBuilder(FORMAT, 0, OVERHEAD_BYTES))
    probe = {"producer": producer, "batch": batch}
    parts = {
        "producer._accumulator.config": "dict",
        "producer._accumulator._appends_in_progress.increment": "method",
        "producer._accumulator._flushes_in_progress.decrement": "method",
        "producer._accumulator.begin_flush": "method",
        "producer._accumulator._tp_lock": "method",
        "producer._accumulator._closed": "bool",
        "producer._accumulator._batches": "defaultdict",
        "producer._accumulator._incomplete.add": "method",
        "producer._metadata.config": "dict",
        "producer._metadata.partitions_for_topic": "method",
        "producer._partition": "method",
        "producer._wait_on_metadata": "method",
        "producer._sender.wakeup": "method",
        "batch._record_futures": "list",
        "batch.produce_future._add_cb_eb": "method",
        "batch.records._next_offset": "int",
        "batch.records._builder._buffer": "bytearray",
        "batch.records._builder._first_timestamp": "NoneType",
        "batch.records._builder._max_timestamp": "NoneType",
        "batch.records._builder._num_records": "int",
        "batch.records._builder._last_offset": "int",
    }
    for path, kind in parts.items():
        first, *names = path.split(".")
        found: Any = probe[first]
        for name in names:
            found = getattr(found, name, None)
        if type(found).__name__ != kind:
            producer.close(timeout=0)
            raise BrokerError(
                f"kafka-python {kafka.__version__} has no {path}, which downspout needs",
                cure='`pip install "kafka-python>=3.0.9,<3.1"`',
            )
    if (found := producer._accumulator.config["message_version"]) != FORMAT:
        producer.close(timeout=0)
        raise BrokerError(f"the brokers take records of format {found} only", cure="brokers of Kafka 0.11 or newer")
