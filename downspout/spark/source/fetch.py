"""Reading one range of offsets in an executor, as Arrow record batches.

Spark's Python workers live for many tasks (``spark.python.worker.reuse``), so a consumer is kept between ranges, and
what it has fetched ahead is used when the next range goes on where the last one ended.

A range is read when the *position* reaches its end. Counting records would wait for ever: offsets that a transaction's
markers, compaction or an aborted transaction took hold nothing.
"""

from __future__ import annotations

import logging
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pyarrow as pa
from kafka import errors

from downspout.errors import BrokerError, UnreadableError
from downspout.kafka.columns import ColumnRecord, RecordColumns
from downspout.kafka.port import ConsumerPort
from downspout.kafka.unreadable import Unreadable, UnreadableBatchError, UnreadableRecordError
from downspout.spark.source.columns import portions, to_batch, with_note
from downspout.spark.source.options import SourceOptions
from downspout.spark.source.planning import report_loss
from downspout.spark.source.ranges import OffsetRange
from downspout.spark.source.skips import Sieve, Skipped
from downspout.spark.source.topics import connect

PER_POLL_MAX = 100_000  # Records. A poll finds what was fetched, some megabytes.

BATCH_BYTES = 4 * 1024 * 1024  # About how much goes into one Arrow batch

POLL_MS = 500
RETRY_S = 0.1  # Between two tries of an offset that a broker says is not in its log, though it is

TOO_LARGE_CURE = "raise recordBytesMax; or includeUnreadable=records, which gives a row with its beginning in its place"
DAMAGED_CURE = (
    "includeUnreadable=true, which gives a row in its place; of a topology kafka.on_corrupt_batch=dead_letter, which "
    "notes its offsets in the dead-letter topic. Another replica may have it whole"
)

log = logging.getLogger("downspout.spark")

idle: dict[str, ConsumerPort] = {}
"""Consumers between two ranges, by what they were made with. One process runs one task at a time."""


