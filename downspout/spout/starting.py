"""Where a partition starts and, in a bounded run, where it ends; and what a start reports about the group's commits.

**Start.** A commit decides, and ``kafka.start`` if there is none; the table of strategies is in
``downspout.ledger.epochs``. Here it meets what Kafka says: where the log begins and ends, what the commit's metadata
holds, whether the topic is still the one that was committed for.

**Data loss** (``kafka.on_data_loss``). The log may begin later than the position: retention or DeleteRecords was
faster. It may end earlier: an unclean leader election truncated it. Or the topic was deleted and created again, so
nothing that is known about offsets holds for the new one.

**Warnings about commits that were never ours:**

* A commit without a topology id was moved by a tool (``kafka-consumer-groups --reset-offsets`` leaves no metadata) or
  made by another consumer. A ``kafka.start`` that depends on the topology ignores it.
* Another topology's commit: the topology was renamed, or two topologies share a group, and each gets a part.
* No commit: the group never read the partition, or its commits expired. The broker keeps no trace of the difference;
  a sink's directory may (``downspout.spout.commit_stores``).
* A live member of the group that belongs to another topology is refused. The spout looks before it joins and once it
  has joined, so of two that start at once at least one sees the other.
* With ``kafka.mode=assign`` no coordinator sees that two topologies commit for one group and overwrite each other's
  commits. A commit's metadata names its topology, and says until an orderly end that it is at work; the commit's age
  says whether it may still be. A spout that has had nothing to commit for longer is not seen.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kafka import errors

from downspout.errors import BrokerError, ConfigError, DataLossError, coordinates
from downspout.formatting import counted, lasting
from downspout.kafka.port import Cluster, ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.retry_gate import describe
from downspout.ledger.epochs import Start, start_at
from downspout.ledger.isolation import AT_WORK, Isolation
from downspout.ledger.metadata import NOTHING, CommitMetadata, author_for_another_topic, decode
from downspout.ledger.offsets import PartitionLedger
from downspout.ledger.ranges import Ranges
from downspout.ledger.retry_schedule import RetryPolicy
from downspout.settings.secrets import shown
from downspout.spout.partition import Partition, UncleanStarts
from downspout.spout.ports import KAFKA, SETTING, SpoutMetrics
from downspout.spout.settings import Identity, Setup, offsets_of, topology_of

GONE_MS = 30_000  # A topic that has not been there for so long is taken as deleted for good
ASK_MS = 500  # How often the group's commits for partitions of other members are asked for


def topics_of(consumer: ConsumerPort, settings: Mapping[str, Any]) -> list[str]:
    """Return the topics that a task reads, by name or by pattern as of now."""
    pattern = re.compile(settings["pattern"] or "")
    return settings["topics"] or sorted(name for name in consumer.topic_names() if pattern.fullmatch(name))


def partitions_of(consumer: ConsumerPort, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions that topics have, topic by topic in order; none of a topic that does not exist."""
    return [TopicPartition(topic, number) for topic in topics for number in sorted(consumer.partitions_for(topic))]


def missing_topics(consumer: ConsumerPort, topics: Iterable[str]) -> list[str]:
    """Return the topics that do not exist."""
    return [topic for topic in topics if not consumer.partitions_for(topic)]


def no_topic(topic: str, bootstrap: str) -> BrokerError:
    """Return the error for a topic that a bounded run needs and that does not exist."""
    return BrokerError(
        f"topic {topic} does not exist on {bootstrap}",
        cure=f"`downspout kafka create {topic}`, or check the spelling",
    )


def no_partition(setting: str, tp: TopicPartition, bootstrap: str) -> BrokerError:
    """Return the error for a partition that a setting of a bounded run names and that does not exist."""
    return BrokerError(
        f"{setting} names {coordinates(*tp)}, which does not exist on {bootstrap}", cure="look at the topic and number"
    )


