"""Batches of records, made here and sent by kafka-python's producer.

The producer's own ``send`` is too slow for records with many headers (``patches.producing``). This module encodes a
record at once (message format 2), and each batch has one answer. The client still handles connections, metadata,
sequence numbers, compression, retries, expiry and the splitting of batches that exceed a topic's limit. A record with
a token never waits: it is held here until the client knows its topic.

The client's thread answers a batch; the sending thread reads the answer. If the client splits a batch, it moves the
records to smaller batches and never answers the old one. An answer is complete when all of its records are answered.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from kafka import errors
from kafka.structs import TopicPartition

from downspout.kafka.partitioners import Partitioner, Partitions, Sticky, StuckPartitions, check_partition
from downspout.kafka.patches.connecting import pass_on_to_producer
from downspout.kafka.patches.private_api import check_producer
from downspout.kafka.patches.producing import (
    BatchQueue,
    call_back,
    flushing,
    is_bystander,
    keep_reasons,
    records_of,
    report_splits,
    retries_of,
)
from downspout.kafka.patches.transactional import (
    ask_again_after_silence,
    ask_for_another_id,
    go_on_after_refusals,
    is_over,
)
from downspout.kafka.port import Sent

# --- Answers ---


ErrorOf = Callable[[int], BaseException]
Part = tuple[Sequence[int], int, ErrorOf | None]
"""Places of records in the original batch, the offset of the first, and the error of each."""


class BatchAnswer:
    """The broker's answer to one batch, even if the client splits it."""

    def __init__(
        self,
        batch: Any,  # the client's
        partition: TopicPartition,
        tokens: Sequence[Any],  # of the records, in order; None: no result wanted
        size: int = 0,  # bytes
        since: float | None = None,  # when its first record was added, on the monotonic clock
        finished: deque[BatchAnswer] | None = None,  # it adds itself when it is done
    ) -> None:
        self.batch, self.partition, self.tokens, self.size = batch, partition, tokens, size
        self.since = time.monotonic() if since is None else since
        self._finished = finished
        self._parts: list[Part] = []
        self._left = len(tokens)
        self._places: dict[Any, list[int]] = {}
        """The records in each part of a split batch."""
        self._done = threading.Event()
        self._expect(batch.produce_future, range(len(tokens)))

    @property
    def is_done(self) -> bool:
        """Whether all records are answered."""
        return self._done.is_set()

    @property
    def retried(self) -> int:
        """How many records the client has sent again."""
        return len(self.tokens) * retries_of(self.batch) + sum(map(len, self._places.values()))

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done; return whether it is."""
        return self._done.wait(timeout_s)

    def moved(self, place: int, future: Any) -> None:
        """Called by the client for each record of a batch that it splits, with the new batch's future."""
        if future in self._places:
            self._places[future].append(place)
        else:
            self._places[future] = places = [place]
            self._expect(future, places)

    def _expect(self, future: Any, places: Sequence[int]) -> None:
        call_back(future, partial(self._answered, places), partial(self._failed, places))

    def _answered(self, places: Sequence[int], result: tuple[int, int, ErrorOf | None]) -> None:
        self._add((places, result[0], result[2]))

    def _failed(self, places: Sequence[int], error: BaseException) -> None:
        self._add((places, -1, lambda _: error))

    def _add(self, part: Part) -> None:
        self._parts.append(part)
        self._left -= len(part[0])
        if self._left <= 0:
            if self._finished is not None:
                self._finished.append(self)  # before waking waiters, who read it
            self._done.set()

    def results(self) -> Iterator[tuple[Sequence[int], Sent]]:
        """Yield places of records in a complete batch, grouped by result.

        Records refused only because of others in their batch have an ``is_bystander`` error: they may be sent again.
        """
        topic, partition = self.partition
        for places, offset, error_of in self._parts:
            if error_of is None:
                offset = -1 if offset is None else offset
                yield places, Sent(self._of(places), topic, partition, offset, None, self.since)
                continue
            by_error: dict[int, tuple[BaseException, list[int]]] = {}
            bystanders: list[int] = []
            first: BaseException | None = None
            for index, place in enumerate(places):
                error = error_of(index)
                if is_bystander(error):
                    bystanders.append(place)
                    first = first or error
                else:
                    by_error.setdefault(id(error), (error, []))[1].append(place)
            for error, found in by_error.values():
                yield found, Sent(self._of(found), topic, partition, -1, error, self.since)
            if first is not None:
                yield bystanders, Sent(self._of(bystanders), topic, partition, -1, first, self.since)

    def _of(self, places: Sequence[int]) -> Sequence[Any]:
        return self.tokens if len(places) == len(self.tokens) else [self.tokens[place] for place in places]


