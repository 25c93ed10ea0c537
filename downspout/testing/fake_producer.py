"""The producer of the fake Kafka: batches, their answers, and what a broker refuses.

What was sent is in the log in ``acks_after_s`` seconds, or once :meth:`FakeProducer.flush` returns, in order. Faults
(``FakeKafka.faults``):

===========  ===================================================================================================
operation    what fails
===========  ===================================================================================================
``send``     a ``send``, at once
``flush``    a ``flush``, or a look whether all is acknowledged; with ``applied`` the records are in the log
``produce``  the answer for a batch; with ``applied`` its records are in the log and only the answer was lost
===========  ===================================================================================================

A partition of :attr:`FakeKafka.leaderless` gives no answer, until the time for delivery is over.

Single records are refused by :attr:`FakeKafka.refuses`, and as a broker does: too large for the topic, without a key
in a compacted topic, later than ``message.timestamp.after.max.ms`` allows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import errors
from kafka.structs import TopicPartition
from kafka.util import ensure_valid_topic_name

from downspout.kafka.client_values import producer_properties
from downspout.kafka.partitioners import Partitions, StuckPartitions, check_partition, make_partitioner
from downspout.kafka.port import Sent
from downspout.kafka.producer_batches import check_time

if TYPE_CHECKING:
    from downspout.kafka.partitioners import Choose
    from downspout.testing.fake_kafka import FakeKafka
    from downspout.testing.fake_log import Header, Topic

TOPIC_WAIT_MS = 10_000
DELIVERY_MS = 120_000
OVERHEAD_BYTES = 61
HOUR_MS = 3_600_000
INTERNAL = ("__consumer_offsets", "__transaction_state")


class SentRecord(NamedTuple):
    """A record on its way."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int | None
    token: Any
    at: float

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class FakeProducer:
    """A producer of a :class:`FakeKafka`; a :class:`~downspout.kafka.port.ProducerPort`."""

    def __init__(self, cluster: FakeKafka, client: Mapping[str, Any], partitioner: str | Choose = "sticky") -> None:
        properties = producer_properties(client)
        self._cluster = cluster
        self._tells = properties["acks"] != 0
        self._linger_s = properties["linger_ms"] / 1000 if "linger_ms" in client else 0.0
        self._wait_s = float(properties.get("max_block_ms", TOPIC_WAIT_MS)) / 1000
        self._partitioner = make_partitioner(partitioner, random.Random(0))
        self._queue: list[SentRecord] = []
        self._results: list[Sent] = []
        self._error: BaseException | None = None
        self._closed = False
        self._stuck = StuckPartitions()
        self._delivery_s = float(properties.get("delivery_timeout_ms", DELIVERY_MS)) / 1000
        self.retried = 0  # always: a record is in the log, or refused, at its first try

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        token: Any = None,
    ) -> None:
        """Queue one record."""
        self._cluster.faults.raise_next("send")
        if token is None:
            self._raise()
        now = self._cluster.clock.monotonic()
        given: Any = tuple(headers)
        record = SentRecord(topic, -1 if partition is None else partition, key, value, given, timestamp_ms, token, now)
        try:
            ensure_valid_topic_name(topic)
            if timestamp_ms is not None:
                check_time(timestamp_ms)
            record = self._placed(record, chosen=partition is not None)
            if not self._stuck.takes(topic, record.partition):
                raise self._stuck.refusal(topic, record.partition)
            self._queue.append(record)
        except (ValueError, errors.KafkaTimeoutError) as error:
            if token is None:
                raise
            number = partition if isinstance(partition, int) else -1
            self._results.append(Sent([token], topic, number, -1, error, now))

    def _placed(self, record: SentRecord, chosen: bool) -> SentRecord:
        """Return a record with its partition, if its topic is known."""
        count = len(self._cluster.partitions(record.topic))
        if not count:
            return record
        if chosen:
            return record._replace(partition=check_partition(record.partition, record.topic, count))
        free = self._stuck.without(record.topic, Partitions(count, range(count)))
        where = self._partitioner.choose(record.topic, record.key, record.value, free)
        return record._replace(partition=where)

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- answers ----------------------------------------------------------------------------------------

    def results(self) -> list[Sent]:
        """Return what became of records with tokens since the last call."""
        now = self._cluster.clock.monotonic()
        if self._closed:
            self._fail_all(errors.IllegalStateError("the producer is closed"))
        elif self._cluster.is_up:
            self._give_up(now)
            due = [r for r in self._queue if now >= r.at + self._linger_s + self._cluster.acks_after_s]
            self._append([record for record in due if not self._is_silent(record)])
            self._stuck.update((((r.topic, r.partition), r.at) for r in self._queue), now)
        found, self._results = self._results, []
        return found

    def refuse_when_stuck(self, seconds: float) -> None:
        """Refuse records for a partition that has had no answer for so long while others have."""
        self._stuck.after_s = seconds

    def _is_silent(self, record: SentRecord) -> bool:
        return TopicPartition(record.topic, record.partition) in self._cluster.leaderless

    def _give_up(self, now: float) -> None:
        """Let what a leader has not answered for too long fail."""
        late = [r for r in self._queue if self._is_silent(r) and now >= r.at + self._delivery_s]
        self._queue = [record for record in self._queue if record not in late]
        for record in late:
            error = errors.KafkaTimeoutError(f"no answer within {self._delivery_s:g} s")
            self._note(Sent([record.token], record.topic, record.partition, -1, error, record.at))

    def _fail_all(self, error: BaseException) -> None:
        queue, self._queue = self._queue, []
        for record in queue:
            self._note(Sent([record.token], record.topic, record.partition, -1, error, record.at))

    def _append(self, records: Sequence[SentRecord]) -> None:
        """Append what has waited long enough, one batch for each partition; what has no topic yet waits on."""
        now = self._cluster.clock.monotonic()
        batches: dict[tuple[str, int], list[SentRecord]] = {}
        taken = set()
        for record in records:
            topic = self._cluster.topic(record.topic)
            if record.topic in INTERNAL:
                taken.add(id(record))
                error: BaseException = errors.InvalidTopicError("it is Kafka's own")
                self._note(Sent([record.token], record.topic, 0, -1, error, record.at))
                continue
            if topic is None:
                if now - record.at < self._wait_s and record.token is not None:
                    continue
                taken.add(id(record))
                error = errors.UnknownTopicOrPartitionError(f"there is no topic {record.topic}")
                self._note(Sent([record.token], record.topic, -1, -1, error, record.at))
                continue
            taken.add(id(record))
            try:
                placed = self._placed(record, chosen=record.partition >= 0)
            except ValueError as wrong:
                self._note(Sent([record.token], record.topic, record.partition, -1, wrong, record.at))
                continue
            batches.setdefault((placed.topic, placed.partition), []).append(placed)
        self._queue = [record for record in self._queue if id(record) not in taken]
        for (name, partition), batch in batches.items():
            self._partitioner.batch_full(name, partition)
            self._append_batch(batch)

    def _append_batch(self, batch: Sequence[SentRecord]) -> None:
        first = batch[0]
        topic = self._cluster.topic(first.topic)
        assert topic is not None
        fault = self._cluster.faults.take("produce")
        if fault is not None and not fault.applied:
            self._note(Sent([r.token for r in batch], first.topic, first.partition, -1, fault.error, first.at))
            return
        good = []
        for record in batch:
            if (error := self._refusal(topic, record)) is None:
                good.append(record)
            elif self._tells:
                self._note(Sent([record.token], record.topic, record.partition, -1, error, record.at))
            else:
                self._note(Sent([record.token], record.topic, record.partition, -1, None, record.at))
        if not good:
            return
        offsets = [self._write(record) for record in good]
        tokens = [record.token for record in good]
        if fault is not None:
            self._note(Sent(tokens, first.topic, first.partition, -1, fault.error, first.at))
        else:
            self._note(Sent(tokens, first.topic, first.partition, offsets[0] if self._tells else -1, None, first.at))

    def _write(self, record: SentRecord) -> int:
        """Append a record that a broker takes; return its offset."""
        return self._cluster.produce(
            record.topic, record.value, record.key, partition=record.partition, headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )  # fmt: skip

    def _refusal(self, topic: Topic, record: SentRecord) -> Any:
        """Return why a broker refuses a record; None where it takes it."""
        if self._cluster.refuses is not None and (error := self._cluster.refuses(record)) is not None:
            return error
        if record.size > topic.max_message_bytes:
            return errors.MessageSizeTooLargeError(f"{record.size} bytes for {record.topic}")
        if "compact" in topic.config.get("cleanup.policy", "") and record.key is None:
            return errors.InvalidRecordError("Compacted topic cannot accept message without key")
        after_ms = int(topic.config.get("message.timestamp.after.max.ms", HOUR_MS))
        now_ms = self._cluster.clock.wall() * 1000
        if record.timestamp_ms is not None and record.timestamp_ms - now_ms > after_ms:
            return errors.InvalidTimestampError(f"Timestamp {record.timestamp_ms} is out of range")
        return None

    def _note(self, sent: Sent) -> None:
        if sent.error is None:
            self._stuck.answered((sent.topic, sent.partition), self._cluster.clock.monotonic())
        if sent.error is not None and self._error is None and None in sent.tokens:
            self._error = sent.error
        if any(token is not None for token in sent.tokens):
            self._results.append(sent)

    # --- waiting ----------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """How many bytes wait for an answer."""
        return sum(record.size + OVERHEAD_BYTES for record in self._queue if not self._is_stuck(record))

    def _is_stuck(self, record: SentRecord) -> bool:
        return bool(self._stuck) and (record.topic, record.partition) in self._stuck

    def oldest_s(self) -> float:
        """Return for how long the oldest record has waited for its answer."""
        oldest = next((record.at for record in self._queue if not self._is_stuck(record)), None)
        return 0.0 if oldest is None else self._cluster.clock.monotonic() - oldest

    def flush(self, timeout_s: float = 30.0) -> None:
        """Append what is queued; raise if that fails (what failed is not kept, as with a real producer)."""
        cluster = self._cluster
        if self._queue and self._queue[-1].at + cluster.acks_after_s > cluster.clock.monotonic() + timeout_s:
            if all(record.token is None for record in self._queue):
                self._queue.clear()
            raise errors.KafkaTimeoutError(f"not acknowledged within {timeout_s:g} s")
        untold = [record for record in self._queue if record.token is None]
        try:
            cluster.run_remote("flush", lambda: self._append([r for r in self._queue if not self._is_silent(r)]))
        except errors.KafkaError:
            gone = {id(record) for record in untold}
            self._queue = [record for record in self._queue if id(record) not in gone]
            raise
        if self._queue:  # a topic is not there, or has no leader
            cluster.clock.sleep(timeout_s)
            self._append([record for record in self._queue if not self._is_silent(record)])
        if self._queue:
            raise errors.KafkaTimeoutError(f"not acknowledged within {timeout_s:g} s")
        self._raise()

    def acknowledged(self) -> bool:
        """Return whether all is in the log; what was sent gets there in ``acks_after_s`` seconds without a flush."""
        if self._queue:
            if self._cluster.clock.monotonic() < self._queue[-1].at + self._cluster.acks_after_s:
                return False
            if any(map(self._is_silent, self._queue)):
                self._append([record for record in self._queue if not self._is_silent(record)])
                return False
            self.flush()
        self._raise()
        return True

    def close(self) -> None:
        """Release the client; what is queued fails."""
        self._closed = True