class EndOffsets:
    """The offsets at which a bounded run ends.

    Args:
        ends: the end of the log of each partition of the topics, as of the start.
        stops: where to end before that, of the partitions for which that is named (``kafka.stop_offsets``).
    """

    def __init__(self, ends: Mapping[TopicPartition, int], stops: Mapping[TopicPartition, int] | None = None) -> None:
        self._stops = dict(stops or {})
        self.short = {tp: end for tp, end in ends.items() if self._stops.get(tp, end) > end}
        """Ends of logs that do not reach as far as named; the run ends there all the same."""
        self._ends = self._stopped(ends)
        self._open = set(self._ends)  # Partitions whose commit is not known to have reached the end
        self._asked_at = -ASK_MS
        self._gone_since: dict[str, int] = {}

    @property
    def topics(self) -> set[str]:
        """Return the topics that the run still waits for."""
        return {tp.topic for tp in self._open}

    def miss(self, topics: Collection[str], now: int) -> None:
        """Take note of the topics that are not there at the moment; it may be that they are being made again."""
        self._gone_since = {topic: self._gone_since.get(topic, now) for topic in topics}
        for topic, since in self._gone_since.items():
            if now - since >= GONE_MS:
                count = sum(tp.topic == topic for tp in self._open)
                raise BrokerError(
                    f"topic {topic} was deleted; {count} of its partitions were not processed to the end",
                    cure="create it again, or leave it out of kafka.topics; what was processed is committed",
                )

    @classmethod
    def of(
        cls,
        consumer: ConsumerPort,
        partitions: Collection[TopicPartition],
        stops: Mapping[TopicPartition, int] | None = None,
    ) -> EndOffsets:
        """Take the ends as of now."""
        return cls(consumer.end_offsets(partitions) if partitions else {}, stops)

    def _stopped(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: min(end, self._stops.get(tp, end)) for tp, end in ends.items()}

    def add(self, consumer: ConsumerPort, partitions: Collection[TopicPartition]) -> None:
        """Bound partitions that were not known at the start (topics by pattern): their end is as of now."""
        if new := [tp for tp in partitions if tp not in self._ends]:
            ends = consumer.end_offsets(new)
            self._ends.update(self._stopped(ends))
            self._open |= ends.keys()

    def bound(self, consumer: ConsumerPort, parts: Mapping[TopicPartition, Partition]) -> None:
        """Give each partition that has none yet the offset at which it ends: that of its log, if that is lower now.

        Raises:
            KafkaError: the broker did not answer. Nothing may be read before a later call has succeeded.
        """
        if new := [tp for tp, part in parts.items() if part.cursor.stop is None]:
            self.add(consumer, new)
            for tp, end in consumer.end_offsets(new).items():
                parts[tp].cursor.stop = self.cut(tp, end)

    def cut(self, tp: TopicPartition, end: int) -> int | None:
        """The log was truncated to ``end``: the run does not wait for what is gone. Return where it ends now."""
        if tp in self._ends:
            self._ends[tp] = min(self._ends[tp], end)
        return self._ends.get(tp)

    def forget(self, tp: TopicPartition) -> None:
        """The topic was created again: :meth:`add` bounds the new one; no setting names offsets of it."""
        self._stops.pop(tp, None)
        self._ends.pop(tp, None)
        self._open.discard(tp)

    def reached(self, consumer: ConsumerPort, parts: Mapping[TopicPartition, Partition], now: int) -> bool:
        """Return whether the commits of the group have reached all ends.

        Ours are known; those of other members are asked for, now and then. So are the ends of their logs: one that was
        cut, or made again and is shorter, ends the run where it ends now.

        Raises:
            KafkaError: the broker did not answer.
        """
        for tp in list(self._open):
            part = parts.get(tp)
            if part is not None and part.commits.offset >= self._ends[tp]:
                self._open.discard(tp)
        others = self._open - parts.keys()
        if others and now - self._asked_at >= ASK_MS:
            self._asked_at = now
            ends = consumer.end_offsets(others)
            for tp, commit in consumer.committed(others).items():
                if commit is not None and commit.offset >= min(self._ends[tp], ends[tp]):
                    self._open.discard(tp)
        return not self._open


