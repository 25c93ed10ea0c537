"""A consumer group's lag: by partition, by topic and in all, with the records done beyond its commits.

:func:`reckon` only computes. :func:`collect` asks Kafka: the group's coordinator for commits and members, the leaders
for the bounds of logs and, for the age of the next record, each broker for one record of each partition that is behind.
:func:`lines` formats it for people, :func:`as_json` for programs.

A partition without a commit has no lag: None, and no sum includes it. A partition that cannot be queried has a
``problem``; the others are reported. The words are those of docs/concepts/offsets.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kafka import errors

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, coordinates
from downspout.formatting import columns, counted, lasting
from downspout.kafka.port import (
    Cluster,
    ConsumerPort,
    GroupDescription,
    GroupMember,
    LogState,
    OffsetAndMetadata,
    TopicPartition,
    TopicState,
)
from downspout.kafka.unreadable import Limits
from downspout.ledger.metadata import CommitMetadata, author_for_another_topic, decode

AGE_S_MAX = 5.0  # How long records are waited for that tell how old the next one is
POLL_MS = 200
RECORDS_MAX = 10_000  # Of a poll
FETCH_BYTES = 64 * 1024  # Of a partition: one record is enough
NO_GROUP = (
    "there is no such group: the name is misspelt, it never committed, or its commits expired "
    "(the broker's offsets.retention.minutes)"
)
NO_BATCH = "the store holds no committed batch under this id: it is misspelt, or none was committed yet"
NOTHING_YET = (
    "it has no commits, and its members own no partitions yet: name a --topic to see how much there is to read"
)
NO_PARTITION = "does not exist any more, and the group has a commit for it"
CUT = "the commit lies beyond the end: the log was cut, or the topic was deleted and created again"
EARLIER = "the commit is of an earlier topic of this name: it was deleted and created again"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group in one partition. None: unknown, or missing."""

    topic: str
    partition: int
    committed: int | None = None  # the next offset to read after a restart
    position: int | None = None  # the next offset to fetch; only the spout itself knows it
    begin: int | None = None  # of the log
    end: int | None = None  # for this group: the last stable offset, or the high watermark if it reads uncommitted
    high_watermark: int | None = None
    lag: int | None = None  # offsets from the commit to the end
    lag_s: float | None = None  # the age of the next record to read after a restart, by its timestamp
    done: int = 0  # offsets beyond the commit that are done
    uncommitted: int = 0  # offsets from the commit to the last that is known to be done or to have failed
    failed: int = 0  # of these, those that failed and wait for another try
    blocks: int | None = None  # the offset that holds the commit back while others are done, or failed
    why: str = ""  # as far as the commit's metadata says
    topology_id: str = ""  # who committed
    task: int | None = None
    member: str = ""  # the live member that owns it
    host: str = ""
    problem: str = ""  # what is wrong with it

    @property
    def unread(self) -> int:
        """Offsets that a spout still has to pass; without a commit, the whole log."""
        if self.lag is not None:
            return self.lag
        return 0 if self.end is None or self.begin is None else self.end - self.begin


