"""A session of a spout in its consumer group, from join to leave: partitions, commits, hand-overs.

Before a planned hand-over the session drains: it stops polling and waits, for some calls of ``next_tuple`` and at most
``kafka.drain_ms_max``, until all records in flight are acked. Then it commits, and only then lets the consumer release
its partitions. No call blocks: on Storm the acks come through the same pipe.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import Enum
from functools import partial

from kafka import errors

from downspout.errors import BrokerError, coordinates
from downspout.kafka.port import Cluster, ConsumerPort, TopicPartition
from downspout.kafka.retry_gate import THROWN_OUT, RetryGate, cure_of, describe
from downspout.kafka.unreadable import Limits
from downspout.spout.assignment import PartitionAssignment, follow_partitions, partitions_to_read
from downspout.spout.commit_stores import noted_commits, stored_commits
from downspout.spout.committing import (
    AsyncCommits,
    CommitFailurePolicy,
    Due,
    commit_acked,
    commit_positions,
    due_commits,
)
from downspout.spout.dead_lettering import DeadLettering
from downspout.spout.partition import Partition
from downspout.spout.polling import PollReader
from downspout.spout.ports import KAFKA, Hooks, SpoutMetrics, StoreContext, open_store
from downspout.spout.settings import Identity, Setup, offsets_of, partitions_named
from downspout.spout.spout_transactions import SpoutTransactions
from downspout.spout.starting import EndOffsets, missing_topics, no_partition, no_topic, refuse_other_topologies

FIRST_COMMIT_DELAY_MS = 500  # The reference's first commit comes this much later than one period
TURN_MS_MAX = 900
"""A turn that has taken this long sends no more requests: one may take 4 s, and no call more than 5 s."""


class SpoutServices:
    """What a session uses and what outlives it: checked settings, counters, gates for the client's errors."""

    def __init__(
        self,
        setup: Setup,
        metrics: SpoutMetrics,
        hooks: Hooks,
        dead_lettering: DeadLettering,
        log: logging.Logger,
        now: Callable[[], int],
        transactions: SpoutTransactions | None = None,
    ) -> None:
        bootstrap, period = setup.settings["bootstrap"], setup.guarantee.period_ms(setup.settings)
        if transactions is not None:
            period = setup.settings["transaction_ms"]
        self.setup, self.metrics, self.hooks, self.dead_lettering, self.log = setup, metrics, hooks, dead_lettering, log
        self.now = now  # Returns the time in ms
        self.transactions = transactions  # Makes the commits, if a KafkaBolt is transactional
        self.poll_gate = RetryGate("poll", bootstrap, metrics, log)
        self.commit_gate = RetryGate("commit", bootstrap, metrics, log)
        self.commit_timer = Timer(period, now(), FIRST_COMMIT_DELAY_MS)

    @property
    def gates(self) -> tuple[RetryGate, RetryGate]:
        """The gates that know whether the brokers answer."""
        return self.poll_gate, self.commit_gate

    def is_late(self, since: int) -> bool:
        """Return whether the turn that began at ``since`` should send no more requests; the next turn will."""
        return self.now() - since > TURN_MS_MAX


class Timer:
    """Something that is due every ``period_ms``, first after ``period_ms + delay_ms``.

    >>> timer = Timer(30_000, delay_ms=500, now=0)
    >>> timer.due(30_499), timer.due(30_500)
    (False, True)
    >>> timer.restart(30_500); timer.due(60_499), timer.due(60_500)
    (False, True)
    """

    def __init__(self, period_ms: float, now: int, delay_ms: int = 0) -> None:
        self._period = period_ms
        self._at = now + period_ms + delay_ms

    def due(self, now: int) -> bool:
        """Return whether the time has come."""
        return now >= self._at

    def left_ms(self, now: int) -> float:
        """Return how long it is until then.

        >>> Timer(30_000, now=0).left_ms(29_000)
        1000
        """
        return max(0, self._at - now)

    def restart(self, now: int) -> None:
        """Wait one more period from now."""
        self._at = now + self._period

    def expedite(self) -> None:
        """Be due at once."""
        self._at = 0