class DataLoss:
    """The policy: ``fail`` stops the run, ``earliest`` goes on with what is left, ``latest`` at the end."""

    def __init__(self, policy: str, start: str, metrics: SpoutMetrics, log: logging.Logger) -> None:
        at_start = "latest" if start.endswith("LATEST") else "earliest"
        self._policy = at_start if policy == "start" else policy  # what ``kafka.start`` says
        self._metrics = metrics
        self._log = log

    def skip(self, ledger: PartitionLedger, tp: TopicPartition, begin: int, end: int) -> None:
        """The log begins at ``begin`` now: let the ledger go on from there, or from its end."""
        place = coordinates(tp.topic, tp.partition, ledger.base)
        lost = ledger.lost_below(begin)
        if lost and self._policy == "fail":  # before the ledger changes: the end of the run may still commit by it
            raise DataLossError(
                f"{place}: {lost} offsets below {begin} were not processed and are gone from Kafka",
                cure="kafka.on_data_loss=earliest continues with the remaining records; retention may be too short",
            )
        ledger.skip_to(begin)
        if not lost:
            return
        if self._policy == "latest":
            lost += ledger.skip_to(end)
        self._metrics.lost += lost
        self._log.warning("%s: %d offsets are lost; continuing at %d", place, lost, ledger.next)

    def restart(self, tp: TopicPartition, reading: int, begin: int, end: int) -> int:
        """The log ends at ``end``, below where we read: return where to start again."""
        place = coordinates(tp.topic, tp.partition, reading)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the log ends at {end}: it was truncated, or the topic was created again",
                cure="kafka.on_data_loss=earliest reads it from its beginning",
            )
        self._metrics.lost += max(0, reading - end)
        start = begin if self._policy == "earliest" else end
        self._log.warning("%s: the log ends at %d; continuing at %d", place, end, start)
        return start

    def named(self, tp: TopicPartition, offset: int, begin: int, end: int) -> int:
        """``kafka.start_offsets`` names this offset: return where to start."""
        if begin <= offset <= end:
            return offset
        place = coordinates(tp.topic, tp.partition, offset)
        what = f"kafka.start_offsets names it, but the log holds {begin} to {end}"
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: {what}",
                cure=f"an offset from {begin} to {end}, or kafka.on_data_loss=earliest or latest: its beginning or end",
            )
        start = begin if self._policy == "earliest" else end
        self._metrics.lost += start - offset if offset < begin else 0
        self._log.warning("%s: %s; starts at %d", place, what, start)
        return start

    def recreated(self, tp: TopicPartition, unprocessed: int) -> None:
        """The topic is another one of the same name: nothing of it was processed, so it is read from its beginning.

        Args:
            unprocessed: how many records of the old topic were read and not processed, as far as we know.
        """
        place = coordinates(tp.topic, tp.partition)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the topic was deleted and created again; unprocessed records of the old topic are lost",
                cure="kafka.on_data_loss=earliest reads the new one from its beginning",
            )
        self._metrics.lost += unprocessed
        self._log.warning("%s: the topic was deleted and created again; starts at its beginning", place)


Committed = Mapping[TopicPartition, OffsetAndMetadata | None]
Ages = Callable[[float], Mapping[TopicPartition, float] | None]
"""Returns the ages in seconds of the group's commits that are younger than that; None: it cannot be known."""
AT_WORK_S_MIN = 60.0
"""A commit of another topology that is younger than this, or than two periods between commits, is one of a live one."""
SHOWN_MAX = 3
_PLACES = {
    "EARLIEST": "the beginning",
    "LATEST": "the end",
    "TIMESTAMP": "kafka.start_timestamp_ms",
    "OFFSETS": "kafka.start_offsets",
}


def refuse_other_topologies(cluster: Cluster, setup: Setup, log: logging.Logger) -> None:
    """Look whether members of another topology are in the group; warn of those that are no topology's.

    Raises:
        ConfigError: another topology's are.
    """
    group, ours = setup.group, topology_of(setup.instance)
    try:
        members = cluster.group_members(group)
    except (BrokerError, errors.KafkaError) as error:
        log.warning("cannot see whether another topology uses group %s: %s", group, describe(error))
        return
    for name in members:
        if topology_of(name) not in (ours, ""):
            raise ConfigError(
                f"group {group}: {name} is a live member, of topology {topology_of(name)}. Each record would go to "
                f"only one of that topology and this one, {setup.topology}",
                cure="another kafka.group for this one; or stop that topology: after a crash its members are live for "
                "kafka.session_timeout_ms more",
            )
    if foreign := [name for name in members if not topology_of(name)]:
        log.warning(
            "group %s has live members that are not spouts of Downspout: %s. Each record goes to only one member. "
            "Try: another kafka.group for this topology", group, ", ".join(foreign[:SHOWN_MAX]),
        )  # fmt: skip


