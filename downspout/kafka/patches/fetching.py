"""What polls return, where they read, what a group has committed, and questions about topics and logs."""

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


# --- An object for each record, and no other way to fetched bytes ---

_PARTITION = TopicPartition("canned", 5)
_CANNED = base64.b64decode(
    "AAAAAAAAAAcAAABYAAAAAwLxAFmFAAAAAAADAAAAAAAAA+gAAAAAAAAD7f//////////////////AAAAAxoAAAACawxiZWZvcmUADgACAgECdgAgAAoG"
    "BmtleQEEAmgCeAJpAQAAAAAAAAALAAAAWQAAAAMCvyruJgABAAAAAQAAAAAAAAfQAAAAAAAAB9D//////////////////wAAAAIfiwgAwlkCawL/e8bC"
    "AAQ3WKpGAdGAgY+BkYkpm4EBAMYXO689AQAA"
)
"""A batch with a gap, nulls and headers, whose first record lies before the start; and one that is compressed."""
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
    """Return a ``PartitionRecords`` that yields what ``read`` makes of the fetched bytes.

    It offers ``read`` the client's record of transactions under public names. Groups, positions, pausing, transactions
    and metrics stay the client's. Ours relies on two things, which :func:`trouble` tries out: ``_append`` puts what
    ``take`` returns into a list with ``extend``, counts it with ``len``, and reads on at ``next_fetch_offset`` (the
    columns iterate as one element and are as long as their records); and ``drain`` sets ``record_iterator`` to None.

    Wrong: the client makes a tuple, a generator step and more objects of each record: several times the CPU of all that
        is done with one in columns. Nothing public hands out the bytes of a fetch.
    Goes when: the client hands out fetched bytes, or decodes into columns itself.
    """

    class OtherwiseUnpacked(known):
        consume_aborted_up_to = known._consume_aborted_transactions_up_to
        contains_abort_marker = known._contains_abort_marker

        def _unpack_records(self, tp: TopicPartition, records: Any, *_: Any) -> Iterator[Any]:
            return read(self, tp, bytes_of(records))

        def _maybe_skip_record(self, record: Any) -> bool:
            return False  # what is read begins at the fetch offset

        def pass_aborted(self, batch: Any) -> None:
            """Report an aborted batch to the class that notes them."""
            self._is_batch_aborted(batch)

    return OtherwiseUnpacked


@cache
def trouble(fetcher: type[Any], hook: Callable[[type[Any]], type[Any]]) -> str:
    """Return why columns cannot be read with this fetcher class; empty if they can.

    Two batches with all that matters go the whole way, from the object that the fetcher makes of fetched bytes to what
    a poll would return. If that fails, polls return the client's own records: slower, not broken.
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
    """Return how the canned batches differ from what they hold once a fetcher has taken them."""
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


# --- Batches that are unpacked whole, and header names that end them ---

_LZ4 = 3
Unpack = Callable[[int, bytes], bytes]  # Unpacks bytes of a kind (1 to 4: gzip, snappy, lz4, zstd), or raises


def bounded_records(known: type[Any], bounded: Callable[[bytes], Any]) -> type[Any]:
    """Return a ``PartitionRecords`` whose batches ``bounded`` has unpacked, within limits.

    They are put into the client's own objects, which read their records. A batch older than format 2 is given a
    function that unpacks it. A record with a header name that is not UTF-8 is read again with the bytes replaced.

    Wrong: the client unpacks a compressed batch in one go, without a limit: some kilobytes may hold gigabytes and end
        the process. A batch whose records we have unpacked cannot be handed to it. A header name that is not UTF-8
        makes the whole batch unreadable, though any producer may write one; Java's client replaces the bytes.
    Goes when: the client takes a limit for what a batch unpacks to and raises beyond it, and reads such names.
    """

    class BoundedRecords(known):
        """The records of one partition in one fetch."""

        def _unpack_records(self, tp: Any, records: Any, *more: Any) -> Any:
            return super()._unpack_records(tp, bounded(bytes_of(records)), *more)

    return BoundedRecords


class _Name(bytes):
    """Bytes that decode into text with invalid ones replaced."""

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")


class _Names(bytes):
    """A buffer whose slices are such bytes."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Name(found) if isinstance(found, bytes) else found


class ReadableBatch(DefaultRecordBatch):
    """A batch whose headers may have any names."""

    __slots__ = ()

    def _read_msg(self, *given: Any) -> Any:
        clients: Any = super()
        try:
            return clients._read_msg(*given)
        except UnicodeDecodeError:  # the place in the buffer moves on only behind a record that was read whole
            batch: Any = self
            batch._buffer = _Names(batch._buffer)  # for the rest of the batch: a copy per record would add up
            return clients._read_msg(*given)


