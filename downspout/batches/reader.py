"""Reads the records of batches: as many as are there, up to a limit, or exactly those between two offsets.

What a poll brought and the batch has no room for waits for the next one, which mostly goes on there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from downspout.clock import Clock
from downspout.kafka.port import ConsumerPort, Record, TopicPartition

POLL_RECORDS = 5_000


class Read(NamedTuple):
    """What was read of a partition."""

    records: list[Record]
    position: int  # where the next batch starts


class Limits(NamedTuple):
    """What a batch may hold of one partition."""

    records: int
    bytes: int

    @classmethod
    def of(cls, records_max: int, bytes_max: int, partitions: int) -> Limits:
        """Return the share of each of so many partitions: at least one record.

        >>> Limits.of(10, 100, 3)
        Limits(records=3, bytes=33)
        """
        return cls(max(1, records_max // max(1, partitions)), max(1, bytes_max // max(1, partitions)))


class _Taking:
    """What a batch takes from one partition."""

    def __init__(self, limits: Limits, end: int) -> None:
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
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limits: Limits
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
        unlimited = Limits(2**63, 2**63)
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