@dataclass(frozen=True, slots=True)
class Total:
    """The sum over partitions, as far as known."""

    lag: int | None = None  # None: it is known of none
    lag_s: float | None = None  # the longest
    done: int = 0
    uncommitted: int = 0
    failed: int = 0
    partitions: int = 0
    without_commit: int = 0
    problems: int = 0  # partitions, or topics, with one

    @classmethod
    def of(cls, partitions: Iterable[PartitionLag], problems: int = 0) -> Total:
        """Add partitions up."""
        rows = list(partitions)
        lags = [row.lag for row in rows if row.lag is not None]
        ages = [row.lag_s for row in rows if row.lag_s is not None]
        return cls(
            sum(lags) if lags else None,
            max(ages, default=None),
            sum(row.done for row in rows),
            sum(row.uncommitted for row in rows),
            sum(row.failed for row in rows),
            len(rows),
            sum(row.committed is None and not row.problem for row in rows),
            sum(bool(row.problem) for row in rows) + problems,
        )


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A group in one topic."""

    topic: str
    partitions: Sequence[PartitionLag] = ()
    problem: str = ""  # why there are none

    @property
    def total(self) -> Total:
        """The sum of its partitions."""
        return Total.of(self.partitions, bool(self.problem))


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group in all of its topics; or the batches of one id, which are committed to a store."""

    group: str
    state: str = ""  # Kafka's word; empty: not known
    coordinator: str = ""
    members: Sequence[GroupMember] = ()
    topics: Sequence[TopicLag] = ()
    problem: str = ""  # why there are none
    kind: str = "group"  # or "batches"

    @property
    def partitions(self) -> list[PartitionLag]:
        """All of its partitions."""
        return [row for topic in self.topics for row in topic.partitions]

    @property
    def total(self) -> Total:
        """The sum of all."""
        return Total.of(self.partitions, sum(bool(topic.problem) for topic in self.topics) + bool(self.problem))


# --- arithmetic ---


def reckon(
    tp: TopicPartition,
    log: LogState,
    commit: OffsetAndMetadata | None,
    *,
    topic_id: str = "",
    owner: GroupMember | None = None,
    committed_only: bool = True,
) -> PartitionLag:
    """Return a group's figures in one partition.

    >>> tp = TopicPartition("orders", 0)
    >>> reckon(tp, LogState(0, 12, 10), OffsetAndMetadata(7, "", -1)).lag
    3
    >>> print(reckon(tp, LogState(0, 12, 10), None).lag)
    None

    Args:
        tp: which.
        log: where its log begins and ends.
        commit: of the group; None: there is none.
        topic_id: Kafka's id of the topic now: ranges of an earlier one say nothing.
        owner: the live member that it is assigned to.
        committed_only: the group reads committed records alone.
    """
    row = PartitionLag(
        tp.topic,
        tp.partition,
        committed=None if commit is None else commit.offset,
        begin=log.begin,
        end=log.stable if committed_only else log.high_watermark,
        high_watermark=log.high_watermark,
        member="" if owner is None else owner.name,
        host="" if owner is None else owner.host,
        problem=log.problem,
    )
    if commit is None:
        return row
    found = decode(commit.offset, commit.metadata, topic_id=topic_id)
    author = author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id)
    row = replace(
        row,
        topology_id=found.topology_id or author or "",
        task=found.task if found.task >= 0 else None,
        lag=None if row.end is None or author is not None else max(0, row.end - commit.offset),
        problem=row.problem or (EARLIER if author is not None else ""),
    )
    if row.high_watermark is not None and commit.offset > row.high_watermark:
        return replace(row, problem=row.problem or CUT)
    return _beyond(row, commit.offset, found)


def _beyond(row: PartitionLag, base: int, found: CommitMetadata) -> PartitionLag:
    """Add what the commit says of records beyond it."""
    last = max([end for _, end in found.done] + [offset + 1 for offset in found.failures], default=base)
    row = replace(
        row,
        done=sum(end - start for start, end in found.done),
        failed=len(found.failures),
        uncommitted=last - base,
    )
    why = _why(base, found)
    return replace(row, blocks=base, why=why) if why and row.lag != 0 else row


def _why(base: int, found: CommitMetadata) -> str:
    """Describe what blocks a commit; empty if nothing is known to be done beyond it."""
    isolation = found.isolation
    if (attempts := found.failures.get(base)) is not None:
        return f"failed {counted(attempts, 'time')}, waits for another try or for its dead letter"
    if isolation.alone == base:
        return "is processed alone: processes died, and it may be the cause"
    if isolation.single:
        return f"processes died here: up to offset {isolation.narrow_until} one record is processed at a time"
    if found.done or found.failures:
        return "has no answer yet: a bolt has it, or it has not been read again"
    return ""


