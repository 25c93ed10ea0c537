"""Polls, positions, commits, and requests about topics and logs."""

from __future__ import annotations

import base64
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

from kafka import codec, errors
from kafka.protocol.consumer import IsolationLevel
from kafka.protocol.metadata import MetadataRequest
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecordBatch

from downspout.kafka.patches.private_api import OPTIONAL
from downspout.kafka.port import Fetches, OffsetAndMetadata, TopicPartition

T = TypeVar("T")


# --- Each record becomes an object; fetched bytes are private ---

_PARTITION = TopicPartition("canned", 5)
_CANNED = base64.b64decode(
    "AAAAAAAAAAcAAABYAAAAAwLxAFmFAAAAAAADAAAAAAAAA+gAAAAAAAAD7f//////////////////AAAAAxoAAAACawxiZWZvcmUADgACAgECdgAgAAoG"
    "BmtleQEEAmgCeAJpAQAAAAAAAAALAAAAWQAAAAMCvyruJgABAAAAAQAAAAAAAAfQAAAAAAAAB9D//////////////////wAAAAIfiwgAwlkCawL/e8bC"
    "AAQ3WKpGAdGAgY+BkYkpm4EBAMYXO689AQAA"
)
"""A batch with a gap, nulls and headers, whose first record precedes the start; and a compressed one."""
_START = 8
_HOLDS = [
    (8, 1001, None, b"v", []),
    (10, 1005, b"key", None, [("h", b"x"), ("i", None)]),
    (11, 2000, b"", b"z" * 300, []),
    (12, 1999, b"k", b"", []),
]


def fetcher_of(consumer: Any) -> Any:
    """Return a consumer's fetcher, whose ``PartitionRecords`` may be replaced."""
    return consumer._fetcher


def otherwise_unpacked(known: type[Any], read: Callable[[Any, TopicPartition, bytes], Iterator[Any]]) -> type[Any]:
    """Return a ``PartitionRecords`` that yields the results of ``read``, which decodes the fetched bytes.

    ``read`` can use the client's transaction state under public names. The client still handles groups, positions,
    pausing, transactions and metrics. Two assumptions are tested by :func:`trouble`: ``_append`` adds the result of
    ``take`` to a list with ``extend``, counts it with ``len``, and continues at ``next_fetch_offset`` (columns iterate
    as one element, but have the length of their records); and ``drain`` sets ``record_iterator`` to None.

    Wrong: the client makes several objects of each record, at several times the CPU of processing it in columns.
        Nothing public returns the bytes of a fetch.
    Goes when: the client returns fetched bytes, or decodes into columns itself.
    """

    class OtherwiseUnpacked(known):
        consume_aborted_up_to = known._consume_aborted_transactions_up_to
        contains_abort_marker = known._contains_abort_marker

        def _unpack_records(self, tp: TopicPartition, records: Any, *_: Any) -> Iterator[Any]:
            return read(self, tp, bytes_of(records))

        def _maybe_skip_record(self, record: Any) -> bool:
            return False  # ``read`` begins at the fetch offset

        def pass_aborted(self, batch: Any) -> None:
            """Report an aborted batch to :func:`noting_aborted`'s class."""
            self._is_batch_aborted(batch)

    return OtherwiseUnpacked


