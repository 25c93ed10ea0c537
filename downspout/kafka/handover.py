"""Where a consumer group stands, for whoever goes on in another engine; and moving it to where another engine stands.

A spout's progress is more than an offset: its commit tells what is done beyond it, too, and for which topic that holds
(``downspout.ledger.metadata``). Both directions keep it. :func:`standings` reads it. :func:`plan_moves` makes commits
as the spout itself would, so that it starts there, under the same rules: what was done beyond the new place stays
done.

What it cannot know: whether a spout runs that reads by assignment (``kafka.mode=assign``), which is no member of its
group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kafka import errors

from downspout.errors import BrokerError, ConfigError, DataLossError, coordinates
from downspout.kafka.patience import describe
from downspout.kafka.port import Cluster, ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.ledger.metadata import Progress, author_for_another_topic, decode, encode
from downspout.ledger.ranges import Ranges
from downspout.wording import counted

__all__ = ["Move", "Standing", "check_standings", "commit_moves", "plan_moves", "refuse_members", "standings"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands in a partition.

    Attributes:
        tp: which.
        offset: the next one to read; None where the group has no commit.
        told: what the commit tells besides.
        earlier: the commit is of an earlier topic of this name.
        begin: where the log begins now.
        end: where it ends now.
        stable: where the first open transaction begins, or ``end``: a read_committed reader gets so far.
        topic_id: Kafka's id of the topic now.
    """

    tp: TopicPartition
    offset: int | None
    told: Progress
    earlier: bool
    begin: int
    end: int
    stable: int
    topic_id: str

    @property
    def place(self) -> str:
        """Name it the way all messages do."""
        return coordinates(self.tp.topic, self.tp.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Move:
    """A commit that brings a group to another place.

    Attributes:
        tp: the partition.
        before: where the group stood; None where it had no commit.
        to: where it will stand.
        metadata: of the commit.
        asked: where it should stand; below ``to`` where the group has done what follows.
        named: whether somebody asked for it: else the partition is new, and begins at its beginning.
    """

    tp: TopicPartition
    before: int | None
    to: int
    metadata: str
    asked: int
    named: bool = True

    @property
    def is_back(self) -> bool:
        """Whether records that count as done will be processed again."""
        return self.before is not None and self.to < self.before


def standings(cluster: Cluster, group: str, topics: Collection[str] = ()) -> list[Standing]:
    """Return where a group stands in every partition of its topics, sorted.

    Args:
        cluster: Kafka.
        group: the consumer group.
        topics: only these; default: all for which the group has a commit.

    Raises:
        BrokerError: a topic does not exist, or nobody answers.
    """
    commits = cluster.group_offsets(group)
    names = sorted(topics or {tp.topic for tp in commits})
    with _asking(cluster, group, "read_uncommitted") as consumer:
        ids = consumer.topic_ids(names) if names else {}
        partitions = [tp for name in names for tp in _partitions(consumer, name)]
        begins = consumer.beginning_offsets(partitions) if partitions else {}
        ends = consumer.end_offsets(partitions) if partitions else {}
    with _asking(cluster, group, "read_committed") as consumer:
        stable = consumer.end_offsets(partitions) if partitions else {}
    return [
        _standing(tp, commits.get(tp), (begins[tp], ends[tp], stable[tp]), ids.get(tp.topic, "")) for tp in partitions
    ]


def _partitions(consumer: ConsumerPort, topic: str) -> list[TopicPartition]:
    numbers = sorted(consumer.partitions_for(topic))
    if not numbers:
        raise BrokerError(
            f"{topic} does not exist", cure="look at the spelling and at --bootstrap; --topic names the others alone"
        )
    return [TopicPartition(topic, number) for number in numbers]


def _standing(
    tp: TopicPartition, commit: OffsetAndMetadata | None, log: tuple[int, int, int], topic_id: str
) -> Standing:
    if commit is None:
        return Standing(tp, None, Progress(), False, *log, topic_id)
    told = decode(commit.offset, commit.metadata, topic_id=topic_id)
    earlier = author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id) is not None
    return Standing(tp, commit.offset, told, earlier, *log, topic_id)


@contextmanager
def _asking(cluster: Cluster, group: str, isolation: str) -> Iterator[ConsumerPort]:
    consumer = cluster.consumer(group=None, client={"isolation_level": isolation})
    try:
        yield consumer
    except errors.KafkaError as error:
        raise BrokerError(f"group {group}: {describe(error)}", cure="check the broker") from error
    finally:
        consumer.close()