def assemble(
    group: str,
    description: GroupDescription | None,
    commits: Mapping[TopicPartition, OffsetAndMetadata],
    states: Mapping[str, TopicState],
    *,
    committed_only: bool = True,
    read_ids: Mapping[str, str] | None = None,
) -> GroupLag:
    """Combine Kafka's answers about a group.

    Args:
        group: its name.
        description: its members; None: the group does not exist.
        commits: what it has committed.
        states: its topics.
        committed_only: the group reads committed records alone.
        read_ids: Kafka's ids of the topics that commits without metadata are for, where they are known.
    """
    members = description.members if description is not None else ()
    owners = {tp: member for member in members for tp in member.partitions}
    topics = []
    for topic, state in sorted(states.items()):
        logs = {
            **{tp.partition: LogState(None, None, None, state.problem or NO_PARTITION)
               for tp in sorted(commits) if tp.topic == topic},
            **state.partitions,
        }  # fmt: skip
        rows = [
            reckon(
                tp := TopicPartition(topic, number),
                log,
                commits.get(tp),
                topic_id=state.id,
                owner=owners.get(tp),
                committed_only=committed_only,
            )
            for number, log in sorted(logs.items())
        ]
        if state.id and (read_ids or {}).get(topic, state.id) not in ("", state.id):
            rows = [replace(row, lag=None, problem=EARLIER) for row in rows]
        topics.append(TopicLag(topic, rows, "" if rows else state.problem))
    known = description is not None or bool(commits)
    problem = NO_GROUP if not known else "" if topics else NOTHING_YET
    return GroupLag(
        group,
        "" if description is None else description.state,
        "" if description is None else description.coordinator,
        members,
        topics,
        problem,
    )


# --- asking Kafka ---


@dataclass(frozen=True, slots=True)
class Question:
    """Which figures are wanted."""

    topics: Sequence[str] = ()  # only these; default: those that the group has commits for, or members
    committed_only: bool = True  # the group reads committed records alone
    with_age: bool = True  # look at records, for ``lag_s``
    clock: Clock = field(default=SYSTEM_CLOCK)


def collect(cluster: Cluster, group: str, question: Question | None = None) -> GroupLag:
    """Return a group's lag. A partition that cannot be queried has a ``problem``.

    Raises:
        BrokerError: no broker answers.
    """
    asked = question or Question()
    try:
        description = cluster.describe_group(group)
        commits = dict(cluster.group_offsets(group))
    except BrokerError as error:
        return GroupLag(group, problem=_unseen(error))
    owned = {tp.topic for member in (description.members if description else ()) for tp in member.partitions}
    names = set(asked.topics) or {tp.topic for tp in commits} | owned
    states = cluster.describe_logs(names) if names else {}
    wanted = {tp: commit for tp, commit in commits.items() if tp.topic in names}
    found = assemble(group, description, wanted, states, committed_only=asked.committed_only)
    return _with_ages(cluster, found, asked) if asked.with_age else found


def collect_batches(
    cluster: Cluster,
    name: str,
    current: int,
    commits: Mapping[TopicPartition, OffsetAndMetadata],
    read_ids: Mapping[str, str],
    question: Question | None = None,
) -> GroupLag:
    """Return the lag of the batches of an id.

    Args:
        cluster: the brokers.
        name: ``batch.id``.
        current: the transaction that is committed next.
        commits: where it begins.
        read_ids: Kafka's ids of the topics that these offsets are of.
        question: which figures are wanted.

    Raises:
        BrokerError: no broker answers.
    """
    asked = question or Question()
    names = set(asked.topics) or {tp.topic for tp in commits}
    wanted = {tp: commit for tp, commit in commits.items() if tp.topic in names}
    states = cluster.describe_logs(names) if names else {}
    found = assemble(name, None, wanted, states, committed_only=asked.committed_only, read_ids=read_ids)
    found = replace(
        found, kind="batches", state=f"transaction {current} is committed next", problem="" if commits else NO_BATCH
    )
    return _with_ages(cluster, found, asked) if asked.with_age else found