class StartNotes:
    """Looks at the commits from which partitions start that were never ours."""

    def __init__(
        self, strategy: str, group: str, topology_id: str, log: logging.Logger, offset_store: str = KAFKA
    ) -> None:
        self._strategy, self._group, self._topology_id, self._log = strategy, group, topology_id, log
        self._seek = f"downspout offsets seek {group}"
        self._absent = f"group {group} is new to"
        if offset_store != KAFKA:
            place = shown(SETTING, offset_store)
            self._seek += f" --store {place}"
            self._absent = f"{place} has no offset of"  # the group may have commits nonetheless

    def refuse_live(
        self, committed: Committed, topic_ids: Mapping[str, str], ages: Ages, commit_period_s: float
    ) -> None:
        """Look whether another topology commits for this group; without a coordinator only this keeps the two apart.

        Raises:
            ConfigError: one does.
        """
        others = {}
        for tp, commit in sorted(committed.items()):
            if commit is not None:
                found = decode(commit.offset, commit.metadata, topic_id=topic_ids.get(tp.topic, ""))
                if found.topology_id not in ("", self._topology_id) and not found.isolation.ended:
                    others[tp] = commit.offset, found
        if others:
            self._refuse_young(others, ages, max(AT_WORK_S_MIN, 2 * commit_period_s))

    def look(self, committed: Committed, topic_ids: Mapping[str, str]) -> None:
        """Say what there is to know."""
        bare, absent = [], []
        others: dict[str, list[str]] = {}  # by the topology that has committed
        for tp, commit in sorted(committed.items()):
            if commit is None:
                absent.append(coordinates(*tp))
                continue
            topic_id = topic_ids.get(tp.topic, "")
            found = decode(commit.offset, commit.metadata, topic_id=topic_id)
            author = found.topology_id or author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id)
            if not author:
                bare.append(coordinates(tp.topic, tp.partition, commit.offset))
            elif name_of(author) != name_of(self._topology_id):
                others.setdefault(name_of(author), []).append(coordinates(tp.topic, tp.partition, commit.offset))
        for name, places in others.items():
            self._log.warning(
                "group %s: topology %s has committed %s. If it still runs, each of the two gets only part of the "
                "records. Try: another kafka.group for this one",
                self._group, name, _shown(places),
            )  # fmt: skip
        if bare:
            self._say_bare(bare)
        if absent:
            self._log.info(
                "%s %s: reading from %s (kafka.start = %s)",
                self._absent, _shown(absent), _PLACES[self._strategy.removeprefix("UNCOMMITTED_")], self._strategy,
            )  # fmt: skip

    def _say_bare(self, bare: Collection[str]) -> None:
        moved = "moved by Kafka's own tool, or made by another consumer"
        if self._strategy.startswith("UNCOMMITTED"):
            self._log.info(
                "group %s: the commits for %s do not name a topology (%s): reading continues there, and offsets done "
                "beyond them are unknown",
                self._group, _shown(bare), moved,
            )  # fmt: skip
            return
        self._log.warning(
            "group %s: the commits for %s do not name a topology (%s): kafka.start = %s ignores them. Try: `%s "
            "--to-current --topology-id %s`, which keeps their place, or kafka.start=UNCOMMITTED_%s",
            self._group, _shown(bare), moved, self._strategy, self._seek, self._topology_id, self._strategy,
        )  # fmt: skip

    def _refuse_young(
        self, others: Mapping[TopicPartition, tuple[int, CommitMetadata]], ages: Ages, within_s: float
    ) -> None:
        young = ages(within_s)
        for tp, (offset, found) in others.items():
            if young is not None and tp not in young:
                continue
            when = "at a time that this client may not see" if young is None else f"{lasting(young[tp])} ago"
            raise ConfigError(
                f"group {self._group}: topology {found.topology_id} (task {found.task}) committed "
                f"{coordinates(tp.topic, tp.partition, offset)} {when} and has not ended since. With kafka.mode=assign "
                f"it and this topology, {self._topology_id}, would overwrite each other's commits",
                cure=f"another kafka.group; or stop that topology cleanly. If it was killed: `{self._seek} "
                f"--to-current --force --yes --topology-id {self._topology_id}`, or wait until the commit is "
                f"{lasting(within_s)} old",
            )


