"""Which partitions are ours: the listener records facts, and the spout's own thread acts on them.

The race that shapes this module: kafka-python calls a listener in the middle of our ``poll``, on its own thread, where
a request to the broker raises and waiting would deadlock. So the listener only records what happened and pauses new
partitions, which must not be read before their start is decided. When ``poll`` has returned, the spout calls
:meth:`PartitionAssignment.start_partitions`, which may ask the broker. If the broker does not answer, the partitions
stay paused, and the next call asks again.

With ``kafka.mode=assign`` no group assigns partitions: each task takes its share of the sorted partitions, by its
number among the tasks (:class:`AssignedShare`), and informs the same listener. No task takes over a dead task's share.
When a share changes, the old owner commits first; but tasks check at different times, so the new owner may start before
that commit and process some records again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from kafka import errors

from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.ledger.breaker import Breaker
from downspout.ledger.epochs import AssignmentEpochs, Fact
from downspout.ledger.offsets import PartitionLedger
from downspout.spout.commit_stores import claim
from downspout.spout.cursor import PartitionCursor, RetryCache
from downspout.spout.partition import CommitState, CrashIsolation, Partition
from downspout.spout.ports import SpoutMetrics
from downspout.spout.settings import Setup, named_alone, policy_of
from downspout.spout.starting import (
    NEVER_OURS,
    Ages,
    Beginning,
    DataLoss,
    Earlier,
    EndOffsets,
    StartNotes,
    Starts,
    another,
    partitions_of,
    topics_of,
)


class RebalanceRecorder:
    """Records rebalance callbacks. Called on the client's thread while the spout's own thread waits in ``poll``."""

    def __init__(self, consumer: ConsumerPort) -> None:
        self._consumer = consumer
        self._known: Collection[TopicPartition] = ()
        self.facts: deque[Fact[TopicPartition]] = deque()

    def expect(self, known: Collection[TopicPartition]) -> None:
        """Before a poll: note the partitions that need no pause if they are assigned, because they stay or return."""
        self._known = known

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Record the assignment, and pause new partitions until their start is decided."""
        self._consumer.pause([tp for tp in partitions if tp not in self._known])
        self.facts.append(Fact("assigned", frozenset(partitions)))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Note it."""
        self.facts.append(Fact("revoked", frozenset(partitions)))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Note it."""
        self.facts.append(Fact("lost", frozenset(partitions)))


SAME_TOPICS_MS = 2_000  # How often the topics' ids are requested, to detect a topic that was created again
Committed = Mapping[TopicPartition, OffsetAndMetadata | None]