def _unseen(error: BrokerError) -> str:
    """Return why a group cannot be queried; reraise an error that concerns all groups."""
    if isinstance(error.__cause__, errors.GroupAuthorizationFailedError):
        return "no permission to see it: this needs Describe on the group"
    if isinstance(error.__cause__, errors.KafkaError) and not isinstance(error.__cause__, errors.KafkaConnectionError):
        return error.message
    raise error


def _with_ages(cluster: Cluster, found: GroupLag, question: Question) -> GroupLag:
    behind = {
        TopicPartition(row.topic, row.partition): max(row.committed, row.begin)
        for row in found.partitions
        if row.lag and row.committed is not None and row.begin is not None
    }
    ends = {TopicPartition(row.topic, row.partition): row.end or 0 for row in found.partitions}
    stamps: dict[TopicPartition, int] = {}
    if behind:
        client = {
            "isolation_level": "read_committed" if question.committed_only else "read_uncommitted",
            "max_partition_fetch_bytes": FETCH_BYTES,
        }
        with closing(cluster.consumer(group=None, client=client)) as consumer:
            stamps = first_stamps(consumer, behind, ends, question.clock)
    now = question.clock.wall()

    def aged(row: PartitionLag) -> PartitionLag:
        if row.lag == 0:
            return replace(row, lag_s=0.0)
        stamp = stamps.get(TopicPartition(row.topic, row.partition), -1)
        return row if stamp < 0 else replace(row, lag_s=max(0.0, now - stamp / 1000))

    topics = [replace(topic, partitions=[aged(row) for row in topic.partitions]) for topic in found.topics]
    return replace(found, topics=topics)


def first_stamps(
    consumer: ConsumerPort, places: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], clock: Clock
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at or after each place, in ms: one fetch per broker, as a rule.

    A place has none if no visible record follows (only aborted transactions, markers), or no leader answers in time.
    """
    found: dict[TopicPartition, int] = {}
    consumer.tolerate(Limits(), corrupt=True)  # a record that cannot be read has no time; the others have
    consumer.assign(list(places))
    for tp, offset in places.items():
        consumer.seek(tp, offset)
    waited_for, deadline = set(places), clock.monotonic() + AGE_S_MAX
    while waited_for and clock.monotonic() < deadline:
        try:
            for tp, records in consumer.poll(POLL_MS, RECORDS_MAX).items():
                found.setdefault(tp, records[0].timestamp)
            passed = {tp for tp in waited_for - found.keys() if consumer.position(tp) >= ends[tp]}
        except errors.KafkaError as error:
            if not error.retriable:
                break  # a right is missing, or a log was cut meanwhile: the figures without it are right
            clock.sleep(POLL_MS / 1000)  # an error may come at once, again and again
            passed = set()
        done = waited_for & (found.keys() | passed)
        consumer.pause(list(done))
        waited_for -= done
    return found


SCHEMA = 1  # Of the JSON; keys are added under the same number, and none is changed or taken away
UNKNOWN = "–"
HEAD = ("partition", "committed", "position", "end", "lag", "age", "done beyond", "uncommitted", "failed", "owner")
NUMBERS = range(1, len(HEAD) - 1)
POSITION = HEAD.index("position")


def number(value: int | None) -> str:
    """Format a number for people.

    >>> number(1234), number(None)
    ('1,234', '–')
    """
    return UNKNOWN if value is None else f"{value:,}"


def age(seconds: float | None) -> str:
    """Format an age for people."""
    return UNKNOWN if seconds is None else lasting(seconds)


def lines(found: GroupLag) -> list[str]:
    """Return a group's table: a line per partition, topic and in all, then what blocks and what is wrong."""
    parts = [found.state]
    if found.state and found.kind == "group":
        parts.append(counted(len(found.members), "member"))
    parts.append(found.coordinator and f"coordinator {found.coordinator}")
    said = ", ".join(filter(None, [*parts, found.problem]))
    out = [f"{found.kind} {found.group}: {said or 'its state is not known'}"]
    rows: list[tuple[str, ...]] = [HEAD]
    for topic in found.topics:
        rows += [_cells(row) for row in topic.partitions]
        if len(topic.partitions) > 1:
            rows.append(_sum_cells(topic.topic, topic.total))
    if sum(bool(topic.partitions) for topic in found.topics) > 1:
        rows.append(_sum_cells("total", found.total))
    if all(row[POSITION] in (UNKNOWN, "", HEAD[POSITION]) for row in rows):  # only a spout itself knows it
        rows = [(*row[:POSITION], *row[POSITION + 1 :]) for row in rows]
    if len(rows) > 1:
        out += [f"  {line}" for line in columns(rows, NUMBERS if len(rows[0]) == len(HEAD) else NUMBERS[:-1])]
    return out + [f"  {line}" for line in _notes(found)]


