"""The start of a partition in a batch, and the reading of a batch's records.

A batch starts where the previous one ended, or where ``kafka.start`` says. If a topic is deleted and created again, the
old offsets mean nothing in the new topic, whatever the length of its log. So each range is stored with Kafka's id of
the topic, and a different id is treated as lost data (``kafka.on_data_loss``).

A batch reads the available records up to a limit, or exactly those between two offsets. Polled records that do not fit
are kept for the next batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from downspout.batches.core.protocol import BatchRange
from downspout.clock import Clock
from downspout.errors import DataLossError, coordinates
from downspout.kafka.port import Cluster, ConsumerPort, Record, TopicPartition
from downspout.ledger.epochs import Start, start_at
from downspout.spout.settings import offsets_of
from downspout.spout.starting import another


def ids_of(consumer: ConsumerPort, partitions: Collection[TopicPartition]) -> dict[str, str]:
    """Return Kafka's ids of the partitions' topics, without missing topics; an id is empty if the broker has none.

    Raises:
        KafkaError: the broker does not answer.
    """
    topics = {tp.topic for tp in partitions}
    found = dict(consumer.topic_ids(topics)) if topics else {}
    for topic in topics:
        if not found.get(topic):
            found.pop(topic, None)
            if consumer.partitions_for(topic):
                found[topic] = consumer.topic_id(topic)
    return found


class Decided(NamedTuple):
    """A partition's start, as chosen by the strategy."""

    offset: int
    topic_id: str


class _Moved(NamedTuple):
    """The start of a batch in a partition that has lost records."""

    txid: int
    offset: int  # the start before the loss
    start: int  # the start after it


class Logs(NamedTuple):
    """The begins and ends of some partitions' logs."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def logs_one_by_one(cluster: Cluster, partitions: Collection[TopicPartition], reads_committed: bool) -> Logs:
    """Return the begins and ends of logs, without those that Kafka does not return."""
    begins, ends = {}, {}
    found = cluster.describe_logs({tp.topic for tp in partitions})
    for tp in partitions:
        log = found[tp.topic].partitions.get(tp.partition)
        end = None if log is None else log.stable if reads_committed else log.high_watermark
        if log is not None and log.begin is not None and end is not None:
            begins[tp], ends[tp] = log.begin, end
    return Logs(begins, ends)


def goes_on(strategy: str, before: BatchRange, topology_id: str) -> bool:
    """Return whether a topology resumes at a stored range.

    >>> [goes_on(strategy, BatchRange(5, 9, "wc-1"), "wc-2") for strategy in ("EARLIEST", "UNCOMMITTED_EARLIEST")]
    [False, True]
    """
    return _start(strategy, before, topology_id) is Start.COMMITTED


def _start(strategy: str, before: BatchRange | None, topology_id: str) -> Start:
    ours = before is not None and before.topology_id == topology_id
    return start_at(strategy, committed=before is not None, by_this_topology=ours)


class BatchStarts:
    """Decides where partitions start.

    Args:
        settings: of the scope ``kafka``.
        topology_id: of this submit.
        log: for warnings.
    """

    def __init__(self, settings: Mapping[str, Any], topology_id: str, log: logging.Logger) -> None:
        self._strategy: str = settings["start"]
        self._timestamp_ms: int = settings["start_timestamp_ms"] or 0
        at_start = "latest" if self._strategy.endswith("LATEST") else "earliest"
        self._policy = at_start if settings["on_data_loss"] == "start" else settings["on_data_loss"]
        self._offsets = offsets_of("kafka.start_offsets", settings["start_offsets"])
        self._topology_id, self._log = topology_id, log
        self._decided: dict[TopicPartition, Decided] = {}  # until a batch is committed
        self._moved: dict[TopicPartition, _Moved] = {}  # likewise
        self.lost = 0

    def of(
        self,
        txid: int,
        tp: TopicPartition,
        before: BatchRange | None,
        topic_id: str,
        logs: Logs,
        consumer: ConsumerPort,
    ) -> int:
        """Return the offset at which a partition starts.

        Args:
            txid: the transaction.
            tp: the partition.
            before: its range in the previous batch, if any.
            topic_id: Kafka's current id of its topic.
            logs: the begins and ends of the logs.
            consumer: finds offsets by timestamp.

        Raises:
            DataLossError: records that were in no batch yet are gone, and ``kafka.on_data_loss`` is ``fail``.
        """
        start = _start(self._strategy, before, self._topology_id)
        if start is Start.COMMITTED and before is not None:
            if another(before.topic_id, topic_id):
                return self._created_again(tp, logs)
            return self._in_range(txid, tp, before.next, logs)
        # A retried batch starts where its first attempt did, although the end of the log has moved since.
        known = self._decided.get(tp)
        if known is None:
            known = Decided(self._by_strategy(txid, start, tp, logs, consumer), topic_id)
        elif another(known.topic_id, topic_id):
            known = Decided(self._created_again(tp, logs), topic_id)
        self._decided[tp] = known
        return self._in_range(txid, tp, known.offset, logs)

    def goes_on(self, before: BatchRange) -> bool:
        """Return whether reading resumes at a stored range: of this topology, or of any if the strategy allows it."""
        return goes_on(self._strategy, before, self._topology_id)

    def committed(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the decisions about these partitions: from now on, their stored ranges count."""
        for tp in partitions:
            self._decided.pop(tp, None)
            self._moved.pop(tp, None)

    def _by_strategy(self, txid: int, start: Start, tp: TopicPartition, logs: Logs, consumer: ConsumerPort) -> int:
        if start is Start.END:
            return logs.ends[tp]
        if start is Start.TIMESTAMP:
            found = consumer.offsets_for_times({tp: self._timestamp_ms}).get(tp)
            return logs.ends[tp] if found is None else found
        if start is Start.OFFSET and tp in self._offsets:
            return self._in_range(txid, tp, self._offsets[tp], logs)
        return logs.begins[tp]

    def _created_again(self, tp: TopicPartition, logs: Logs) -> int:
        """Return the start in a re-created topic, of which no batch has read anything."""
        place = coordinates(tp.topic, tp.partition)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the topic was deleted and created again; records of the old topic that were in no batch are "
                "lost",
                cure="kafka.on_data_loss=earliest reads the new one from its beginning",
            )
        self._log.warning("%s: the topic was deleted and created again; starts at its beginning", place)
        return logs.begins[tp]

    def _in_range(self, txid: int, tp: TopicPartition, offset: int, logs: Logs) -> int:
        begin, end, first = logs.begins[tp], logs.ends[tp], offset
        if (moved := self._moved.get(tp)) is not None and moved[:2] == (txid, offset):
            # A retry starts where the first attempt did: later records are not lost, and losses are counted once.
            first = moved.start
        if begin <= first <= end:
            return first
        place = coordinates(tp.topic, tp.partition, offset)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the next batch starts here, but the log holds {begin} to {end}",
                cure="kafka.on_data_loss=earliest continues with the remaining records; retention may be too short",
            )
        start = begin if self._policy == "earliest" else end
        self._moved[tp] = _Moved(txid, offset, start)
        lost = max(0, start - first)
        self.lost += lost
        self._log.warning(
            "%s: the log holds %d to %d; %d offsets are lost; continuing at %d", place, begin, end, lost, start
        )
        return start