class PartitionAssignment:
    """The partitions of one consumer: new, started, set aside during a rebalance, or gone."""

    def __init__(
        self,
        consumer: ConsumerPort,  # subscribed with :attr:`listener`
        setup: Setup,
        metrics: SpoutMetrics,
        log: logging.Logger,
        last_epoch: int = 0,  # of an earlier membership of this process
        bounds: EndOffsets | None = None,
        ages: Ages | None = None,  # of the group's commits; given if no coordinator assigns the partitions
    ) -> None:
        self.listener = RebalanceRecorder(consumer)
        self.parts: dict[TopicPartition, Partition] = {}
        """What is ours, started and verified: only these are read and committed."""
        self.by_key: dict[str, Partition] = {}  # The targets of acks and fails: :attr:`parts`, and those set aside
        self.on_compacted: Callable[[TopicPartition, int], None] = lambda tp, offset: None
        """Called with each failed record that was compacted away before its retry."""
        self.in_transactions = False  # Whether an aborted transaction can undo what is done
        self._consumer = consumer
        self._settings = settings = setup.settings
        self._mode = setup.mode
        self._log = log
        self._loss = DataLoss(settings["on_data_loss"], settings["start"], metrics, log)
        self.epochs: AssignmentEpochs[TopicPartition] = AssignmentEpochs(last_epoch)
        self._bounds = bounds
        self._aside: dict[TopicPartition, Partition] = {}
        self._earlier: dict[TopicPartition, Earlier] = {}  # Of partitions that are no longer ours, or not yet again
        self.topics_due = 0  # When the topics' ids are requested next, in ms
        self._read: set[str] = set()  # Topics, with their ids, that this member has had partitions of
        self._gone_since: dict[str, int] = {}
        self._warned_of: set[str] = set()
        self.unanswered_at = -1
        """When the broker did not say which topics there are; asking again at once would take as long again."""
        self._unstarted: set[TopicPartition] = set()
        self._unverified: set[TopicPartition] = set()
        self._backoff = policy_of(settings, log)
        self._starts = Starts(settings, setup.identity, metrics, log, self._loss, self._backoff, bounds)
        self._notes = StartNotes(
            settings["start"], setup.group, setup.identity.topology_id, log, settings["offset_store"]
        )
        self._ages = ages

    @property
    def last_epoch(self) -> int:
        """Return the latest epoch."""
        return self.epochs.last_epoch

    @property
    def complete(self) -> bool:
        """Whether an assignment has arrived, all its partitions have started, and no callback has come since."""
        if self._unstarted or self._unverified or self.listener.facts:
            return False
        # In the middle of a rebalance, when all is revoked and nothing assigned yet, the assignment is not complete. A
        # cooperative member that gets nothing, and had nothing, gets no callback: having joined is enough.
        if self.epochs.aside and self._consumer.rejoin_pending():
            return False
        joins = self._settings["mode"] == "subscribe"
        return self.epochs.arrived or (joins and not self._consumer.rejoin_pending())

    @property
    def started(self) -> bool:
        """Whether all our partitions have started."""
        return not self._unstarted and not self._unverified

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Our partitions, started or not."""
        return frozenset(self.parts.keys() | self._unstarted | self._unverified)

    def restart(self, attempted: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Restart all partitions from their commits, in new epochs; failure counts are kept.

        Args:
            attempted: commits that were sent, with an unknown outcome.
        """
        for tp, part in [*self.parts.items(), *self._aside.items()]:
            if tp not in self.epochs.owned:
                self._forget(tp)
                continue
            self._begin_again(tp)
            tried = part.tried or {}
            over = self._settings["retries_max"] + 1
            failures = {at: max(each.attempts, over if each.is_exhausted else 0) for at, each in tried.items()}
            self._earlier[tp] = self._earlier[tp]._replace(
                attempted=attempted.get(tp),
                failures={**dict(part.ledger.failures_from(0)), **failures},
                reasons={at: each.last for at, each in tried.items() if each.last is not None},
                timeouts={at: each.timeouts for at, each in tried.items() if each.timeouts},
            )

    def expect(self) -> None:
        """To be called before each poll."""
        self.listener.expect(self.parts.keys() | self._aside.keys())

    def apply_callbacks(self) -> bool:
        """Apply the recorded callbacks; return whether any partition changed hands. Asks no broker."""
        facts: list[Fact[TopicPartition]] = []
        while self.listener.facts:
            facts.append(self.listener.facts.popleft())
        if not facts:
            return False
        changes = self.epochs.apply(facts)
        # Sorted, so that partitions take turns in a fixed order and a run can be repeated.
        for tp in sorted(changes.forgotten):
            self._forget(tp)
        for tp in (*sorted(self.epochs.aside), *sorted(changes.returned)):
            if tp in self.parts:
                self._aside[tp] = self.parts.pop(tp)
        for tp in sorted(changes.gained):
            # It may have been ours, lost and regained within one poll: that is a new epoch.
            self._forget(tp)
            self._unstarted.add(tp)
        self._unverified |= changes.returned & self._aside.keys()
        for tp in sorted(changes.returned - self._aside.keys()):
            # Its state was dropped with its transaction: late acks of that epoch must not count in this one.
            self.epochs.renew(tp)
            self._unstarted.add(tp)
        self._unstarted &= set(self.epochs.owned)
        self._unverified &= set(self.epochs.owned)
        return True

    def start_partitions(self) -> set[TopicPartition]:
        """Start new partitions and take back returned ones; return the started ones.

        Raises:
            KafkaError: the broker did not answer; call again.
            DataLossError: records that were not processed are gone, and ``kafka.on_data_loss`` says ``fail``.
        """
        if not self._unstarted and not self._unverified:
            return set()
        wanted = self._unstarted | self._unverified
        topic_ids = self._topic_ids({tp.topic for tp in wanted})
        check = None if self._ages is None else partial(self._refuse_live, topic_ids, self._ages)
        committed = claim(self._consumer, wanted, check)
        for tp in sorted(self._unverified):
            self._take_back(tp, committed.get(tp), topic_ids[tp.topic])
        started = set(self._unstarted)
        if started:
            self._start_all(committed, topic_ids)
        return started

    def _refuse_live(self, topic_ids: Mapping[str, str], ages: Ages, committed: Committed) -> None:
        new = {tp: commit for tp, commit in committed.items() if tp not in self._earlier}
        self._notes.refuse_live(new, topic_ids, ages, self._settings["commit_period_ms"] / 1000)

    def suspect_topics(self) -> None:
        """Make the next :meth:`check_topics` ask: a failed poll may mean that a topic was deleted."""
        self.topics_due = 0

    def check_topics(self, now: int) -> None:
        """Periodically drop the partitions of a topic that was deleted and created again.

        :meth:`start_partitions` starts them anew. Call it before committing or updating a topic's state. One request,
        however many topics.

        Raises:
            KafkaError: the broker did not answer.
            BrokerError: a bounded run waits for a topic that no longer exists.
        """
        if now < self.topics_due:
            return
        wanted = self._bounds.topics if self._bounds is not None else set()
        known = self._read | wanted
        if not known:
            return
        self.unanswered_at = now
        topic_ids = self._consumer.topic_ids(known)
        gone = [topic for topic in known if not topic_ids.get(topic) and not self._consumer.partitions_for(topic)]
        self.unanswered_at = -1
        self.topics_due = now + SAME_TOPICS_MS
        for tp, part in list(self.parts.items()):
            if another(part.topic_id, topic_ids.get(tp.topic, "")):
                self._begin_again(tp)
        if self._bounds is not None:
            self._bounds.miss([topic for topic in gone if topic in wanted], now)
        self._warn_of_deleted(gone, now)

    def _warn_of_deleted(self, gone: Collection[str], now: int) -> None:
        """Warn once that a topic was deleted, and once that it is back; a single answer proves nothing."""
        for topic in sorted(self._warned_of.difference(gone)):
            self._log.warning("%s is there again", topic)
        self._warned_of.intersection_update(gone)
        self._gone_since = {topic: self._gone_since.get(topic, now) for topic in gone}
        for topic, since in sorted(self._gone_since.items()):
            if now - since >= SAME_TOPICS_MS and topic not in self._warned_of:
                self._warned_of.add(topic)
                self._log.warning("%s was deleted: none of it is read until it exists again", topic)

    def check_log(self, now: int, cut: Mapping[TopicPartition, int | None]) -> None:
        """A position is outside the log: find the partitions, and apply ``kafka.on_data_loss``.

        Args:
            cut: partitions that the broker reports as truncated, each with the new end, if known.

        Raises:
            KafkaError: the broker did not answer.
            DataLossError: as in :meth:`start_partitions`.
        """
        self.suspect_topics()
        self.check_topics(now)
        if not self.parts:
            return
        begins = self._consumer.beginning_offsets(self.parts.keys())
        ends = self._consumer.end_offsets(self.parts.keys())
        for tp, part in list(self.parts.items()):
            if tp in cut:
                at = cut[tp]
                self._restart_truncated(part, begins[tp], ends[tp] if at is None else min(at, ends[tp]))
            elif part.cursor.reading < begins[tp]:
                self._loss.skip(part.ledger, tp, begins[tp], ends[tp])
                part.cursor.skip_below(part.ledger.next)
                part.forget_done()
                part.cursor.sought = None
                part.cursor.seek(self._consumer, max(begins[tp], part.ledger.next))
            elif max(part.cursor.reading, part.ledger.next) > ends[tp]:
                self._restart_truncated(part, begins[tp], ends[tp])

    # --- inside ---

    def _forget(self, tp: TopicPartition) -> None:
        for holder in (self.parts, self._aside):
            if (part := holder.pop(tp, None)) is not None:
                self.by_key.pop(part.key, None)
                last, why = part.commits.last, dict(part.last_failures)
                self._earlier[tp] = Earlier(part.topic_id, part.ledger.pending, last, reasons=why)
        self._unstarted.discard(tp)
        self._unverified.discard(tp)

    def _begin_again(self, tp: TopicPartition) -> None:
        """Restart a partition in a new epoch, without its earlier state."""
        for holder in (self.parts, self._aside):
            if (part := holder.get(tp)) is not None:
                part.cursor.skip_all()  # any remaining reference to it finds no records to emit
        self._forget(tp)
        self.epochs.renew(tp)
        self._consumer.pause([tp])
        self._unstarted.add(tp)

    def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the topics' ids, empty if the brokers have none; raise if a topic is missing at the moment."""
        found = dict(self._consumer.topic_ids(topics))
        for topic in topics:
            if not found.get(topic):
                if not self._consumer.partitions_for(topic):
                    raise errors.UnknownTopicOrPartitionError(topic)
                found[topic] = self._consumer.topic_id(topic)
        return found

    def _take_back(self, tp: TopicPartition, committed: OffsetAndMetadata | None, topic_id: str) -> None:
        """Resume a returned partition, or restart it if another member has committed for it or its topic is new."""
        part = self._aside[tp]
        self._unverified.discard(tp)
        found = None if committed is None else (committed.offset, committed.metadata)
        if found == part.commits.last and not another(part.topic_id, topic_id):
            self.parts[tp] = self._aside.pop(tp)
            part.cursor.put_back(self._consumer)
            part.cursor.seek(self._consumer, part.cursor.reading)
            self._consumer.resume([tp])
            return
        self._begin_again(tp)

    def _start_all(self, committed: Committed, topic_ids: Mapping[str, str]) -> None:
        fresh = sorted(self._unstarted)
        logs = self._starts.ask(self._consumer, fresh)
        new = {tp: committed.get(tp) for tp in fresh if tp not in self._earlier}
        self._notes.look(new, topic_ids)
        for tp in fresh:
            commit, topic_id = committed.get(tp), topic_ids[tp.topic]
            beginning = self._starts.decide(tp, commit, topic_id, logs, self._earlier.get(tp, NEVER_OURS))
            self._start(tp, topic_id, beginning, commit, (logs.begins[tp], logs.ends[tp]))

    def _start(
        self,
        tp: TopicPartition,
        topic_id: str,
        beginning: Beginning,
        commit: OffsetAndMetadata | None,
        log: tuple[int, int],  # where it begins and ends
    ) -> None:
        settings = self._settings
        ledger, cursor = beginning.ledger, PartitionCursor(tp, beginning.ledger.next)
        part = Partition(
            tp=tp,
            topic_id=topic_id,
            epoch=self.epochs.epoch(tp),
            ledger=ledger,
            cursor=cursor,
            retry_cache=RetryCache(settings["retry_cache_bytes"]),
            commits=CommitState(None if commit is None else (commit.offset, commit.metadata)),
            log_begin=log[0],
            log_end=log[1],
            isolation=CrashIsolation(ledger, cursor, beginning.isolation, beginning.killed_by, beginning.behind_until),
            **self._mode.makers(settings, tp.topic, topic_id)._asdict(),
            breaker=Breaker(settings["breaker_ratio"]),
            on_compacted=self.on_compacted,
            tried={} if self.in_transactions else None,
            timed_out=dict(self._earlier.get(tp, NEVER_OURS).timeouts),
        )
        self.parts[tp] = part
        self.by_key[part.key] = part
        if topic_id:
            self._read.add(tp.topic)
        self._unstarted.discard(tp)
        earlier = self._earlier.pop(tp, NEVER_OURS)
        part.last_failures.update(
            {offset: why for offset, why in earlier.reasons.items() if offset in ledger.earlier_failures}
        )
        part.cursor.seek(self._consumer, part.cursor.reading)
        self._consumer.resume([tp])

    def _restart_truncated(self, part: Partition, begin: int, end: int) -> None:
        start = self._loss.restart(part.tp, max(part.cursor.reading, part.ledger.next), begin, end)
        tp, commit = part.tp, part.commits.last
        self._forget(tp)
        self.epochs.renew(tp)
        known = None if commit is None else OffsetAndMetadata(*commit, -1)
        self._start(tp, part.topic_id, Beginning(PartitionLedger(start, self._backoff)), known, (begin, end))
        if self._bounds is not None:
            self.parts[tp].cursor.stop = self._bounds.cut(tp, end)


