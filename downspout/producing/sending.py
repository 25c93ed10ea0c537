"""Tuples on their way to Kafka: each is acked when all of its records are written, or fails when one is not.

Everything happens in the component's own thread. It asks the producer for results every few tuples, and whenever the
engine asks when it wants to be called (:meth:`Sending.look_at`).

**Back-pressure.** The buffer is full at so many bytes, or once its oldest record has waited for a quarter of the
message timeout. Then :meth:`Sending.send` waits for answers, at most ``FULL_S_MAX`` in one call. Where one partition
alone has no answer for so long, its tuples fail at once instead, and count no attempt: the others go on. In the local
engine no spout emits while a bolt has something in its queue; on Storm ``topology.max.spout.pending`` bounds what is
out. Either way a record that is taken is answered before its tuple times out, as long as the brokers answer at all.

**Modes.** *asynchronous*: acked when the broker has answered. *synchronous*: so too, and each tuple waits for that, one
after the other. *fire_and_forget*: acked at once; errors are counted and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from kafka.errors import KafkaError

from downspout.clock import Clock
from downspout.errors import USER_ERRORS
from downspout.kafka.port import ProducerPort, Sent
from downspout.kafka.retry_gate import LogThrottle, describe
from downspout.producing.faults import concerns_all, error_of_all, error_of_record, is_its_own, is_outage
from downspout.producing.mapper import Outgoing

__all__ = [
    "ASYNCHRONOUS", "FORGET", "SYNCHRONOUS", "Acks", "Chunk", "Heard", "Row", "Sending", "TransactionalSending",
]  # fmt: skip

ASYNCHRONOUS, SYNCHRONOUS, FORGET = "asynchronous", "synchronous", "fire_and_forget"
LOOK_EVERY = 64
"""Records between two looks at results and at the buffer."""
LOOK_S = 0.005
"""How often the engine is to ask while something is out."""
FULL_S_MAX = 1.0
FULL_LOOK_S = 0.002
SYNCHRONOUS_S_MAX = 4.0
"""On Storm no call may take longer than 5 s. A record without its answer by then gets it later."""
_ROW_ERRORS_MAX = 3
"""Records of a chunk that an error names."""

Heard = Callable[[Any, Sent], None]
"""A user's callback: a tuple, or a row of a chunk, and what became of it."""


class Acks(Protocol):
    """What is needed of the bolt."""

    component_name: Any

    def ack_many(self, tups: Sequence[Any]) -> None:
        """Ack tuples."""

    def fail_because(self, tup: Any, error: Exception) -> None:
        """Fail one."""

    def place_of(self, tup: Any, row: int | None) -> str:
        """Return the coordinates of a tuple's record, or of a row's, with a colon; or nothing."""


class Chunk:
    """A chunk on its way: acked when all of its records are written."""

    __slots__ = ("errors", "left", "tup")

    def __init__(self, tup: Any, records: int) -> None:
        self.tup, self.left = tup, records
        self.errors: list[tuple[int, str, BaseException]] = []
        """rows that failed, where they were to go, and why"""


Row = tuple[int, str, Outgoing]
"""A row's number in its chunk, the topic it goes to, and its record."""


class _Token(NamedTuple):
    """Of a row."""

    chunk: Chunk
    row: int


_new: Any = tuple.__new__