class _UnpackedBatch(ReadableBatch):
    """A batch that we have unpacked for the client and whose check sum we have checked."""

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
    """A batch older than format 2, which the client reads and ``unpack`` unpacks."""

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
    """Return a batch like the client's that is unpacked with this function."""
    made = _OldBatch(found._buffer, found._magic)
    made.unpack = unpack
    return made


def _with_right_check(frame: bytes) -> bytes:
    """Return a frame of lz4 with a correct header check: producers before 0.10 hashed too many bytes."""
    xxhash: Any = codec.xxhash
    if xxhash is None:
        raise errors.UnsupportedCodecError("pip install xxhash for lz4 encoding with 0.8/0.9 brokers")
    end = 6 + 8 * (frame[4] >> 3 & 1)  # a flag says whether the header holds the unpacked size, too
    return frame[:end] + bytes([xxhash.xxh32(frame[4:end]).intdigest() >> 8 & 0xFF]) + frame[end + 1 :]


def bytes_of(records: MemoryRecords) -> bytes:
    """Return the fetched bytes of the client's object for them."""
    found: bytes = records._buffer
    return found


# --- A batch that cannot be read: one error, then a poll that never returns ---


def keeping_errors(known: type[Any]) -> type[Any]:
    """Return a ``PartitionRecords`` whose error is raised by every poll until the next seek.

    Wrong: a batch that cannot be read is an error of one ``poll``. Its bytes yield nothing more then and do not count
        as used up: the next ``poll`` asks them again and again, without end.
    Goes when: the client raises the error again, or ends, at the next poll.
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


# --- Aborted batches that are skipped silently ---


def noting_aborted(known: type[Any], aborted: list[tuple[TopicPartition, int, int]]) -> type[Any]:
    """Return a ``PartitionRecords`` that notes the batches it leaves out.

    Wrong: with ``isolation_level="read_committed"`` the client leaves out batches of aborted transactions, and nothing
        tells their offsets. An audit must distinguish them from records that are lost.
    Goes when: a poll, or a callback, reports the offsets that were left out.
    """

    class NotingAborted(known):
        def _is_batch_aborted(self, batch: Any) -> bool:
            is_aborted = bool(super()._is_batch_aborted(batch))
            if is_aborted:
                aborted.append((self.topic_partition, batch.base_offset, batch.records_count))
            return is_aborted

    return NotingAborted


# --- Resumed partitions whose records never come ---


def unparking(consumer: Any) -> Callable[[], None]:
    """Return a function to call before each poll: parked records of a resumed partition take turns with those in line.

    Wrong: what was fetched for a partition that is then paused is parked and not fetched again (kafka-python's pull
        request 2981, Java's KAFKA-7548). After the partition is resumed it returns only when the slot for the records
        in
        line is None: a slot whose records are used up (false, not None) blocks it for ever, and one that a busy
        partition refills blocks it as long as that is busy.
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


# --- Fetches that all ask for the same ---


def gathering(consumer: Any, min_bytes: int, wait_ms: int) -> Callable[[int], None]:
    """Let brokers gather records; return a function that is told after each poll how many ms it waited without records.

    If polls have waited for longer than ``wait_ms`` in a row, a broker replies to the first record, within the client's
    usual time.

    Wrong: ``fetch_min_bytes`` and ``fetch_max_wait_ms`` hold for a consumer's life. A broker that gathers for a short
        while is asked many times a second if there are no records.
    Goes when: a poll can say how long it has.
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


# --- How long a broker takes to answer a fetch, and where the logs begin ---


def time_fetches(consumer: Any) -> Fetches:
    """Have the answers to a consumer's fetches noted, with times in seconds on the monotonic clock. O(partitions) each.

    Wrong: the client measures this only with its metrics on, which cost a lock and several objects per request and
        partition, and hold a rate and a mean over a time that cannot be asked together. It does not hand on where a log
        begins, which an answer says.
    Goes when: a consumer reports the times of its fetches at a cost that every consumer can bear.
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
                if answer.log_start_offset >= 0:  # an error names none
                    partition.begin = answer.log_start_offset
        known(node_id, fetch_offsets, send_time, response)

    fetcher._handle_fetch_response = handle
    return fetches


# --- A seek that is lost to a reset of the same partition ---


def atomic_seek(consumer: Any) -> Callable[[Any, int], None]:
    """Return a function that seeks a partition of a consumer, before a reset or after it.

    A lock makes one step of the reset, which asks no broker.

    Wrong: a partition without a position is reset to the beginning or the end on the client's own thread. That checks
        whether the reset is still wanted, and then sets the position; a seek between the two is overwritten, and
        reading begins somewhere else.
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


# --- A known position that is asked about nevertheless ---


def known_positions(consumer: Any) -> Callable[[TopicPartition], int | None]:
    """Return a function that returns the next offset to be read; None if no position was sought or read so far.

    Wrong: ``position`` has the broker confirm each position after a change of leaders (KIP-320), waits for that, and
        raises errors on the way, such as those of a broker that restarts. Polls have it confirmed anyway.
    Goes when: the client returns a known position without asking a broker.
    """
    positions = consumer._subscription

    def known_position(partition: TopicPartition) -> int | None:
        return int(positions.position(partition).offset) if positions.has_valid_position(partition) else None

    return known_position


# --- Commits that are asked for one at a time, and those that a transaction holds back ---


def committed_offsets(
    consumer: Any,
) -> Callable[[Collection[TopicPartition], int], Mapping[TopicPartition, OffsetAndMetadata | None]]:
    """Return a function that asks for a group's commits in one request, within some ms.

    It raises KafkaTimeoutError if no answer comes in time, and UnstableOffsetCommitError if open transactions hold some
    commits back; its first argument holds the partitions.

    Wrong: ``committed`` takes one partition: a member with a thousand of them sends a thousand requests, one after the
        other. While a transaction that commits for the group is open, brokers refuse its commits to read_committed
        consumers; the client asks again until its time is over, and raises a time-out without reason or partition.
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


# --- Questions about topics that wait behind a fetch, without limit, and create topics ---


def described_topics(consumer: Any, topics: Sequence[str] | None, timeout_ms: int) -> Any:
    """Return what any broker says about topics, or about all (None). Raises KafkaTimeoutError: no answer in time.

    The request goes through the coordinator's connection, which carries no fetches, unless a join waits on it.

    Wrong: ``partitions_for_topic`` and ``topics`` wait without limit, let brokers create topics that do not exist, and
        have no ids in their answers. The client has one connection to a broker for fetches and all else, answered in
        order: at the end of a log any question waits up to ``fetch_max_wait_ms``.
    Goes when: a consumer can be asked, within a time, for a topic's id and partitions, and fetches by a connection of
        its own.
    """
    manager, coordinator = consumer._manager, consumer._coordinator
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    node = coordinator.coordinator_id
    is_free = node is not None and not coordinator.rejoining and coordinator._client.is_ready(node)

    async def ask() -> Any:
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        return await manager.wait_for(manager.send(request, node if is_free else None), timeout_ms)

    return manager.run(ask).topics


# --- Ends of logs that are left out ---

LEADERS_PERIOD_S = 0.1  # How often a partition without a leader is asked about
NO_LEADER = -1


def ask_leaders(consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int, ask: Callable[[int], T]) -> T:
    """Return the leaders' answer about partitions, which all must have one.

    The client first learns the leaders, and asks again if one was lost meanwhile.

    Wrong: ``beginning_offsets``, ``end_offsets`` and ``offsets_for_times`` silently leave out partitions whose leader
        the client has not heard of: a new one, or one whose leader is lost while it asks, has no end (KeyError), or no
        record since a time.
    Goes when: those methods wait for leaders, or raise.

    Args:
        consumer: the client.
        partitions: to ask about.
        timeout_ms: for all of it.
        ask: the client's question, which is given the ms that are left.

    Raises:
        KafkaTimeoutError: some have no leader, or do not exist; or a leader does not answer.
    """
    until = time.monotonic() + timeout_ms / 1000
    while (left_ms := int((until - time.monotonic()) * 1000)) > 0:
        _learn_leaders(consumer, partitions, left_ms)
        try:
            found = ask(max(1, int((until - time.monotonic()) * 1000)))
        except KeyError:  # a leader is lost, and the client looks for an answer that it has not asked for
            continue
        if not _unled(consumer, partitions):
            return found
    raise errors.KafkaTimeoutError(f"no leader: {sorted(_unled(consumer, partitions))}")


def _unled(consumer: Any, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    cluster = consumer._cluster
    return [tp for tp in partitions if cluster.leader_for_partition(tp) in (None, NO_LEADER)]


def _learn_leaders(consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int) -> None:
    """Make a consumer learn who leads these. Raises KafkaTimeoutError: some have no leader, or do not exist."""
    cluster, manager = consumer._cluster, consumer._manager
    is_waited_for = True

    async def learn() -> None:
        while is_waited_for and (unknown := _unled(consumer, partitions)):
            for tp in unknown:
                cluster.add_topic(tp.topic)
            try:
                await cluster.request_update()
            except errors.KafkaError as error:
                # A broker that its controller takes for dead for a moment (it had no time to run) knows no brokers.
                if not error.retriable:
                    raise
            await manager._net.sleep(LEADERS_PERIOD_S if _unled(consumer, partitions) else 0)

    async def in_time() -> None:
        nonlocal is_waited_for
        try:
            await manager.wait_for(manager.call_soon(learn), timeout_ms)
        finally:
            is_waited_for = False  # what was timed out would go on for ever

    if _unled(consumer, partitions):
        manager.run(in_time)
