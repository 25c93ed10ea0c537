"""Emits chunks and processes their acks and fails: a range of records of one partition is one tuple.

A chunk's columns are the fields of the stream, in their order; row by row they hold what a tuple of a single record
would (``downspout.spout.tuples``):

=================  ==========================================================
offset, timestamp  int64
partition          int32
key, value         string; binary if ``kafka.key_format`` or
                   ``kafka.value_format`` is bytes
topic              string
headers            map of string to binary; a name may come more than once
origin             the struct of :mod:`downspout.origins`
=================  ==========================================================

:class:`ChunkEmitter` is a RecordEmitter for ranges: the same ledger, limits, isolation and dead letters. The
differences:

* A chunk ends before a record that an earlier owner has finished, a record that failed in an earlier run (it goes
  alone), a record that is not in its format (it is dead-lettered at once, as always), and at the end of crash
  isolation's window.
* A chunk that fails is retried in halves, without counting an attempt, until the bad record is alone; from then on it
  is a record like any other. The same holds for a chunk that times out while nothing else of its partition
  gets through: it may be more than a bolt can process in that time. Otherwise it is retried whole, and in halves after
      ``kafka.timeouts_max`` timeouts.

The halves come from memory while there is room (``kafka.retry_cache_bytes``); otherwise they are read again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from downspout.component import Failure
from downspout.dead_letters.claims import PREFIX, origin_of
from downspout.errors import USER_ERRORS, UserError
from downspout.kafka.columns import RecordColumns
from downspout.kafka.port import Record
from downspout.ledger.origin import Origin, range_id, range_of
from downspout.ledger.retry_schedule import RetryState
from downspout.origins import column_of, origins
from downspout.spout.cursor import index_of, offset_at
from downspout.spout.emit_records import RecordEmitter
from downspout.spout.partition import Partition

TYPES = {"utf8": pa.string(), "bytes": pa.binary()}  # By the name of the format. Others have no column of one type.


class UnreadableRowError(ValueError):
    """A key or value is not in its format; :meth:`ChunkMaker.unreadable` finds which."""


class ChunkMaker:
    """Makes chunks of the records of one partition.

    Args:
        fields: the columns, of :data:`downspout.spout.tuples.FIELDS`.

    >>> from downspout.kafka.columns import ColumnRecord
    >>> first, second = ColumnRecord("t", 0, 7, 1000, None, b"a", []), ColumnRecord("t", 0, 9, 1001, b"k", b"b", [])
    >>> maker = ChunkMaker(["offset", "key", "value"], "utf8", "bytes", "")
    >>> maker.make(RecordColumns.of([first, second])).to_pylist()
    [{'offset': 7, 'key': None, 'value': b'a'}, {'offset': 9, 'key': 'k', 'value': b'b'}]
    """

    def __init__(
        self, fields: Sequence[str], key_format: str, value_format: str, topic_id: str, honour_replays: bool = True
    ) -> None:
        self._fields = list(fields)
        self._formats = {"key": TYPES[key_format], "value": TYPES[value_format]}
        self._topic_id = topic_id
        # whether the origin of a replayed record is that of the record it stands for
        self._honour_replays = honour_replays
        makers: dict[str, Callable[[RecordColumns], Any]] = {
            "topic": lambda rows: pa.repeat(pa.scalar(rows.topic, pa.string()), len(rows)),
            "partition": lambda rows: pa.repeat(pa.scalar(rows.partition, pa.int32()), len(rows)),
            "offset": lambda rows: pa.array(rows.offsets),
            "timestamp": lambda rows: pa.array(rows.timestamps),
            "key": lambda rows: self._text("key", rows.keys),
            "value": lambda rows: self._text("value", rows.values),
            "headers": _headers,
            "origin": self._origins,
        }
        self._makers = [makers[field] for field in fields]

    def make(self, rows: RecordColumns) -> pa.RecordBatch:
        """Return the chunk of these rows. Raises UnreadableRowError: a key or value is not text."""
        return pa.RecordBatch.from_arrays([make(rows) for make in self._makers], names=self._fields)

    def unreadable(self, rows: RecordColumns) -> list[int]:
        """Return which of the rows cannot be read."""
        found: set[int] = set()
        for name, column in (("key", rows.keys), ("value", rows.values)):
            if name in self._fields and self._formats[name] == TYPES["utf8"]:
                found.update(row for row, raw in enumerate(column.to_pylist()) if not _is_text(raw))
        return sorted(found)

    def _text(self, name: str, column: pa.BinaryArray) -> Any:
        try:
            return column.cast(self._formats[name])
        except pa.ArrowInvalid as error:
            raise UnreadableRowError(str(error)) from error

    def _origins(self, rows: RecordColumns) -> Any:
        if not (self._honour_replays and rows.may_have_header(PREFIX)):
            return origins(rows.topic, self._topic_id, rows.partition, rows.offsets)
        own = (Origin(rows.topic, self._topic_id, rows.partition, row.offset) for row in rows)
        return column_of([origin_of(row, self._topic_id) or origin for row, origin in zip(rows, own, strict=True)])


def _headers(rows: RecordColumns) -> Any:
    import pyarrow.compute as pc  # a quarter of a second of CPU, which few need

    found = rows.headers()
    pairs = found.flatten()
    places: Any = pa.array(np.concatenate([[0], np.cumsum(pc.list_value_length(found).to_numpy())]), pa.int32())
    return pa.MapArray.from_arrays(places, pairs.field(0), pairs.field(1))


def _is_text(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


Emit = Callable[..., Any]


class Made(NamedTuple):
    """Some records and their chunk, which is None if the only record is unreadable."""

    rows: RecordColumns
    batch: pa.RecordBatch | None


class ChunkEmitter(RecordEmitter):
    """Emits chunks, takes their acks and fails, and splits those that fail."""

    look_up_mask = 0  # Every ack checks the clock: it stands for many records

    # --- what leaves ---

    def emit_cached(self, parts: Iterable[Partition], most: int, emit: Emit, now: int) -> int:
        """Emit due retries that are in memory (others are read again); return the number of chunks."""
        sent = 0
        for part in parts:
            while sent < most and (offset := part.cached_retry(now)) is not None:
                rows = part.retry_cache.find(offset)
                if rows is not None and _retry_state(part, offset).end > offset + 1:
                    sent += self._leave(part, self._take_part(part, rows, offset, now), emit)
                else:
                    sent += self._emit_retry(part, part.retry_cache[offset] if rows is None else rows[0], emit, now)
        return sent

    def _emit_some(self, part: Partition, most: int, emit: Emit, now: int) -> int:
        """Emit waiting records of one partition in at most ``most`` chunks; return the number of chunks."""
        # The end is not looked up anew: of a record that leaves alone it is known that it may, of the next it is not.
        sent, end, cursor = 0, part.isolation.emit_end(), part.cursor
        while sent < most and cursor.at < min(end, len(cursor.waiting)):
            seen = offset_at(cursor.waiting, cursor.at) < part.ledger.next
            sent += (self._emit_seen if seen else self._emit_fresh)(part, end, emit, now)
        return sent

    # Each of the following advances the cursor and returns the number of chunks emitted.

    def _emit_fresh(self, part: Partition, end: int, emit: Emit, now: int) -> int:
        """Emit the first waiting records, which were not seen before, as one chunk."""
        ledger, cursor = part.ledger, part.cursor
        rows, at = cursor.waiting, cursor.at
        offset = offset_at(rows, at)
        if offset in ledger.earlier_failures:
            part.cursor.at += 1
            part.note_read()
            return self._emit_failed_before(part, rows[at], emit, now)
        if (free := ledger.free_until(offset, offset_at(rows, end - 1) + 1)) == offset:
            cursor.at = min(end, index_of(rows, ledger.done_until(offset)))  # an earlier owner has finished these
            part.note_read()
            ledger.passed(offset_at(rows, cursor.at - 1) + 1)
            self._metrics.skipped += cursor.at - at
            return 0
        if (bad := min(_next_unreadable(part), _next_broken(part, at))) == at:
            part.cursor.at += 1
            part.note_read()
            ledger.emit(offset, now)
            return self._emit_record(part, rows[at], emit, now)
        chosen = self._fitting(rows[at : min(index_of(rows, free), bad)])
        try:
            made = Made(chosen, part.make_chunk.make(chosen))
        except UnreadableRowError:
            if cursor.unreadable is not None:
                raise
            cursor.unreadable = part.make_chunk.unreadable(RecordColumns.of(rows))
            return 0  # the next call ends its chunk before the first of these
        cursor.at += len(chosen)
        part.note_read()
        offsets = chosen.offsets
        ledger.emit_range(int(offsets[0]), int(offsets[-1]) + 1, len(offsets), now)
        return self._leave(part, made, emit)

    def _emit_failed_before(self, part: Partition, record: Record, emit: Emit, now: int) -> int:
        """Emit a record that failed in an earlier run, alone."""
        if part.ledger.earlier_failures[record.offset] > self._settings["retries_max"]:
            self._exhaust_after_crash(part, record, now)
            return 0
        part.ledger.emit(record.offset, now)
        return self._emit_record(part, record, emit, now)

    def _emit_seen(self, part: Partition, end: int, emit: Emit, now: int) -> int:
        """Skip records that wait for no retry, up to the first that does, and emit that one if its retry is due."""
        ledger, rows, at = part.ledger, part.cursor.waiting, part.cursor.at
        limit = min(end, index_of(rows, ledger.next))
        # The rest of a range begins after the last record of the part before it: there may be a gap.
        key = ledger.first_waiting(offset_at(rows, at - 1) + 1 if at else offset_at(rows, 0))
        first = behind = limit
        while key is not None:
            first, behind = index_of(rows, key), min(limit, index_of(rows, _retry_state(part, key).end))
            if first < behind or first >= limit:
                break
            key = ledger.first_waiting(key + 1)  # the log no longer has it: a seek to it will show that
        part.cursor.at = first = limit if key is None else min(first, limit)
        self._metrics.skipped += first - at
        if key is None or first == limit:
            return 0
        retry = _retry_state(part, key)
        if retry.end == key + 1:
            part.cursor.at += 1
            return self._emit_retry(part, rows[first], emit, now)
        if retry.ready_at > now:
            part.cursor.at = behind
            self._metrics.skipped += behind - first
            return 0
        made = self._take_part(part, rows[first:behind], key, now)
        part.cursor.at = first + len(made.rows)
        return self._leave(part, made, emit)

    def _take_part(self, part: Partition, records: Sequence[Record], key: int, now: int) -> Made:
        """Take the first part of the range that waits for its retry at ``key``, where ``records`` begins."""
        retry = _retry_state(part, key)
        rows = self._fitting(records[: index_of(records, retry.end)])
        broken = [index_of(rows, offset) for offset in part.broken if key <= offset < retry.end]
        if broken and min(broken) == 0:
            made = Made(rows[:1], None)
        else:
            made = self._make(part, rows[: min(broken, default=len(rows))], retry.most)
        offsets = made.rows.offsets
        for offset in (key, *offsets.tolist()) if self._hooks else (key,):
            part.last_failures.pop(
                offset, None
            )  # whatever fails next is another range, or a record with its own history
        if not len(offsets):
            self._metrics.compacted += part.ledger.gone(key, retry.end)
            return made
        start, end = int(offsets[0]), int(offsets[-1]) + 1
        self._metrics.compacted += part.ledger.emit_part(key, start, end, len(offsets), now)
        for offset in part.forget_done() if self._hooks else ():
            self._hooks.done(part.tp, offset)
        self._metrics.retries += len(offsets)
        if made.batch is None:
            self._exhaust_unreadable(part, made.rows[-1], now)
        return made

    def _emit_retry(self, part: Partition, record: Record, emit: Emit, now: int) -> int:
        """Emit a single record again if its retry is due."""
        if not self._try_again(part, record, now):
            return 0
        part.ledger.emit(record.offset, now)
        return self._emit_record(part, record, emit, now)

    def _emit_record(self, part: Partition, record: Record, emit: Emit, now: int) -> int:
        """Emit a single record that is in flight in the ledger."""
        rows = RecordColumns.of([record])
        made = Made(rows, None) if record.offset in part.broken else self._make(part, rows, 1)
        if made.batch is None:
            self._exhaust_unreadable(part, record, now)
        return self._leave(part, made, emit)

    def _leave(self, part: Partition, made: Made, emit: Emit) -> int:
        """Emit a chunk that is in flight in the ledger; return the number of chunks: 0 or 1."""
        offsets = made.rows.offsets
        if made.batch is None or not len(offsets):
            return 0
        start, end = int(offsets[0]), int(offsets[-1]) + 1
        self._metrics.records += len(offsets)
        if self._hooks:
            part.listened[start] = offsets.tolist()
            for record in made.rows:
                self._hooks.emitted(part.tp, record.offset, part.make(record))
        if self.tracing is not None:
            self.tracing.chunk(part.tp, made.rows, part.prefix)
        # In flight before it leaves: without ackers the ack comes inside emit.
        emit(made.batch, tup_id=part.prefix + range_id(start, end))
        return 1

    # --- what a chunk holds ---

    def _fitting(self, records: Sequence[Record]) -> RecordColumns:
        """Return as many of these records as one chunk may hold."""
        rows = RecordColumns.of(records[: self._settings["chunk_records_max"]])
        bytes_max = self._settings["chunk_bytes_max"]
        if rows.nbytes > bytes_max:
            rows = rows[: max(1, bisect_right(range(1, len(rows)), bytes_max, key=lambda count: rows[:count].nbytes))]
        return rows

    def _make(self, part: Partition, rows: RecordColumns, most: int) -> Made:
        """Make a chunk of the first ``most`` records; of fewer if not all can be read."""
        rows = rows[:most]
        while True:
            try:
                return Made(rows, part.make_chunk.make(rows))
            except UnreadableRowError:
                if len(rows) == 1:
                    return Made(rows, None)
                rows = rows[: len(rows) // 2]

    def _exhaust_unreadable(self, part: Partition, record: Record, now: int) -> None:
        """Dead-letter a single unreadable record, with the error that it has when each record is a tuple."""
        error: UserError = ValueError("it is not in its format")
        try:
            part.make_whole(record)
        except USER_ERRORS as raised:
            error = raised
        self._unreadable(part, record, error, now)

    # --- what comes back ---

    def ack(self, tup_id: str) -> bool:
        """Process an ack; return whether it changed the ledger. Unknown, duplicate and late acks do not."""
        part, start = self._find(tup_id)
        if part is None:
            self._metrics.stale += 1
            return False
        self._metrics.acked += part.ledger.ack(start)
        if start in part.last_failures:
            part.forget(start)
        elif part.retry_cache:
            part.retry_cache.release(start, part.ledger)
        if self._hooks:
            for offset in [*part.listened.pop(start, ()), *(part.forget_done() if part.last_failures else ())]:
                self._hooks.done(part.tp, offset)
        return True

    def ack_many(self, tup_ids: Iterable[str]) -> None:
        """Process many acks."""
        for tup_id in tup_ids:
            self.ack(tup_id)

    def _find(self, tup_id: str) -> tuple[Partition | None, int]:
        """Return the partition and start offset of a message id; None if it is not in flight."""
        key, _, span = str(tup_id).rpartition("/")
        if (part := self.by_key.get(key)) is None:
            return None, -1
        try:
            start, end = range_of(span)
        except ValueError:
            return None, -1
        return (part, start) if part.ledger.out_until(start) == end else (None, -1)

    def _retry_or_exhaust(self, part: Partition, offset: int, failure: Failure, now: int) -> bool:
        """Process a fail: a range is split, without counting an attempt."""
        end, listened = part.ledger.out_until(offset), part.listened.pop(offset, ())
        if end == offset + 1:
            return super()._retry_or_exhaust(part, offset, failure, now)
        timed_out = failure.kind == "timeout"
        counted = before.timeouts if (before := part.ledger.retry_state(offset)) is not None else 0
        retry = self._take_back(part, offset, failure, now)
        if retry is None:
            return False
        if timed_out:
            self._metrics.timeouts += retry.records
            # An outage may affect only some of its records: the others need not be written again each time.
            if failure.outage or retry.timeouts == counted or retry.timeouts >= self._settings["timeouts_max"]:
                part.ledger.split(offset)
        self._metrics.splits += retry.most < retry.records
        part.retry_cache.keep_failed(offset, retry.end, part.cursor.waiting)
        for each in listened or (offset,):  # the listener is told of each, even those that the log cleaner removes
            self._set_back(part, each, failure)
            self._hooks.retried(part.tp, each)
        if not failure.outage:
            part.remember(offset, 0, end=retry.end)  # if its transaction is aborted, they are emitted one by one
        return True


def _retry_state(part: Partition, offset: int) -> RetryState:
    """Return the retry state of the record or range at this offset."""
    retry = part.ledger.retry_state(offset)
    assert retry is not None, part.place(offset)
    return retry


def _next_unreadable(part: Partition) -> int:
    """Return the index of the next record that is known to be unreadable."""
    found = part.cursor.unreadable or []
    at = bisect_left(found, part.cursor.at)
    return found[at] if at < len(found) else len(part.cursor.waiting)


def _next_broken(part: Partition, start: int) -> int:
    """Return the index of the next record, from ``start`` on, that stands for what Kafka cannot give whole."""
    rows = part.cursor.waiting
    first = min((offset for offset in part.broken if offset >= offset_at(rows, start)), default=None)
    return len(rows) if first is None else index_of(rows, first)
