"""Where a partition starts in a batch, and how the records of batches are read.

A batch starts after the batch before, or where ``kafka.start`` says. Offsets belong to one topic. If it is deleted and
created again, another topic has its name: where the batch before ended says nothing about that one, whether its log is
shorter or longer. So Kafka's id of the topic is kept with each range, and another id is lost data, as
``kafka.on_data_loss`` says.

As many records are read as are there, up to a limit, or exactly those between two offsets. What a poll brought and the
batch has no room for waits for the next one, which mostly goes on there.
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
    """Return Kafka's ids of the topics of partitions: empty where the brokers give none.

    A topic that is not there at the moment is left out.

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
    """Where the strategy has let a partition start."""

    offset: int
    topic_id: str


class _Moved(NamedTuple):
    """Where a batch starts in a partition of which records are gone."""

    txid: int
    offset: int  # where it was to start
    start: int  # where it starts


class Logs(NamedTuple):
    """Where the logs of some partitions begin and end."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def logs_one_by_one(cluster: Cluster, partitions: Collection[TopicPartition], reads_committed: bool) -> Logs:
    """Ask where logs begin and end, and leave out those of which Kafka does not say."""
    begins, ends = {}, {}
    found = cluster.describe_logs({tp.topic for tp in partitions})
    for tp in partitions:
        log = found[tp.topic].partitions.get(tp.partition)
        end = None if log is None else log.stable if reads_committed else log.high_watermark
        if log is not None and log.begin is not None and end is not None:
            begins[tp], ends[tp] = log.begin, end
    return Logs(begins, ends)


def goes_on(strategy: str, before: BatchRange, topology_id: str) -> bool:
    """Return whether a topology's reading goes on at a range that is stored.

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
        settings: those of the scope ``kafka``.
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
        self._decided: dict[TopicPartition, Decided] = {}  # by the strategy, until a batch is committed
        self._moved: dict[TopicPartition, _Moved] = {}  # likewise, where records were gone
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
        """Return where a partition starts.

        Args:
            txid: the transaction.
            tp: the partition.
            before: its range in the batch before; None: there is none.
            topic_id: Kafka's id of its topic, as of now.
            logs: where the logs begin and end.
            consumer: asked where the strategy goes by time.

        Raises:
            DataLossError: records are gone that were in no batch yet, and ``kafka.on_data_loss`` says ``fail``.
        """
        start = _start(self._strategy, before, self._topology_id)
        if start is Start.COMMITTED and before is not None:
            if another(before.topic_id, topic_id):
                return self._created_again(tp, logs)
            return self._in_range(txid, tp, before.next, logs)
        # A batch that is tried again starts where its first attempt did: the end of the log has moved on meanwhile.
        known = self._decided.get(tp)
        if known is None:
            known = Decided(self._by_strategy(txid, start, tp, logs, consumer), topic_id)
        elif another(known.topic_id, topic_id):
            known = Decided(self._created_again(tp, logs), topic_id)
        self._decided[tp] = known
        return self._in_range(txid, tp, known.offset, logs)

    def goes_on(self, before: BatchRange) -> bool:
        """Return whether reading goes on at a batch that is stored: it is of this topology, or any one's counts."""
        return goes_on(self._strategy, before, self._topology_id)

    def committed(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what was decided of these: what was stored counts from now on."""
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
        """Return where to start in another topic of the same name: no batch has had anything of it."""
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
            # As for the strategy: what came since the first attempt is not lost, and what was lost is counted once.
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
    """What was read of a partition."""

    records: list[Record]
    position: int  # where the next batch starts


class BatchLimits(NamedTuple):
    """What a batch may hold of one partition."""

    records: int
    bytes: int

    @classmethod
    def of(cls, records_max: int, bytes_max: int, partitions: int) -> BatchLimits:
        """Return the share of each of so many partitions: at least one record.

        >>> BatchLimits.of(10, 100, 3)
        BatchLimits(records=3, bytes=33)
        """
        return cls(max(1, records_max // max(1, partitions)), max(1, bytes_max // max(1, partitions)))


class _Taking:
    """What a batch takes from one partition."""

    def __init__(self, limits: BatchLimits, end: int) -> None:
        self.records: list[Record] = []
        self._limits, self._bytes, self._end = limits, 0, end
        self.is_full = False

    def take(self, ahead: deque[Record]) -> None:
        """Take from what is there until a limit is reached."""
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
    """Reads by assignment.

    Args:
        consumer: reads; nothing else uses it.
        clock: for time limits.
        poll_ms: how long one poll waits; as long without anything new ends a batch.
    """

    def __init__(self, consumer: ConsumerPort, clock: Clock, poll_ms: int) -> None:
        self._consumer, self._clock, self._poll_ms = consumer, clock, poll_ms
        self._ahead: dict[TopicPartition, deque[Record]] = {}
        self._at: dict[TopicPartition, int] = {}  # where each goes on without a seek
        self._placed: set[TopicPartition] = set()  # those that have a position

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these from now on."""
        if self._ahead.keys() != set(partitions):
            self._consumer.assign(partitions)
            self._ahead = {tp: deque() for tp in partitions}
            self._at = {}
            self._placed = set()

    def position(self, tp: TopicPartition) -> int | None:
        """Return where the next batch goes on in a partition; None: it was not read, or not to the end of a batch."""
        return self._at.get(tp)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop what is there of these: it is of another topic of the same name."""
        for tp in partitions:
            self._at.pop(tp, None)  # so the next batch seeks, and neither we nor the client have anything left

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        # Forgotten until the batch is read: an error in between leaves a position behind what was taken already.
        if self._at.pop(tp, None) != offset:
            self._consumer.seek(tp, offset)
            self._placed.add(tp)
            self._ahead[tp].clear()

    def fresh(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limits: BatchLimits
    ) -> dict[TopicPartition, Read]:
        """Read from these offsets on, up to the limits or to where the logs end.

        A partition that brings nothing for the time of a poll is left as it is.

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
        """Poll until each partition is full or at its end, or nothing new comes."""
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
        for tp in others - self._placed:  # a poll is an error as long as one has no position, though it is paused
            consumer.seek(tp, 0)
            self._placed.add(tp)
        if others := others - paused:
            consumer.pause(others)

    def _result(self, tp: TopicPartition, records: list[Record]) -> Read:
        """Return what was read, and note where the partition goes on."""
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
        """Read the records between two offsets, both included; None: time is over and they have not all come.

        Args:
            wanted: first and last offset of each partition.
            until_s: when to give up, by the clock's monotonic time.

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