# --- Batches ---


OVERHEAD_BYTES = 61  # The header of a batch
KEPT_MAX = 4_096  # Size of the caches of encoded numbers and header names
_NULL = b"\x01"  # A length of -1
ASK_S = 0.1  # Period of metadata requests for an unknown topic
WAIT_S = 0.01  # How often a flush checks for the metadata of an unknown topic
STUCK_PERIOD_S = 0.1  # Period of checks for stuck partitions

TIME_MAX = (1 << 63) - 1

Headers = Sequence[tuple[str, bytes | None]]


def _varint(number: int) -> bytes:
    """Encode a number as a zigzag varint."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(0x80 | (left & 0x7F))
        left >>= 7
    out.append(left)
    return bytes(out)


class _Varints(dict[int, bytes]):
    """A cache of encoded small numbers, such as lengths."""

    def __missing__(self, number: int) -> bytes:
        made = _varint(number)
        if 0 <= number < KEPT_MAX:
            self[number] = made
        return made


class _Names(dict[str, bytes]):
    """A cache of encoded header names, with their lengths."""

    def __missing__(self, name: str) -> bytes:
        text = name.encode("utf-8")
        made = _varint(len(text)) + text
        if len(self) < KEPT_MAX:
            self[name] = made
        return made


_varints, _names = _Varints(), _Names()


def encode_record(index: int, later_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Encode a record of a batch.

    Key, value and header values may be null. ``later_ms`` counts from the first record of the batch.

    >>> encode_record(0, 0, None, b"x", [("trace", b"7")]).hex(" ")
    '1e 00 00 00 01 02 78 02 0a 74 72 61 63 65 02 37'
    """
    varints, names = _varints, _names
    parts = [b"\x00", varints[later_ms], varints[index]]
    parts += (_NULL,) if key is None else (varints[len(key)], key)
    parts += (_NULL,) if value is None else (varints[len(value)], value)
    parts.append(varints[len(headers)])
    for name, data in headers:
        parts += (names[name], _NULL) if data is None else (names[name], varints[len(data)], data)
    body = b"".join(parts)
    return varints[len(body)] + body


def check_time(timestamp_ms: Any) -> int:
    """Return a valid timestamp. Another one in a batch's header would end the client's thread.

    >>> check_time(1.5)
    Traceback (most recent call last):
        ...
    ValueError: the timestamp 1.5 cannot be written: it is not a number of milliseconds since 1970
    """
    if type(timestamp_ms) is int and 0 <= timestamp_ms <= TIME_MAX:
        return timestamp_ms
    what = f"the timestamp {timestamp_ms!r:.40} cannot be written"
    raise ValueError(f"{what}: it is not a number of milliseconds since 1970")


class _Open:
    """An open batch of one partition."""

    __slots__ = ("end_ms", "parts", "since", "size", "start_ms", "tokens")

    def __init__(self, start_ms: int) -> None:
        self.since = time.monotonic()
        self.start_ms = self.end_ms = start_ms
        self.parts: list[bytes] = []
        self.tokens: list[Any] = []
        self.size = OVERHEAD_BYTES


