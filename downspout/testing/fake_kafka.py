"""A Kafka in memory for tests: deterministic, instant, with injected failures.

It implements the same port as the real client (``downspout.kafka.port``) and passes the same contract suite. A topology
with ``kafka.bootstrap`` = ``fake://NAME`` reads from it:

>>> with FakeKafka("doc") as kafka:
...     kafka.create_topic("orders", partitions=2)
...     offset = kafka.produce("orders", b"first", key=b"k", partition=1)
...     consumer = kafka.consumer(group="g")
...     consumer.assign([TopicPartition("orders", 1)])
...     [record.value for records in consumer.poll(0, 10).values() for record in records]
[b'first']

It has no replication, leaders, quotas, ACLs, network delays, or prefetched records (a real client returns these even
after they were deleted). It is for one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kafka import errors
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.clock import Clock
from downspout.kafka import clusters, port
from downspout.kafka.columns import RecordColumns
from downspout.kafka.describing import MISSING, NO_LEADER
from downspout.kafka.partitioners import Choose
from downspout.kafka.port import Answered, Fetches, Gathering, GroupMembership, Record
from downspout.kafka.unreadable import CUT_BYTES, Limits, Unreadable, UnreadableBatchError, UnreadableRecordError
from downspout.testing.fake_broker import FakeBroker, SentCommit
from downspout.testing.fake_log import PartitionLog
from downspout.testing.fake_member import FakeMember
from downspout.testing.fake_producer import FakeProducer, FakeTransactionalProducer


class FakeKafka(FakeBroker):
    """A Kafka cluster in memory; a :class:`~downspout.kafka.port.Cluster`.

    Args:
        name: its address is ``fake://NAME`` until :meth:`close`, or the end of the ``with`` block.
        clock: default: a :class:`~downspout.testing.VirtualClock`, on which an empty poll takes its timeout, but no
            real time.
        cooperative: groups rebalance incrementally (KIP-429) instead of revoking everything first.
    """

    def __init__(self, name: str = "kafka", clock: Clock | None = None, *, cooperative: bool = False) -> None:
        super().__init__(name, clock, cooperative=cooperative)
        clusters.register(self.bootstrap, self)

    def close(self) -> None:
        """Unregister ``fake://NAME``."""
        clusters.unregister(self.bootstrap)

    def __enter__(self) -> FakeKafka:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the Cluster port ---

    def consumer(
        self,
        *,
        group: str | None,
        instance_id: str | None = None,
        client: Mapping[str, Any] | None = None,
        auto_commit_ms: int | None = None,
        columns: bool = False,
    ) -> FakeConsumer:
        """Return a consumer that commits only on request, unless ``auto_commit_ms`` is given."""
        return FakeConsumer(self, group, instance_id, client or {}, auto_commit_ms, columns)

    def producer(
        self, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> FakeProducer:
        """Return a producer."""
        return FakeProducer(self, client or {}, partitioner)

    def transactional_producer(
        self, transactional_id: str, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> FakeTransactionalProducer:
        """Return a transactional producer; fence an older one with this id and abort its transaction."""
        return FakeTransactionalProducer(self, transactional_id, client or {}, partitioner)

    def ensure_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int | None = None
    ) -> bool:
        """Create the topic unless it exists; return whether it was created."""

        def create() -> bool:
            missing = topic not in self._topics
            if missing:
                self.create_topic(topic, partitions, config)
            return missing

        return self.run_remote("ensure_topic", create)

    def open_transactions(self, group: str) -> list[port.OpenTransaction]:
        """Return the open transactions that block a group's commits."""
        held = self.run_remote("open_transactions", lambda: self.held_commits(self.group(group)))
        return [
            port.OpenTransaction(name, self.transactional[name].timeout_ms, False)
            for name in sorted(set(held.values()))
        ]

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all commits of a group."""
        return self.run_remote("group_offsets", lambda: self.committed(group))

    def group_members(self, group: str) -> list[str]:
        """Return the names of a group's live members."""
        self.tick()
        found = self._groups[group].members.values() if group in self._groups else ()
        return self.run_remote("group_members", lambda: sorted(member.instance or member.id for member in found))

    def describe_group(self, group: str) -> port.GroupDescription | None:
        """Return a group's state, coordinator and live members; None if it does not exist."""
        self.tick()
        found = self._groups.get(group)

        def answer() -> port.GroupDescription | None:
            if found is None or not (found.members or found.offsets):
                return None
            owned = found.assignment if not found.preparing else {}
            members = [
                port.GroupMember(each.instance or each.id, "kafka-python", "127.0.0.1", sorted(owned.get(each.id, ())))
                for each in found.members.values()
            ]
            state = "Empty" if not members else "PreparingRebalance" if found.preparing else "Stable"
            return port.GroupDescription(state, f"{self.name}:0 (node 0)", sorted(members))

        return self.run_remote("group_members", answer)

    def describe_logs(self, topics: Collection[str]) -> dict[str, port.TopicState]:
        """Return the beginning and end of topics' logs; those of ``leaderless`` partitions have a problem."""

        def state(topic: str) -> port.TopicState:
            if topic not in self._topics:
                return port.TopicState("", {}, MISSING)
            logs = {
                log.partition.partition: port.LogState(None, None, None, NO_LEADER)
                if log.partition in self.leaderless
                else port.LogState(log.start, log.end, log.readable_end(True))
                for log in self._topics[topic].logs
            }
            return port.TopicState(self.topic_id(topic), logs)

        return self.run_remote("end_offsets", lambda: {topic: state(topic) for topic in sorted(topics)})

    def has_joined(self, group: str) -> bool:
        """Return whether a member has ever joined the group."""
        return self.run_remote("has_joined", lambda: group in self._groups and self._groups[group].generation > 0)

    def commit_ages(self, group: str, within_s: float) -> dict[TopicPartition, float]:
        """Return the ages in seconds of commits younger than ``within_s``."""
        now = self.clock.wall()
        found = {commit.partition: now - commit.at for commit in self.group(group).history}
        return self.run_remote("commit_ages", lambda: {tp: age for tp, age in found.items() if age <= within_s})

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Remove static members from a group by their instance ids."""
        known = self.group(group)
        for member in [member for member in known.members.values() if member.instance in names]:
            known.leave(member.id, self.clock.monotonic())

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a group's commits for these partitions."""

        def delete() -> None:
            for tp in partitions:
                self.group(group).offsets.pop(tp, None)

        self.run_remote("delete_offsets", delete)

    def delete_groups(self, groups: Collection[str]) -> list[str]:
        """Delete groups with their commits; return those kept because they still have members."""
        self.tick()
        left = [group for group in groups if group in self._groups and self._groups[group].members]

        def delete() -> list[str]:
            for group in set(groups).difference(left):
                self._groups.pop(group, None)
            return left

        return self.run_remote("delete_groups", delete)


# --- the consumer: reading, commits and questions ---
#
# Its visible behaviour follows kafka-python 3 (``kafka.consumer``):
#
# * A new partition starts at the committed offset, else by ``auto_offset_reset``, else at the beginning (our default,
#   not kafka-python's). A position outside the log raises, unless ``auto_offset_reset`` is set.
# * A partition without a leader is not read and keeps its position; requests for its begin or end time out.
# * Inside a rebalance listener the remote calls raise RuntimeError; ``seek``, ``position`` and ``commit_async`` work.

T = TypeVar("T")


class FakeConsumer(FakeMember):
    """A consumer of a :class:`~downspout.testing.FakeKafka`; see ``downspout.kafka.port.ConsumerPort``.

    Supported client properties: ``session_timeout_ms``, ``max_poll_interval_ms``, ``isolation_level`` (default
    ``read_committed``), ``auto_offset_reset``.
    """

    # --- reading ---

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return up to ``max_records``; if there are none, advance the clock by ``timeout_ms``."""
        if self._closed:
            raise errors.IllegalStateError("the consumer is closed")
        if max_records <= 0:
            raise ValueError("max_records must be positive")
        self._not_in_listener("poll")
        self._hand_answers_on()
        if self._is_fenced:
            raise errors.FencedInstanceIdError()
        self._cluster.faults.raise_next("poll")
        found: dict[TopicPartition, Sequence[Record]] = {}
        # Like in kafka-python, a consumer with a group fetches nothing while it knows no coordinator.
        reachable = self._cluster.is_up if self._group is None else self._cluster.coordinates
        if reachable and (self._wanted is None or self._join()):
            self._auto_commit()
            found = self._fetch(max_records)
            self._note_fetch(found)
        if not found:
            self._cluster.clock.sleep(timeout_ms / 1000)
        return found

    def _note_fetch(self, found: Mapping[TopicPartition, Sequence[Record]]) -> None:
        now = self._cluster.clock.monotonic()
        self._fetches.answered(0.0, now)
        for partition, place in self._places.items():
            log = self._cluster.find_log(partition)
            if place.paused or log is None or partition in self._cluster.leaderless:
                continue
            of_partition, count = self._fetches.of(partition), len(found.get(partition, ()))
            of_partition.answered(0.0, now)
            of_partition.begin = log.start
            of_partition.records += count
            self._fetches.records += count

    def _fetch(self, max_records: int) -> dict[TopicPartition, Sequence[Record]]:
        found: dict[TopicPartition, Sequence[Record]] = {}
        self._find_positions()
        for partition, place in list(self._places.items()):
            log = self._cluster.find_log(partition)
            if max_records == 0:
                break
            if place.paused or log is None or place.position is None or partition in self._cluster.leaderless:
                continue
            try:
                records, position = log.read(place.position, max_records, committed_only=self._committed_only)
            except errors.OffsetOutOfRangeError:
                if found:
                    break
                if self._reset in ("earliest", "latest"):
                    place.position = None
                    continue
                raise
            if log.damaged and records:
                records, position = self._sound(log, place.position, records, position)
            if self._committed_only and self._notes_aborted:
                self._aborted += [(partition, offset, 1) for offset in log.aborted(place.position, position)]
            place.position, place.highwater = position, log.end
            if records:
                found[partition] = RecordColumns.of(records) if self._columns else records
                max_records -= len(records)
                self._places[partition] = self._places.pop(partition)
        return found

    def _sound(
        self, log: PartitionLog, start: int, records: list[ConsumerRecord], position: int
    ) -> tuple[list[ConsumerRecord], int]:
        """Return the records before the first damage; if it is at the start, its placeholder record."""
        hit = [damaged for damaged in log.damaged if damaged.offset < position and damaged.end > start]
        if not hit:
            return records, position
        first = min(hit, key=lambda damaged: damaged.offset)
        if before := [record for record in records if record.offset < first.offset]:
            return before, first.offset
        note = replace(first, offset=max(first.offset, start))
        if not (self._notes_corrupt or (self._notes_large and note.size is not None)):
            raise (UnreadableBatchError if note.size is None else UnreadableRecordError)(str(note))
        self._unreadable.append(note)
        known = records[0]
        if note.size is None:
            return [known._replace(offset=note.offset, key=None, value=None, headers=[], timestamp=-1)], note.end
        return [known._replace(value=(known.value or b"")[:CUT_BYTES], headers=[])], note.end

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset to read."""
        place = self._place(partition)
        if place.position is None:
            self._find_positions()
        if place.position is None:
            raise errors.KafkaTimeoutError(f"no position for {partition}")
        return place.position

    def _find_positions(self) -> None:
        """Set missing positions: the group's commit, else by ``auto_offset_reset``."""
        for partition, place in self._places.items():
            log = self._cluster.find_log(partition)
            if place.position is not None or log is None:
                continue
            committed = self._group.offsets.get(partition) if self._group is not None else None
            if committed is not None:
                place.position = committed.offset
            elif self._reset == "none":
                raise errors.NoOffsetForPartitionError({partition})
            elif partition not in self._cluster.leaderless:
                place.position = log.readable_end(self._committed_only) if self._reset == "latest" else log.start

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at ``offset``."""
        if offset < 0:
            raise ValueError("Offset must be int >= 0")
        if partition not in self._places:
            raise ValueError("Unassigned partition")
        self._places[partition].position = offset

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until resumed."""
        for partition in partitions:
            self._place(partition).paused = True

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Undo ``pause``."""
        for partition in partitions:
            self._place(partition).paused = False

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(partition for partition, place in self._places.items() if place.paused)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of the log as of the last fetch; None before the first."""
        return self._place(partition).highwater

    def connected(self) -> bool:
        """Return whether the broker can be reached."""
        return bool(self._cluster.is_up)

    @property
    def fetches(self) -> Fetches:
        """Counts of fetches: each poll is one, and takes no time."""
        return self._fetches

    def note_aborted(self) -> None:
        """Note the records of aborted transactions that polls skip."""
        self._notes_aborted = True

    def take_aborted(self) -> Sequence[tuple[TopicPartition, int, int]]:
        """Return the aborted records skipped since the last call."""
        found, self._aborted = self._aborted, []
        return found

    def gather(self, gathering: Gathering) -> None:
        """Do nothing: fetches take no time here."""

    def tolerate(self, limits: Limits, *, large: bool = True, corrupt: bool) -> None:
        """Note records that are too large, and with ``corrupt`` damaged batches."""
        self._notes_large, self._notes_corrupt = large, corrupt

    def take_unreadable(self) -> Sequence[Unreadable]:
        """Return the notes since the last call."""
        found, self._unreadable = self._unreadable, []
        return found

    # --- commits ---

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit and wait for the broker's answer.

        Raises:
            CommitFailedError: the group has expelled us or moved on; the next poll reports ``lost`` and rejoins.
            RebalanceInProgressError: we are between two generations.
            FencedInstanceIdError: another process uses our instance id.
            OffsetMetadataTooLargeError: a metadata string over 4,096 characters.
        """
        for sent in [each for each in self._cluster.sent_commits if each.sender is self]:
            sent.arrive()
        self._hand_answers_on()
        if offsets:
            self._remote("commit", lambda: self._request(offsets)())

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Send a commit; it arrives at once, or on a test's request (``FakeKafka.holds_commits``)."""
        self._hand_answers_on()
        try:
            request = self._request(offsets)
        except errors.KafkaError as error:
            self._answers.append((answered, error))
            return
        SentCommit(self._cluster, self, request, lambda error: self._answers.append((answered, error)))

    def _hand_answers_on(self) -> None:
        while self._answers:
            answered, error = self._answers.popleft()
            if answered is not None:
                answered(error)

    def _request(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Callable[[], None]:
        """Send a commit; return a function that makes it arrive."""
        group = self._need_group()
        if self._wanted is not None and self._state == "unjoined":
            raise errors.CommitFailedError()
        if self._wanted is not None and self._state == "rebalancing":
            raise errors.RebalanceInProgressError()
        if not all(self._cluster.find_log(partition) for partition in offsets):
            raise errors.KafkaTimeoutError(f"no such partition: {sorted(offsets)}")
        self._cluster.tick()
        self._thaw()
        sender = self._member, self._generation, self._instance

        def arrive() -> None:
            try:
                group.commit(offsets, *sender)
            except (errors.UnknownMemberIdError, errors.IllegalGenerationError) as error:
                if sender == (self._member, self._generation, self._instance):
                    self._forget_membership()
                raise errors.CommitFailedError(error) from None

        return arrive

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's commits with their metadata; raise if an open transaction blocks some (read_committed)."""
        group = self._need_group()

        def committed() -> dict[TopicPartition, OffsetAndMetadata | None]:
            held = self._cluster.held_commits(group) if self._committed_only else {}
            if refused := sorted(held.keys() & set(partitions)):
                raise errors.UnstableOffsetCommitError(refused)
            return {tp: group.offsets.get(tp) for tp in partitions}

        return self._remote("committed", committed)

    # --- questions about the cluster ---

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the beginning of each log."""
        return self._remote("beginning_offsets", lambda: {tp: self._cluster.led_log(tp).start for tp in partitions})

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log (read_committed: the last stable offset)."""
        return self._remote(
            "end_offsets",
            lambda: {tp: self._cluster.led_log(tp).readable_end(self._committed_only) for tp in partitions},
        )

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the first offset with a timestamp at or after the given one; None: no such record."""
        return self._remote(
            "offsets_for_times",
            lambda: {
                tp: self._cluster.led_log(tp).first_since(since, committed_only=self._committed_only)
                for tp, since in timestamps_ms.items()
            },
        )

    def first_records(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return offset and timestamp in ms of the first record in each log; omit logs without records."""
        logs = self._remote("first_records", lambda: {tp: self._cluster.led_log(tp) for tp in partitions})
        firsts = {tp: log.read(log.start, 1, committed_only=self._committed_only)[0] for tp, log in logs.items()}
        return {tp: (first.offset, first.timestamp) for tp, found in firsts.items() for first in found}

    def partitions_for(self, topic: str) -> frozenset[int]:
        """Return the topic's partitions; empty if it does not exist."""
        return self._remote("partitions_for", lambda: frozenset(tp.partition for tp in self._cluster.partitions(topic)))

    def topic_names(self) -> frozenset[str]:
        """Return the names of all topics."""
        return self._remote("topic_names", lambda: frozenset(self._cluster.topic_names()))

    def topic_id(self, topic: str) -> str:
        """Return the topic's id; empty: unknown."""
        return self.topic_ids([topic])[topic]

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the ids of topics; empty: unknown."""
        return self._remote("topic_id", lambda: {topic: self._cluster.topic_id(topic) for topic in topics})

    def _remote(self, operation: str, action: Callable[[], T]) -> T:
        """Run a request to the broker, with its fault if any."""
        if self._closed:
            raise errors.IllegalStateError("the consumer is closed")
        self._not_in_listener(operation)
        return self._cluster.run_remote(operation, action)

    def _not_in_listener(self, operation: str) -> None:
        if self._in_listener:
            raise RuntimeError(
                f"{operation} cannot be called from a rebalance listener: it would wait for its own thread"
            )

    # --- the end ---

    def membership(self) -> GroupMembership:
        """Return this member's identity in the group."""
        return GroupMembership(self._need_group().name, self._generation, self._member, self._instance)

    def close(self, leave_group: bool = True) -> None:
        """Stop without committing; notify the listener, like kafka-python."""
        if self._closed:
            return
        try:
            if self._wanted is not None and self._places:
                listener = self._listener_of()
                self._notify(listener.on_partitions_lost if self._is_lost() else listener.on_partitions_revoked)
        finally:
            self._closed = True
            self._places.clear()
            self._stop(leave_group)