def read_range(options: SourceOptions, wanted: OffsetRange, skipped: Skipped = ()) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in order.

    Raises:
        DataLossError: part of it is gone, and ``failOnDataLoss`` is set.
    """
    # What is left out may be gone from Kafka: at the ends of the range it is not even fetched.
    sieve = Sieve(skipped)
    if not (parts := list(sieve.wanted(wanted.start, wanted.end))):
        return
    wanted = OffsetRange.of(wanted.where, parts[0][0], parts[-1][1])
    key = f"{options.bootstrap} {sorted(options.client.items())} {options.limits} {options.unreadable}"
    consumer = idle.pop(key, None) or _connect(options)
    is_sound = False
    try:
        yield from _Reading(options, consumer, wanted, sieve).batches()
        is_sound = True
    except GeneratorExit:  # a LIMIT has enough: the next range seeks
        is_sound = True
        raise
    except errors.KafkaError as error:
        if isinstance(error, UnreadableBatchError):
            is_large = isinstance(error, UnreadableRecordError)
            raise UnreadableError(str(error.args[0]), cure=TOO_LARGE_CURE if is_large else DAMAGED_CURE) from error
        raise BrokerError(f"{wanted}: {type(error).__name__}: {error}", cure="look at the broker's log") from error
    finally:
        if is_sound and key not in idle:
            idle[key] = consumer
        else:
            consumer.close()


def _connect(options: SourceOptions) -> ConsumerPort:
    consumer = connect(options, columns=True)
    consumer.tolerate(options.limits, large=options.include_unreadable, corrupt=options.unreadable == "true")
    return consumer


class _Reading:
    """One range on its way."""

    def __init__(self, options: SourceOptions, consumer: ConsumerPort, wanted: OffsetRange, sieve: Sieve) -> None:
        self._options = options
        self._consumer = consumer
        self._wanted = wanted
        self._sieve = sieve
        self._at = wanted.start

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batch after batch until the position is at the end."""
        where, end = self._wanted.where, self._wanted.end
        self._consumer.take_aborted()  # noted for the spout; forgotten here, or they would add up
        self._consumer.take_unreadable()  # of an earlier range, behind its end
        self._go_to_start()
        waiting_since = time.monotonic()
        while self._at < end:
            try:
                records = self._consumer.poll(POLL_MS, PER_POLL_MAX).get(where)
                at = self._consumer.position(where)
            except (errors.OffsetOutOfRangeError, errors.LogTruncationError) as error:
                before = self._at
                self._skip_what_is_gone(may_pass=isinstance(error, errors.OffsetOutOfRangeError))
                if self._at > before:
                    waiting_since = time.monotonic()
                elif (time.monotonic() - waiting_since) * 1000 > self._options.poll_ms_max:
                    raise
                continue
            for batch in self._to_batches(RecordColumns.of(records)) if records else ():
                if (kept := self._sieve.keep(batch)).num_rows:
                    yield kept
            if at > self._at:
                self._at, waiting_since = at, time.monotonic()
            elif is_cancelled() or self._is_cut_off():
                return
            elif (time.monotonic() - waiting_since) * 1000 > self._options.poll_ms_max:
                raise BrokerError(
                    f"{self._wanted}: nothing arrived after {self._at} for {self._options.poll_ms_max} ms",
                    cure="look at the broker, or raise kafkaConsumer.pollTimeoutMs",
                )

    def _to_batches(self, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        """Yield what of these lies in the range, some megabytes at a time; what stands for others, by itself."""
        wanted, row = records[: int(records.offsets.searchsorted(self._wanted.end))], 0
        for note in self._consumer.take_unreadable():
            at = int(wanted.offsets.searchsorted(note.offset))
            if at < len(wanted) and int(wanted.offsets[at]) == note.offset:
                yield from self._whole(wanted[row:at])
                yield from self._stand_in(wanted[at], note)
                row = at + 1
        yield from self._whole(wanted[row:])

    def _whole(self, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        for portion in portions(records, BATCH_BYTES):
            batch = to_batch(portion, self._options.include_headers)
            yield with_note(batch, None) if self._options.include_unreadable else batch

    def _stand_in(self, record: Any, note: Unreadable) -> Iterator[pa.RecordBatch]:
        """Yield a row for those of some offsets that are of this range, and are not left out."""
        if parts := list(self._sieve.wanted(note.offset, min(note.end, self._wanted.end))):
            first, end = parts[0][0], parts[-1][1]
            topic, partition = self._wanted.where
            record = ColumnRecord(topic, partition, first, record.timestamp, record.key, record.value, ())
            batch = to_batch(RecordColumns.of([record]), self._options.include_headers)
            yield with_note(batch, replace(note, offset=first, end=end))

    def _go_to_start(self) -> None:
        """Seek, unless the consumer stands there: then what it has fetched ahead is still good."""
        where, start = self._wanted.where, self._wanted.start
        if self._consumer.assignment() != {where}:
            self._consumer.assign([where])
        elif self._consumer.position(where) == start:
            return
        self._consumer.seek(where, start)

    def _skip_what_is_gone(self, *, may_pass: bool) -> None:
        """The log begins later than where we read, or ends earlier: fail, or go on at its beginning.

        A broker that has just become the leader may not know yet where its log ends, or the answer is an old one. So an
        offset that lies in the log by now is not gone: it is tried again, as long as nothing may arrive.
        """
        where = self._wanted.where
        begin = self._consumer.beginning_offsets([where])[where]
        if may_pass and begin <= self._at < self._consumer.end_offsets([where])[where]:
            self._consumer.seek(where, self._at)
            time.sleep(RETRY_S)
            return
        left = min(max(begin, self._at), self._wanted.end) if begin > self._at else self._wanted.end
        if lost := list(self._sieve.wanted(self._at, left)):
            report_loss(self._options, f"{self._wanted}: offsets {lost[0][0]} to {lost[-1][1] - 1} are gone from Kafka")
        self._at = left
        if left < self._wanted.end:
            self._consumer.seek(where, left)

    def _is_cut_off(self) -> bool:
        """Return whether the log has ended below the range, so that nothing more will come."""
        where = self._wanted.where
        try:
            end = self._consumer.end_offsets([where])[where]
        except errors.KafkaError as error:  # asked because nothing came: the time-out decides
            log.warning("%s: %s", self._wanted, error)
            return False
        if end >= self._wanted.end or end > self._at:
            return False
        report_loss(self._options, f"{self._wanted}: the log ends at {end}")
        return True


def is_cancelled() -> bool:
    """Return whether the JVM has closed its end of this worker's connection; False where that cannot be known."""
    # A worker notices that when it writes its next batch. One that waits for records writes nothing, and would wait for
    # Kafka as long as kafkaConsumer.pollTimeoutMs says, beside the task that has taken its place. PySpark 4.2 has no
    # call for it; the stream from the JVM is a local variable of the worker's main function, below us on the stack.
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if (stream := frame.f_locals.get("infile")) is not None and hasattr(stream, "fileno"):
            return _is_closed(stream.fileno())
        frame = frame.f_back
    return False


def _is_closed(descriptor: int) -> bool:
    """Return whether the other end of a socket is closed, whatever is still to be read from it."""
    gone = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
    poll = select.poll()
    poll.register(descriptor, gone)
    return any(event & gone for _, event in poll.poll(0))
