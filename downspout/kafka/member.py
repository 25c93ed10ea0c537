"""One stay of a spout in its consumer group, from the join to the leave: what is ours, committed, and handed on.

Before a planned hand-over the member drains: it polls nothing and waits, for some calls of ``next_tuple`` and at most
``kafka.drain_ms_max``, until what is out is acked; then it commits, and only then lets the consumer give its
partitions up. Nobody is waited for inside a call: on Storm the acks come through the same pipe.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kafka import errors

from downspout.kafka import committing
from downspout.kafka.bounds import Bounds
from downspout.kafka.giving_up import GivingUp
from downspout.kafka.hooks import Hooks
from downspout.kafka.membership import Membership
from downspout.kafka.patience import Patience, describe
from downspout.kafka.port import Cluster, ConsumerPort
from downspout.kafka.reading import Reader
from downspout.kafka.source import open_consumer, source_of
from downspout.kafka.spout_setup import Setup
from downspout.kafka.spout_state import Figures, Partition, Timer

__all__ = ["Means", "Member"]

FIRST_COMMIT_DELAY_MS = 500
"""The reference's first commit comes this much later than one period."""
DRAINED = -1
TURN_MS_MAX = 900
"""A turn that has taken so long asks the broker nothing more: one question may take 4 s, and no call more than 5 s."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a member works with, and what outlives its stay.

    Attributes:
        setup: the checked settings.
        figures: where all is counted.
        hooks: the user's listener.
        giving_up: takes records that fail for good.
        poll_patience: takes the client's errors while reading.
        commit_patience: takes those of commits.
        commit_timer: when the next commit is due.
        log: where warnings go.
        now: the time in ms.
    """

    setup: Setup
    figures: Figures
    hooks: Hooks
    giving_up: GivingUp
    poll_patience: Patience
    commit_patience: Patience
    commit_timer: Timer
    log: logging.Logger
    now: Callable[[], int]

    @classmethod
    def of(
        cls,
        setup: Setup,
        figures: Figures,
        hooks: Hooks,
        giving_up: GivingUp,
        log: logging.Logger,
        now: Callable[[], int],
    ) -> Means:
        """Add patience and a timer."""
        bootstrap, period = setup.settings["bootstrap"], setup.guarantee.period_ms(setup.settings)
        return cls(
            setup,
            figures,
            hooks,
            giving_up,
            poll_patience=Patience("poll", bootstrap, figures, log),
            commit_patience=Patience("commit", bootstrap, figures, log),
            commit_timer=Timer(period, now(), FIRST_COMMIT_DELAY_MS),
            log=log,
            now=now,
        )

    @property
    def patiences(self) -> tuple[Patience, Patience]:
        """What knows whether the brokers answer."""
        return self.poll_patience, self.commit_patience

    def is_late(self, since: int) -> bool:
        """Return whether the turn that began at ``since`` should ask the broker nothing more; the next one will."""
        return self.now() - since > TURN_MS_MAX


