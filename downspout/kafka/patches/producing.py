"""A producer's batches and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from kafka import errors
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from kafka.structs import TopicPartition

from downspout.kafka.partitioners import Partitions
from downspout.kafka.patches.private_api import FORMAT
from downspout.kafka.patches.transactional import add_partition, is_transactional

# --- ``send`` is slow for a record with many headers ---


class BatchQueue:
    """Puts batches into a producer's queue, and reads its metadata.

    The client still handles connections, metadata, sequence numbers, compression, retries and expiry.

    Wrong: for a record with a dozen headers, such as a dead letter, ``send`` takes 40 µs, and the producer's thread as
        much again: it checks and measures each header three times, and keeps a future with a lock and two callbacks per
        record. Nothing public accepts an encoded record or batch.
    Goes when: ``send`` takes encoded headers, or a batch at a time.
    """

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
        """The client's dict that ``_known`` was read from; each metadata response makes a new one."""
        self.wait_on_metadata: Any = producer._wait_on_metadata  # requests a topic's metadata, and waits
        self.wakeup: Any = producer._sender.wakeup  # makes the client's thread check the queue

    def partitions(self, topic: str) -> Partitions | None:
        """Return a topic's partitions; None: unknown to the client."""
        if self._known_of is not self._metadata._partitions:
            self._known_of, self._known = self._metadata._partitions, {}
        known = self._known.get(topic)
        if known is None and (found := self._known_of.get(topic)):
            available = sorted(self._metadata.available_partitions_for_topic(topic) or ())
            known = self._known[topic] = Partitions(len(found), available)
        return known

    def ask_for(self, topic: str) -> None:
        """Request a topic's metadata without waiting.

        Raises:
            ValueError: an invalid topic name.
        """
        self._sender.add_topic(topic)
        self._metadata.request_update()
        self.wakeup()

    def is_denied(self, topic: str) -> bool:
        """Return whether the brokers deny access to a topic."""
        return topic in self._metadata.unauthorized_topics

    def was_answered(self, since: float) -> bool:
        """Return whether metadata have arrived since that time of the monotonic clock."""
        return bool(self._metadata._last_successful_refresh_ms >= since * 1000)

    def batch(self, tp: TopicPartition, records: list[bytes], first_ms: int, last_ms: int, size_max: int) -> Any:
        """Return a batch of the client's class with these records."""
        made = MemoryRecordsBuilder(FORMAT, self._accumulator.config["compression_attrs"], size_max)
        made._next_offset = count = len(records)
        builder = made._builder
        builder._buffer += b"".join(records)
        builder._first_timestamp, builder._max_timestamp = first_ms, last_ms
        builder._num_records, builder._last_offset = count, count - 1
        return ProducerBatch(tp, made)

    def put(self, tp: TopicPartition, batch: Any) -> None:
        """Queue a batch, like ``RecordAccumulator.append`` with all of its records at once.

        Raises:
            KafkaError: a transactional producer has no open transaction, or has failed.
        """
        accumulator = self._accumulator
        if self._is_transactional:
            add_partition(self._producer, tp)
        accumulator._appends_in_progress.increment()  # a forced close waits for us, and drops this batch too
        try:
            with accumulator._tp_lock(tp):
                if accumulator._closed:
                    raise errors.IllegalStateError("the producer is closed")
                accumulator._batches[tp].append(batch)
                accumulator._incomplete.add(batch)
        finally:
            accumulator._appends_in_progress.decrement()


# --- A flush waits for split batches until it times out ---


class HearsSplits(Protocol):
    """Follows the records of a batch that is split."""

    def moved(self, place: int, future: Any) -> None:
        """Called when the record at ``place`` of the original batch moves to the batch with this future."""


class _Handle(NamedTuple):
    """Stands in for the client's future of one record."""

    answer: HearsSplits
    place: int

    def rebind(self, future: Any, index: int) -> None:
        """Called by the client when the record moves to another batch."""
        self.answer.moved(self.place, future)