@cache
def trouble(fetcher: type[Any], hook: Callable[[type[Any]], type[Any]]) -> str:
    """Return why columns cannot be read with this fetcher class; empty: they can.

    Passes two sample batches from fetched bytes to a poll's result. If that fails, polls return the client's own
    records, which is slower but correct.
    """
    try:
        known = fetcher.PartitionRecords
        names = (path.rpartition(".")[2] for path in OPTIONAL if ".PartitionRecords." in path)
        if missing := [name for name in names if not callable(getattr(known, name, None))]:
            return f"PartitionRecords has no {missing[0]}"
        if "PartitionRecords" not in fetcher._parse_fetched_data.__code__.co_names:
            return "_parse_fetched_data makes no PartitionRecords"
        return _tried(fetcher, hook(known))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _tried(fetcher: type[Any], ours: type[Any]) -> str:
    """Return how the sample batches differ from their content once a fetcher has taken them."""
    drained: list[Any] = []
    part = ours(
        _START,
        _PARTITION,
        MemoryRecords(_CANNED),
        key_deserializer=None,
        value_deserializer=None,
        check_crcs=True,
        isolation_level=IsolationLevel.READ_COMMITTED,
        aborted_transactions=None,
        metric_aggregator=None,
        on_drain=drained.append,
    )
    place = SimpleNamespace(position=OffsetAndMetadata(_START, "", -1), highwater=None)
    subscriptions = SimpleNamespace(
        is_assigned=lambda _: True, is_fetchable=lambda _: True, assignment={_PARTITION: place}
    )
    stub = SimpleNamespace(_subscriptions=subscriptions, _sensors=None)
    found: Any = defaultdict(list)
    counts = [fetcher._append(stub, found, part, most, True) for most in (3, 100, 100)]
    records = [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for columns in found[_PARTITION]
        for record in columns
    ]
    if records != _HOLDS or counts != [3, 1, 0]:
        return "a batch that is known is decoded into something else"
    if place.position != OffsetAndMetadata(13, "", 3):
        return "the position does not follow what was taken"
    return "" if drained == [part] and not part else "what was taken whole is not used up"


# --- Batches are unpacked without a limit, and fail for a header name ---

_LZ4 = 3
Unpack = Callable[[int, bytes], bytes]  # Unpacks bytes of a kind (1 to 4: gzip, snappy, lz4, zstd), or raises


def bounded_records(known: type[Any], bounded: Callable[[bytes], Any]) -> type[Any]:
    """Return a ``PartitionRecords`` whose batches ``bounded`` has unpacked within limits.

    The client's own objects read the records. A batch older than format 2 gets a function that unpacks it. A record
    with a header name that is not UTF-8 is read again with invalid bytes replaced.

    Wrong: the client unpacks a compressed batch at once and without a limit: a few kilobytes may hold gigabytes and
        kill the process. It accepts no unpacked batch. One header name that is not UTF-8 makes the whole batch
        unreadable, though any producer may write one; Java's client replaces the bytes.
    Goes when: the client limits the unpacked size of a batch, and reads such names.
    """

    class BoundedRecords(known):
        """The records of one partition in one fetch."""

        def _unpack_records(self, tp: Any, records: Any, *more: Any) -> Any:
            return super()._unpack_records(tp, bounded(bytes_of(records)), *more)

    return BoundedRecords


class _Name(bytes):
    """Bytes that decode with invalid ones replaced."""

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")


class _Names(bytes):
    """A buffer whose slices are ``_Name``."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Name(found) if isinstance(found, bytes) else found


class ReadableBatch(DefaultRecordBatch):
    """A batch whose header names need not be UTF-8."""

    __slots__ = ()

    def _read_msg(self, *given: Any) -> Any:
        clients: Any = super()
        try:
            return clients._read_msg(*given)
        except UnicodeDecodeError:  # the position in the buffer only advances after a whole record
            batch: Any = self
            batch._buffer = _Names(batch._buffer)  # for the rest of the batch, to copy only once
            return clients._read_msg(*given)


class _UnpackedBatch(ReadableBatch):
    """A batch that we have unpacked and verified for the client."""

    __slots__ = ()

    def validate_crc(self) -> bool:
        return True


def unpacked_batch(data: memoryview, records: bytes, count: int) -> Any:
    """Return the client's batch of format 2, with its records unpacked."""
    made: Any = _UnpackedBatch(data)
    made._buffer, made._pos, made._decompressed = bytearray(records), 0, True
    made._num_records = count
    return made


class _OldBatch(LegacyRecordBatch):
    """A batch older than format 2, unpacked by ``unpack``."""

    __slots__ = ("unpack",)

    unpack: Unpack

    def _decompress(self, key_offset: int) -> bytes:
        _, packed = self._read_key_value(key_offset)
        if packed is None:
            raise errors.CorruptRecordError("a compressed message without a value")
        if self.compression_type == _LZ4 and self._magic == 0:
            packed = _with_right_check(packed)
        return self.unpack(self.compression_type, packed)