class SessionState(Enum):
    """The state of a session; :data:`TRANSITIONS` lists the allowed successors."""

    JOINING = "joining"  # No assignment has arrived, or not all its partitions have started; started ones are read
    RUNNING = "running"  # All our partitions have started
    DRAINING = "draining"  # A rebalance is near: nothing is polled, and tuples in flight have time for their answers
    HANDED_OVER = "handed over"
    """All is committed for the next owners; polls return no records, and let the rebalance go on."""
    LEFT = "left"  # The group is left


TRANSITIONS = {
    SessionState.JOINING: {SessionState.RUNNING, SessionState.DRAINING, SessionState.LEFT},
    SessionState.RUNNING: {SessionState.JOINING, SessionState.DRAINING, SessionState.LEFT},
    SessionState.DRAINING: {SessionState.HANDED_OVER, SessionState.JOINING, SessionState.LEFT},
    SessionState.HANDED_OVER: {SessionState.JOINING, SessionState.LEFT},
    SessionState.LEFT: frozenset[SessionState](),
}
HANDING_OVER = (SessionState.DRAINING, SessionState.HANDED_OVER)


class GroupSession:
    """A consumer, our partitions, and how they are read; the first poll joins the group.

    Args:
        earlier: the previous session; its epochs and, in a bounded run, its ends are continued.

    Raises:
        BrokerError: no broker answers, or a bounded run lacks a topic.
        ConfigError: another topology's members are in the group.
    """

    def __init__(self, cluster: Cluster, services: SpoutServices, earlier: GroupSession | None = None) -> None:
        setup, metrics = services.setup, services.metrics
        bounds = earlier.bounds if earlier is not None else None
        last_epoch: int = earlier.assignment.last_epoch if earlier is not None else 0
        self._services = services  # what outlives it
        self._cluster = cluster
        self.consumer: ConsumerPort
        self.bounds: EndOffsets | None
        self.consumer, self.bounds = open_consumer(cluster, setup, bounds, services.log)
        now, settings = services.now(), setup.settings
        metrics.uncommitted = metrics.retry_later = 0
        self.assignment: PartitionAssignment = PartitionAssignment(
            self.consumer,
            setup,
            metrics,
            services.log,
            last_epoch,
            self.bounds,
            None if setup.joins else partial(cluster.commit_ages, setup.group),
        )
        self.assignment.on_compacted = services.hooks.done
        self.assignment.in_transactions = services.transactions is not None
        self._share = follow_partitions(self.consumer, self.assignment, setup, now)
        self.reader = PollReader(self.consumer, self.assignment, settings, metrics, services.poll_gate, services.now)
        self._sent = AsyncCommits(self.consumer, setup.identity.metadata_limit, services.hooks.committed)
        self._waits_next = False  # Whether the next commit waits for its answer in any case
        self.turns: deque[Partition] = deque()  # Partitions with records to emit, the next one first
        self.state = SessionState.JOINING
        self._drain_until = 0  # While draining: for how long, in ms
        self._has_just_joined = setup.joins  # Whether the other members of the group are not checked yet
        self._is_thrown_out = False  # Whether the last commit was refused because we are no longer a member

    @property
    def parts(self) -> list[Partition]:
        """Return our partitions."""
        return list(self.assignment.parts.values())

    @property
    def active(self) -> list[Partition]:
        """Return our partitions that need more than polling."""
        return [part for part in self.assignment.parts.values() if not part.is_idle]

    def count_in_flight(self) -> int:
        """Return how many records are out. O(partitions)."""
        return sum(part.ledger.in_flight for part in self.assignment.parts.values())

    @property
    def idle(self) -> bool:
        """Return whether no tuple is in flight."""
        return not any(part.ledger.in_flight for part in self.assignment.parts.values())

    @property
    def ends_transaction(self) -> bool:
        """Return whether a transaction ends as soon as all tuples in flight are answered."""
        return self._services.transactions is not None and self._services.transactions.is_wanted

    @property
    def holds_back(self) -> bool:
        """Return whether a transaction that is ending, or has not begun, holds records back."""
        return self._services.transactions is not None and self._services.transactions.holds_back

    def hurries(self, now: int) -> bool:
        """Return whether sinks should flush early: during a search, or while catching up after a death."""
        return any(part.isolation.hurries(now, self.consumer.highwater(part.tp)) for part in self.parts)

    def waits_for_sinks(self, now: int) -> bool:
        """Return whether a hand-over, a transaction's end, a search or the catch-up after a death waits for acks."""
        return self.state is SessionState.DRAINING or self.ends_transaction or self.hurries(now)

    def become(self, state: SessionState) -> None:
        """Change to another state that the table allows."""
        assert state in TRANSITIONS[self.state], f"{self.state} cannot become {state}"
        self.state = state

    # --- what changes hands ---

    def update_assignment(self, now: int) -> None:
        """Process the callbacks that the rebalance listener has recorded."""
        assignment, services = self.assignment, self._services
        if self.state in HANDING_OVER and not self.consumer.rejoin_pending():
            self._end_hand_over()
        if services.poll_gate.waits(now):
            self.catch_up()
            return
        try:
            if self.bounds is not None:
                assignment.check_topics(now)  # what follows may fail for a topic that is gone, and no poll would look
            if self._share is not None:
                self._share.refresh(now, lambda: self._hand_over(now))
            self.catch_up()
            may_start = services.transactions is None or services.transactions.look(self, now)
            if self._has_just_joined and assignment.owned:
                refuse_other_topologies(self._cluster, services.setup, services.log)
                self._has_just_joined = False
            if not assignment.complete and may_start and assignment.start_partitions():
                # A start that is not committed would be decided again after a crash: under LATEST that loses records.
                self._commit_next()
            if self.bounds is not None:
                self.bounds.bound(self.consumer, assignment.parts)
            if self.state is SessionState.JOINING and assignment.complete:
                self.become(SessionState.RUNNING)
                services.hooks.reassigned(frozenset(assignment.parts))
        except errors.UnstableOffsetCommitError as error:
            services.poll_gate.record_error(self._why_held(error), services.now())
        except errors.KafkaError as error:
            services.poll_gate.record_error(error, services.now())

    def _why_held(self, error: errors.UnstableOffsetCommitError) -> errors.UnstableOffsetCommitError:
        """Return an error that names the transactions that block our commits.

        A bolt that restarts ends its former transactions. So these belong to a member that died and has not returned,
        or to another program.
        """
        where = ", ".join(f"{tp.topic}[{tp.partition}]" for tp in error.args[0])
        found = self._cluster.open_transactions(self._services.setup.group)
        if not found:
            return errors.UnstableOffsetCommitError(
                f"a transaction is open on {where}; Kafka ends it after at most its produce.transaction_timeout_ms"
            )
        if lost := [each.transactional_id for each in found if each.is_lost]:
            return errors.UnstableOffsetCommitError(
                f"Kafka considers a transaction of {' or '.join(lost)} ended, but it stays open on {where} for good; "
                "see `kafka-transactions.sh find-hanging`, and abort it on all partitions"
            )
        names, most_s = (
            " or ".join(each.transactional_id for each in found),
            max(each.timeout_ms for each in found) / 1000,
        )
        return errors.UnstableOffsetCommitError(
            f"a transaction of {names} is open on {where}; Kafka ends it after at most {most_s:g} s, or when that run "
            "is started again"
        )

    def catch_up(self) -> None:
        """Apply the rebalance callbacks of the last poll, whose records were dropped, and read those again."""
        has_changed = self.assignment.apply_callbacks()
        self._hear()
        if not has_changed:
            return
        if self._services.transactions is not None:
            self._services.transactions.reset(self)
        if self.state is SessionState.RUNNING:
            self.become(SessionState.JOINING)
        self.turns.clear()
        for part in self.assignment.parts.values():
            part.cursor.put_back(self.consumer)
            part.cursor.seek(self.consumer, part.cursor.reading)

    def restart(self, due: Due) -> None:
        """Restart all partitions from their commits; whether these include ``due`` is unknown."""
        self.assignment.restart({tp: (point, metadata) for tp, (_, point, metadata, _) in due.items()})
        self.turns.clear()
        if self.state is SessionState.RUNNING:
            self.become(SessionState.JOINING)

    @property
    def metrics(self) -> SpoutMetrics:
        """Return the counters of the spout."""
        return self._services.metrics

    @property
    def identity(self) -> Identity:
        """Return the identity of the committer."""
        return self._services.setup.identity

    def put_back(self) -> None:
        """Drop polled records that were not emitted; we, or another member, will read them again."""
        self.turns.clear()
        self.catch_up()
        for part in self.assignment.parts.values():
            part.cursor.put_back(self.consumer)

    def _hand_over(self, now: int) -> bool:
        """Before partitions are handed over without a drain: commit what is done; return whether that succeeded."""
        self.put_back()
        self._services.dead_lettering.finish(self._services.now, self.assignment)
        if not self.commit(now, self._services.setup.hand_overs_wait, last=True):
            return False
        self._commit_next()  # as where a hand-over ends
        return True

    def advance(self, now: int) -> SessionState:
        """Before a planned hand-over: drain, then commit; return the state that this turn is in."""
        if not self.consumer.rejoin_pending():
            if self.state in HANDING_OVER:
                self._end_hand_over()
        elif self.state not in HANDING_OVER:
            self.become(SessionState.DRAINING)
            self._drain_until = now + self._services.setup.settings["drain_ms_max"]
            self.put_back()
        # Once drained or out of time, the session commits, and then polls without reading records, so that the join can
        # complete. Records not acked by now go to the next owner.
        if self.state is SessionState.DRAINING and self._is_drained(now):
            self.become(SessionState.HANDED_OVER)
        return self.state

    def _is_drained(self, now: int) -> bool:
        """Commit if all tuples in flight are answered, or time is up; return whether others may take over."""
        in_time = now < self._drain_until
        if in_time and (self._services.dead_lettering.out or not self.idle):
            return False
        # A removed member (its process was frozen for too long) has nothing to hand over: others have its partitions,
        # and its commits are refused. So it rejoins at once.
        return self.commit(now, self._services.setup.hand_overs_wait, last=True) or not in_time or self._is_thrown_out

    def _end_hand_over(self) -> None:
        """The rebalance is over: the last commit of our remaining partitions says "handed over", so commit again."""
        self.become(SessionState.JOINING)
        self._commit_next()

    # --- what is committed ---

    def _commit_next(self) -> None:
        """Make the next turn commit, and wait for the answer, before any record is emitted."""
        self._waits_next = True
        self._services.commit_timer.expedite()

    def commit(self, now: int, wait: bool = True, last: bool = False, leaving: bool = False) -> bool:
        """Commit what has changed; return whether the broker has it all or, with ``wait=False``, whether it was sent.

        With ``last``, or between a drain and its rebalance, this is an orderly hand-over of the partitions. With
        ``leaving`` only this process ends in order; others, in which bolts run, may have died.
        """
        services = self._services
        if services.commit_gate.waits(now):
            return False
        services.commit_timer.restart(now)
        self.catch_up()
        must_settle = wait or last or self._sent.is_overdue(now)
        if self._sent.is_out and not (must_settle and self._settle()):
            services.commit_timer.expedite()
            return False
        try:
            self.assignment.check_topics(now)
            parts, identity, heard = self.assignment.parts.values(), services.setup.identity, services.hooks.committed
            if services.setup.guarantee.tracks:
                last = last or self.state is SessionState.HANDED_OVER
                policy = self._failure_policy(last or leaving)
                if services.transactions is not None:
                    return services.transactions.commit(self, now, last=last, failure_policy=policy)
                if wait or self._waits_next:
                    commit_acked(self.consumer, parts, identity, now, last=last, failure_policy=policy, heard=heard)
                    self._waits_next = False
                else:
                    self._sent.send(
                        due_commits(self.consumer, parts, identity, now, last=last, failure_policy=policy),
                        now,
                    )
            else:
                commit_positions(self.consumer, parts, identity, now, wait, heard)
        except errors.KafkaError as error:
            self._not_committed(error)
            return False
        if not self._sent.is_out:
            self._committed()
        return True

    def _settle(self) -> bool:
        """Wait for the answer to the pending commit; return whether the broker has it and may get the next one."""
        try:
            self.consumer.commit({})
        except errors.KafkaError as error:
            self._not_committed(error)
            return False
        self._hear()
        return not self._services.commit_gate.waits(self._services.now())

    def _hear(self) -> None:
        """Process the answer to the pending commit, if it has come."""
        if not self._sent.is_answered:
            return
        try:
            if self._sent.take_answer(self.assignment.parts, self._services.now()):
                self._committed()
            else:
                self._services.commit_timer.expedite()
        except errors.KafkaError as error:
            self._not_committed(error)

    def _committed(self) -> None:
        self._is_thrown_out = False
        self._services.commit_gate.succeeded(self._services.now())
        self._services.metrics.uncommitted = 0

    def _not_committed(self, error: errors.KafkaError) -> None:
        services = self._services
        self._is_thrown_out = isinstance(error, THROWN_OUT)
        services.metrics.commits_failed += 1
        services.commit_gate.record_error(error, services.now())
        services.commit_timer.expedite()

    def _failure_policy(self, ends: bool) -> CommitFailurePolicy | None:
        """Return which failed attempts a commit omits; once the breaker is open, any commit may be the last."""
        tripped = self._services.dead_lettering.tripped
        retries_max = self._services.setup.settings["retries_max"]
        return CommitFailurePolicy(retries_max, tripped) if ends or tripped else None

    def commit_last(self, now: int) -> bool:
        """Commit before leaving the group; count uncommitted offsets. Return whether everything is committed."""
        services = self._services
        services.metrics.retry_later = sum(part.ledger.failed for part in self.assignment.parts.values())
        committed = self.commit(now, last=True)
        if not committed and not services.is_late(now):
            # After a transient failure one more try at once is worthwhile.
            services.commit_gate.succeeded()
            committed = self.commit(now, last=True)
        if not committed:
            services.metrics.uncommitted = self._uncommitted()
            # If the group has removed us, others may have committed all of it meanwhile.
            committed = self._is_thrown_out and not services.metrics.uncommitted
        return committed

    def _uncommitted(self) -> int:
        """Return how many offsets are done or out but not committed by any member: they come again."""
        parts = self.assignment.parts
        bases = {tp: part.ledger.base for tp, part in parts.items()}
        if self._is_thrown_out:
            with suppress(errors.KafkaError):
                for tp, commit in self.consumer.committed(parts.keys()).items():
                    bases[tp] = max(bases[tp], commit.offset if commit is not None else 0)
        if self._services.setup.guarantee.tracks:
            return sum(part.ledger.outstanding_from(bases[tp]) for tp, part in parts.items())
        return sum(max(part.ledger.next - bases[tp], 0) for tp, part in parts.items())

    # --- the end ---

    def close(self) -> None:
        """Leave the group: others get the partitions at once."""
        self.become(SessionState.LEFT)
        try:
            self.consumer.close(leave_group=True)
        except errors.KafkaError as error:
            self._services.log.warning("leaving group %s failed: %s", self._services.setup.group, describe(error))

    def exhausted(self) -> bool:
        """Bounded run: return whether all records of our partitions are emitted; acks may be outstanding."""
        parts = self.assignment.parts.values()
        return self.assignment.complete and all(part.read_to_end(self.consumer) for part in parts)

    def finished(self) -> bool:
        """Bounded run: return whether all records are acked, so that the commit need not wait for the timer."""
        parts = self.assignment.parts.values()
        return (
            self.bounds is not None
            and any(part.commits.offset < (part.cursor.stop or 0) for part in parts)
            and not any(part.ledger.pending for part in parts)
            and self.exhausted()
        )

    def end_reached(self) -> bool:
        """Bounded run: return whether the group has committed up to the end of all partitions of the topics."""
        services = self._services
        if self.bounds is None or not self.assignment.complete:
            return False
        try:
            return self.bounds.reached(self.consumer, self.assignment.parts, services.now())
        except errors.KafkaError as error:
            services.poll_gate.record_error(error, services.now())
            return False


