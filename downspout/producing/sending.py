"""Tuples in flight to Kafka: each is acked when all of its records are written, or fails when one is refused.

Everything happens in the component's own thread. It asks the producer for results every few tuples, and whenever the
engine calls it at the time of :meth:`Sending.look_at`.

**Errors.** An error of one record fails only its tuple; the spout retries it and finally dead-letters it. An error of
brokers or of the producer fails the tuple without counting an attempt: no other record would have been written, either.
An error that concerns all records stops the component and names what to grant.

**Back-pressure.** The buffer is full at ``buffer_bytes``, or once its oldest record has waited for a quarter of the
message timeout. Then :meth:`Sending.send` waits for answers, at most ``FULL_S_MAX`` per call. If only one partition has
not answered for that long, its tuples fail at once without counting an attempt; the others go on. In the local engine
no spout emits while a bolt has a queue; on Storm ``topology.max.spout.pending`` bounds the tuples in flight. Either way
an accepted record is answered before its tuple times out, if the brokers answer at all.

**Modes.** *asynchronous*: acked when the broker has answered. *synchronous*: the same, but each tuple waits for the
answer, one after the other. *fire_and_forget*: acked at once; errors are counted and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from kafka import errors
from kafka.errors import KafkaError

from downspout.clock import Clock
from downspout.errors import USER_ERRORS, BrokerError, RecordError, UnavailableError
from downspout.kafka.patches.transactional import REFUSALS
from downspout.kafka.port import ProducerPort, Sent
from downspout.kafka.retry_gate import LogThrottle, describe
from downspout.producing.mapper import Outgoing

# --- Errors ---


FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
ALL = (
    errors.ClusterAuthorizationFailedError, errors.TransactionalIdAuthorizationFailedError,
    errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError, errors.UnsupportedVersionError,
)  # fmt: skip
OF_A_TOPIC = (errors.TopicAuthorizationFailedError, errors.UnknownTopicOrPartitionError)
"""Errors that concern all records if these go to one topic."""

CURES: dict[type[BaseException], str] = {
    errors.MessageSizeTooLargeError: "make the record smaller, or raise max.message.bytes of the topic (and "
    "produce.request_bytes_max)",
    errors.RecordListTooLargeError: "lower produce.batch_bytes, or raise segment.bytes of the topic",
    errors.InvalidTimestampError: "correct the time, or message.timestamp.after.max.ms and before.max.ms of the topic",
    errors.InvalidRecordError: "make it one that the topic takes",
    errors.UnknownTopicOrPartitionError: "create the topic (`downspout kafka create`), or correct its name",
    errors.InvalidTopicError: "name another topic: this one is Kafka's own, or its name is not valid",
    errors.TopicAuthorizationFailedError: "grant this client WRITE and DESCRIBE on the topic (an ACL of the broker)",
    errors.NotEnoughReplicasError: "start the brokers that hold its other replicas, or lower min.insync.replicas",
    errors.NotEnoughReplicasAfterAppendError: "start the brokers that hold its other replicas, or lower "
    "min.insync.replicas",
    errors.KafkaTimeoutError: "check whether the brokers answer, and the state of the topic's replicas",
    errors.PolicyViolationError: "check the broker's policy for this topic",
}
OF_INVALID = {
    "without key": "give it a key: the topic is compacted",
    "imestamp": CURES[errors.InvalidTimestampError],
}
"""What helps against an InvalidRecordError, by a word of its text."""
NO_REPLICAS = (errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError)


def concerns_all(error: BaseException, *, one_topic: bool) -> bool:
    """Return whether an error would affect every other record, too.

    Args:
        error: the producer's error.
        one_topic: whether all records go to one topic: then a missing topic or right affects all of them.
    """
    return isinstance(error, ALL) or (one_topic and isinstance(error, OF_A_TOPIC))


def is_outage(error: BaseException) -> bool:
    """Return whether a record was not written because of its producer, or because brokers were away.

    An error that is not known to refuse records is taken to refuse their producer: kafka-python raises a bare
    KafkaError for some of these.

    >>> is_outage(errors.KafkaTimeoutError()), is_outage(errors.KafkaError(errors.InvalidProducerIdMappingError()))
    (True, True)
    >>> is_outage(errors.MessageSizeTooLargeError()), is_outage(errors.UnknownTopicOrPartitionError())
    (False, False)
    >>> is_outage(errors.KafkaError("Could not execute transactional request for unknown reasons"))
    True
    """
    if isinstance(error, errors.KafkaTimeoutError) and error.__cause__ is not None:
        return is_outage(error.__cause__)
    return isinstance(error, errors.KafkaError) and not isinstance(error, REFUSALS)


def is_its_own(error: BaseException, partition: int) -> bool:
    """Return whether a transaction's record was refused because of itself, so that any transaction would refuse it.

    >>> is_its_own(errors.UnknownTopicOrPartitionError(), -1), is_its_own(errors.UnknownTopicOrPartitionError(), 0)
    (True, False)

    Args:
        error: the producer's error.
        partition: -1: none was chosen yet.
    """
    if isinstance(error, errors.KafkaTimeoutError) or is_outage(error):
        return False
    return partition < 0 or not getattr(error, "retriable", False)


def error_of_all(component: str, topic: str, error: BaseException) -> BrokerError:
    """Return the error that stops the component."""
    cure = CURES.get(type(error))
    if isinstance(error, errors.ClusterAuthorizationFailedError):
        cure = "grant this client IDEMPOTENT_WRITE on the cluster, or set produce.idempotence=false"
    what = f"nothing can be written to {topic}: {describe(error)}"
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        what = f"there is no topic {topic}, and the broker does not create it"
    return BrokerError(
        (f"{component}: " if component else "") + what,
        cure=cure or "check the broker's log for this client",
    )


def error_of_record(component: str, place: str, where: str, error: BaseException) -> RecordError:
    """Return the error with which a tuple fails.

    Args:
        component: the bolt; empty: it is not named.
        place: the coordinates of the record from which the tuple came, or nothing.
        where: to which topic, or partition, it was to go.
        error: the producer's error.
    """
    otherwise = "check the broker's log"
    what = f"not written to {where}: {describe(error)}"
    if isinstance(error, errors.KafkaTimeoutError) and error.__cause__ is not None:
        what += f"; the last answer was {describe(error.__cause__)}"
        error = error.__cause__
    if isinstance(error, NO_REPLICAS):
        what = f"{where} has fewer replicas in sync (ISR) than its min.insync.replicas: {describe(error)}"
    elif type(error) is ValueError:
        what, otherwise = str(error), "name a topic and a partition that exist"
    cures = [cure for kind, cure in CURES.items() if isinstance(error, kind)]
    if isinstance(error, errors.InvalidRecordError):  # the brokers' error for each of several bad records in a batch
        cures = [cure for word, cure in OF_INVALID.items() if word in str(error)] + cures
    who = f"{component}: " if component else ""
    kind = UnavailableError if is_outage(error) else RecordError
    found = kind(f"{place}{who}{what}", cure=cures[0] if cures else otherwise)
    found.__context__, found.__suppress_context__ = error, True  # for inspection, but not logged a second time
    return found


# --- Tuples in flight ---


ASYNCHRONOUS, SYNCHRONOUS, FORGET = "asynchronous", "synchronous", "fire_and_forget"
LOOK_EVERY = 64
"""Records between two checks of the results and the buffer."""
LOOK_S = 0.005
"""How often the engine should call while records are in flight."""
FULL_S_MAX = 1.0
FULL_LOOK_S = 0.002
SYNCHRONOUS_S_MAX = 4.0
"""On Storm no call may take longer than 5 s. A record not answered by then is answered later."""
_ROW_ERRORS_MAX = 3
"""Records of a chunk that an error names."""

Heard = Callable[[Any, Sent], None]
"""A user's callback: it gets a tuple, or a row of a chunk, and the result."""


