"""Batches of a producer, and what an answer says about them."""

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

# --- A send that costs too much for a record with many headers ---


class BatchQueue:
    """Where batches enter a producer, and what it knows of topics.

    We fill batches and put them where the client's own are. Connections, metadata, sequence numbers, compression,
    retries and expiry stay the client's.

    Wrong: ``send`` takes 40 µs for a record with a dozen headers, as a dead letter has, and the producer's thread as
        much
        again: it checks and measures each header three times, and keeps a future with a lock and two callbacks per
        record. Nothing public takes a record, or a batch, whose bytes are made.
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
        """The client's partitions that these were taken from: it makes a new dict with each metadata answer."""
        self.wait_on_metadata: Any = (
            producer._wait_on_metadata
        )  # makes the client learn a topic's partitions, and waits
        self.wakeup: Any = producer._sender.wakeup  # makes the client's thread handle what was put in

    def partitions(self, topic: str) -> Partitions | None:
        """Return a topic's partitions as the client knows them; None if it knows none."""
        if self._known_of is not self._metadata._partitions:
            self._known_of, self._known = self._metadata._partitions, {}
        known = self._known.get(topic)
        if known is None and (found := self._known_of.get(topic)):
            available = sorted(self._metadata.available_partitions_for_topic(topic) or ())
            known = self._known[topic] = Partitions(len(found), available)
        return known

    def ask_for(self, topic: str) -> None:
        """Make the client learn a topic's partitions, without waiting.

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
        """Return whether a broker has listed topics since that moment of the monotonic clock."""
        return bool(self._metadata._last_successful_refresh_ms >= since * 1000)

    def batch(self, tp: TopicPartition, records: list[bytes], first_ms: int, last_ms: int, size_max: int) -> Any:
        """Return the client's kind of batch with these records, which is in no queue yet."""
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
            KafkaError: for a transactional producer: no transaction is open, or the producer has failed.
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


# --- Batches that are split, and a flush that waits for them without end ---


class HearsSplits(Protocol):
    """Hears where records of a batch go."""

    def moved(self, place: int, future: Any) -> None:
        """A record, by its place in the batch as it was made, is in the batch with this future now."""


class _Handle(NamedTuple):
    """What the client takes for the future of one record."""

    answer: HearsSplits
    place: int

    def rebind(self, future: Any, index: int) -> None:
        """Called by the client: the record is in that batch now."""
        self.answer.moved(self.place, future)


class Handles(Sequence[_Handle]):
    """One handle per record, made only when the client splits the batch, which is rare."""

    def __init__(self, answer: HearsSplits, count: int) -> None:
        self._answer, self._count = answer, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return _Handle(self._answer, place)


def report_splits(batch: Any, answer: HearsSplits, count: int) -> None:
    """Have ``answer.moved`` called for each record of a batch that is split.

    Wrong: the client splits a batch that a topic finds too large. Each record gets another batch, half as large, and
        the old one has no answer any more. The client's ``flush`` waits for batches, so for one that is split meanwhile
        it waits until its time is over; ours waits between ``flushing``'s begin and end.
    Goes when: ``flush`` waits for the parts of a split batch, and batches enter by ``send``.
    """
    batch._record_futures = Handles(answer, count)


def call_back(future: Any, answered: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
    """Have the answer to a batch, or its error, handed on."""
    future._add_cb_eb(answered, failed)


def records_of(batch: Any) -> list[Any]:
    """Return the records of a batch that was sent, with timestamp, key, value and headers."""
    return [record for part in MemoryRecords(batch.records.buffer()) for record in part]


def retries_of(batch: Any) -> int:
    """Return how often a batch was sent again as it is."""
    found: int = batch.attempts
    return found


BYSTANDER = "it was part of a batch which had one more"


def is_bystander(error: BaseException) -> bool:
    """Return whether a record was refused only because of others in its batch, as the client words it."""
    return type(error) is errors.KafkaError and BYSTANDER in str(error)


@contextmanager
def flushing(producer: Any) -> Iterator[None]:
    """Let nothing linger while this lasts."""
    accumulator = producer._accumulator
    accumulator.begin_flush()
    try:
        producer._sender.wakeup()
        yield
    finally:
        accumulator._flushes_in_progress.decrement()


# --- Records that are given up without a reason ---

NO_REPLICAS = (errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError)


def keep_reasons(producer: Any) -> None:
    """Make the last answer the cause (``__cause__``) of the error with which a batch expires.

    If it is about replicas, the client's metadata are refreshed, and the next such error names the replicas in sync.

    Wrong: a batch that is retried until its time is over fails with "Expiring 1 record(s) …", whatever the brokers have
        answered meanwhile: that too few replicas are in sync, or that they do not lead the partition.
    Goes when: the error of an expired batch tells the last answer.
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


# --- A close that leaves its thread alive for ever ---

JOIN_S = 1.0


def abandon(producer: Any) -> None:
    """Release a producer at once, and drop what it has not sent.

    Wrong: ``close`` begins with a flush, and one that times out ends the close there: the producer's thread stays, and
        keeps trying.
    Goes when: ``close`` ends the thread also when its flush has timed out.
    """
    producer._sender.force_close()
    producer._sender.join(JOIN_S)
    try:
        producer.close(timeout=0)
    except errors.KafkaTimeoutError:
        producer._closed = True