def open_consumer(
    cluster: Cluster, setup: Setup, bounds: EndOffsets | None, log: logging.Logger
) -> tuple[ConsumerPort, EndOffsets | None]:
    """Make a consumer and check its topics; return it and, in a bounded run, the end offsets.

    Args:
        bounds: the end offsets of an earlier consumer of the same run; they are kept.
    """
    bootstrap, topics = setup.settings["bootstrap"], setup.settings["topics"] or []
    try:
        consumer = cluster.consumer(
            group=setup.group,
            instance_id=setup.instance if setup.joins else None,
            client=setup.client,
            auto_commit_ms=setup.guarantee.auto_commit_ms(setup.settings),
            columns=setup.mode.columns,
        )
        if (gathering := setup.mode.gathering(setup.settings["client"])) is not None:
            consumer.gather(gathering)
        consumer.note_aborted()
        consumer.tolerate(
            Limits.of(setup.settings["record_bytes_max"]),
            corrupt=setup.settings["on_corrupt_batch"] == "dead_letter",
        )
        missing = missing_topics(consumer, topics)
        if missing and setup.bounded:
            raise no_topic(missing[0], bootstrap)
        unknown = unknown_partitions(consumer, setup, missing)
        if unknown and setup.bounded:
            raise no_partition(*unknown[0], bootstrap)
        if setup.bounded and bounds is None:
            stops = offsets_of("kafka.stop_offsets", setup.settings["stop_offsets"])
            bounds = EndOffsets.of(consumer, partitions_to_read(consumer, setup.settings), stops)
            for tp, end in bounds.short.items():
                log.warning("%s ends at %d, before kafka.stop_offsets; the run stops there", coordinates(*tp), end)
    except errors.KafkaError as error:
        raise BrokerError(
            f"{bootstrap}: cannot read: {describe(error)}",
            cure=cure_of(error, "start the broker, or set kafka.bootstrap"),
        ) from error
    for topic in missing:
        log.warning("topic %s does not exist on %s; waiting for it", topic, bootstrap)
    for setting, tp in unknown:
        log.warning("%s names %s, which does not exist on %s", setting, coordinates(*tp), bootstrap)
    try:
        refuse_other_topologies(cluster, setup, log)
        return _with_store(consumer, cluster, setup, log), bounds
    except BaseException:
        consumer.close()
        raise