class Acks(Protocol):
    """What is needed of the bolt."""

    component_name: Any

    def ack_many(self, tups: Sequence[Any]) -> None:
        """Ack tuples."""

    def fail_because(self, tup: Any, error: Exception) -> None:
        """Fail one."""

    def place_of(self, tup: Any, row: int | None) -> str:
        """Return the coordinates of a tuple's or row's record with a colon, or an empty text."""


class Chunk:
    """A chunk in flight: acked when all of its records are written."""

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
        buffer_bytes: the size at which the buffer is full.
        age_s_max: the greatest age of the oldest record in the buffer.
        one_topic: whether all records go to one topic.
        heard: called with each result.
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
        """Check the results, and wait while the buffer is full."""
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
        """Return when to check the results next; None if no record is in flight."""
        return self._look_due if self.in_flight else None

    def hand_over(self) -> None:
        """Send lingering records and settle answered ones, without waiting."""
        if self.in_flight:
            self._producer.acknowledged()
        self.collect()

    def collect(self) -> bool:
        """Settle the tuples of answered records; return whether there were any.

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
        """Count rows of chunks; return the tokens that are tuples, including the tuples of finished chunks."""
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
        """Fail a chunk; the error names the first record that was not written."""
        own = [each for each in chunk.errors if not is_outage(each[2])]
        row, where, error = min(own or chunk.errors, key=lambda each: each[0])
        reason = error_of_record(str(self._bolt.component_name), self._bolt.place_of(chunk.tup, row), where, error)
        if len(chunk.errors) > 1:
            others = sorted(other for other, _, _ in chunk.errors if other != row)[:_ROW_ERRORS_MAX]
            places = "".join(f" {self._bolt.place_of(chunk.tup, other)}" for other in others).rstrip(": ")
            more = f"{reason.message} (and {len(chunk.errors) - 1:,} more of this chunk:{places})"
            reason = type(reason)(more, cure=reason.cure)
        self._bolt.fail_because(chunk.tup, reason)

    def _tell(self, heard: Heard, sent: Sent) -> None:
        """Call the user's callback; log its exceptions."""
        for number, token in enumerate(sent.tokens):
            offset = sent.offset + number if sent.offset >= 0 else -1
            tup = token.chunk.tup if type(token) is _Token else token
            try:
                heard(tup, sent._replace(tokens=(tup,), offset=offset))
            except USER_ERRORS:
                if self._throttle.due("callback", int(self._clock.monotonic() * 1000)):
                    self._log.exception("%s: produce.callback raised", self._bolt.component_name)

    def report(self) -> dict[str, float]:
        """Return how many records were written, were refused and are in flight, and more metrics."""
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
        """Wait for the answers, at most ``timeout_s``, and settle answered records."""
        if self.in_flight:
            with suppress(KafkaError):
                self._producer.flush(timeout_s)
        self.collect()

    def release(self) -> None:
        """Release the producer; unanswered records fail, though they may have been written."""
        self._producer.close()
        self.collect()

    def close(self, timeout_s: float) -> None:
        """Flush, and release the producer; unanswered records fail, though they may have been written."""
        self.flush(timeout_s)
        self.release()


class TransactionalSending(Sending):
    """Sends the records of a transaction: after one refusal all of them come again, so the others do not fail."""

    broken = ""
    """Why the transaction can only be aborted; empty: it holds all answered records."""
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
        else:  # it comes again with its transaction, and is not the cause
            what = f"records for {sent.topic} were not written"
            self._bolt.ack_many(self._rows_done(sent.tokens))
        self.broken = self.broken or f"{what}: {describe(error)}"