def name_of(topology_id: str) -> str:
    """Return the name of a topology, of an id that Storm, or a run here, has made of it.

    >>> name_of("word-count-2-1712113012"), name_of("shop-1"), name_of("shop")
    ('word-count', 'shop', 'shop')
    """
    return re.sub(r"-\d+(-\d+)?\Z", "", topology_id)


def _shown(places: Collection[str]) -> str:
    """Name a few of some places.

    >>> _shown(["a[0]", "a[1]"]), _shown([f"a[{number}]" for number in range(9)])
    ('a[0], a[1]', 'a[0], a[1], a[2] and 6 more partitions')
    """
    more = len(places) - SHOWN_MAX
    return ", ".join(list(places)[:SHOWN_MAX]) + (f" and {counted(more, 'more partition')}" if more > 0 else "")


class Earlier(NamedTuple):
    """What is kept of a partition that was ours."""

    topic_id: str = ""
    pending: int = 0  # How much was not processed
    commit: tuple[int, str] | None = None  # Our last one
    attempted: tuple[int, str] | None = None  # One of ours of which it is not known whether it was made
    failures: Mapping[int, int] = {}  # Failed attempts by offset, where we go on ourselves
    reasons: Mapping[int, Any] = {}
    """And why: :class:`~downspout.spout.partition.LastFailure`."""
    timeouts: Mapping[int, int] = {}


NEVER_OURS = Earlier()


class Beginning(NamedTuple):
    """What a partition starts with.

    ``killed_by`` is the record that was out alone when an earlier owner died; after a death ``behind_until`` is where
    the log ended at the start.
    """

    ledger: PartitionLedger
    isolation: Isolation = AT_WORK
    killed_by: int | None = None
    behind_until: int = 0