class Member:
    """A consumer, the partitions that are ours, and how they are read; the first poll joins the group.

    Args:
        cluster: where.
        means: what outlives the stay.
        earlier: the stay before, whose epochs and, in a bounded run, whose ends go on.

    Raises:
        BrokerError: no broker answers, or a bounded run lacks a topic.
    """

    def __init__(self, cluster: Cluster, means: Means, earlier: Member | None = None) -> None:
        setup, figures = means.setup, means.figures
        bounds = earlier.bounds if earlier is not None else None
        last_epoch: int = earlier.membership.last_epoch if earlier is not None else 0
        self._means = means
        self.consumer: ConsumerPort
        self.bounds: Bounds | None
        self.consumer, self.bounds = open_consumer(cluster, setup, bounds, means.log)
        now, settings = means.now(), setup.settings
        figures.uncommitted = figures.retry_later = 0
        self.membership: Membership = Membership(
            self.consumer, settings, setup.identity, figures, means.log, last_epoch, self.bounds
        )
        self.membership.on_compacted = means.hooks.done
        self._source = source_of(self.consumer, self.membership, setup, now)
        self.reader = Reader(self.consumer, self.membership, settings, figures, means.poll_patience, means.now)
        self.turns: deque[Partition] = deque()
        """Partitions with records to emit, the next one first."""
        self._drain_until: int | None = None

    @property
    def parts(self) -> list[Partition]:
        """Return what is ours now."""
        return list(self.membership.parts.values())

    @property
    def idle(self) -> bool:
        """Return whether nothing is out."""
        return not any(part.ledger.in_flight for part in self.membership.parts.values())

    @property
    def draining(self) -> bool:
        """Return whether a hand-over waits for what is out."""
        return self._drain_until is not None and self._drain_until != DRAINED

    @property
    def handed_over(self) -> bool:
        """Return whether all is committed for others, and a rebalance has yet to tell what stays with us."""
        return self._drain_until == DRAINED

    # --- what changes hands ---

    def settle(self, now: int) -> None:
        """Act on what the rebalance listener has written down."""
        membership, means = self.membership, self._means
        if means.poll_patience.waits(now):
            self.catch_up()
            return
        try:
            if self.bounds is not None:
                membership.check_topics(now)  # what follows may fail for a topic that is gone, and no poll would look
            self._source.refresh(now, lambda: self._hand_over(now))
            self.catch_up()
            if not membership.settled and membership.settle():
                # A start that is not committed would be decided again after a crash: under LATEST that loses records.
                means.commit_timer.expedite()
            if self.bounds is not None:
                self.bounds.bound(self.consumer, membership.parts)
            if means.hooks and membership.settled:
                means.hooks.reassigned(frozenset(membership.parts))
        except errors.KafkaError as error:
            means.poll_patience.bear(error, means.now())

    def catch_up(self) -> None:
        """Learn what has changed hands since the last poll. What that poll brought was dropped, so read it again."""
        if not self.membership.fold():
            return
        self.turns.clear()
        for part in self.membership.parts.values():
            part.drop_waiting(self.consumer)
            part.seek(self.consumer, part.reading)

    def put_back(self) -> None:
        """Drop what was polled and not emitted; it will be read again, by us or by another member."""
        self.turns.clear()
        self.catch_up()
        for part in self.membership.parts.values():
            part.drop_waiting(self.consumer)

    def _hand_over(self, now: int) -> bool:
        """Before partitions go that nobody waits for: commit what is done; return whether it is committed."""
        self.put_back()
        self._means.giving_up.finish(self._means.now, self.membership)
        if not self.commit(now, last=True):
            return False
        self._means.commit_timer.expedite()  # as in drains
        return True

    def drains(self, now: int) -> bool:
        """Before a planned hand-over: return whether this call should do nothing but wait for acks.

        Drained, or out of time, the member commits, and polls from then on, but for no records: that lets the join
        complete. What is not acked by now goes to the next owner.
        """
        if not self.consumer.rejoin_pending():
            if self._drain_until is not None:
                self._drain_until = None
                self._means.commit_timer.expedite()  # what has stayed with us was handed over, by its last commit
            return False
        if self._drain_until is None:
            self._drain_until = now + self._means.setup.settings["drain_ms_max"]
            self.put_back()
        if self.handed_over:
            return False
        in_time = now < self._drain_until
        if in_time and (self._means.giving_up.out or not self.idle):
            return True
        if not self.commit(now, last=True) and in_time:
            return True
        self._drain_until = DRAINED
        return False

    # --- what is committed ---

    def commit(self, now: int, wait: bool = True, last: bool = False, leaving: bool = False) -> bool:
        """Commit what has changed; return whether the broker has it all, or with ``wait=False`` was told it all.

        With ``last``, or between a drain and the rebalance that it is for, the partitions are handed on in order. With
        ``leaving`` only this process ends in order; others, in which bolts run, may have died.
        """
        means = self._means
        if means.commit_patience.waits(now):
            return False
        means.commit_timer.restart(now)
        self.catch_up()
        try:
            self.membership.check_topics(now)
            parts, identity = self.membership.parts.values(), means.setup.identity
            if means.setup.guarantee.tracks:
                last = last or self.handed_over
                leniency = self._leniency(last or leaving)
                committing.commit(self.consumer, parts, identity, now, last=last, leniency=leniency)
            else:
                committing.commit_positions(self.consumer, parts, identity, now, wait)
        except errors.KafkaError as error:
            means.commit_patience.bear(error, means.now())
            means.commit_timer.expedite()
            return False
        means.commit_patience.succeeded(means.now())
        return True

    def _leniency(self, ends: bool) -> committing.Leniency | None:
        """Return what a commit keeps back of failed attempts; with an open breaker each may be the last."""
        tripped = self._means.giving_up.tripped
        retries_max = self._means.setup.settings["retries_max"]
        return committing.Leniency(retries_max, tripped) if ends or tripped else None

    def commit_last(self, now: int) -> None:
        """Commit before the group is left: there is no later commit. What is left to do, or to say, is counted."""
        means = self._means
        means.figures.retry_later = sum(part.ledger.failed for part in self.membership.parts.values())
        committed = self.commit(now, last=True)
        if not committed and not means.is_late(now):
            # One that failed for the moment is worth one more try at once.
            means.commit_patience.succeeded()
            committed = self.commit(now, last=True)
        if not committed:
            means.figures.uncommitted = self._uncommitted()

    def _uncommitted(self) -> int:
        """Return how many offsets were done with, or are out, and are not committed: they come again."""
        ledgers = [part.ledger for part in self.membership.parts.values()]
        if self._means.setup.guarantee.tracks:
            return sum(ledger.outstanding for ledger in ledgers)
        return sum(ledger.next - ledger.base for ledger in ledgers)

    # --- the end ---

    def close(self) -> None:
        """Leave the group: others get the partitions at once."""
        try:
            self.consumer.close(leave_group=True)
        except errors.KafkaError as error:
            self._means.log.warning("leaving group %s failed: %s", self._means.setup.group, describe(error))

    def exhausted(self) -> bool:
        """Bounded run: return whether all of our partitions is emitted; acks may be outstanding."""
        parts = self.membership.parts.values()
        return self.membership.settled and all(part.read_to_end(self.consumer) for part in parts)

    def finished(self) -> bool:
        """Bounded run: return whether all is acked, so that there is no need to wait for the timer."""
        parts = self.membership.parts.values()
        return (
            self.bounds is not None
            and any(part.commit is None or part.commit[0] < (part.stop or 0) for part in parts)
            and not any(part.ledger.pending for part in parts)
            and self.exhausted()
        )

    def end_reached(self) -> bool:
        """Bounded run: return whether the group has committed up to the end of all partitions of the topics."""
        means = self._means
        if self.bounds is None or not self.membership.settled:
            return False
        try:
            return self.bounds.reached(self.consumer, self.membership.parts, means.now())
        except errors.KafkaError as error:
            means.poll_patience.bear(error, means.now())
            return False
