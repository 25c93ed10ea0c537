"""A consumer group's positions, from which another engine can continue; and moves of a group to other positions.

A spout's progress is more than an offset: its commit also holds what is done beyond it, and for which topic
(``downspout.ledger.metadata``). Both directions keep it. :func:`standings` reads it. :func:`plan_moves` makes commits
as the spout itself would, so that it starts there, under the same rules: what was done beyond the new place stays done.

It cannot detect a running spout with ``kafka.mode=assign``, which does not join its group.

If groups keep their offsets in a store (``kafka.offset_store``), :class:`StoredGroups` replaces the cluster. Then the
store has the group's commits, and a move goes there first; the group gets a copy. A move claims the partitions, so that
an unnoticed spout that owns them stops instead of overwriting it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from kafka import errors

from downspout import offset_ranges
from downspout.errors import BrokerError, ConfigError, DataLossError, coordinates
from downspout.formatting import counted
from downspout.kafka.port import Cluster, ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.retry_gate import cure_of, describe
from downspout.ledger.metadata import CommitMetadata, author_for_another_topic, decode, encode, shorten
from downspout.ledger.ranges import Ranges
from downspout.offset_ranges import OffsetRanges
from downspout.spout.commit_stores import StoredCommits
from downspout.spout.committing import commit_fitting
from downspout.spout.ports import StoreContext, open_store
from downspout.spout.settings import MetadataLimit

__all__ = [
    "Move",
    "Standing",
    "asking",
    "author_of",
    "check_standings",
    "commit_for",
    "commit_moves",
    "commits_of",
    "plan_moves",
    "refuse_members",
    "standings",
]

OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Standing:
    """A group's position in a partition.

    Attributes:
        tp: which.
        offset: the next one to read; None if the group has no commit.
        metadata: of the commit.
        earlier: the commit is of an earlier topic of this name.
        begin: where the log begins now.
        end: where it ends now.
        stable: where the first open transaction begins, or ``end``: the limit of a read_committed reader.
        topic_id: Kafka's id of the topic now.
        text: the commit's metadata as it is; None where there is no commit.
    """

    tp: TopicPartition
    offset: int | None
    metadata: CommitMetadata
    earlier: bool
    begin: int
    end: int
    stable: int
    topic_id: str
    text: str | None = None

    @property
    def place(self) -> str:
        """The partition, as named in messages."""
        return coordinates(self.tp.topic, self.tp.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Move:
    """A commit that moves a group to another offset.

    Attributes:
        tp: the partition.
        before: the group's offset before; None if it had no commit.
        to: its new offset.
        metadata: of the commit.
        asked: the requested offset; below ``to`` if the group has done the following ones.
        named: whether it was requested: otherwise the partition is new, and starts at its beginning.
        topic_id: of the topic; the metadata is for that.
        begin: where the log begins.
        done_before, done_after: what counts as done beyond ``before`` and beyond ``to``.
        text_before: the metadata of the commit before.
        earlier: the commit before is of an earlier topic of this name, so that nothing of this one is done.
        end: where the log ends.
    """

    tp: TopicPartition
    before: int | None
    to: int
    metadata: str
    asked: int
    named: bool = True
    topic_id: str = ""
    begin: int = 0
    done_before: tuple[tuple[int, int], ...] = ()
    done_after: tuple[tuple[int, int], ...] = ()
    text_before: str | None = None
    earlier: bool = False
    end: int = OFFSET_MAX

    @property
    def again(self) -> OffsetRanges:
        """The offsets that count as done now and will be read again, as far as the log still has them."""
        return offset_ranges.subtract(self._done_before, self._done(self.to, self.done_after))

    @property
    def skipped(self) -> OffsetRanges:
        """The offsets that will not be read, and are not done."""
        return offset_ranges.subtract(self._done(self.to, self.done_after), self._done_before)

    @property
    def forgotten(self) -> OffsetRanges:
        """What was done beyond the commit, and will not count as done any more."""
        return offset_ranges.subtract(list(self.done_before), self._done(self.to, self.done_after))

    @property
    def _done_before(self) -> OffsetRanges:
        return self._done(None if self.earlier else self.before, self.done_before)

    def _done(self, offset: int | None, beyond: Sequence[tuple[int, int]]) -> OffsetRanges:
        below = self.begin if offset is None else offset
        return offset_ranges.clip(offset_ranges.union([(0, below)], beyond), [(self.begin, max(self.begin, self.end))])

    def shortened(self, limit: MetadataLimit) -> str:
        """Return the metadata, or as much of it as there is room for."""
        return shorten(self.to, self.metadata, topic_id=self.topic_id, bytes_max=limit.bytes_max)

    @property
    def commit_before(self) -> tuple[int, str | None] | None:
        """The commit that the group had; None where it had none."""
        return None if self.before is None else (self.before, self.text_before)

    @property
    def is_back(self) -> bool:
        """Whether records that count as done will be processed again."""
        return self.before is not None and self.to < self.before


def standings(cluster: Cluster, group: str, topics: Collection[str] = ()) -> list[Standing]:
    """Return a group's positions in all partitions of its topics, sorted.

    Args:
        cluster: Kafka.
        group: the consumer group.
        topics: only these; default: all for which the group has a commit.

    Raises:
        BrokerError: a topic does not exist, or no broker answers.
    """
    commits = cluster.group_offsets(group)
    names = sorted(topics or {tp.topic for tp in commits})
    with asking(cluster, group, "read_uncommitted") as consumer:
        ids = consumer.topic_ids(names) if names else {}
        partitions = [tp for name in names for tp in _partitions(consumer, name)]
        begins = consumer.beginning_offsets(partitions) if partitions else {}
        ends = consumer.end_offsets(partitions) if partitions else {}
    with asking(cluster, group, "read_committed") as consumer:
        stable = consumer.end_offsets(partitions) if partitions else {}
    return [
        _standing(tp, commits.get(tp), (begins[tp], ends[tp], stable[tp]), ids.get(tp.topic, "")) for tp in partitions
    ]


def commits_of(cluster: Cluster, group: str) -> list[Standing]:
    """Return all commits of a group, even of deleted topics; the logs are not queried."""
    commits = cluster.group_offsets(group)
    with asking(cluster, group, "read_uncommitted") as consumer:
        ids = consumer.topic_ids({tp.topic for tp in commits}) if commits else {}
    return [_standing(tp, commit, (0, 0, 0), ids.get(tp.topic, "")) for tp, commit in sorted(commits.items())]


def _partitions(consumer: ConsumerPort, topic: str) -> list[TopicPartition]:
    numbers = sorted(consumer.partitions_for(topic))
    if not numbers:
        raise BrokerError(
            f"{topic} does not exist",
            cure="check the spelling and --bootstrap; or name only the other topics with --topic",
        )
    return [TopicPartition(topic, number) for number in numbers]


def _standing(
    tp: TopicPartition, commit: OffsetAndMetadata | None, log: tuple[int, int, int], topic_id: str
) -> Standing:
    if commit is None:
        return Standing(tp, None, CommitMetadata(), False, *log, topic_id)
    metadata = decode(commit.offset, commit.metadata, topic_id=topic_id)
    earlier = author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id) is not None
    return Standing(tp, commit.offset, metadata, earlier, *log, topic_id, commit.metadata)


@contextmanager
def asking(cluster: Cluster, group: str, isolation: str) -> Iterator[ConsumerPort]:
    """Give a consumer that asks about logs, and raise what it raises as an error for people."""
    consumer = cluster.consumer(group=None, client={"isolation_level": isolation})
    try:
        yield consumer
    except errors.KafkaError as error:
        raise BrokerError(f"group {group}: {describe(error)}", cure="check the broker") from error
    finally:
        consumer.close()


def check_standings(group: str, found: Iterable[Standing]) -> None:
    """Raise if no engine could continue from the group's positions.

    Raises:
        DataLossError: a commit is of an earlier topic of its name, or beyond the end of the log.
    """
    for standing in found:
        if standing.earlier:
            raise DataLossError(
                f"{standing.place}: group {group} committed this for an earlier topic of the same name, which was "
                "deleted and created again",
                cure="start at the beginning of the new topic; on Storm kafka.on_data_loss=earliest does it",
            )
        done = standing.metadata.done
        known = max(standing.offset or 0, done[-1][1] if done else 0)
        if known > standing.end:
            where = coordinates(standing.tp.topic, standing.tp.partition, known)
            raise DataLossError(
                f"{where}: group {group} has processed the offsets below, but the log ends at {standing.end}",
                cure="find out why the log was truncated; kafka.on_data_loss says where a spout then starts",
            )


def refuse_members(cluster: Cluster, group: str, if_gone: str = "") -> None:
    """Raise if a group has live members: they would not see the new commits, and overwrite them.

    Raises:
        BrokerError: it has.
    """
    if members := cluster.group_members(group):
        verb = "is a live member" if len(members) == 1 else "are live members"
        raise BrokerError(
            f"group {group}: {', '.join(members)} {verb}",
            cure=f"stop the topology; after a crash its members are live for kafka.session_timeout_ms more{if_gone}",
        )


def plan_moves(
    cluster: Cluster, group: str, targets: Mapping[TopicPartition, int], *, topology_id: str = "", force: bool = False
) -> list[Move]:
    """Return the commits that move a group to these offsets, without those that change nothing.

    Unnamed partitions of the same topics without a commit of the group start at their beginning: they appeared later.

    Args:
        cluster: Kafka.
        group: the consumer group of the spout.
        targets: the next offset to read, by partition.
        topology_id: who commits; default: who did before.
        force: allow moves that repeat records, or may skip some: see Raises.

    Raises:
        BrokerError: the group has live members; a topic or partition does not exist; a place lies in an open
            transaction; no broker answers.
        DataLossError: a place lies beyond the end of its log.
        ConfigError: without ``force``: the group would move back, or a commit of it is of an earlier topic.
    """
    refuse_members(cluster, group)
    found = standings(cluster, group, {tp.topic for tp in targets})
    if missing := sorted(targets.keys() - {standing.tp for standing in found}):
        raise BrokerError(f"{coordinates(*missing[0])} does not exist", cure="is it another cluster's checkpoint?")
    author = topology_id or author_of(found) or group
    moves = []
    for standing in found:
        target = targets.get(standing.tp)
        if target is None and standing.offset is not None and not standing.earlier:
            continue
        _check_target(standing, target, force)
        move = _move(standing, standing.begin if target is None else target, topology_id, author, target is not None)
        if standing.earlier or move.to != move.before:
            moves.append(move)
    back = [move for move in moves if move.is_back]
    if back and not force:
        places = ", ".join(f"{coordinates(*move.tp)} from {move.before} to {move.to}" for move in back)
        raise ConfigError(
            f"group {group} would be moved back: {places}; the offsets between would be processed again",
            cure="is this the checkpoint of the last run? --force moves it anyway",
        )
    return moves


def author_of(found: Iterable[Standing]) -> str:
    """Return the topology that made most of the commits."""
    named = Counter(standing.metadata.topology_id for standing in found if standing.metadata.topology_id)
    return named.most_common(1)[0][0] if named else ""


def _check_target(standing: Standing, target: int | None, force: bool) -> None:
    if target is not None and target > standing.end:
        where = coordinates(standing.tp.topic, standing.tp.partition, target)
        raise DataLossError(
            f"{where} lies beyond the end of the log, {standing.end}",
            cure="was the topic created again, or is it another cluster's checkpoint?",
        )
    if target is not None and target > standing.stable:
        # A query that reads uncommitted records may be there. A spout that does not would take it for lost data.
        where = coordinates(standing.tp.topic, standing.tp.partition, target)
        raise BrokerError(
            f"{where}: a transaction that is still open begins at {standing.stable}, and a spout cannot read beyond it",
            cure="wait until it has ended; the broker aborts it after transaction.timeout.ms",
        )
    if standing.earlier and not force:
        raise ConfigError(
            f"{coordinates(*standing.tp)}: the topic was deleted and created again since the group committed, and the "
            "new position may belong to either topic",
            cure="--force, if it belongs to the present topic",
        )


def _move(standing: Standing, target: int, topology_id: str, author: str, named: bool) -> Move:
    # Back means again from there. Forward, what the group has done beyond the new place stays done: a reader
    # that came this far has not seen it, or has seen it twice already.
    before = standing.offset
    back = before is not None and target < before
    return commit_for(
        standing, target, topology_id or standing.metadata.topology_id or author, named=named, keep=not back
    )


def commit_for(
    standing: Standing,
    target: int,  # the next offset to read
    author: str,  # the topology id that goes into the metadata
    *,
    keep: bool,  # whether what is done beyond the target stays done
    named: bool = True,
    beyond: Iterable[tuple[int, int]] | None = None,  # what is done beyond the target, where that is known elsewhere
) -> Move:
    """Return the commit that moves a group there, as the spout itself would make it."""
    found, before = standing.metadata, standing.offset
    done = Ranges(offset_ranges.clip((found.done if keep else ()) if beyond is None else beyond, [(0, standing.end)]))
    to = target if standing.earlier else done.first_gap(target)
    done.discard_below(to)
    failures = sorted(item for item in found.failures.items() if item[0] >= to and keep)
    metadata = encode(
        to,
        topology_id=author,
        task=max(found.task, 0),
        topic_id=standing.topic_id,
        done=done,
        failures=failures,
        isolation=found.isolation.at(to).end(),  # no process has died here
    )
    kept = decode(to, metadata, topic_id=standing.topic_id).done  # there may not be room for all
    return Move(
        standing.tp, before, to, metadata, target, named, standing.topic_id,
        standing.begin, found.done, kept, standing.text, standing.earlier, standing.end,
    )  # fmt: skip


def commit_moves(cluster: Cluster, group: str, moves: Sequence[Move]) -> None:
    """Commit the planned moves in one request: all or none.

    Raises:
        BrokerError: a member has joined the group, or another client has committed for it, meanwhile; no broker
            answers, or it refuses a partition.
    """
    if not moves:
        return
    _refuse_changed(cluster, group, moves)
    consumer, limit = cluster.consumer(group=group), MetadataLimit()

    def send() -> bool:
        consumer.commit({move.tp: OffsetAndMetadata(move.to, move.shortened(limit), -1) for move in moves})
        return True

    try:
        commit_fitting(limit, send)
    except (errors.UnknownMemberIdError, errors.IllegalGenerationError, errors.CommitFailedError) as error:
        # Between the look at the members and this request a member may join. Kafka takes no commit from outside then.
        raise _live_by_now(group) from error
    except errors.KafkaError as error:
        if _take_back(cluster, consumer, group, moves, limit, error):
            raise BrokerError(
                f"group {group}: the commit for {counted(len(moves), 'partition')} failed: {describe(error)}. Nothing "
                "was moved",
                cure=cure_of(error, "do it again, which is safe"),
            ) from error
    finally:
        consumer.close()


def _live_by_now(group: str) -> BrokerError:
    return BrokerError(f"group {group} has live members by now: nothing was committed", cure="stop the topology")


def _refuse_changed(cluster: Cluster, group: str, moves: Sequence[Move]) -> None:
    """Raise if a commit has changed since the plan. Only this detects a spout with ``kafka.mode=assign``."""
    now = cluster.group_offsets(group)
    for move in moves:
        found = now.get(move.tp)
        if (None if found is None else (found.offset, found.metadata)) != move.commit_before:
            if cluster.group_members(group):
                raise _live_by_now(group)
            raise BrokerError(
                f"group {group}: the commit for {coordinates(*move.tp)} changed meanwhile, so something commits for "
                "the group; nothing was moved",
                cure="stop the topology, and do it again",
            )


def _take_back(
    cluster: Cluster,
    consumer: ConsumerPort,
    group: str,
    moves: Sequence[Move],
    limit: MetadataLimit,
    cause: errors.KafkaError,
) -> bool:
    """A commit failed: undo its stored part and return True; return False if all of it was stored.

    The broker decides partition by partition: without the right to one topic, it refuses that one and stores the
    others. And a commit whose answer was lost is stored.

    Raises:
        BrokerError: the stored part is unknown, or could not be undone.
    """
    names = ", ".join(coordinates(*move.tp) for move in moves)
    try:
        now = cluster.group_offsets(group)
        stored = [
            m for m in moves if m.tp in now and (now[m.tp].offset, now[m.tp].metadata) == (m.to, m.shortened(limit))
        ]
        if len(stored) == len(moves):
            return False
        if earlier := {m.tp: OffsetAndMetadata(m.before, m.text_before, -1) for m in stored if m.before is not None}:
            consumer.commit(earlier)
        if new := [move.tp for move in stored if move.before is None]:
            cluster.delete_offsets(group, new)
    except (errors.KafkaError, BrokerError) as error:
        raise BrokerError(
            f"group {group}: the commit failed ({describe(cause)}), and it is not known which of {names} were moved: "
            f"{describe(error)}",
            cure="look with `downspout offsets export`, and do it again, which is safe",
        ) from error
    return True


class StoredGroups:
    """A :class:`~downspout.kafka.port.Cluster`; all calls except those about commits go to the cluster."""

    def __init__(self, cluster: Cluster, location: str, setting: str, password: str | None = None) -> None:
        self._cluster, self._location, self._setting, self._password = cluster, location, setting, password

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def consumer(self, *, group: str | None, **how: Any) -> ConsumerPort:
        """Return a consumer; with a group, it also commits to the store."""
        made = self._cluster.consumer(group=group, **how)
        if group is None:
            return made
        return cast(ConsumerPort, _Claiming(made, self._open(group), group, logging.getLogger(__name__)))

    def group_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return a group's commits in the store."""
        with closing(self._open(group)) as store:
            return {
                tp: OffsetAndMetadata(found.offset, found.metadata, -1)
                for tp, found in store.list().items()
                if found.offset is not None
            }

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a group's commits for these from the store, and the copy."""
        with closing(self._open(group)) as store:
            store.delete(partitions)
        if copies := self._cluster.group_offsets(group).keys() & set(partitions):
            self._cluster.delete_offsets(group, copies)

    def delete_groups(self, groups: Collection[str]) -> Sequence[str]:
        """Delete groups and their commits in the store; return those that remain because they have members."""
        left = self._cluster.delete_groups([group for group in groups if self._cluster.group_offsets(group)])
        for group in set(groups).difference(left):
            self.delete_offsets(group, self.group_offsets(group).keys())
        return left

    def _open(self, group: str) -> Any:
        context = StoreContext(group, password=self._password, cluster=self._cluster, setting=self._setting)
        return open_store(self._location, context)


class _Claiming(StoredCommits):
    """Commits to the store as the owner of what it commits."""

    def __init__(self, consumer: ConsumerPort, store: Any, group: str, log: logging.Logger) -> None:
        super().__init__(consumer, store, group, log, adopt=False, joins=False)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Claim, store, then commit to the group."""
        with self._errors():
            self._epochs |= {tp: found.epoch for tp, found in self._store.claim(offsets).items()}
        super().commit(offsets)