def old_batch(found: LegacyRecordBatch, unpack: Unpack) -> Any:
    """Return a copy of the client's batch that uses this function to unpack."""
    made = _OldBatch(found._buffer, found._magic)
    made.unpack = unpack
    return made


def _with_right_check(frame: bytes) -> bytes:
    """Return an lz4 frame with a correct header checksum: producers before 0.10 hashed too many bytes."""
    xxhash: Any = codec.xxhash
    if xxhash is None:
        raise errors.UnsupportedCodecError("pip install xxhash for lz4 encoding with 0.8/0.9 brokers")
    end = 6 + 8 * (frame[4] >> 3 & 1)  # a flag tells whether the header has the unpacked size
    return frame[:end] + bytes([xxhash.xxh32(frame[4:end]).intdigest() >> 8 & 0xFF]) + frame[end + 1 :]


def bytes_of(records: MemoryRecords) -> bytes:
    """Return fetched bytes."""
    found: bytes = records._buffer
    return found


# --- After an unreadable batch, polls never return ---


def keeping_errors(known: type[Any]) -> type[Any]:
    """Return a ``PartitionRecords`` that raises its error at every poll until the next seek.

    Wrong: an unreadable batch raises an error in one ``poll``. Then it yields nothing, yet does not count as used up:
        the next ``poll`` loops forever.
    Goes when: the next poll raises the error again, or returns.
    """

    class KeepingErrors(known):
        _failure: Exception | None = None

        def take(self, n: int | None = None) -> Sequence[Any]:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            try:
                found: Sequence[Any] = super().take(n)
            except Exception as error:
                self._failure = error
                raise
            return found

    return KeepingErrors


# --- Aborted batches are skipped silently ---


def noting_aborted(known: type[Any], aborted: list[tuple[TopicPartition, int, int]]) -> type[Any]:
    """Return a ``PartitionRecords`` that notes the aborted batches it skips.

    Wrong: with ``isolation_level="read_committed"`` the client skips batches of aborted transactions without reporting
        their offsets. An audit must distinguish them from lost records.
    Goes when: a poll, or a callback, reports the skipped offsets.
    """

    class NotingAborted(known):
        def _is_batch_aborted(self, batch: Any) -> bool:
            is_aborted = bool(super()._is_batch_aborted(batch))
            if is_aborted:
                aborted.append((self.topic_partition, batch.base_offset, batch.records_count))
            return is_aborted

    return NotingAborted


# --- Records of a resumed partition are never returned ---


def unparking(consumer: Any) -> Callable[[], None]:
    """Return a function to call before each poll: parked records of a resumed partition take turns with the next ones.

    Wrong: records fetched for a partition that is then paused are parked, not fetched again (kafka-python's pull
        request 2981, Java's KAFKA-7548). After the resume they return only when the slot of the next records is None:
        used-up records (false, not None) block them forever, and a busy partition that refills the slot as long as it
        is busy.
    Goes when: the client checks its parked records also while the slot is taken or used up.
    """
    fetcher = consumer._fetcher

    def take_turns() -> None:
        parked = fetcher._paused_partition_records
        paused = consumer.paused() if parked else ()
        if (resumed := next((partition for partition in parked if partition not in paused), None)) is None:
            return
        in_line, fetcher._next_partition_records = fetcher._next_partition_records, parked.pop(resumed)
        if in_line:
            parked[in_line.topic_partition] = in_line

    return take_turns


# --- All fetches wait for the same bytes and time ---


def gathering(consumer: Any, min_bytes: int, wait_ms: int) -> Callable[[int], None]:
    """Make brokers batch records; return a function to call after each poll with the ms it waited without records.

    After polls have waited for more than ``wait_ms`` in a row, the client's usual values apply: the broker replies to
    the first record.

    Wrong: ``fetch_min_bytes`` and ``fetch_max_wait_ms`` are fixed for a consumer's life. A short wait causes many
        requests a second while the partitions are idle.
    Goes when: a poll accepts these values.
    """
    config, idle_ms = consumer._fetcher.config, 0
    patient = {name: config[name] for name in ("fetch_min_bytes", "fetch_max_wait_ms")}
    gathers = {"fetch_min_bytes": min_bytes, "fetch_max_wait_ms": wait_ms}
    config.update(gathers)

    def polled(waited_ms: int) -> None:
        nonlocal idle_ms
        idle_ms = idle_ms + waited_ms if waited_ms else 0
        config.update(patient if idle_ms > wait_ms else gathers)

    return polled


