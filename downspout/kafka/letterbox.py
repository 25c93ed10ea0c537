"""Dead letters of rejected rows: gathered, completed from Kafka, written, and only then done.

A rejected row brings what the bolt was given of its record, which may lack headers, timestamp and key. The letter must
hold the whole record, so it is read again by its origin. If it is gone from Kafka meanwhile, the letter holds what the
row brought, and says so in a header.

As in the spout's :mod:`~downspout.kafka.giving_up`, nobody waits: one batch of letters is on its way while others
gather, and a later call finds it durable or failed. What failed is tried again after a back-off, a letter at a time;
meanwhile its tuple may time out and come again, and then waits for the same letter.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
from kafka.errors import KafkaError

from downspout.clock import Clock
from downspout.component import Failure
from downspout.errors import BrokerError, RecordError, coordinates
from downspout.kafka.deadletter import INCOMPLETE, DeadLetters
from downspout.kafka.patience import Seldom, describe
from downspout.kafka.port import Record
from downspout.kafka.rereading import Place, Rereader
from downspout.ledger.origin import Origin
from downspout.ledger.retries import Backoff

__all__ = ["LetterBox", "Rejected"]

BATCH_WORTH = 250
LINGER_S = 0.25
"""Letters are sent when there are so many, or when the first has waited so long."""
BATCH_RECORDS = 500
READ_S_MAX = 0.5
"""Records are read again for at most so long in one call."""
READ_TRIES_MAX = 20
"""A record that could not be read in so many calls is written as it is known."""
DRAIN_S_MAX = 4.0
POLL_S = 0.005
_CLASS = re.compile(r"[A-Za-z_][\w.]*: ")


@dataclass(slots=True, eq=False)
class Rejected:
    """A row that waits for its letter.

    Attributes:
        origin: of the record.
        error: ``class: message``.
        component: the bolt that rejected it.
        task: of that bolt.
        at_ms: when, milliseconds since the epoch.
        key: of the record, as far as the bolt was given it.
        value: likewise.
        timestamp: of the record, in milliseconds; None: the bolt was not given the whole record.
        headers: likewise, as pairs.
        tuples: ids of those that wait for the letter.
        tries: to read it again.
    """

    origin: Origin
    error: str
    component: str
    task: int
    at_ms: int
    key: Any = None
    value: Any = None
    timestamp: int | None = None
    headers: Any = None
    tuples: list[str] = field(default_factory=list)
    tries: int = 0

    @property
    def place(self) -> Place:
        """Where the record is."""
        return (self.origin.topic, self.origin.topic_id, self.origin.partition, self.origin.offset)

    def failure(self) -> Failure:
        """Return why it was rejected."""
        error = self.error if _CLASS.match(self.error) else f"Rejected: {self.error}"
        return Failure("reject", self.component, self.task, error)

    def record(self, incomplete: str = "") -> Record:
        """Return the record as the row brought it; ``incomplete`` says why that is not all."""
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
    """What is known of a record without reading it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp: int


