"""Dead letters of rejected rows: collected, completed from Kafka, and written before their tuples are acked.

A rejected row has only the parts of its record that the bolt received, perhaps without headers, timestamp and key. A
dead letter must hold the whole record: on the local engine, the spout may still have it; otherwise it is read again by
its origin. If Kafka no longer has it, the dead letter holds the row's parts, and a header says so.

No call waits: one batch is in flight (:mod:`~downspout.dead_letters.outbox`) while further rows are collected. If a
tuple times out meanwhile, its replay waits for the same dead letter.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
from kafka.errors import KafkaError

from downspout.clock import Clock
from downspout.component import Failure
from downspout.dead_letters.dead_letter import INCOMPLETE, DeadLetters
from downspout.dead_letters.outbox import Outbox
from downspout.errors import BrokerError, RecordError, coordinates
from downspout.kafka.port import Record
from downspout.kafka.retry_gate import describe
from downspout.kafka.scan import RecordPlace, Rereader
from downspout.ledger.origin import Origin

BATCH_WORTH = 250
LINGER_MS = 250  # A batch is sent when it has BATCH_WORTH dead letters, or when the first has waited this long
READ_S_MAX = 0.5  # Longest time to reread records in one call
READ_TRIES_MAX = 20  # After this many failed rereads, the known parts of a record are written
DRAIN_S_MAX = 4.0
POLL_S = 0.005
_CLASS = re.compile(r"[A-Za-z_][\w.]*: ")


@dataclass(slots=True, eq=False)
class RejectedRow:
    """A row that waits for its dead letter."""

    origin: Origin  # of the record
    error: str  # ``class: message``
    component: str  # the bolt that rejected it
    task: int  # of that bolt
    at_ms: int  # time of the rejection, milliseconds since the epoch
    key: Any = None  # of the record, if the bolt received it
    value: Any = None  # likewise
    timestamp: int | None = None  # of the record, in milliseconds; None: the bolt did not receive the whole record
    headers: Any = None  # likewise, as pairs
    whole: Record | None = None  # the whole record, if known
    tuples: list[str] = field(default_factory=list)  # ids of the tuples that wait for the dead letter
    tries: int = 0  # rereads

    @property
    def place(self) -> RecordPlace:
        """The record's coordinates."""
        return (self.origin.topic, self.origin.topic_id, self.origin.partition, self.origin.offset)

    def failure(self) -> Failure:
        """Return the rejection as a failure."""
        error = self.error if _CLASS.match(self.error) else f"Rejected: {self.error}"
        return Failure("reject", self.component, self.task, error)

    @property
    def is_known(self) -> bool:
        """Whether the whole record is known, so it need not be read again."""
        return self.whole is not None or self.timestamp is not None

    def record(self, incomplete: str = "") -> Record:
        """Return the record from the row's parts; ``incomplete``: why parts are missing."""
        if self.whole is not None:
            return self.whole
        headers = [(name, value or b"") for name, value in self.headers or ()] if not incomplete else []
        if incomplete:
            headers.append((INCOMPLETE, f"{incomplete}: key and value as a bolt was given them".encode()))
        time_ms = -1 if self.timestamp is None else self.timestamp
        origin = self.origin
        return _Known(
            origin.topic, origin.partition, origin.offset, _bytes(self.key), _bytes(self.value), headers, time_ms
        )


