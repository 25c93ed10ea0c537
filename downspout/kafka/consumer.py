"""The consumer port on real brokers, with kafka-python 3: thin, records are passed through as they are.

What kafka-python does by itself, and what of it we use (read in its source, version 3.0.12):

* *Where reading starts.* A partition without a position gets the group's commit inside ``poll``. Where there is none,
  ``auto_offset_reset="none"`` makes ``poll`` raise NoOffsetForPartitionError, and a position outside the log raises
  OffsetOutOfRangeError; "earliest" and "latest" jump in both cases without a word. Here the default is: the beginning
  in the first case, the error in the second. Whoever gives ``auto_offset_reset`` gets what kafka-python makes of it.
* *Leaving.* ``close`` sends LeaveGroup for a dynamic member and never for a static one (its rule is
  ``is_dynamic_member``). Broker and request know both, so :meth:`KafkaConsumerPort.close` answers that question by
  what the caller wants.
* *Joining.* Much of it goes wrong between two polls, or in the middle of one (``downspout.kafka.joining``).
* *Pausing.* What was fetched for a partition that is then paused is parked, and not fetched again. After it is resumed
  it comes back only when the slot for the records in line is None: a slot whose records are used up (false, not None)
  blocks it for ever, and one that a busy partition refills blocks it as long as that is busy. So ``poll`` puts what is
  parked and no longer paused in line, and parks what was there: they take turns.
* *Ends of logs.* It asks the leader of each partition, and leaves out those whose leader it has not heard of, without
  a word: one that is new has no end then (KeyError), or no record since a time. So it is made to learn them first.
* *Metadata.* Its questions for a topic wait without limit and let brokers create topics that do not exist. Ours are
  sent as requests of their own.
* *Aborted records, records that cannot be read.* The class that passes them is replaced, in each consumer's fetcher
  (``downspout.kafka.fetched``, and with columns ``downspout.kafka.columns.fetch``).
* *Small reads.* It reads sockets by 4 KiB (``downspout.kafka.receiving``).
* *Questions behind a fetch.* A broker answers the requests of a connection in order, and a fetch that finds nothing is
  answered after ``fetch_max_wait_ms``. So at the end of a log any question to the one broker would wait half a second.
  A group's coordinator has a connection to itself, without fetches: we ask there, unless a join waits on it.

Those parts are private. :func:`_self_test` looks at each when a consumer is made, so that another version fails at
once and not in the middle of a rebalance.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import kafka
from kafka import errors
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.protocol.metadata import MetadataRequest

from downspout.errors import BrokerError
from downspout.kafka.fetched import watched
from downspout.kafka.joining import PARTS as JOINING_PARTS
from downspout.kafka.joining import Joining
from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, RebalanceListener, Record, TopicPartition
from downspout.kafka.receiving import receive_widely

REMOTE_MS_MAX = 4000
"""How long a call that asks a broker may wait. Under Storm no call of a spout may take longer than 5 s."""
LEADERS_PERIOD_S = 0.1
"""How often a partition without a leader is asked about."""
NO_LEADER = -1


class _Relay(ConsumerRebalanceListener):
    """Hands the client's rebalance facts to our listener, which need not inherit from the client's class."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Pass it on."""
        self._listener.on_partitions_assigned(assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Pass it on."""
        self._listener.on_partitions_revoked(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Pass it on."""
        self._listener.on_partitions_lost(lost)


class KafkaConsumerPort:
    """A consumer; see :class:`~downspout.kafka.port.ConsumerPort`. Made by :meth:`KafkaCluster.consumer`.

    Every call that asks a broker is bounded by :data:`REMOTE_MS_MAX` and then raises KafkaTimeoutError (retriable).
    """

    def __init__(self, consumer: Any, starts_at_beginning: bool, columns: bool = False) -> None:
        _self_test(consumer)
        # kafka-python does not hand this property of the consumer on to the part that it is meant for.
        consumer._cluster.config["allow_auto_create_topics"] = consumer.config["allow_auto_create_topics"]
        receive_widely(consumer._manager)
        self._consumer = consumer
        self._coordinator = consumer._coordinator
        self._joining = Joining(self._coordinator, consumer.config["group_instance_id"])
        self._fetcher = consumer._fetcher
        self._aborted: list[tuple[TopicPartition, int, int]] = []
        self._columns = columns
        self._gather: Callable[[Sequence[Any]], tuple[Sequence[Record], int | None]] | None = None
        self._starts_at_beginning = starts_at_beginning
        self._closed = False

    # --- what to read ---

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group for these topics at the next poll."""
        self._need_group()
        self._consumer.subscribe(topics=list(topics), listener=_Relay(listener))

    def subscribe_pattern(self, pattern: str, listener: RebalanceListener) -> None:
        """Join the group for topics whose whole name matches."""
        self._need_group()
        self._consumer.subscribe(pattern=rf"(?:{pattern})\Z", listener=_Relay(listener))

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these without any group membership."""
        self._consumer.assign(list(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return what is assigned now."""
        return frozenset(self._consumer.assignment())

    def rejoin_pending(self) -> bool:
        """Return whether the next poll may revoke partitions; asks nobody."""
        return not self._closed and self._joining.pending()

    # --- reading ---

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return up to ``max_records`` in offset order per partition.

        Raises:
            OffsetOutOfRangeError: a position is outside the log; the first argument maps partition to position.
            LogTruncationError: the end of the log was cut off below a position (unclean leader election).
        """
        if self._gather is None:
            self._begin_to_read()
        self._unpark()
        found: dict[TopicPartition, Any] = {}
        with self._joining.round():
            try:
                found = self._consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
            except errors.NoOffsetForPartitionError as error:
                self._start_at_beginning(error)
        return {tp: self._gathered(tp, parts) for tp, parts in found.items()}

    def _begin_to_read(self) -> None:
        """Let polls find columns. Arrow, which that loads, is for those that read."""
        from downspout.kafka.columns.fetch import gathered, install

        install(self._consumer)
        self._fetcher.PartitionRecords = watched(self._fetcher.PartitionRecords, self._aborted)
        self._gather = gathered

    def _gathered(self, partition: TopicPartition, parts: Sequence[Any]) -> Sequence[Record]:
        """Return what a poll has found of a partition as one piece; what is too much for one is read again.

        Where columns are not wanted, their records are, all made at once: at a fraction of what the client's cost.
        """
        assert self._gather is not None
        columns, left = self._gather(parts)
        if left is not None:
            with suppress(errors.IllegalStateError):  # it was taken away while we polled: its next owner reads the rest
                self._consumer.seek(partition, left)
        return columns if self._columns else list(columns)

    def _unpark(self) -> None:
        """Put the records of a resumed partition in line; see "Pausing", above."""
        fetcher, parked = self._fetcher, self._fetcher._paused_partition_records
        paused = self._consumer.paused() if parked else ()
        if (resumed := next((partition for partition in parked if partition not in paused), None)) is None:
            return
        in_line, fetcher._next_partition_records = fetcher._next_partition_records, parked.pop(resumed)
        if in_line:
            parked[in_line.topic_partition] = in_line

    def _start_at_beginning(self, error: errors.NoOffsetForPartitionError) -> None:
        if not self._starts_at_beginning:
            raise error
        # Asks for the beginning in the background; a seek before the answer takes precedence.
        self._consumer.seek_to_beginning(*(set(error.args[0]) & self.assignment()))

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset that would be read. Nobody is asked, unless no place was sought or read so far.

        The client's own ``position`` has the broker confirm each place after a change of leaders (KIP-320), waits for
        that, and raises what it meets with: with a broker that restarts, an error. Polls have it confirmed anyway.
        """
        if (known := self._known_position(partition)) is not None:
            return known
        try:
            found = self._consumer.position(partition, timeout_ms=REMOTE_MS_MAX)
        except errors.NoOffsetForPartitionError as error:
            self._start_at_beginning(error)
            found = self._consumer.position(partition, timeout_ms=REMOTE_MS_MAX)
        if found is None:
            raise errors.KafkaTimeoutError(f"no position for {partition}")
        return int(found)

    def _known_position(self, partition: TopicPartition) -> int | None:
        positions = self._consumer._subscription
        return int(positions.position(partition).offset) if positions.has_valid_position(partition) else None

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``; records that were fetched but not returned are dropped."""
        self._consumer.seek(partition, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until resumed; the position stays."""
        self._consumer.pause(*partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Undo ``pause``."""
        self._consumer.resume(*partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return what is paused."""
        return frozenset(self._consumer.paused())

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of the log as of the last fetch, without asking; None before the first."""
        found: int | None = self._consumer.highwater(partition)
        return found

    def take_aborted(self) -> Sequence[tuple[TopicPartition, int, int]]:
        """Return what was passed since the last call because its transaction was aborted."""
        found = list(self._aborted)
        self._aborted.clear()
        return found

    # --- commits ---

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit and wait for the broker's word."""
        self._consumer.commit(dict(offsets), timeout_ms=REMOTE_MS_MAX)

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Send a commit and do not wait."""
        self._consumer.commit_async(dict(offsets))

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's commits with their metadata, in one request (the client's own method takes one each)."""
        self._need_group()
        found = self._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=REMOTE_MS_MAX)
        return {partition: found.get(partition) for partition in partitions}

    def _need_group(self) -> None:
        if self._consumer.config["group_id"] is None:
            raise errors.IllegalStateError("Requires group_id")

    # --- questions about the cluster ---

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the lowest offset that is still in each log."""
        self._learn_leaders(partitions)
        found: dict[TopicPartition, int] = self._consumer.beginning_offsets(list(partitions), REMOTE_MS_MAX)
        return found

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log (read_committed: the last stable offset)."""
        self._learn_leaders(partitions)
        found: dict[TopicPartition, int] = self._consumer.end_offsets(list(partitions), REMOTE_MS_MAX)
        return found

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the first offset with a timestamp at or after the one given; None where there is none."""
        self._learn_leaders(timestamps_ms)
        found = self._consumer.offsets_for_times(dict(timestamps_ms), REMOTE_MS_MAX)
        return {tp: None if (at := found.get(tp)) is None else at.offset for tp in timestamps_ms}

    def _learn_leaders(self, partitions: Collection[TopicPartition]) -> None:
        """Have the client know who leads these ("Ends of logs", above).

        Raises:
            KafkaTimeoutError: some have no leader, or do not exist.
        """
        cluster, manager = self._consumer._cluster, self._consumer._manager
        waited_for = True

        def unknown() -> list[TopicPartition]:
            return [tp for tp in partitions if cluster.leader_for_partition(tp) in (None, NO_LEADER)]

        async def learn() -> None:
            while waited_for and unknown():
                for tp in unknown():
                    cluster.add_topic(tp.topic)
                try:
                    await cluster.request_update()
                except errors.KafkaError as error:
                    # A broker that its controller takes for dead for a moment (it had no time to run) knows no brokers.
                    if not error.retriable:
                        raise
                await manager._net.sleep(LEADERS_PERIOD_S if unknown() else 0)

        async def in_time() -> None:
            nonlocal waited_for
            try:
                await manager.wait_for(manager.call_soon(learn), REMOTE_MS_MAX)
            finally:
                waited_for = False  # what was timed out would go on for ever

        if unknown():
            manager.run(in_time)

    def partitions_for(self, topic: str) -> frozenset[int]:
        """Return the topic's partitions as of now; empty where it does not exist."""
        described = self._describe(topic)
        return frozenset(p.partition_index for p in described.partitions) if described is not None else frozenset()

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of the topic as of now (base64 of its UUID); empty where unknown."""
        return _id_of(self._describe(topic))

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return Kafka's ids of several topics as of now, in one request; empty where unknown."""
        return {described.name: _id_of(_known(described)) for described in self._ask_about(list(topics))}

    def topic_names(self) -> frozenset[str]:
        """Return the names of all topics that are not Kafka's own."""
        return frozenset(described.name for described in self._ask_about(None) if not described.is_internal)

    def _ask_about(self, topics: list[str] | None) -> Any:
        """Ask any broker for the metadata of topics, or of all."""
        manager = self._consumer._manager
        named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]

        async def ask() -> Any:
            request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
            return await manager.wait_for(manager.send(request, self._side_road()), REMOTE_MS_MAX)

        return manager.run(ask).topics

    def _side_road(self) -> Any:
        """Return the node that is the coordinator's connection, if that is free ("Questions behind a fetch", above)."""
        node = self._coordinator.coordinator_id
        free = node is not None and not self._coordinator.rejoining and self._coordinator._client.is_ready(node)
        return node if free else None

    def _describe(self, topic: str) -> Any:
        """Ask any broker for the metadata of one topic; None where there is no such topic."""
        (described,) = self._ask_about([topic])
        return _known(described)

    # --- the end ---

    def close(self, leave_group: bool = True) -> None:
        """Stop without committing anything; the listener is told.

        Args:
            leave_group: tell the group, so that others take over at once. Otherwise the place is kept until the session
                ends: a static member that comes back before gets its partitions again without a rebalance.
        """
        if self._closed:
            return
        self._closed = True
        self._coordinator.is_dynamic_member = lambda: leave_group
        self._consumer.close(autocommit=False, timeout_ms=REMOTE_MS_MAX)


def _known(described: Any) -> Any:
    """Return what a broker says of a topic; None where there is no such topic, an error where it says no."""
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


def _self_test(consumer: Any) -> None:
    """Raise a BrokerError if the installed kafka-python lacks one of the private parts that we use."""
    parts = {
        **{f"_coordinator.{name}": kind for name, kind in JOINING_PARTS.items()},
        "_coordinator.coordinator_id": "NoneType",
        "_coordinator._client.is_ready": "method",
        "_coordinator.is_dynamic_member": "method",
        "_coordinator.maybe_leave_group_async": "method",
        "_coordinator.fetch_committed_offsets": "method",
        "_cluster.config": "dict",
        "_subscription.has_valid_position": "method",
        "_subscription.position": "method",
        "_fetcher._paused_partition_records": "dict",
        "_fetcher.PartitionRecords._is_batch_aborted": "function",
        "_fetcher.PartitionRecords.take": "function",
        "_fetcher._next_partition_records": "NoneType",
        "_manager.run": "method",
        "_manager.send": "method",
        "_manager.wait_for": "method",
        "_manager.call_soon": "method",
        "_manager.connection_delay": "method",
        "_manager._net.sleep": "method",
        "_cluster.leader_for_partition": "method",
        "_cluster.add_topic": "method",
        "_cluster.request_update": "method",
    }
    for path, kind in parts.items():
        found: Any = consumer
        for name in path.split("."):
            found = getattr(found, name, None)
        if type(found).__name__ != kind:
            consumer.close(autocommit=False, timeout_ms=0)
            raise BrokerError(
                f"kafka-python {kafka.__version__} has no {path}, which downspout needs",
                cure='`pip install "kafka-python>=3.0.9,<3.1"`',
            )


def _conforms(consumer: KafkaConsumerPort) -> ConsumerPort:
    """Let the type checker compare the class with its port."""
    return consumer