class _Unknown:
    """Records of a topic that the client does not know yet."""

    def __init__(self, topic: str) -> None:
        self.since = time.monotonic()
        self.asked = 0.0
        self.topic = topic
        self.records: list[tuple[Any, ...]] = []
        self.size = 0


class RecordBatches:
    """Fills one batch per partition, and hands full ones to a producer of kafka-python.

    Args:
        producer: a ``kafka.KafkaProducer``; do not call its ``send``.
        partitioner: chooses for records without a partition.
        linger_s: how long a batch waits for more records.

    Raises:
        BrokerError: the producer is not supported, or its brokers are older than Kafka 0.11.
    """

    def __init__(self, producer: Any, partitioner: Partitioner | None = None, linger_s: float = 0.0) -> None:
        check_producer(producer)
        pass_on_to_producer(producer)
        go_on_after_refusals(producer)
        ask_for_another_id(producer)
        ask_again_after_silence(producer)
        keep_reasons(producer)
        self._producer = producer
        self._partitioner = partitioner or Sticky(random.Random())
        self._linger_s = linger_s
        self._queue = BatchQueue(producer)
        self._size_max: int = producer.config["batch_size"]
        self._record_max: int = producer.config["max_request_size"]
        self._tells_offsets = producer.config["acks"] != 0
        self._open: dict[tuple[str, int], _Open] = {}
        self._unknown: dict[str, _Unknown] = {}
        self._pending: dict[BatchAnswer, None] = {}  # Batches handed over, in that order
        self._finished: deque[BatchAnswer] = deque()  # Answered batches; filled by the client's thread
        self._results: list[Sent] = []
        self.error: BaseException | None = None
        """First error of a record sent without a token. Whoever raises it clears it."""
        self._handed_bytes = 0
        self.stuck = StuckPartitions()
        self._stuck_bytes = 0
        self._stuck_due = 0.0
        self.retried = 0  # How often answered records were sent again

    @property
    def is_over(self) -> bool:
        """Whether the producer fails every further batch."""
        return is_over(self._producer)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are queued or unanswered, without stuck partitions."""
        held = sum(batch.size for batch in self._open.values()) + sum(each.size for each in self._unknown.values())
        return self._handed_bytes + held - self._stuck_bytes

    def oldest_s(self) -> float:
        """Return the age in seconds of the oldest unanswered batch, without stuck partitions."""
        starts = [answer.since for answer in islice(self._free(), 1)]
        starts += [batch.since for batch in self._open.values()] + [held.since for held in self._unknown.values()]
        return time.monotonic() - min(starts) if starts else 0.0

    # --- records in -------------------------------------------------------------------------------------

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        token: Any = None,
    ) -> None:
        """Add a record to its batch; hand a full batch over.

        Raises, without a token (with one, the error is its result):
            KafkaError: the record is too large for a request, or the topic's metadata did not arrive in time.
            ValueError: no such partition, or an invalid topic name.
        """
        try:
            partitions = self._queue.partitions(topic)
            if partitions is None or topic in self._unknown:
                if token is not None:
                    self._hold(topic, key, value, headers, partition, timestamp_ms, token)
                    return
                partitions = self._wait_for(topic)
            self._add(partitions, topic, key, value, headers, partition, timestamp_ms, token)
        except (errors.KafkaError, ValueError, TypeError, AttributeError) as error:
            if token is None:
                raise
            number = partition if isinstance(partition, int) else -1
            self._results.append(Sent([token], topic, number, -1, error, time.monotonic()))

    def _add(
        self,
        partitions: Partitions,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        token: Any,
    ) -> None:
        at = int(time.time() * 1000) if timestamp_ms is None else check_time(timestamp_ms)
        if self.stuck:
            partitions = self.stuck.without(topic, partitions)
        while True:
            if partition is None:
                number = self._partitioner.choose(topic, key, value, partitions)
            else:
                number = check_partition(partition, topic, partitions.count)
            tp = (topic, number)
            if self.stuck and tp not in self._open and not self.stuck.takes(*tp):
                raise self.stuck.refusal(*tp)
            batch = self._open.get(tp) or _Open(at)
            made = encode_record(len(batch.parts), at - batch.start_ms, key, value, headers)
            if not batch.parts or batch.size + len(made) <= self._size_max:
                break
            self._hand_over(tp)  # and choose again: without a key, the record may go to another partition
        if len(made) + OVERHEAD_BYTES > self._record_max:
            raise errors.MessageSizeTooLargeError(
                f"a record of {len(made):,} bytes, and a request holds {self._record_max:,}"
            )
        self._open[tp] = batch
        batch.parts.append(made)
        batch.tokens.append(token)
        batch.size += len(made)
        if at > batch.end_ms:
            batch.end_ms = at

    # --- partitions that do not answer -------------------------------------------------------------------

    def _is_stuck(self, answer: BatchAnswer) -> bool:
        return bool(self.stuck) and tuple(answer.partition) in self.stuck

    def _free(self) -> Iterator[BatchAnswer]:
        return (answer for answer in self._pending if not self._is_stuck(answer))

    def _update_stuck(self) -> None:
        now = time.monotonic()
        if now < self._stuck_due or not (self._pending or self.stuck):
            return
        self._stuck_due, was_any = now + STUCK_PERIOD_S, bool(self.stuck)
        self.stuck.update(
            (((answer.partition.topic, answer.partition.partition), answer.since) for answer in self._pending), now
        )
        if self.stuck or was_any:
            self._stuck_bytes = sum(answer.size for answer in self._pending if self._is_stuck(answer))

    # --- topics that are not known yet ------------------------------------------------------------------

    def _wait_for(self, topic: str) -> Partitions:
        self._queue.wait_on_metadata(topic, self._producer.config["max_block_ms"])
        partitions = self._queue.partitions(topic)
        if partitions is None:
            raise errors.UnknownTopicOrPartitionError(topic)
        return partitions

    def _hold(self, topic: str, key: bytes | None, value: bytes | None, *rest: Any) -> None:
        held = self._unknown.get(topic)
        if held is None:
            self._queue.ask_for(topic)
            held = self._unknown[topic] = _Unknown(topic)
            held.asked = held.since
        held.records.append((key, value, *rest))
        held.size += len(key or b"") + len(value or b"") + OVERHEAD_BYTES

    def _check_topics(self) -> None:
        """Add the records of topics that are known by now; fail those that have waited too long."""
        now = time.monotonic()
        for topic, held in list(self._unknown.items()):
            if self._queue.partitions(topic) is not None:
                del self._unknown[topic]
                for record in held.records:
                    self.add(topic, *record)
            elif self._queue.is_denied(topic):
                self._give_up(held, errors.TopicAuthorizationFailedError({topic}))
            elif now - held.since >= self._producer.config["max_block_ms"] / 1000:
                was_answered = self._queue.was_answered(held.since)
                self._give_up(
                    held,
                    errors.UnknownTopicOrPartitionError(f"there is no topic {topic}")
                    if was_answered
                    else errors.KafkaTimeoutError(f"no broker has said where the partitions of {topic} are"),
                )
            elif now - held.asked >= ASK_S:
                held.asked = now
                self._queue.ask_for(topic)

    def _give_up(self, held: _Unknown, error: BaseException) -> None:
        del self._unknown[held.topic]
        self._results.append(Sent([record[-1] for record in held.records], held.topic, -1, -1, error, held.since))

    # --- batches out ------------------------------------------------------------------------------------

    def hand_over(self, *, old: bool = False) -> None:
        """Hand over all open batches, or with ``old`` only those that have lingered."""
        if not old:
            for tp in list(self._open):
                self._hand_over(tp)
        elif self._open:
            due = time.monotonic() - self._linger_s
            for tp in [tp for tp, batch in self._open.items() if batch.since <= due]:
                self._hand_over(tp)

    def _hand_over(self, tp: tuple[str, int]) -> None:
        """Hand over the open batch of a partition."""
        filled = self._open.pop(tp)
        self._partitioner.batch_full(*tp)
        partition = TopicPartition(*tp)
        batch = self._queue.batch(partition, filled.parts, filled.start_ms, filled.end_ms, self._size_max)
        answer = BatchAnswer(batch, partition, filled.tokens, filled.size, filled.since, self._finished)
        report_splits(batch, answer, len(filled.tokens))
        try:
            self._queue.put(partition, batch)
        except errors.KafkaError as error:
            self._note(Sent(filled.tokens, tp[0], tp[1], -1, error, filled.since))
            return
        self._pending[answer] = None
        self._handed_bytes += filled.size
        self._queue.wakeup()

    def drop(self, error: BaseException) -> None:
        """Fail all records that were not handed over."""
        opened, self._open = self._open, {}
        for (topic, partition), batch in opened.items():
            self._note(Sent(batch.tokens, topic, partition, -1, error, batch.since))
        for held in list(self._unknown.values()):
            self._give_up(held, error)

    def end(self) -> None:
        """Fail all remaining records: the producer is closed."""
        for held in list(self._unknown.values()):
            self._give_up(held, errors.IllegalStateError("the producer is closed"))
        self.hand_over()

    # --- answers ----------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Process answers; resend records refused only because of others in their batch."""
        if self._unknown:
            self._check_topics()
        self._update_stuck()
        finished = self._finished
        while finished:
            answer = finished.popleft()
            del self._pending[answer]
            self._handed_bytes -= answer.size
            self.retried += answer.retried
            for places, sent in answer.results():
                if sent.error is None:
                    self.stuck.answered((sent.topic, sent.partition), time.monotonic())
                    if not self._tells_offsets:
                        sent = sent._replace(offset=-1)
                elif is_bystander(sent.error):
                    self._send_again(answer, places)
                    continue
                self._note(sent)

    def _note(self, sent: Sent) -> None:
        """Keep the results of records with tokens, and the first error of others."""
        if sent.error is not None and self.error is None and None in sent.tokens:
            self.error = sent.error
        if sent.tokens[0] is not None or any(token is not None for token in sent.tokens):
            self._results.append(sent)

    def _send_again(self, answer: BatchAnswer, places: Sequence[int]) -> None:
        records = records_of(answer.batch)
        self.retried += len(places)
        for place in places:
            record = records[place]
            headers = [(name, value) for name, value in record.headers]
            self.add(
                answer.partition.topic, record.key, record.value, headers, answer.partition.partition,
                record.timestamp, answer.tokens[place],
            )  # fmt: skip

    def keep(self, results: list[Sent]) -> None:
        """Put results back, before the others."""
        self._results[:0] = results

    def take_results(self) -> list[Sent]:
        """Return the results of records with tokens since the last call."""
        found, self._results = self._results, []
        return found

    @property
    def waits(self) -> bool:
        """Whether any record is unanswered."""
        return bool(self._pending or self._open or self._unknown)

    def flush(self, timeout_s: float) -> bool:
        """Hand over all records, and collect their answers; return whether all came in time."""
        deadline = time.monotonic() + timeout_s
        self.collect()
        while self.waits:
            self.hand_over()
            left = deadline - time.monotonic()
            if not self._pending:  # a topic is unknown
                if left <= 0:
                    return False
                time.sleep(min(WAIT_S, left))
            else:
                with flushing(self._producer):
                    if not all(answer.wait(max(deadline - time.monotonic(), 0)) for answer in list(self._pending)):
                        self.collect()
                        return False
            self.collect()
        return True