class LetterBox:
    """Takes rejected rows, and tells whose letters are durable.

    Args:
        letters: where they are written.
        reader: reads their records again.
        clock: what time is.
        log: where warnings go.
        done: hears the id of each tuple that waits for nothing any more.
        refused: hears the id of a tuple whose letter can never be written, with the reason.
    """

    def __init__(
        self,
        letters: DeadLetters,
        reader: Rereader,
        clock: Clock,
        log: logging.Logger,
        done: Callable[[str], None],
        refused: Callable[[str, Exception], None],
    ) -> None:
        self._letters, self._reader, self._clock, self._log = letters, reader, clock, log
        self._done, self._refused = done, refused
        self._known: dict[tuple[Origin, str], Rejected] = {}
        self._waiting: deque[Rejected] = deque()
        self._sent: list[Rejected] = []
        self._sent_until = 0.0
        self._since: float | None = None
        self._open: dict[str, int] = {}
        """tuple → letters that it waits for"""
        self._batch_max = BATCH_RECORDS
        self._failed, self._not_before = 0, 0.0
        self._backoff = Backoff(initial_ms=200, delay_ms=200, delay_ms_max=10_000)
        self._seldom = Seldom()
        self.written = 0
        self.incomplete = 0

    def add(self, tup: str, rows: Sequence[Rejected]) -> None:
        """Take the rows of a tuple, told by its id, which is done when all their letters are durable."""
        if not rows:
            self._done(tup)
            return
        self._open[tup] = len(rows)
        for row in rows:
            # A tuple that timed out comes again while its letter is still on its way: one letter serves both.
            known = self._known.setdefault((row.origin, row.error), row)
            known.tuples.append(tup)
            if known is row:
                self._waiting.append(row)

    def __len__(self) -> int:
        return len(self._known)

    def work(self, *, eager: bool = True) -> None:
        """Send letters, and tell of those that are durable by now; wait for none.

        Args:
            eager: send what there is; otherwise only what is worth a batch.
        """
        now = self._clock.monotonic()
        self._collect(now)
        if self._since is None and self._waiting:
            self._since = now
        worth = len(self._waiting) >= BATCH_WORTH or (self._since is not None and now - self._since >= LINGER_S)
        if self._waiting and not self._sent and now >= self._not_before and (eager or worth):
            self._since = None
            self._send([self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))])
            self._collect(now)  # to look hands them over, and the next call may come when their time is up

    def drain(self) -> None:
        """Write what there is and wait for it, for a bounded time."""
        until = self._clock.monotonic() + DRAIN_S_MAX
        while self._known and self._clock.monotonic() < until:
            self.work()
            if self._sent:
                self._collect(self._clock.monotonic(), wait_s=1.0)
            elif self._known:
                self._clock.sleep(POLL_S)

    def _send(self, batch: list[Rejected]) -> None:
        try:
            records = self._records(batch)
            self._sent = [row for row in batch if row.place in records]
            self._waiting.extendleft(row for row in reversed(batch) if row.place not in records)
            self._sent_until = self._clock.monotonic() + self._letters.timeout_s
            for row in self._sent:
                self._letters.queue(
                    records[row.place],
                    attempts=1,
                    first_failure_ms=row.at_ms,
                    last_failure_ms=row.at_ms,
                    failure=row.failure(),
                    topic_id=row.origin.topic_id,
                )
        except (KafkaError, BrokerError) as error:
            if not self._sent:
                self._sent = batch
            self._fail(error)

    def _records(self, batch: list[Rejected]) -> dict[Place, Record]:
        """Return the records of rows, as they are known or read again; some may take another call."""
        records = {row.place: row.record() for row in batch if row.timestamp is not None}
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

    def _collect(self, now: float, wait_s: float = 0.0) -> None:
        if not self._sent:
            return
        try:
            if not self._letters.answered(late=now >= self._sent_until, wait_s=wait_s):
                return
        except (KafkaError, BrokerError) as error:
            self._fail(error)
            return
        sent, self._sent = self._sent, []
        self._failed, self._batch_max = 0, min(2 * self._batch_max, BATCH_RECORDS)
        for row in sent:
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

    def _fail(self, error: Exception) -> None:
        """Back off. Which letter is to blame is known of a batch of one: the next are that small, until it works."""
        batch, self._sent = self._sent, []
        self._failed += 1
        now = self._clock.monotonic()
        self._not_before = now + self._backoff.delay(self._failed) / 1000
        self._batch_max = 1
        cause: BaseException | None = error
        while isinstance(cause, BrokerError):
            cause = cause.__cause__
        passes = not isinstance(cause, KafkaError) or getattr(cause, "retriable", False)
        if self._seldom.due(type(cause).__name__, int(now * 1000)):
            self._log.warning("%s", error if isinstance(error, BrokerError) else describe(error))
        if passes or len(batch) > 1:
            self._waiting.extendleft(reversed(batch))
            return
        for row in batch:
            self._refuse(row, cause)

    def _refuse(self, row: Rejected, cause: BaseException | None) -> None:
        del self._known[row.origin, row.error]
        where = coordinates(row.origin.topic, row.origin.partition, row.origin.offset)
        what = describe(cause) if isinstance(cause, KafkaError) else str(cause)
        refusal = RecordError(
            f"{where}: rejected by {row.component}, and its dead letter cannot be written to topic "
            f"{self._letters.topic}: {what}",
            cure="correct the dead-letter topic (max.message.bytes, rights)",
        )
        for tup in row.tuples:
            if self._open.pop(tup, None) is not None:
                self._refused(tup, refusal)

    def close(self) -> None:
        """Release producer and consumer."""
        self._letters.close()
        with suppress(KafkaError, BrokerError):
            self._reader.close()


def _bytes(value: Any) -> bytes | None:
    """Return a value of a tuple as it may have been in Kafka.

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