POLL_RECORDS = 5_000


class Read(NamedTuple):
    """The records read from a partition."""

    records: list[Record]
    position: int  # where the next batch starts


class BatchLimits(NamedTuple):
    """The limits of a batch for one partition."""

    records: int
    bytes: int

    @classmethod
    def of(cls, records_max: int, bytes_max: int, partitions: int) -> BatchLimits:
        """Divide a batch's limits among its partitions; each may have at least one record.

        >>> BatchLimits.of(10, 100, 3)
        BatchLimits(records=3, bytes=33)
        """
        return cls(max(1, records_max // max(1, partitions)), max(1, bytes_max // max(1, partitions)))


class _Taking:
    """The records that a batch takes from one partition."""

    def __init__(self, limits: BatchLimits, end: int) -> None:
        self.records: list[Record] = []
        self._limits, self._bytes, self._end = limits, 0, end
        self.is_full = False

    def take(self, ahead: deque[Record]) -> None:
        """Take fetched records until a limit is reached."""
        while ahead and not self.is_full:
            record = ahead[0]
            if record.offset >= self._end:
                self.is_full = True
                return
            self._bytes += len(record.key or b"") + len(record.value or b"")
            if self.records and self._bytes > self._limits.bytes:
                self.is_full = True
                return
            self.records.append(ahead.popleft())
            self.is_full = len(self.records) >= self._limits.records


class BatchReader:
    """Reads assigned partitions, without a group.

    Args:
        consumer: reads; nothing else uses it.
        clock: for time limits.
        poll_ms: the timeout of one poll; an empty poll ends a batch.
    """

    def __init__(self, consumer: ConsumerPort, clock: Clock, poll_ms: int) -> None:
        self._consumer, self._clock, self._poll_ms = consumer, clock, poll_ms
        self._ahead: dict[TopicPartition, deque[Record]] = {}
        self._at: dict[TopicPartition, int] = {}  # next offset, readable without a seek
        self._placed: set[TopicPartition] = set()  # partitions with a position

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions from now on."""
        if self._ahead.keys() != set(partitions):
            self._consumer.assign(partitions)
            self._ahead = {tp: deque() for tp in partitions}
            self._at = {}
            self._placed = set()

    def position(self, tp: TopicPartition) -> int | None:
        """Return a partition's next offset; None if it was not read yet, or its last batch was interrupted."""
        return self._at.get(tp)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the fetched records of these partitions: their topic was re-created."""
        for tp in partitions:
            self._at.pop(tp, None)  # so the next batch seeks, which discards our buffer and the client's

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        # ``_at`` is set again once the batch is read: after an error, records may have been taken beyond it.
        if self._at.pop(tp, None) != offset:
            self._consumer.seek(tp, offset)
            self._placed.add(tp)
            self._ahead[tp].clear()

    def fresh(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limits: BatchLimits
    ) -> dict[TopicPartition, Read]:
        """Read from these offsets up to the limits or the ends of the logs, until a poll returns nothing.

        Raises:
            KafkaError: the broker refuses.
        """
        taking = {tp: _Taking(limits, ends[tp]) for tp in starts}
        for tp, start in starts.items():
            self._seek(tp, start)
            taking[tp].take(self._ahead[tp])
        at_end = {tp for tp, start in starts.items() if start >= ends[tp]}
        self._read(taking, at_end, ends)
        return {tp: self._result(tp, each.records) for tp, each in taking.items()}

    def _read(
        self, taking: Mapping[TopicPartition, _Taking], at_end: set[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Poll until each partition is full or at its end, or a poll makes no progress."""
        consumer = self._consumer
        while True:
            for tp in taking.keys() - at_end:
                if not self._ahead[tp] and consumer.position(tp) >= ends[tp]:
                    at_end.add(tp)
            needs = {tp for tp, each in taking.items() if not each.is_full and tp not in at_end}
            if not needs:
                return
            self._listen(needs)
            before = {tp: consumer.position(tp) for tp in needs}
            polled = consumer.poll(self._poll_ms, POLL_RECORDS)
            for tp, records in polled.items():
                self._ahead[tp].extend(records)
                taking[tp].take(self._ahead[tp])
            if not polled and before == {tp: consumer.position(tp) for tp in needs}:
                return

    def _listen(self, needs: set[TopicPartition]) -> None:
        others = self._ahead.keys() - needs
        consumer = self._consumer
        paused = consumer.paused()
        if resumed := needs & paused:
            consumer.resume(resumed)
        for tp in others - self._placed:  # a poll raises if any partition has no position, even a paused one
            consumer.seek(tp, 0)
            self._placed.add(tp)
        if others := others - paused:
            consumer.pause(others)

    def _result(self, tp: TopicPartition, records: list[Record]) -> Read:
        """Return the records, and remember the partition's next offset."""
        if records:
            position = records[-1].offset + 1
        else:
            ahead = self._ahead[tp]
            position = ahead[0].offset if ahead else self._consumer.position(tp)
        self._at[tp] = position
        return Read(records, position)

    def exactly(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], until_s: float
    ) -> dict[TopicPartition, list[Record]] | None:
        """Read the records from a first to a last offset, inclusive; None if they have not all come in time.

        Args:
            wanted: first and last offset of each partition.
            until_s: when to give up, in the clock's monotonic time.

        Raises:
            KafkaError: the broker refuses.
        """
        unlimited = BatchLimits(2**63, 2**63)
        taking = {tp: _Taking(unlimited, last + 1) for tp, (_, last) in wanted.items()}
        for tp, (first, _) in wanted.items():
            self._at.pop(tp, None)
            self._seek(tp, first)
        ends = {tp: last + 1 for tp, (_, last) in wanted.items()}
        while needs := {tp for tp in wanted if not taking[tp].is_full and self._position(tp) < ends[tp]}:
            if self._clock.monotonic() >= until_s:
                return None
            self._listen(needs)
            for tp, records in self._consumer.poll(self._poll_ms, POLL_RECORDS).items():
                self._ahead[tp].extend(records)
                taking[tp].take(self._ahead[tp])
        for tp, end in ends.items():
            self._at[tp] = end
        return {tp: each.records for tp, each in taking.items()}

    def _position(self, tp: TopicPartition) -> int:
        ahead = self._ahead[tp]
        return ahead[0].offset if ahead else self._consumer.position(tp)

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close()