REFRESH_MS = 2_000  # How often a task with ``kafka.mode=assign`` looks for new topics and partitions


def partitions_to_read(consumer: ConsumerPort, settings: Mapping[str, Any]) -> list[TopicPartition]:
    """Return the partitions that all tasks together read."""
    return named_alone(settings, partitions_of(consumer, topics_of(consumer, settings)))


def follow_partitions(
    consumer: ConsumerPort, assignment: PartitionAssignment, setup: Setup, now: int
) -> AssignedShare | None:
    """Subscribe, so that the first poll joins the group; or, with ``kafka.mode=assign``, return the task's share."""
    if not setup.joins:
        return AssignedShare(consumer, assignment, setup, now)
    if topics := setup.settings["topics"]:
        consumer.subscribe(topics, assignment.listener)
    else:
        consumer.subscribe_pattern(setup.settings["pattern"], assignment.listener)
    return None


class AssignedShare:
    """The share of the partitions that a task's number determines."""

    def __init__(self, consumer: ConsumerPort, assignment: PartitionAssignment, setup: Setup, now: int) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._setup = setup
        self._index, self._tasks = setup.index, setup.tasks
        self._due = now
        self._reported = False

    def refresh(self, now: int, hand_over: Callable[[], bool]) -> None:
        """Every REFRESH_MS, take the partitions that joined the share, and hand over those that left it.

        Args:
            hand_over: commits; returns whether that succeeded.

        Raises:
            KafkaError: the broker did not answer.
        """
        if now < self._due:
            return
        wanted = frozenset(share(self._partitions(), self._index, self._tasks))
        mine = self._consumer.assignment()
        if mine - wanted and not hand_over():
            return  # the next call tries again
        self._due = now + REFRESH_MS
        if wanted == mine and self._reported:
            return
        self._reported = True
        listener = self._assignment.listener
        self._assignment.expect()
        if mine - wanted:
            listener.on_partitions_revoked(mine - wanted)
        self._consumer.assign(wanted)
        listener.on_partitions_assigned(wanted - mine)

    def _partitions(self) -> list[TopicPartition]:
        return partitions_to_read(self._consumer, self._setup.settings)


def share(partitions: Iterable[TopicPartition], index: int, tasks: int) -> list[TopicPartition]:
    """Return the partitions of one task: the reference's round robin over all in order.

    >>> eleven = [TopicPartition("t", number) for number in range(11)]
    >>> [[tp.partition for tp in share(eleven, index, 3)] for index in range(3)]
    [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    """
    return sorted(partitions)[index::tasks]