def _with_store(consumer: ConsumerPort, cluster: Cluster, setup: Setup, log: logging.Logger) -> ConsumerPort:
    """Return the consumer with its commits in the store that ``kafka.offset_store`` names."""
    settings = setup.settings
    if (location := settings["offset_store"]) == KAFKA:
        return noted_commits(consumer, setup, log)
    topics: list[str] = settings["topics"] or []
    context = StoreContext(
        setup.group,
        setup.topology,
        setup.identity.topology_id,
        settings["offset_store_password"],
        cluster,
        topic=topics[0] if len(topics) == 1 else "",
    )
    store = open_store(location, context)
    found: ConsumerPort = stored_commits(
        consumer, store, setup.group, log, adopt=settings["offset_store_adopt"], joins=setup.joins
    )
    return found


def unknown_partitions(
    consumer: ConsumerPort, setup: Setup, missing: Collection[str]
) -> list[tuple[str, TopicPartition]]:
    """Return each partition that a setting names but that does not exist, with the setting; not of missing topics.

    Missing topics get their own warning, and a topic that a pattern matches may appear later.
    """
    named = [
        (key, tp)
        for key in ("kafka.start_offsets", "kafka.stop_offsets")
        for tp in offsets_of(key, setup.settings[key.removeprefix("kafka.")])
    ]
    some = partitions_named(setup.settings["partitions"])
    named += [("kafka.partitions", TopicPartition(topic, number)) for topic in some for number in sorted(some[topic])]
    named = [(key, tp) for key, tp in named if tp.topic not in missing]
    known = {topic: consumer.partitions_for(topic) for topic in {tp.topic for _, tp in named}}
    return [(key, tp) for key, tp in named if tp.partition not in known[tp.topic]]
