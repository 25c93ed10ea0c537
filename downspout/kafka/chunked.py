"""How chunks leave, and how their answers come back: a range of records of one partition is one tuple.

It is ``downspout.kafka.tracked.Tracked`` for ranges: the same ledger, limits, watch and dead letters. What differs:

* A chunk ends where something else begins: what an earlier owner has done, a record that failed in an earlier life (it
  goes alone), one that is not in its format (it is given up at once, as always), the end of a watch's window.
* A chunk that fails is tried again in halves, without counting an attempt, until the culprit stands alone; it is a
  record like any other then. So is one that times out while nothing else of its partition gets through: it may be more
  than a bolt can do in that time. Otherwise it is tried again whole, and in halves after ``kafka.timeouts_max``.
* Records with a null value are in the range and not in the chunk, unless ``kafka.emit_null``.

The halves come from memory while there is room (``kafka.retry_cache_bytes``); else they are read again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.component import Failure
from downspout.errors import USER_ERRORS, UserError
from downspout.kafka.columns import RecordColumns
from downspout.kafka.emit_chunk import Mask, Unreadable
from downspout.kafka.kept import index_of, offset_at
from downspout.kafka.port import Record
from downspout.kafka.spout_state import Partition
from downspout.kafka.tracked import Tracked
from downspout.ledger.assignment import span_id, span_of
from downspout.ledger.offsets import Trouble

__all__ = ["Chunked"]

Emit = Callable[..., Any]


class Made(NamedTuple):
    """Some records, those of them that go out (None: all), and the chunk; None: the only one cannot be read."""

    rows: RecordColumns
    mask: Mask
    batch: pa.RecordBatch | None

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The offsets of those that go out."""
        return self.rows.offsets if self.mask is None else self.rows.offsets[self.mask]