class Handles(Sequence[_Handle]):
    """One handle per record, made only if the client splits the batch."""

    def __init__(self, answer: HearsSplits, count: int) -> None:
        self._answer, self._count = answer, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return _Handle(self._answer, place)


def report_splits(batch: Any, answer: HearsSplits, count: int) -> None:
    """Call ``answer.moved`` for each record of a batch that is split.

    Wrong: the client splits a batch that exceeds a topic's limit into batches half as large, and never answers the old
        one. The client's ``flush`` waits for it until it times out; ours waits for records, within ``flushing``.
    Goes when: ``flush`` waits for the parts of a split batch, and ``send`` accepts batches.
    """
    batch._record_futures = Handles(answer, count)


def call_back(future: Any, answered: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
    """Add callbacks for a batch's answer and error."""
    future._add_cb_eb(answered, failed)


def records_of(batch: Any) -> list[Any]:
    """Return the records of a sent batch, with timestamp, key, value and headers."""
    return [record for part in MemoryRecords(batch.records.buffer()) for record in part]


def retries_of(batch: Any) -> int:
    """Return how often a whole batch was sent again."""
    found: int = batch.attempts
    return found


BYSTANDER = "it was part of a batch which had one more"


def is_bystander(error: BaseException) -> bool:
    """Return whether a record was refused only because of others in its batch, by the client's message."""
    return type(error) is errors.KafkaError and BYSTANDER in str(error)


@contextmanager
def flushing(producer: Any) -> Iterator[None]:
    """Make the client send without lingering inside the block."""
    accumulator = producer._accumulator
    accumulator.begin_flush()
    try:
        producer._sender.wakeup()
        yield
    finally:
        accumulator._flushes_in_progress.decrement()


# --- Records expire without a reason ---

NO_REPLICAS = (errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError)


def keep_reasons(producer: Any) -> None:
    """Make the last error the cause (``__cause__``) of the one with which a batch expires.

    After an error about replicas, the client's metadata are refreshed, and the next such error names the in-sync ones.

    Wrong: a batch that is retried until it expires fails with "Expiring 1 record(s) …", without the brokers' errors,
        such as too few in-sync replicas, or a broker that does not lead the partition.
    Goes when: the error of an expired batch includes the last one.
    """
    metadata, dispatch = producer._metadata, producer._sender._dispatch_error

    def replicas(tp: TopicPartition) -> str:
        found = metadata._partitions.get(tp.topic, {}).get(tp.partition)
        if found is None:
            return ""
        isr, rest = (sorted(nodes) for nodes in (found.isr_nodes, set(found.replica_nodes) - set(found.isr_nodes)))
        return f"in sync: {_brokers(isr)}; not in sync: {_brokers(rest)}"

    def decide(batch: Any, error: Any, partition_response: Any = None) -> None:
        before = getattr(batch, "last_error", None)
        if type(error) is errors.KafkaTimeoutError:
            error.__cause__ = before
        elif isinstance(error, NO_REPLICAS):
            if isinstance(before, NO_REPLICAS):  # the metadata were refreshed after the first of these errors
                error = type(error)(replicas(batch.topic_partition))
            metadata.request_update()
        batch.last_error = error
        dispatch(batch, error, partition_response)

    producer._sender._dispatch_error = decide


def _brokers(numbers: list[int]) -> str:
    noun = "broker" if len(numbers) == 1 else "brokers"
    return f"{noun} {', '.join(map(str, numbers))}" if numbers else "none"


# --- A close leaves its thread running forever ---

JOIN_S = 1.0


def abandon(producer: Any) -> None:
    """Release a producer at once, and drop its unsent records.

    Wrong: ``close`` begins with a flush; if that times out, the producer's thread stays and keeps retrying.
    Goes when: ``close`` ends the thread also after a timeout of its flush.
    """
    producer._sender.force_close()
    producer._sender.join(JOIN_S)
    try:
        producer.close(timeout=0)
    except errors.KafkaTimeoutError:
        producer._closed = True