def check_standings(group: str, found: Iterable[Standing]) -> None:
    """Raise where nobody could go on from where the group stands.

    Raises:
        DataLossError: a commit is of an earlier topic of its name, or beyond the end of the log.
    """
    for standing in found:
        if standing.earlier:
            raise DataLossError(
                f"{standing.place}: group {group} committed this for an earlier topic of the name: it was deleted "
                "and created again",
                cure="start at the beginning of the new topic; on Storm kafka.on_data_loss=earliest does it",
            )
        done = standing.told.done
        known = max(standing.offset or 0, done[-1][1] if done else 0)
        if known > standing.end:
            where = coordinates(standing.tp.topic, standing.tp.partition, known)
            raise DataLossError(
                f"{where}: group {group} has processed what lies below, and the log ends at {standing.end}",
                cure="find out who cut the log; kafka.on_data_loss says where a spout then starts",
            )


def refuse_members(cluster: Cluster, group: str) -> None:
    """Raise where a group has live members: they would not see what is committed for them, and commit over it.

    Raises:
        BrokerError: it has.
    """
    if members := cluster.group_members(group):
        verb = "is a live member" if len(members) == 1 else "are live members"
        raise BrokerError(
            f"group {group}: {', '.join(members)} {verb}",
            cure="stop the topology; after a crash its members are live for kafka.session_timeout_ms more",
        )


def plan_moves(
    cluster: Cluster, group: str, targets: Mapping[TopicPartition, int], *, topology_id: str = "", force: bool = False
) -> list[Move]:
    """Return the commits that bring a group to these places; those that change nothing are left out.

    Partitions of the same topics that nobody names and the group has no commit for begin at their beginning: they
    appeared later.

    Args:
        cluster: Kafka.
        group: the consumer group of the spout.
        targets: the next offset to read, by partition.
        topology_id: who commits; default: who did before.
        force: allow what processes records again, or may leave some out: see Raises.

    Raises:
        BrokerError: the group has live members; a topic or partition does not exist; a place lies in an open
            transaction; nobody answers.
        DataLossError: a place lies beyond the end of its log.
        ConfigError: without ``force``: the group would move back, or a commit of it is of an earlier topic.
    """
    refuse_members(cluster, group)
    found = standings(cluster, group, {tp.topic for tp in targets})
    if missing := sorted(targets.keys() - {standing.tp for standing in found}):
        raise BrokerError(f"{coordinates(*missing[0])} does not exist", cure="is it another cluster's checkpoint?")
    author = topology_id or _author(found) or group
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
            f"group {group} would be moved back: {places}; what lies between would be processed again",
            cure="is this the checkpoint of the last run? --force moves it all the same",
        )
    return moves


def _author(found: Iterable[Standing]) -> str:
    """Return the topology that most commits are by."""
    named = Counter(standing.told.topology_id for standing in found if standing.told.topology_id)
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
            f"{where}: a transaction that is still open begins at {standing.stable}, and a spout gets no further",
            cure="wait until it has ended; the broker aborts it after transaction.timeout.ms",
        )
    if standing.earlier and not force:
        raise ConfigError(
            f"{coordinates(*standing.tp)}: the topic was deleted and created again since the group committed, and "
            "nothing says of which one the new place is",
            cure="--force, if it is of the topic as it is now",
        )


def _move(standing: Standing, target: int, topology_id: str, author: str, named: bool) -> Move:
    told, before = standing.told, standing.offset
    back = before is not None and target < before
    # Back means again from there. Forward, what the group has done beyond the new place stays done: whoever came this
    # far has not seen it, or has seen it twice already.
    done = Ranges(() if back else told.done)
    to = target if standing.earlier else done.first_gap(target)
    done.discard_below(to)
    metadata = encode(
        to,
        topology_id=topology_id or told.topology_id or author,
        task=max(told.task, 0),
        topic_id=standing.topic_id,
        done=done,
        failures=sorted((offset, count) for offset, count in told.failures.items() if offset >= to and not back),
        watch=told.watch.at(to).end(),  # nobody has died here
    )
    return Move(standing.tp, before, to, metadata, target, named)


def commit_moves(cluster: Cluster, group: str, moves: Sequence[Move]) -> None:
    """Commit what was planned, in one request.

    Raises:
        BrokerError: somebody has joined the group meanwhile, or nobody answers.
    """
    if not moves:
        return
    consumer = cluster.consumer(group=group)
    try:
        consumer.commit({move.tp: OffsetAndMetadata(move.to, move.metadata, -1) for move in moves})
    except (errors.UnknownMemberIdError, errors.IllegalGenerationError, errors.CommitFailedError) as error:
        # Between the look at the members and this request somebody may join. Kafka takes no commit from outside then.
        raise BrokerError(
            f"group {group} has live members by now: nothing was committed", cure="stop the topology"
        ) from error
    except errors.KafkaError as error:
        what = counted(len(moves), "partition")
        raise BrokerError(
            f"group {group}: the commit for {what} failed: {describe(error)}", cure="do it again: that does no harm"
        ) from error
    finally:
        consumer.close()
