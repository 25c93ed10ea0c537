"""Reading one range of offsets in an executor, as Arrow record batches.

Spark's Python workers live for many tasks (``spark.python.worker.reuse``), so a consumer is kept between ranges, and
what it has fetched ahead is used when the next range goes on where the last one ended.

A range is read when the *position* reaches its end. Counting records would wait for ever: offsets that a transaction's
markers, compaction or an aborted transaction took hold nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa
from kafka import errors

from downspout.errors import BrokerError
from downspout.kafka.columns import RecordColumns
from downspout.kafka.port import ConsumerPort
from downspout.spark.source.columns import portions, to_batch
from downspout.spark.source.options import SourceOptions
from downspout.spark.source.planning import report_loss
from downspout.spark.source.ranges import OffsetRange
from downspout.spark.source.skips import Sieve, Skipped
from downspout.spark.source.topics import connect

PER_POLL_MAX = 100_000
"""Records. A poll finds what was fetched, some megabytes."""

BATCH_BYTES = 4 * 1024 * 1024
"""About how much goes into one Arrow batch."""

POLL_MS = 500

log = logging.getLogger("downspout.spark")

_idle: dict[str, ConsumerPort] = {}
"""Consumers between two ranges, by what they were made with. One process runs one task at a time."""


def read_range(options: SourceOptions, wanted: OffsetRange, skipped: Skipped = ()) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in order.

    Args:
        options: of the source.
        wanted: the range.
        skipped: parts of it that are left out; they may be gone from Kafka. At its ends they are not even fetched.

    Raises:
        DataLossError: part of it is gone, and ``failOnDataLoss`` is set.
        BrokerError: Kafka does not answer, or sends nothing for ``kafkaConsumer.pollTimeoutMs``.
    """
    sieve = Sieve(skipped)
    if not (parts := list(sieve.wanted(wanted.start, wanted.end))):
        return
    wanted = OffsetRange.of(wanted.where, parts[0][0], parts[-1][1])
    key = f"{options.bootstrap} {sorted(options.client.items())}"
    consumer = _idle.pop(key, None) or connect(options, columns=True)
    is_sound = False
    try:
        yield from _Reading(options, consumer, wanted, sieve).batches()
        is_sound = True
    except GeneratorExit:  # a LIMIT has enough: the next range seeks
        is_sound = True
        raise
    except errors.KafkaError as error:
        raise BrokerError(f"{wanted}: {type(error).__name__}: {error}", cure="look at the broker's log") from error
    finally:
        if is_sound and key not in _idle:
            _idle[key] = consumer
        else:
            consumer.close()


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
        self._go_to_start()
        waiting_since = time.monotonic()
        while self._at < end:
            try:
                records = self._consumer.poll(POLL_MS, PER_POLL_MAX).get(where)
                at = self._consumer.position(where)
            except (errors.OffsetOutOfRangeError, errors.LogTruncationError):
                self._skip_what_is_gone()
                continue
            for batch in self._to_batches(RecordColumns.of(records)) if records else ():
                if (kept := self._sieve.keep(batch)).num_rows:
                    yield kept
            if at > self._at:
                self._at, waiting_since = at, time.monotonic()
            elif self._is_cut_off():
                return
            elif (time.monotonic() - waiting_since) * 1000 > self._options.poll_ms_max:
                raise BrokerError(
                    f"{self._wanted}: nothing came after {self._at} for {self._options.poll_ms_max} ms",
                    cure="look at the broker, or raise kafkaConsumer.pollTimeoutMs",
                )

    def _to_batches(self, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        """Yield what of these lies in the range, some megabytes at a time."""
        wanted = records[: int(records.offsets.searchsorted(self._wanted.end))]
        for portion in portions(wanted, BATCH_BYTES):
            yield to_batch(portion, self._options.include_headers)

    def _go_to_start(self) -> None:
        """Seek, unless the consumer stands there: then what it has fetched ahead is still good."""
        where, start = self._wanted.where, self._wanted.start
        if self._consumer.assignment() != {where}:
            self._consumer.assign([where])
        elif self._consumer.position(where) == start:
            return
        self._consumer.seek(where, start)

    def _skip_what_is_gone(self) -> None:
        """The log begins later than where we read, or ends earlier: fail, or go on at its beginning."""
        where = self._wanted.where
        begin = self._consumer.beginning_offsets([where])[where]
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
