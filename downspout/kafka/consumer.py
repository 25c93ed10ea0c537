"""The consumer port on real brokers, with kafka-python 3: a thin layer over the client and its patches.

``poll`` gives a partition without a position the group's commit. With ``auto_offset_reset="none"``, a missing commit
raises NoOffsetForPartitionError, and a position outside the log OffsetOutOfRangeError; "earliest" and "latest" jump
silently in both cases. By default we start at the beginning in the first case and raise in the second.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import errors
from kafka.consumer.subscription_state import ConsumerRebalanceListener

from downspout.kafka.patches.connecting import connected, pass_on_to_consumer, read_more_at_once
from downspout.kafka.patches.fetching import (
    ask_leaders,
    atomic_seek,
    committed_offsets,
    described_topics,
    fetcher_of,
    gathering,
    keeping_errors,
    known_positions,
    noting_aborted,
    time_fetches,
    unparking,
)
from downspout.kafka.patches.joining import fencing_check, leave_at_close, patched_joins
from downspout.kafka.patches.private_api import check_consumer
from downspout.kafka.port import (
    Answered,
    ConsumerPort,
    Fetches,
    Gathering,
    GroupMembership,
    OffsetAndMetadata,
    RebalanceHandler,
    Record,
    TopicPartition,
)
from downspout.kafka.unreadable import Limits, Tolerance, Unreadable

REMOTE_MS_MAX = 4000
"""How long a call may wait for a broker. Under Storm no call of a spout may take longer than 5 s."""
ANSWER_POLL_S = 0.005  # How often to check for the answer to an asynchronous commit


class KafkaConsumerPort(ConsumerPort):
    """A consumer, made by :meth:`KafkaCluster.consumer`; the port documents its methods.

    A call that gets no answer within :data:`REMOTE_MS_MAX` raises KafkaTimeoutError (retriable).
    """

    def __init__(self, consumer: Any, starts_at_beginning: bool, columns: bool = False) -> None:
        check_consumer(consumer)
        pass_on_to_consumer(consumer)
        read_more_at_once(consumer)
        self._consumer = consumer
        self._joins = patched_joins(consumer)
        self._unpark = unparking(consumer)
        self._committed = committed_offsets(consumer)
        self._check_fencing = fencing_check(consumer)
        self._known_position = known_positions(consumer)
        self._connected = connected(consumer)
        self._seek = atomic_seek(consumer)
        self._fetches = time_fetches(consumer)
        self._unanswered = 0  # Asynchronous commits in flight that have an `answered`
        self._aborted: list[tuple[TopicPartition, int, int]] = []
        self._notes_aborted = False
        self._tolerance = Tolerance(highwater=self.highwater)
        self._columns = columns
        self._polled: Callable[[int], None] | None = None
        self._combine: Callable[[Sequence[Any]], tuple[Sequence[Record], int | None]] | None = None
        self._starts_at_beginning = starts_at_beginning
        self._closed = False

    # --- what to read ---

    def subscribe(self, topics: Sequence[str], listener: RebalanceHandler) -> None:
        self._need_group()
        self._consumer.subscribe(topics=list(topics), listener=_known_to_the_client(listener))

    def subscribe_pattern(self, pattern: str, listener: RebalanceHandler) -> None:
        self._need_group()
        self._consumer.subscribe(pattern=rf"(?:{pattern})\Z", listener=_known_to_the_client(listener))

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.assign(list(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._consumer.assignment())

    def rejoin_pending(self) -> bool:
        return not self._closed and self._joins.pending()

    # --- reading ---

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return up to ``max_records`` in offset order per partition.

        Raises:
            OffsetOutOfRangeError: a position is outside the log; the first argument maps partition to position.
            LogTruncationError: the log was truncated below a position (unclean leader election).
            FencedInstanceIdError: another process uses our instance id.
        """
        self._check_fencing()
        if self._combine is None:
            self._begin_to_read()
        self._unpark()
        found: dict[TopicPartition, Any] = {}
        with self._joins.round():
            try:
                found = self._consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
            except errors.NoOffsetForPartitionError as error:
                self._start_at_beginning(error)
        if self._polled is not None:
            self._polled(0 if found else timeout_ms)
        combined = {tp: self._combined(tp, parts) for tp, parts in found.items()}
        for tp, records in combined.items():
            self._fetches.records += len(records)
            self._fetches.of(tp).records += len(records)
        return combined

    def _begin_to_read(self) -> None:
        """Make polls return columns. Done at the first poll, because it loads Arrow."""
        from downspout.kafka.columns.fetcher import combined, install

        install(self._consumer, self._tolerance)
        fetcher = fetcher_of(self._consumer)
        aborted = self._aborted if self._notes_aborted else None
        fetcher.PartitionRecords = watched(fetcher.PartitionRecords, aborted)
        self._combine = combined

    def _combined(self, partition: TopicPartition, parts: Sequence[Any]) -> Sequence[Record]:
        """Join a poll's records of one partition; seek back to any that exceed one array."""
        assert self._combine is not None
        columns, left = self._combine(parts)
        if left is not None:
            with suppress(errors.IllegalStateError):  # revoked while we polled: its next owner reads the rest
                self._seek(partition, left)
        # Making all records at once from columns costs a fraction of the client's own records.
        return columns if self._columns else list(columns)

    def _start_at_beginning(self, error: errors.NoOffsetForPartitionError) -> None:
        if not self._starts_at_beginning:
            raise error
        # The client looks up the beginning in the background; a seek meanwhile takes precedence.
        self._consumer.seek_to_beginning(*(set(error.args[0]) & self.assignment()))

    def position(self, partition: TopicPartition) -> int:
        if (known := self._known_position(partition)) is not None:  # without asking a broker
            return known
        try:
            found = self._consumer.position(partition, timeout_ms=REMOTE_MS_MAX)
        except errors.NoOffsetForPartitionError as error:
            self._start_at_beginning(error)
            found = self._consumer.position(partition, timeout_ms=REMOTE_MS_MAX)
        if found is None:
            raise errors.KafkaTimeoutError(f"no position for {partition}")
        return int(found)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._seek(partition, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.pause(*partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.resume(*partitions)

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._consumer.paused())

    def highwater(self, partition: TopicPartition) -> int | None:
        found: int | None = self._consumer.highwater(partition)
        return found

    def connected(self) -> bool:
        return self._connected()

    @property
    def fetches(self) -> Fetches:
        return self._fetches

    def note_aborted(self) -> None:
        self._notes_aborted = True

    def take_aborted(self) -> Sequence[tuple[TopicPartition, int, int]]:
        found = list(self._aborted)
        self._aborted.clear()
        return found

    def gather(self, wanted: Gathering) -> None:
        """Make brokers batch records before they answer a fetch, unless the partitions are idle."""
        self._polled = gathering(self._consumer, *wanted)

    def tolerate(self, limits: Limits, *, large: bool = True, corrupt: bool) -> None:
        self._tolerance.limits = limits
        self._tolerance.notes_large, self._tolerance.notes_corrupt = large, corrupt

    def take_unreadable(self) -> Sequence[Unreadable]:
        return self._tolerance.take()

    # --- commits ---

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        until = time.monotonic() + REMOTE_MS_MAX / 1000
        while self._unanswered:
            self._consumer.commit({}, timeout_ms=REMOTE_MS_MAX)  # commits nothing; runs the callbacks of answers
            if self._unanswered and time.monotonic() > until:
                raise errors.KafkaTimeoutError("a commit that was sent before has no answer")
            time.sleep(ANSWER_POLL_S if self._unanswered else 0)
        if offsets:
            self._consumer.commit(dict(offsets), timeout_ms=max(1.0, (until - time.monotonic()) * 1000))

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        if answered is None:
            self._consumer.commit_async(dict(offsets))
            return

        def take(_: Any, result: Any) -> None:
            self._unanswered -= 1
            is_odd = isinstance(result, BaseException) and not isinstance(result, errors.KafkaError)
            answered(errors.KafkaError(repr(result)) if is_odd else result)

        self._consumer.commit_async(dict(offsets), callback=take)
        self._unanswered += 1

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        self._need_group()
        return self._committed(partitions, REMOTE_MS_MAX)

    def _need_group(self) -> None:
        if self._consumer.config["group_id"] is None:
            raise errors.IllegalStateError("Requires group_id")

    # --- questions about the cluster ---

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._ask_leaders(partitions, lambda ms: self._consumer.beginning_offsets(list(partitions), ms))

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._ask_leaders(partitions, lambda ms: self._consumer.end_offsets(list(partitions), ms))

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found = self._ask_leaders(timestamps_ms, lambda ms: self._consumer.offsets_for_times(dict(timestamps_ms), ms))
        return {tp: None if (at := found.get(tp)) is None else at.offset for tp in timestamps_ms}

    def first_records(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        since = dict.fromkeys(partitions, 0)
        found = self._ask_leaders(partitions, lambda ms: self._consumer.offsets_for_times(since, ms))
        return {tp: (at.offset, at.timestamp) for tp, at in found.items() if at is not None}

    def _ask_leaders(
        self, partitions: Collection[TopicPartition], ask: Callable[[int], dict[TopicPartition, Any]]
    ) -> dict[TopicPartition, Any]:
        return ask_leaders(self._consumer, partitions, REMOTE_MS_MAX, ask)

    def partitions_for(self, topic: str) -> frozenset[int]:
        described = self._describe(topic)
        return frozenset(p.partition_index for p in described.partitions) if described is not None else frozenset()

    def topic_id(self, topic: str) -> str:
        return _id_of(self._describe(topic))

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {described.name: _id_of(_known(described)) for described in self._ask_about(list(topics))}

    def topic_names(self) -> frozenset[str]:
        return frozenset(described.name for described in self._ask_about(None) if not described.is_internal)

    def _ask_about(self, topics: list[str] | None) -> Any:
        """Ask any broker for the metadata of topics, or of all."""
        return described_topics(self._consumer, topics, REMOTE_MS_MAX)

    def _describe(self, topic: str) -> Any:
        """Ask any broker for the metadata of one topic; None: no such topic."""
        (described,) = self._ask_about([topic])
        return _known(described)

    def membership(self) -> GroupMembership:
        found = self._consumer.group_metadata()
        return GroupMembership(found.group_id, found.generation_id, found.member_id or "", found.group_instance_id)

    def close(self, leave_group: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        leave_at_close(self._consumer, leave_group)
        self._consumer.close(autocommit=False, timeout_ms=REMOTE_MS_MAX)


def _known(described: Any) -> Any:
    """Return a broker's description of a topic; None: no such topic. Raises the broker's error."""
    kind = errors.for_code(described.error_code)
    if kind in (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError):
        return None
    if kind not in (errors.NoError, errors.LeaderNotAvailableError):
        raise kind(described.name)
    return described


def _id_of(described: Any) -> str:
    if described is None or described.topic_id is None or not described.topic_id.int:
        return ""
    return base64.urlsafe_b64encode(described.topic_id.bytes).decode().rstrip("=")


def watched(known: type[Any], aborted: list[tuple[TopicPartition, int, int]] | None) -> type[Any]:
    """Return a ``PartitionRecords`` that keeps raising its error and lists aborted batches, unless there is no list."""
    kept = keeping_errors(known)
    return kept if aborted is None else noting_aborted(kept, aborted)


def _known_to_the_client(listener: RebalanceHandler) -> RebalanceHandler:
    """Register a listener's class with the client, which wants instances of its own."""
    ConsumerRebalanceListener.register(type(listener))
    return listener