@dataclass(slots=True)
class _Known:
    """The known parts of a record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp: int


class DeadLetterWriter:
    """Writes dead letters for rejected rows, and reports the tuples whose dead letters are durable."""

    def __init__(
        self,
        dead_letters: DeadLetters,
        reader: Rereader,
        clock: Clock,
        log: logging.Logger,
        done: Callable[[str], None],  # called with the id of each tuple whose dead letters are durable
        # called with the id of a tuple whose dead letter can never be written, and the reason
        refused: Callable[[str, Exception], None],
    ) -> None:
        self._reader, self._clock, self._done, self._refused = reader, clock, done, refused
        self._outbox: Outbox[RejectedRow] = Outbox(dead_letters, log, id, self._failed)
        self._known: dict[tuple[Origin, str], RejectedRow] = {}
        self._waiting: deque[RejectedRow] = deque()
        self._since: int | None = None
        self._open: dict[str, int] = {}  # tuple → number of dead letters it waits for
        self.written = 0
        self.incomplete = 0

    def add(self, tup: str, rows: Sequence[RejectedRow]) -> None:
        """Add the rows of a tuple, which is done when all their dead letters are durable."""
        if not rows:
            self._done(tup)
            return
        self._open[tup] = len(rows)
        for row in rows:
            # The replay of a tuple that timed out shares the dead letter that is still in flight.
            known = self._known.setdefault((row.origin, row.error), row)
            known.tuples.append(tup)
            if known is row:
                self._waiting.append(row)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def is_sending(self) -> bool:
        """Whether a batch is in flight."""
        return bool(self._outbox.sent)

    def report(self) -> Mapping[str, Any]:
        """Return the dead letters by exception, and the last ones."""
        return self._outbox.letters.written.report()

    def work(self, *, eager: bool = True) -> None:
        """Send dead letters, and report those that are durable, without waiting.

        Args:
            eager: also send incomplete batches.
        """
        self._collect()
        now = self._now()
        if self._since is None and self._waiting:
            self._since = now
        worth = len(self._waiting) >= BATCH_WORTH or (self._since is not None and now - self._since >= LINGER_MS)
        if self._waiting and not self._outbox.sent and now >= self._outbox.not_before and (eager or worth):
            self._since = None
            self._send([self._waiting.popleft() for _ in range(min(self._outbox.batch_max, len(self._waiting)))])
            self._collect()  # makes the producer send them now

    def drain(self) -> None:
        """Write all dead letters and wait for them, for a bounded time."""
        until = self._clock.monotonic() + DRAIN_S_MAX
        while self._known and self._clock.monotonic() < until:
            self.work()
            if self._outbox.sent:
                self._collect(wait_s=1.0)
            elif self._known:
                self._clock.sleep(POLL_S)

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _send(self, batch: list[RejectedRow]) -> None:
        try:
            records = self._records(batch)
        except (KafkaError, BrokerError) as error:
            self._outbox.fail(batch, error, self._now())
            return
        self._waiting.extendleft(row for row in reversed(batch) if row.place not in records)

        def queue(row: RejectedRow) -> None:
            self._outbox.letters.queue(
                records[row.place],
                attempts=1,
                first_failure_ms=row.at_ms,
                last_failure_ms=row.at_ms,
                failure=row.failure(),
                topic_id=row.origin.topic_id,
            )

        self._outbox.send([row for row in batch if row.place in records], queue, self._now)

    def _records(self, batch: list[RejectedRow]) -> dict[RecordPlace, Record]:
        """Return the records of rows, known or reread; some may need another call."""
        records = {row.place: row.record() for row in batch if row.is_known}
        wanted = [row for row in batch if row.place not in records]
        found = self._reader.read({row.place for row in wanted}, READ_S_MAX) if wanted else {}
        records |= {place: record for place, record in found.items() if record is not None}
        for row in wanted:
            row.tries += 1
            if row.place in records or (row.place not in found and row.tries < READ_TRIES_MAX):
                continue
            why = "the record is gone from Kafka" if row.place in found else "the record could not be read again"
            self.incomplete += 1
            records[row.place] = row.record(why)
        return records

    def _collect(self, wait_s: float = 0.0) -> None:
        for row in self._outbox.durable(self._now, wait_s):
            self.written += 1
            del self._known[row.origin, row.error]
            for tup in row.tuples:
                self._release(tup)

    def _release(self, tup: str) -> None:
        if tup in self._open:
            self._open[tup] -= 1
            if not self._open[tup]:
                del self._open[tup]
                self._done(tup)

    def _failed(self, batch: list[RejectedRow], error: Exception, refusal: KafkaError | None) -> None:
        if refusal is None or len(batch) > 1:
            self._waiting.extendleft(reversed(batch))
        else:
            self._refuse(batch[0], refusal)

    def _refuse(self, row: RejectedRow, cause: KafkaError) -> None:
        del self._known[row.origin, row.error]
        where = coordinates(row.origin.topic, row.origin.partition, row.origin.offset)
        refusal = RecordError(
            f"{where}: rejected by {row.component}, and its dead letter cannot be written to topic "
            f"{self._outbox.letters.topic}: {describe(cause)}",
            cure="correct the dead-letter topic (max.message.bytes, permissions)",
        )
        for tup in row.tuples:
            if self._open.pop(tup, None) is not None:
                self._refused(tup, refusal)

    def close(self) -> None:
        """Release producer and consumer."""
        self._outbox.letters.close()
        with suppress(KafkaError, BrokerError):
            self._reader.close()


def _bytes(value: Any) -> bytes | None:
    """Convert a value of a tuple to bytes as Kafka may have held it.

    >>> _bytes("é"), _bytes({"a": 1}), _bytes(None)
    (b'\\xc3\\xa9', b'{"a":1}', None)
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    try:
        return orjson.dumps(value)
    except TypeError:
        return repr(value).encode("utf-8", "backslashreplace")