# --- Fetch times and the beginning of logs are not reported ---


def time_fetches(consumer: Any) -> Fetches:
    """Count a consumer's fetches, with times in seconds on the monotonic clock. O(partitions) per response.

    Wrong: the client measures fetches only with its metrics on, which cost a lock and several objects per request and
        partition, and do not return a consistent rate and mean. It drops the beginning of the log in each response.
    Goes when: a consumer reports the times of its fetches cheaply.
    """
    fetcher, fetches = consumer._fetcher, Fetches()
    known = fetcher._handle_fetch_response

    def handle(node_id: Any, fetch_offsets: Any, send_time: float, response: Any) -> None:
        now = time.monotonic()
        fetches.answered(now - send_time, now)
        for topic in response.responses:
            for answer in topic.partitions:
                partition = fetches.of(TopicPartition(topic.topic, answer.partition_index))
                partition.answered(now - send_time, now)
                if answer.log_start_offset >= 0:  # -1: an error
                    partition.begin = answer.log_start_offset
        known(node_id, fetch_offsets, send_time, response)

    fetcher._handle_fetch_response = handle
    return fetches


# --- A reset overwrites a seek ---


def atomic_seek(consumer: Any) -> Callable[[Any, int], None]:
    """Return a function that seeks a partition either before or after a reset, never during one.

    A lock makes the reset atomic; it sends no request.

    Wrong: the client's own thread resets a partition without a position to the beginning or the end. It checks whether
        the reset is still needed, and then sets the position: a seek between the two is overwritten.
    Goes when: a reset sets a position only if none was set since its check.
    """
    fetcher, lock = consumer._fetcher, threading.RLock()  # a rebalance listener seeks on the client's own thread
    reset = fetcher._reset_offset_if_needed

    def reset_whole(*given: Any) -> None:
        with lock:
            reset(*given)

    def seek(partition: Any, offset: int) -> None:
        with lock:
            consumer.seek(partition, offset)

    fetcher._reset_offset_if_needed = reset_whole
    return seek


# --- A known position is requested from the broker ---


def known_positions(consumer: Any) -> Callable[[TopicPartition], int | None]:
    """Return a function that returns the next offset to read; None: no position yet.

    Wrong: after a change of leaders, ``position`` waits until the broker has validated the position (KIP-320), and
        raises errors such as those of a restarting broker. Polls validate it anyway.
    Goes when: the client returns a known position without a request.
    """
    positions = consumer._subscription

    def known_position(partition: TopicPartition) -> int | None:
        return int(positions.position(partition).offset) if positions.has_valid_position(partition) else None

    return known_position


# --- Commits are requested one by one; those blocked by a transaction time out ---