class Chunked(Tracked):
    """Emits chunks, takes their acks and fails, and splits those that fail."""

    look_up_mask = 0
    """Every ack looks at the clock: it stands for many records."""

    # --- what leaves ---

    def emit_held(self, parts: Iterable[Partition], emit: Emit, now: int) -> None:
        """Emit retries that are due and in memory; the others are read again."""
        left = self._settings["emits_per_next_max"]
        for part in parts:
            while left > 0 and (offset := part.held_retry(now)) is not None:
                left -= 1
                rows = part.kept.find(offset)
                if rows is not None and _trouble(part, offset).end > offset + 1:
                    self._leave(part, self._take_part(part, rows, offset, now), emit)
                else:
                    self._emit_retry(part, part.held[offset] if rows is None else rows[0], emit, now)

    def _emit_some(self, part: Partition, most: int, emit: Emit, now: int) -> int:
        """Look at the records of one partition until ``most`` chunks were emitted or none waits; return how many."""
        sent, end = 0, self._end(part)  # not anew: of a lone record it was looked at whether it may leave, of no other
        while sent < most and part.at < min(end, len(part.waiting)):
            seen = offset_at(part.waiting, part.at) < part.ledger.next
            sent += (self._emit_seen if seen else self._emit_fresh)(part, end, emit, now)
        return sent

    def _end(self, part: Partition) -> int:
        """Return the index behind the last record that may leave now."""
        if not part.watch.until:
            return len(part.waiting)
        return min(len(part.waiting), part.at + 1 if part.watch.solo else part.end_of_window())

    # Each of the following moves ``part.at`` on, and returns how many chunks it has emitted.

    def _emit_fresh(self, part: Partition, end: int, emit: Emit, now: int) -> int:
        """Emit what is at ``part.at``, and was not seen before, as far as it is one chunk."""
        ledger, rows, at, seen = part.ledger, part.waiting, part.at, part.ledger.next
        offset = offset_at(rows, at)
        if offset in ledger.told:
            part.at += 1
            part.note_read(at, seen)
            return self._emit_told(part, rows[at], emit, now)
        if (free := ledger.free_until(offset, offset_at(rows, end - 1) + 1)) == offset:
            part.at = min(end, index_of(rows, ledger.done_until(offset)))  # an earlier owner has done that
            part.note_read(at, seen)
            ledger.passed(offset_at(rows, part.at - 1) + 1)
            self._figures.skipped += part.at - at
            return 0
        if (bad := _next_unreadable(part)) == at:
            part.at += 1
            part.note_read(at, seen)
            ledger.emit(offset, now)
            return self._emit_record(part, rows[at], emit, now)
        chosen = self._fitting(rows[at : min(index_of(rows, free), bad)])
        mask = self._mask(chosen)
        try:
            made = Made(chosen, mask, part.make_chunk.make(chosen, mask))
        except Unreadable:
            if part.unreadable is not None:
                raise
            every = RecordColumns.of(rows)
            part.unreadable = part.make_chunk.unreadable(every, self._mask(every))
            return 0  # the next look ends before the first of these
        part.at += len(chosen)
        part.note_read(at, seen)
        return self._leave_first(part, made, emit, now)

    def _leave_first(self, part: Partition, made: Made, emit: Emit, now: int) -> int:
        """Emit records that were not seen before as one chunk, those that are filtered left out."""
        rows, offsets = made.rows, made.offsets
        if len(offsets):
            part.ledger.emit_range(int(offsets[0]), int(offsets[-1]) + 1, len(offsets), now)
        if made.mask is not None:
            part.ledger.passed(int(rows.offsets[-1]) + 1)
            self._figures.filtered += len(rows) - len(offsets)
            for offset in rows.offsets[~made.mask].tolist() if self._hooks else ():
                self._hooks.done(part, offset)
        return self._leave(part, made, emit)

    def _emit_told(self, part: Partition, record: Record, emit: Emit, now: int) -> int:
        """Emit a record that failed in an earlier life, alone."""
        if part.ledger.told[record.offset] > self._settings["retries_max"]:
            self._use_up(part, record, now)
        elif record.value is None and not self._settings["emit_null"]:
            part.ledger.resolve(record.offset)
            self._figures.filtered += 1
            self._hooks.done(part, record.offset)
        else:
            part.ledger.emit(record.offset, now)
            return self._emit_record(part, record, emit, now)
        return 0

    def _emit_seen(self, part: Partition, end: int, emit: Emit, now: int) -> int:
        """Pass over what waits for nothing, up to a retry, and emit that if its time has come."""
        ledger, rows, at = part.ledger, part.waiting, part.at
        limit = min(end, index_of(rows, ledger.next))
        # What is left of a range begins behind the last record of the part before: that may be a gap.
        key = ledger.first_waiting(offset_at(rows, at - 1) + 1 if at else offset_at(rows, 0))
        first = behind = limit
        while key is not None:
            first, behind = index_of(rows, key), min(limit, index_of(rows, _trouble(part, key).end))
            if first < behind or first >= limit:
                break
            key = ledger.first_waiting(key + 1)  # it is not there any more: whoever seeks it will see
        part.at = first = limit if key is None else min(first, limit)
        self._figures.skipped += first - at
        if key is None or first == limit:
            return 0
        trouble = _trouble(part, key)
        if trouble.end == key + 1:
            part.at += 1
            return self._emit_retry(part, rows[first], emit, now)
        if trouble.ready_at > now:
            part.at = behind
            self._figures.skipped += behind - first
            return 0
        made = self._take_part(part, rows[first:behind], key, now)
        part.at = first + len(made.rows)
        return self._leave(part, made, emit)

    def _take_part(self, part: Partition, records: Sequence[Record], key: int, now: int) -> Made:
        """Take the first part of a range out that waits for its retry at ``key``; the records begin with it."""
        trouble = _trouble(part, key)
        made = self._make(part, self._fitting(records[: index_of(records, trouble.end)]), trouble.most)
        offsets = made.offsets
        for offset in (key, *offsets.tolist()) if self._hooks else (key,):
            part.setbacks.pop(offset, None)  # whatever fails next is another range, or a record with a past of its own
        if not len(offsets):
            behind = int(made.rows.offsets[-1]) + 1 if len(made.rows) else trouble.end
            self._figures.compacted += part.ledger.gone(key, behind)
            return made
        start, end = int(offsets[0]), int(offsets[-1]) + 1
        self._figures.compacted += part.ledger.emit_part(key, start, end, len(offsets), now)
        for offset in part.forget_done() if self._hooks else ():
            self._hooks.done(part, offset)
        self._figures.retries += len(offsets)
        if made.batch is None:
            self._give_up(part, made.rows[-1], now)
        return made

    def _emit_retry(self, part: Partition, record: Record, emit: Emit, now: int) -> int:
        """Emit a single record again, if it waits for that and its time has come."""
        if not self._try_again(part, record, now):
            return 0
        part.ledger.emit(record.offset, now)
        return self._emit_record(part, record, emit, now)

    def _emit_record(self, part: Partition, record: Record, emit: Emit, now: int) -> int:
        """Emit a single record, which is in the ledger as being out."""
        made = self._make(part, RecordColumns.of([record]), 1)
        if made.batch is None:
            self._give_up(part, record, now)
        return self._leave(part, made, emit)

    def _leave(self, part: Partition, made: Made, emit: Emit) -> int:
        """Emit a chunk that is in the ledger; return 0 where there is none."""
        offsets = made.offsets
        if made.batch is None or not len(offsets):
            return 0
        start, end = int(offsets[0]), int(offsets[-1]) + 1
        self._figures.records += len(offsets)
        if self._hooks:
            part.listened[start] = offsets.tolist()
            for record in made.rows:
                if made.mask is None or record.value is not None:
                    self._hooks.emitted(part, record.offset, part.make(record))
        # In flight before it leaves: without ackers the ack comes inside emit.
        emit(made.batch, tup_id=part.prefix + span_id(start, end))
        return 1

    # --- what a chunk holds ---

    def _fitting(self, records: Sequence[Record]) -> RecordColumns:
        """Return as many of these records as one chunk may hold."""
        rows = RecordColumns.of(records[: self._settings["chunk_records_max"]])
        bytes_max = self._settings["chunk_bytes_max"]
        if rows.nbytes > bytes_max:
            rows = rows[: max(1, bisect_right(range(1, len(rows)), bytes_max, key=lambda count: rows[:count].nbytes))]
        return rows

    def _mask(self, rows: RecordColumns) -> Mask:
        """Return which of them go out, None for all: a null value is filtered."""
        if not rows.values.null_count or self._settings["emit_null"]:
            return None
        valid: NDArray[np.bool_] = rows.values.is_valid().to_numpy(zero_copy_only=False)
        return valid

    def _make(self, part: Partition, rows: RecordColumns, most: int) -> Made:
        """Make a chunk of the first records that go out, at most so many; of fewer where not all can be read."""
        while True:
            mask = self._mask(rows)
            places = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
            if len(places) > most:
                rows = rows[: int(places[most - 1]) + 1]
                continue
            try:
                return Made(rows, mask, part.make_chunk.make(rows, mask))
            except Unreadable:
                if len(places) == 1:
                    return Made(rows, mask, None)
                most = len(places) // 2

    def _give_up(self, part: Partition, record: Record, now: int) -> None:
        """Give up a single record that cannot be read; it says why as it does where each record is a tuple."""
        error: UserError = ValueError("it is not in its format")
        try:
            part.make(record)
        except USER_ERRORS as raised:
            error = raised
        self._unreadable(part, record, error, now)

    # --- what comes back ---

    def ack(self, tup_id: str) -> bool:
        """Take an ack; return whether it changed anything. Unknown, double and late ones do not."""
        part, start = self._find(tup_id)
        if part is None:
            self._figures.stale += 1
            return False
        self._figures.acked += part.ledger.ack(start)
        if start in part.setbacks:
            part.forget(start)
        elif part.kept:
            part.kept.release(start, part.ledger)
        if self._hooks:
            for offset in [*part.listened.pop(start, ()), *(part.forget_done() if part.setbacks else ())]:
                self._hooks.done(part, offset)
        return True

    def ack_many(self, tup_ids: Iterable[str]) -> None:
        """Take many acks."""
        for tup_id in tup_ids:
            self.ack(tup_id)

    def _find(self, tup_id: str) -> tuple[Partition | None, int]:
        """Return whose message id this is, and where that begins; None where nothing of it is out."""
        key, _, span = str(tup_id).rpartition("/")
        if (part := self.by_key.get(key)) is None:
            return None, -1
        try:
            start, end = span_of(span)
        except ValueError:
            return None, -1
        return (part, start) if part.ledger.out_until(start) == end else (None, -1)

    def _land(self, part: Partition, offset: int, failure: Failure, now: int) -> bool:
        """Take a fail of what is out: of a range no attempt is counted, it is split."""
        end, listened = part.ledger.out_until(offset), part.listened.pop(offset, ())
        if end == offset + 1:
            return super()._land(part, offset, failure, now)
        timed_out = failure.kind == "timeout"
        counted = before.timeouts if (before := part.ledger.trouble(offset)) is not None else 0
        trouble = (part.ledger.timeout if timed_out else part.ledger.fail)(offset, now)
        if trouble is None:
            return False
        if timed_out:
            self._figures.timeouts += trouble.records
            if trouble.timeouts == counted or trouble.timeouts >= self._settings["timeouts_max"]:
                part.ledger.split(offset)
        self._figures.splits += trouble.most < trouble.records
        part.remember_range(offset, trouble.end)
        for each in listened or (offset,):  # somebody hears of each: also of those that the log's cleaner takes
            self._set_back(part, each, failure)
            self._hooks.retried(part, each)
        return True


def _trouble(part: Partition, offset: int) -> Trouble:
    """Return the state of what failed there, and waits."""
    trouble = part.ledger.trouble(offset)
    assert trouble is not None, part.place(offset)
    return trouble


def _next_unreadable(part: Partition) -> int:
    """Return the index of the next record that is known to be unreadable."""
    found = part.unreadable or []
    at = bisect_left(found, part.at)
    return found[at] if at < len(found) else len(part.waiting)