class LogBounds(NamedTuple):
    """What Kafka says of the logs of some partitions; ``times`` only where ``kafka.start`` goes by time."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    times: Mapping[TopicPartition, int | None]


class Starts:
    """Decides where partitions start."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        metrics: SpoutMetrics,
        log: logging.Logger,
        loss: DataLoss,
        backoff: RetryPolicy,
        bounds: EndOffsets | None,
    ) -> None:
        self._strategy: str = settings["start"]
        self._timestamp_ms: int = settings["start_timestamp_ms"] or 0
        self._behind_max: int | None = settings["behind_max"]
        self._offsets = offsets_of("kafka.start_offsets", settings["start_offsets"])
        self._identity = identity
        self._unclean = UncleanStarts(settings, identity.topology_id, identity.tasks, metrics, log)
        self._loss = loss
        self._backoff = backoff
        self._bounds = bounds
        self._metrics = metrics
        self._log = log

    def ask(self, consumer: ConsumerPort, fresh: Collection[TopicPartition]) -> LogBounds:
        """Ask Kafka for what is needed to decide. Raises KafkaError: the broker did not answer."""
        begins, ends = consumer.beginning_offsets(fresh), consumer.end_offsets(fresh)
        by_time = self._strategy.endswith("TIMESTAMP")
        times = consumer.offsets_for_times(dict.fromkeys(fresh, self._timestamp_ms)) if by_time else {}
        return LogBounds(begins, ends, times)

    def decide(
        self, tp: TopicPartition, commit: OffsetAndMetadata | None, topic_id: str, logs: LogBounds, earlier: Earlier
    ) -> Beginning:
        """Return what a partition starts with.

        Raises:
            DataLossError: records that were not processed are gone, and ``kafka.on_data_loss`` says ``fail``.
        """
        metadata = NOTHING if commit is None else decode(commit.offset, commit.metadata, topic_id=topic_id)
        if self._is_of_another_topic(topic_id, metadata, commit, earlier):
            self._loss.recreated(tp, earlier.pending)
            if self._bounds is not None:
                self._bounds.forget(tp)
            return Beginning(PartitionLedger(logs.begins[tp], self._backoff), killed_by=metadata.isolation.alone)
        isolation = AT_WORK
        if commit is not None and metadata != NOTHING:
            ours = (commit.offset, commit.metadata) in (earlier.commit, earlier.attempted)
            isolation, metadata = self._unclean.look_back(tp, commit.offset, logs.ends[tp], metadata, ours=ours)
        ours = metadata.topology_id == self._identity.topology_id
        start = start_at(self._strategy, committed=commit is not None, by_this_topology=ours)
        if start is Start.COMMITTED and commit is not None:
            place = self._not_too_far_behind(tp, commit, metadata, logs)
            ledger = self._go_on(tp, place, metadata, logs, earlier.failures)
        else:
            ledger = PartitionLedger(self._place(start, tp, logs), self._backoff, (), earlier.failures)
        if commit is None or ledger.base != commit.offset:
            isolation = AT_WORK
        return Beginning(ledger, isolation, metadata.isolation.alone, logs.ends[tp] if isolation.starts else 0)

    def _is_of_another_topic(
        self, topic_id: str, metadata: CommitMetadata, commit: OffsetAndMetadata | None, earlier: Earlier
    ) -> bool:
        """Return whether we, or the commit that we would go by, know an earlier topic of this name."""
        if metadata != NOTHING:
            return False
        if another(earlier.topic_id, topic_id):
            return True
        if commit is None:
            return False
        # A commit that says who made it is of this topic: a spout has begun with it, and we go on.
        author = author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id)
        ours = author == self._identity.topology_id
        start = start_at(self._strategy, committed=True, by_this_topology=ours)
        return author is not None and start is Start.COMMITTED

    def _not_too_far_behind(
        self, tp: TopicPartition, commit: OffsetAndMetadata, metadata: CommitMetadata, logs: LogBounds
    ) -> OffsetAndMetadata:
        """Return where to go on: where a new group would start, if the commit lies too far behind that."""
        start = start_at(self._strategy, committed=False, by_this_topology=False)
        # Below the beginning of the log nothing could be read: that is lost, and not left out.
        if self._behind_max is None or start is Start.BEGINNING or commit.offset > logs.ends[tp]:
            return commit
        place = self._place(start, tp, logs)
        if place - commit.offset <= self._behind_max:
            return commit
        left = sum(end - begin for begin, end in Ranges(metadata.done).missing(commit.offset, place))
        self._metrics.left_behind += left
        self._log.warning(
            "%s: the commit lies %d offsets behind %d, where kafka.start = %s starts, but kafka.behind_max = %d; "
            "continuing there, and dropping %d",
            coordinates(tp.topic, tp.partition, commit.offset), place - commit.offset, place, self._strategy,
            self._behind_max, left,
        )  # fmt: skip
        return commit._replace(offset=place)

    def _go_on(
        self,
        tp: TopicPartition,
        commit: OffsetAndMetadata,
        metadata: CommitMetadata,
        logs: LogBounds,
        failures: Mapping[int, int],
    ) -> PartitionLedger:
        """Start where a commit says, with what its metadata holds."""
        begin, end = logs.begins[tp], logs.ends[tp]
        known = max(commit.offset, metadata.done[-1][1] if metadata.done else 0)
        if known > end:
            start_again = self._loss.restart(tp, known, begin, end)
            if self._bounds is not None:
                self._bounds.cut(tp, end)
            return PartitionLedger(start_again, self._backoff)
        ledger = PartitionLedger(commit.offset, self._backoff, metadata.done, {**metadata.failures, **failures})
        if commit.offset < begin:
            self._loss.skip(ledger, tp, begin, end)
        return ledger

    def _place(self, start: Start, tp: TopicPartition, logs: LogBounds) -> int:
        """Start where the strategy says."""
        begin, end = logs.begins[tp], logs.ends[tp]
        if start is Start.END:
            return end
        if start is Start.TIMESTAMP:
            at_time = logs.times.get(tp)
            return end if at_time is None else at_time
        if start is Start.OFFSET and tp in self._offsets:
            return self._loss.named(tp, self._offsets[tp], begin, end)
        return begin


def another(before: str, now: str) -> bool:
    """Return whether two ids, both known, are of different topics."""
    return bool(before and now) and before != now