def committed_offsets(
    consumer: Any,
) -> Callable[[Collection[TopicPartition], int], Mapping[TopicPartition, OffsetAndMetadata | None]]:
    """Return a function that reads a group's commits in one request, with a timeout in ms.

    It raises KafkaTimeoutError, or UnstableOffsetCommitError if open transactions block some commits; its first
    argument holds the partitions.

    Wrong: ``committed`` takes one partition: a member with a thousand of them sends a thousand requests in sequence.
        While a transaction that commits for the group is open, brokers refuse these commits to read_committed
        consumers; the client retries, and then raises a timeout without reason or partition.
    Goes when: ``committed`` takes several partitions, and raises UnstableOffsetCommitError with those refused.
    """
    coordinator = consumer._coordinator
    handle = coordinator._handle_offset_fetch_response
    refused: list[TopicPartition] = []

    def handle_answer(response: Any) -> Any:
        groups = getattr(response, "groups", None) or [response]
        refused[:] = [
            TopicPartition(topic.name, each.partition_index)
            for topic in groups[0].topics or ()
            for each in topic.partitions
            if errors.for_code(each.error_code) is errors.UnstableOffsetCommitError
        ]
        return handle(response)

    def committed(
        partitions: Collection[TopicPartition], timeout_ms: int
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        refused.clear()
        try:
            found = coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
        except errors.KafkaTimeoutError:
            if refused:
                raise errors.UnstableOffsetCommitError(sorted(refused)) from None
            raise
        return {partition: found.get(partition) for partition in partitions}

    coordinator._handle_offset_fetch_response = handle_answer
    return committed


# --- Requests about topics wait behind a fetch, without limit, and create topics ---


def described_topics(consumer: Any, topics: Sequence[str] | None, timeout_ms: int) -> Any:
    """Return the metadata of topics, or of all (None). Raises KafkaTimeoutError: no answer in time.

    Uses the coordinator's connection, which carries no fetches, unless a join waits on it.

    Wrong: ``partitions_for_topic`` and ``topics`` wait without limit, make brokers create missing topics, and return no
        ids. A broker answers the requests of a connection in order, and fetches share it: at the end of a log, any
        request waits up to ``fetch_max_wait_ms``.
    Goes when: a consumer returns a topic's id and partitions within a timeout, and fetches by a separate connection.
    """
    manager, coordinator = consumer._manager, consumer._coordinator
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    node = coordinator.coordinator_id
    is_free = node is not None and not coordinator.rejoining and coordinator._client.is_ready(node)

    async def ask() -> Any:
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        return await manager.wait_for(manager.send(request, node if is_free else None), timeout_ms)

    return manager.run(ask).topics


# --- Partitions without a known leader are left out ---

LEADERS_PERIOD_S = 0.1  # Period of metadata requests for a partition without a leader
NO_LEADER = -1


def ask_leaders(consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int, ask: Callable[[int], T]) -> T:
    """Return the leaders' answer about all of these partitions.

    Waits until the client knows the leaders, and asks again if one changes meanwhile.

    Wrong: ``beginning_offsets``, ``end_offsets`` and ``offsets_for_times`` silently omit partitions whose leader the
        client does not know: a new partition, or one that just lost its leader, has no end (KeyError), or no record
        since a time.
    Goes when: those methods wait for leaders, or raise.

    Args:
        consumer: the client.
        partitions: the partitions that ``ask`` is about.
        timeout_ms: for the whole call.
        ask: sends the request, given the remaining ms.

    Raises:
        KafkaTimeoutError: some have no leader, or do not exist; or a leader does not answer.
    """
    until = time.monotonic() + timeout_ms / 1000
    while (left_ms := int((until - time.monotonic()) * 1000)) > 0:
        _learn_leaders(consumer, partitions, left_ms)
        try:
            found = ask(max(1, int((until - time.monotonic()) * 1000)))
        except KeyError:  # a leader was lost: the client looks for an answer that it has not requested
            continue
        if not _unled(consumer, partitions):
            return found
    raise errors.KafkaTimeoutError(f"no leader: {sorted(_unled(consumer, partitions))}")


def _unled(consumer: Any, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    cluster = consumer._cluster
    return [tp for tp in partitions if cluster.leader_for_partition(tp) in (None, NO_LEADER)]


def _learn_leaders(consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int) -> None:
    """Make a consumer learn the leaders. Raises KafkaTimeoutError: some have no leader, or do not exist."""
    cluster, manager = consumer._cluster, consumer._manager
    is_waited_for = True

    async def learn() -> None:
        while is_waited_for and (unknown := _unled(consumer, partitions)):
            for tp in unknown:
                cluster.add_topic(tp.topic)
            try:
                await cluster.request_update()
            except errors.KafkaError as error:
                # A stalled broker, which its controller briefly considers dead, lists no brokers.
                if not error.retriable:
                    raise
            await manager._net.sleep(LEADERS_PERIOD_S if _unled(consumer, partitions) else 0)

    async def in_time() -> None:
        nonlocal is_waited_for
        try:
            await manager.wait_for(manager.call_soon(learn), timeout_ms)
        finally:
            is_waited_for = False  # otherwise ``learn`` would continue forever after a timeout

    if _unled(consumer, partitions):
        manager.run(in_time)