def _cells(row: PartitionLag) -> tuple[str, ...]:
    counts = (row.committed, row.position, row.end, row.lag)
    beyond = (row.done, row.uncommitted, row.failed) if row.committed is not None else (None, None, None)
    place = coordinates(row.topic, row.partition)
    return (place, *map(number, counts), age(row.lag_s), *map(number, beyond), owner(row) or UNKNOWN)


def owner(row: PartitionLag) -> str:
    """Name the live member that owns a partition, and the task that committed last.

    >>> owner(PartitionLag("orders", 0, member="flights-0", host="10.0.0.7", topology_id="flights-1", task=4))
    'flights-0 on 10.0.0.7 (task 4 of flights-1)'
    >>> owner(PartitionLag("orders", 0, topology_id="flights-1"))
    'no member (flights-1)'
    """
    task = "" if row.task is None else f"task {row.task} of "
    author = f" ({task}{row.topology_id})" if row.topology_id else ""
    if row.member:
        return f"{row.member} on {row.host}{author}"
    return f"no member{author}" if author else ""


def _sum_cells(name: str, total: Total) -> tuple[str, ...]:
    return (
        *(name, "", "", "", number(total.lag), age(total.lag_s)),
        *map(number, (total.done, total.uncommitted, total.failed)),
        "",
    )


def _notes(found: GroupLag) -> list[str]:
    notes = [f"{topic.topic}: {topic.problem}" for topic in found.topics if topic.problem]
    for row in found.partitions:
        place = coordinates(row.topic, row.partition)
        if row.problem:
            notes.append(f"{place}: {row.problem}")
        elif row.committed is None:
            notes.append(f"{place}: no commit; its log holds offsets {number(row.begin)} to {number(row.end)}")
        elif row.begin is not None and row.committed < row.begin:
            notes.append(f"{place}: {counted(row.begin - row.committed, 'offset')} of the lag are gone from Kafka")
        if row.blocks is not None:
            notes.append(f"{coordinates(row.topic, row.partition, row.blocks)} blocks: {row.why}")
    return notes


# --- for programs ---


def as_json(found: Sequence[GroupLag], at: str) -> dict[str, Any]:
    """Return groups as JSON values; ``at`` is the time of the query."""
    return {"schema": SCHEMA, "at": at, "groups": [_group(each) for each in found]}


def _group(found: GroupLag) -> dict[str, Any]:
    return {
        "group": found.group,
        "kind": found.kind,
        "state": found.state or None,
        "coordinator": found.coordinator or None,
        "problem": found.problem or None,
        "members": [
            {"member": each.name, "client_id": each.client_id, "host": each.host, "partitions": len(each.partitions)}
            for each in found.members
        ],
        "total": asdict(found.total),
        "topics": [
            {
                "topic": topic.topic,
                "problem": topic.problem or None,
                "total": asdict(topic.total),
                "partitions": [_partition(row) for row in topic.partitions],
            }
            for topic in found.topics
        ],
    }


def _partition(row: PartitionLag) -> dict[str, Any]:
    values = asdict(row)
    del values["topic"]
    return {name: None if value == "" else value for name, value in values.items()}