class Sending:
    """Sends records and settles tuples.

    Args:
        producer: the port.
        bolt: acks and fails.
        clock: what time is.
        log: where warnings go.
        mode: see above.
        buffer_bytes: at so many the buffer is full.
        age_s_max: so old may the oldest record of the buffer be.
        one_topic: whether all records go to one topic.
        heard: hears each result.
    """

    def __init__(
        self,
        producer: ProducerPort,
        bolt: Acks,
        clock: Clock,
        log: logging.Logger,
        *,
        mode: str,
        buffer_bytes: int,
        age_s_max: float,
        one_topic: bool,
        heard: Heard | None = None,
    ) -> None:
        self._producer, self._bolt, self._clock, self._log = producer, bolt, clock, log
        producer.refuse_when_stuck(age_s_max)
        self._mode, self._buffer_bytes, self._age_s_max = mode, buffer_bytes, age_s_max
        self._one_topic, self._heard = one_topic, heard
        self._since_look = 0
        self._look_due = 0.0
        self._has_chunks = False
        self._throttle = LogThrottle()
        self.in_flight = self.bytes = 0
        self.sent = self.refused = self.unknown = 0
        self.latency_s = 0.0
        """Of the last batch, from its first record to its answer."""

    @property
    def retried(self) -> int:
        """How often records were sent again, by the client and by the port."""
        return self._producer.retried

    # --- records out ------------------------------------------------------------------------------------

    def send(self, tup: Any, topic: str, record: Outgoing) -> None:
        """Send the record of a tuple."""
        key, value, headers, timestamp_ms, partition, _ = record
        self.in_flight += 1
        self.bytes += len(key or b"") + len(value or b"")
        self._producer.send(
            topic, key=key, value=value, headers=headers, partition=partition, timestamp_ms=timestamp_ms, token=tup
        )
        if self._mode == FORGET:
            self._bolt.ack_many([tup])
        self._since_look += 1
        if self._since_look >= LOOK_EVERY or self._mode == SYNCHRONOUS:
            self.after_sending()

    def send_chunk(self, tup: Any, rows: Sequence[Row]) -> None:
        """Send the records of a chunk."""
        if not rows:
            self._bolt.ack_many([tup])
            return
        self.send_rows(Chunk(tup, len(rows)), rows)
        if self._mode == FORGET:
            self._bolt.ack_many([tup])
        self.after_sending()

    def send_rows(self, chunk: Chunk, rows: Sequence[Row]) -> None:
        """Send records of a chunk."""
        send, sent_bytes = self._producer.send, 0
        self._has_chunks = True
        self.in_flight += len(rows)
        for row, topic, (key, value, headers, timestamp_ms, partition, _) in rows:
            sent_bytes += len(key or b"") + len(value or b"")
            token = _new(_Token, (chunk, row))  # what its own __new__ makes, for a part of the time
            send(
                topic, key=key, value=value, headers=headers, partition=partition, timestamp_ms=timestamp_ms,
                token=token,
            )  # fmt: skip
        self.bytes += sent_bytes

    def after_sending(self) -> None:
        """Look at results, and wait while the buffer is full."""
        self._since_look = 0
        if self._mode == SYNCHRONOUS:
            with suppress(KafkaError):
                self._producer.flush(SYNCHRONOUS_S_MAX)
        self.collect()
        if self._is_full():
            until = self._clock.monotonic() + FULL_S_MAX
            while self._is_full() and self._clock.monotonic() < until:
                self._clock.sleep(FULL_LOOK_S)
                self.collect()

    def _is_full(self) -> bool:
        producer = self._producer
        return producer.buffered_bytes >= self._buffer_bytes or producer.oldest_s() >= self._age_s_max

    # --- answers in -------------------------------------------------------------------------------------

    def look_at(self) -> float | None:
        """Return when results should be looked at; None: nothing is out."""
        return self._look_due if self.in_flight else None

    def hand_over(self) -> None:
        """Send what lingers, and settle what is answered; wait for nothing."""
        if self.in_flight:
            self._producer.acknowledged()
        self.collect()

    def collect(self) -> bool:
        """Settle the tuples whose records are answered; return whether there were any.

        Raises:
            BrokerError: nothing can be written any more.
        """
        self._look_due = self._clock.monotonic() + LOOK_S
        found = self._producer.results()
        for sent in found:
            self._take(sent)
        return bool(found)

    def _take(self, sent: Sent) -> None:
        tokens = sent.tokens
        count = len(tokens)
        self.in_flight -= count
        if sent.error is not None:
            self._refuse(sent)
        else:
            if sent.offset < 0:
                self.unknown += count
            else:
                self.sent += count
            self.latency_s = max(self._clock.monotonic() - sent.since, 0.0)
            if self._has_chunks:
                tokens = self._rows_done(tokens)
            if tokens and self._mode != FORGET:
                self._bolt.ack_many(tokens)
        if self._heard is not None:
            self._tell(self._heard, sent)

    def _rows_done(self, tokens: Sequence[Any]) -> list[Any]:
        """Count rows of chunks; return the tokens that are tuples, those of chunks that are done among them."""
        done = []
        for token in tokens:
            if type(token) is not _Token:
                done.append(token)
                continue
            chunk = token.chunk
            chunk.left -= 1
            if not chunk.left:
                if not chunk.errors:
                    done.append(chunk.tup)
                else:
                    self._fail_chunk(chunk)
        return done

    def _refuse(self, sent: Sent) -> None:
        error = sent.error
        assert error is not None
        name = str(self._bolt.component_name)
        self.refused += len(sent.tokens)
        if concerns_all(error, one_topic=self._one_topic):
            raise error_of_all(name, sent.topic, error)
        where = sent.topic if sent.partition < 0 else f"{sent.topic}[{sent.partition}]"
        if self._mode == FORGET:
            if self._throttle.due(type(error).__name__, int(self._clock.monotonic() * 1000)):
                self._log.warning(
                    "%s: records that were acked already are not written to %s: %s (%d so far)",
                    name, where, describe(error), self.refused,
                )  # fmt: skip
            return
        for token in sent.tokens:
            if type(token) is _Token:
                token.chunk.errors.append((token.row, where, error))
                self._rows_done([token])
            else:
                self._bolt.fail_because(token, error_of_record(name, self._bolt.place_of(token, None), where, error))

    def _fail_chunk(self, chunk: Chunk) -> None:
        """Fail a chunk, and tell the first of its records that were not written."""
        own = [each for each in chunk.errors if not is_outage(each[2])]
        row, where, error = min(own or chunk.errors, key=lambda each: each[0])
        reason = error_of_record(str(self._bolt.component_name), self._bolt.place_of(chunk.tup, row), where, error)
        if len(chunk.errors) > 1:
            others = sorted(row for row, _, _ in chunk.errors)[1 : 1 + _ROW_ERRORS_MAX]
            places = "".join(f" {self._bolt.place_of(chunk.tup, other)}" for other in others).rstrip(": ")
            more = f"{reason.message} (and {len(chunk.errors) - 1:,} more of this chunk:{places})"
            reason = type(reason)(more, cure=reason.cure)
        self._bolt.fail_because(chunk.tup, reason)

    def _tell(self, heard: Heard, sent: Sent) -> None:
        """Tell the user's callback; one that raises is logged."""
        for number, token in enumerate(sent.tokens):
            offset = sent.offset + number if sent.offset >= 0 else -1
            tup = token.chunk.tup if type(token) is _Token else token
            try:
                heard(tup, sent._replace(tokens=(tup,), offset=offset))
            except USER_ERRORS:
                if self._throttle.due("callback", int(self._clock.monotonic() * 1000)):
                    self._log.exception("%s: produce.callback raised", self._bolt.component_name)

    def report(self) -> dict[str, float]:
        """Return how many records were written, refused, and are out."""
        return {
            "sent": self.sent,
            "refused": self.refused,
            "unknown": self.unknown,
            "retried": self.retried,
            "in_flight": self.in_flight,
            "sent_bytes": self.bytes,
            "answer_s": self.latency_s,
        }

    # --- the end ----------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> None:
        """Wait for the answers, at most so long, and settle what has one."""
        if self.in_flight:
            with suppress(KafkaError):
                self._producer.flush(timeout_s)
        self.collect()

    def release(self) -> None:
        """Release the producer; what has no answer fails, and may have been written."""
        self._producer.close()
        self.collect()

    def close(self, timeout_s: float) -> None:
        """Flush, and release the producer; what has no answer fails, and may have been written."""
        self.flush(timeout_s)
        self.release()


class TransactionalSending(Sending):
    """Sends what is part of a transaction: after one refusal all of it comes again, so other records do not fail."""

    broken = ""
    """Why the transaction can only be aborted; empty: all that was answered is in it."""
    check: Callable[[BaseException], None] | None = None
    """Raises an error that concerns all transactions to come."""

    def _refuse(self, sent: Sent) -> None:
        error = sent.error
        assert error is not None
        cause = error.__cause__ or error
        if self.check is not None:
            self.check(cause)
        if concerns_all(cause, one_topic=self._one_topic):
            raise error_of_all(str(self._bolt.component_name), sent.topic, cause)
        what = f"a record for {sent.topic} was refused"
        if is_its_own(error, sent.partition):
            super()._refuse(sent)
        else:  # it comes again with its transaction, and is not to blame
            what = f"records for {sent.topic} were not written"
            self._bolt.ack_many(self._rows_done(sent.tokens))
        self.broken = self.broken or f"{what}: {describe(error)}"
