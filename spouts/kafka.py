"""KafkaSpout: records of a consumer group as tuples, resumed where it left off, by default each at least once.

One call of :meth:`KafkaSpout.next_tuple` is one turn of the loop:

    rebalance work → dead letters → commit → poll → emit

It follows Apache Storm's ``storm-kafka-client``. What happened to each record is kept in ``downspout.ledger``; this
file connects it with Storm's callbacks on one side and with the consumer port (``downspout.kafka.port``) on the other.

* The commit is the next offset to read: the lowest that is not done. What is done beyond it travels in the commit's
  metadata, so neither a restart nor a rebalance repeats it.
* A failed record is read again: the consumer seeks back to the lowest one whose back-off is over.
* Before a planned hand-over the spout drains: it polls nothing, waits some calls for acks, commits, and only then
  lets the consumer give its partitions up.
* So it is under AT_LEAST_ONCE. The other guarantees are in ``downspout.kafka.guarantee``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import streamparse
from kafka import errors
from streamparse import Stream
from streamparse.dsl.spout import ShellSpoutSpec

from downspout import config as configuration
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.component import Failure
from downspout.errors import BrokerError
from downspout.kafka import committing
from downspout.kafka.bounds import Bounds
from downspout.kafka.deadletter import DeadLetters
from downspout.kafka.giving_up import GivingUp
from downspout.kafka.guarantee import Untracked
from downspout.kafka.hooks import Hooks
from downspout.kafka.membership import Membership
from downspout.kafka.patience import Patience, describe
from downspout.kafka.port import ConsumerPort, cluster_for
from downspout.kafka.reading import Reader
from downspout.kafka.source import open_consumer, source_of
from downspout.kafka.spout_report import summarise
from downspout.kafka.spout_setup import Setup, lag_config
from downspout.kafka.spout_state import Figures, Partition, Timer
from downspout.kafka.tracked import Tracked
from downspout.kafka.translate import streams
from downspout.wire import Wired, WireError

FIRST_COMMIT_DELAY_MS = 500
"""The reference's first commit comes this much later than one period."""
DRAINED = -1
JOIN_AGAIN_MS = 2_000
"""How long ``next_tuple`` leaves a broker alone that did not answer when the group was to be joined again."""
UNATTENDED_MS = 1_000
"""After so long without ``next_tuple`` (max spout pending is reached), acks and fails look at the timers."""
TURN_MS_MAX = 900
"""A turn that has taken so long asks the broker nothing more: one question may take 4 s, and no call more than 5 s."""
LOOK_UP_MASK = 15
"""Every 16th ack looks at the clock."""


class KafkaSpout(Wired, streamparse.Spout):
    """Emits the records of Kafka topics; see ``downspout settings`` for what can be set (``kafka.…``).

    >>> spec = KafkaSpout.spec(topics=["orders"], fields=["key", "value", "origin"])
    >>> spec.outputs["default"].output_fields
    ['key', 'value', 'origin']
    """

    outputs: ClassVar[list[str]] = list(configuration.SETTINGS["kafka.fields"].default)
    settings_scopes: ClassVar[tuple[str, ...]] = ("kafka",)
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def spec(
        cls, name: str | None = None, par: int | None = None, config: dict[str, Any] | None = None, **settings: Any
    ) -> ShellSpoutSpec:
        """Put the spout into a topology.

        Args:
            name: default: the name of the topology's attribute.
            par: how many tasks; each is a member of the consumer group.
            config: Storm's settings for this component, and ours by their whole names.
            settings: ours without ``kafka.``: ``topics=["orders"], start="LATEST"``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range.
        """
        given = {**(config or {}), **configuration.component_config("kafka", settings)}
        parsed = configuration.parse_scope(given, "kafka", "spec")
        return ShellSpoutSpec(
            cls,
            command="streamparse_run",
            script=f"{cls.__module__}.{cls.__name__}",
            name=name,
            par=par,
            config={**lag_config(parsed), **given},
            outputs=[Stream(list(fields), name=stream) for stream, fields in streams(parsed).items()],
        )

    # --- life cycle ---

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings and look at the topics; the group is joined by the first poll.

        Raises:
            ConfigError: the settings make no sense.
            BrokerError: no broker answers, or a bounded run lacks a topic.
        """
        self._log = self.logger or logging.getLogger(__name__)
        self._setup = Setup.of(storm_conf, context)
        self._settings = settings = self._setup.settings
        self._setup.warn(self._log)
        self._figures = Figures()
        self._hooks = Hooks.of(settings["listener"], storm_conf, context, self._log)
        self._cluster = cluster_for(settings["bootstrap"])
        topic = self._setup.dead_letter_topic
        letters = DeadLetters(self._cluster, topic) if topic else None
        self._giving_up = GivingUp(letters, self._figures, self._log, self._hooks.given_up, self._setup.bounded)
        self._poll_patience = Patience("poll", settings["bootstrap"], self._figures, self._log)
        self._commit_patience = Patience("commit", settings["bootstrap"], self._figures, self._log)
        self._guarantee = self._setup.guarantee
        known = (settings, self._figures, self._giving_up, self._hooks, self.component_name or "", self.clock.wall)
        self._tracked = Tracked(*known)
        self._untracked = Untracked(*known, self._log)
        self._commit_timer = Timer(self._guarantee.period_ms(settings), self._now(), FIRST_COMMIT_DELAY_MS)
        self._turns: deque[Partition] = deque()
        self._consumer: ConsumerPort | None = None
        self._membership: Membership = None  # type: ignore[assignment]   # made by _join
        self._bounds: Bounds | None = None
        self._ended, self._active, self._idle = False, True, True
        self._drain_until: int | None = None
        self._next_at = self._join_at = self._now()
        # Without ackers Storm acks inside emit: over the pipe, one command within the other, for all tuples of a call.
        self._unasked: list[str] | None = [] if self.on_wire and _without_ackers(storm_conf) else None
        self._join()

    def activate(self) -> None:
        """Go on after ``deactivate``, joining the group again if it was left."""
        self._active = True
        self._join_again(self._now())

    def deactivate(self) -> None:
        """Commit. Once nothing is out (acks are still taken), commit again and leave the group.

        A broker that stays silent keeps nobody waiting: then the spout remains a member, and knows what it knew.
        """
        self._active = False
        self._put_back()
        self._giving_up.finish(self._now, self._membership)
        now = self._now()
        self._commit(now)
        if not self._is_late(now):
            self._leave_if_idle()

    def close(self) -> None:
        """Commit what is done and leave the group."""
        if self._consumer is not None:
            self._put_back()
            self._leave(for_good=True)
        self._giving_up.close()

    def before_exit(self) -> None:
        """On Storm, before the process ends: commit what is done. The place in the group is kept for a restart."""
        if getattr(self, "_consumer", None) is not None:
            self._commit_patience.succeeded()
            self._commit(self._now())

    # --- the loop ---

    def next_tuple(self) -> None:
        """One turn: rebalance work, dead letters, commit, poll, emit. Never waits longer than one poll.

        Raises:
            RecordError: a record failed for good, and there is no dead-letter topic; or too many did.
            DataLossError: records that were not processed are gone (``kafka.on_data_loss=fail``).
            BrokerError: Kafka says no, and will go on saying it.
        """
        now = self._next_at = self._now()
        if not self._active or (self._consumer is None and not self._join_again(now)):
            return
        self._settle(now)
        if not self._is_late(now):
            self._giving_up.write(self._now, self._membership, eager=self._idle)
        if self._is_late(now) or self._drains(now):
            return
        finished = self._finished()
        if self._commit_timer.due(now) or finished or self._reader.crowded():
            self._commit(now, wait=finished or self._guarantee.waits)
        self._tracked.emit_held(self._membership.parts.values(), self._out, now)
        if not self._turns and not self._poll_patience.waits(now):
            self._turns.extend(self._reader.poll(now, busy=self._giving_up.busy))
            self._idle = not self._turns
        if self._guarantee.before_emit and self._turns and (self._is_late(now) or not self._commit(now)):
            return
        self._emit_waiting(now)
        if self._unasked:
            acked, self._unasked = self._unasked, []
            for tup_id in acked:
                self.ack(tup_id)

    @property
    def _out(self) -> Any:
        return self._emit_on_storm if self.on_wire else self.emit

    def _emit_on_storm(self, values: list[Any], tup_id: str | None = None, stream: str | None = None) -> None:
        """Emit; a value that cannot travel fails its record. Without ackers leave the id out, and note the ack."""
        try:
            self.emit(values, tup_id=None if self._unasked is not None else tup_id, stream=stream)
        except WireError as error:
            self._log.error("%s", error)
            if tup_id is not None:
                self.fail_with(tup_id, Failure("exception", self.component_name, self.task_id, f"WireError: {error}"))
        else:
            if tup_id is not None and self._unasked is not None:
                self._unasked.append(tup_id)

    def _settle(self, now: int) -> None:
        """Act on what the rebalance listener has written down."""
        membership, consumer = self._membership, self._need_consumer()
        if self._poll_patience.waits(now):
            self._catch_up()
            return
        try:
            self._source.refresh(now, lambda: self._hand_over(now))
            self._catch_up()
            if not membership.settled and membership.settle():
                # A start that is not committed would be decided again after a crash: under LATEST that loses records.
                self._commit_timer.expedite()
            if self._bounds is not None:
                self._bounds.bound(consumer, membership.parts)
            if self._hooks and membership.settled:
                self._hooks.reassigned(frozenset(membership.parts))
        except errors.KafkaError as error:
            self._poll_patience.bear(error, self._now())

    def _catch_up(self) -> None:
        """Learn what has changed hands since the last poll. What that poll brought was dropped, so read it again."""
        if not self._membership.fold():
            return
        self._turns.clear()
        consumer = self._need_consumer()
        for part in self._membership.parts.values():
            part.drop_waiting(consumer)
            part.seek(consumer, part.reading)

    def _hand_over(self, now: int) -> bool:
        """Before partitions go that nobody waits for: commit what is done; return whether it is committed."""
        self._put_back()
        self._giving_up.finish(self._now, self._membership)
        if not self._commit(now, last=True):
            return False
        self._commit_timer.expedite()  # as in _drains
        return True

    def _drains(self, now: int) -> bool:
        """Before a planned hand-over: return whether this call should do nothing but wait for acks.

        Drained, or out of time, the spout commits, and polls from then on: only that lets the join complete. What is
        not acked by now goes to the next owner.
        """
        if not self._need_consumer().rejoin_pending():
            if self._drain_until is not None:
                self._drain_until = None
                self._commit_timer.expedite()  # what has stayed with us was handed over, by its last commit
            return False
        if self._drain_until is None:
            self._drain_until = now + self._settings["drain_ms_max"]
            self._put_back()
        if self._drain_until == DRAINED:
            return False
        in_time = now < self._drain_until
        if in_time and (self._giving_up.out or any(p.ledger.in_flight for p in self._membership.parts.values())):
            return True
        if not self._commit(now, last=True) and in_time:
            return True
        self._drain_until = DRAINED
        return False

    def _commit(self, now: int, wait: bool = True, last: bool = False) -> bool:
        """Commit what has changed; return whether the broker has it all, or with ``wait=False`` was told it all.

        With ``last``, or between a drain and the rebalance that it is for, the partitions are handed on in order.
        """
        if self._consumer is None or self._commit_patience.waits(now):
            return False
        self._commit_timer.restart(now)
        self._catch_up()
        try:
            self._membership.check_topics(now)
            parts, identity = self._membership.parts.values(), self._setup.identity
            if self._guarantee.tracks:
                last = last or self._drain_until == DRAINED
                committing.commit(self._consumer, parts, identity, last=last)
            else:
                committing.commit_positions(self._consumer, parts, identity, wait)
        except errors.KafkaError as error:
            self._commit_patience.bear(error, self._now())  # it may have taken seconds: the back-off begins now
            self._commit_timer.expedite()
            return False
        self._commit_patience.succeeded(self._now())
        return True

    def _emit_waiting(self, now: int) -> None:
        """Emit what was polled; partitions take turns, so that a busy one cannot starve the others."""
        turns = self._turns
        left = self._settings["emits_per_next_max"]
        while left > 0 and turns:
            part = turns.popleft()
            fair = -(-left // (len(turns) + 1))
            if part.watch.solo:
                left -= self._tracked.emit_alone(part, self._out, now, self._write_down)
            elif self._guarantee.tracks:
                left -= self._tracked.emit_some(part, fair, self._out, now)
            else:
                left -= self._untracked.emit_some(part, fair, self._out)
            if part.has_waiting and not part.watch.until:  # under a watch it waits for room, and others go on
                turns.append(part)

    def _write_down(self, part: Partition) -> bool:
        """Commit, as a record of this partition is about to be out alone; return whether that is written, and ours."""
        if self._is_late(self._next_at):
            return False  # the next turn will
        return self._commit(self._now()) and self._membership.parts.get(part.tp) is part

    # --- what Storm calls ---

    def ack(self, tup_id: str) -> None:
        """Take an ack. Unknown, double and late ones change nothing."""
        if not self._guarantee.tracks:
            self._untracked.ack()
            self._between_turns()
            return
        try:
            key, _, offset_text = tup_id.rpartition("/")
            part = self._membership.by_key[key]
            offset = int(offset_text)
        except (KeyError, ValueError, AttributeError):
            self._figures.stale += 1
            return
        if part.shared:
            last, failure = part.answered(offset, None)
            if failure is not None and last:
                self.fail_with(tup_id, failure)
            if failure is not None or not last:
                return
        if not part.ledger.ack(offset):
            self._figures.stale += 1
            return
        figures = self._figures
        figures.acked += 1
        if part.setbacks and offset in part.setbacks:
            part.forget(offset)
        if self._hooks:
            self._hooks.done(part, offset)
        if not (figures.acked & LOOK_UP_MASK and self._active):
            self._between_turns()

    def fail(self, tup_id: str) -> None:
        """Take a fail of unknown reason: its age tells whether it is a timeout."""
        self.fail_with(tup_id, None)

    def fail_with(self, tup_id: str, failure: Failure | None) -> None:
        """Take a fail, with its reason where the engine knows it; a timeout counts no attempt."""
        if not self._guarantee.tracks:
            self._untracked.fail(failure is not None and failure.kind == "timeout")
            self._between_turns()
            return
        key, _, offset_text = str(tup_id).rpartition("/")
        part = self._membership.by_key.get(key)
        offset = int(offset_text) if part is not None and offset_text.isdecimal() else -1
        emitted_at = part.ledger.emitted_at(offset) if part is not None else None
        if part is None or emitted_at is None:
            self._figures.stale += 1
            return
        now = self._now()
        timed_out = now - emitted_at >= self._setup.timeout_ms if failure is None else failure.kind == "timeout"
        failure = failure or Failure("timeout" if timed_out else "fail")
        last, failure = part.answered(offset, failure)
        if not last or failure is None:
            return
        timed_out = failure.kind == "timeout"
        trouble = (part.ledger.timeout if timed_out else part.ledger.fail)(offset, now)
        if trouble is None:
            return
        self._figures.timeouts += timed_out
        self._figures.failed += not timed_out
        self._tracked.set_back(part, offset, failure)
        part.remember(offset)
        if trouble.failures > self._settings["retries_max"] or trouble.timeouts >= self._settings["timeouts_max"]:
            self._giving_up.condemn(part, offset)
        else:
            self._hooks.retried(part, offset)
        self._between_turns()

    def _between_turns(self) -> None:
        """Storm does not call ``next_tuple`` while it has enough, or after ``deactivate``; but time passes."""
        if not self._active:
            self._leave_if_idle()
            return
        now = self._now()
        if now - self._next_at < UNATTENDED_MS:
            return
        if self._commit_timer.due(now):
            self._commit(now, self._guarantee.waits)
        if self._consumer is not None:
            self._reader.stay_alive(now)

    # --- what the engine asks ---

    def exhausted(self) -> bool:
        """Bounded run: return whether all of our partitions is emitted; acks may be outstanding."""
        if not self._setup.bounded or self._consumer is None:
            return self._ended
        consumer, membership = self._consumer, self._membership
        return membership.settled and all(part.read_to_end(consumer) for part in membership.parts.values())

    def end_reached(self) -> bool:
        """Bounded run: return whether the group has committed up to the end of all partitions of the topics."""
        if self._turns or self._giving_up.busy:
            return False  # committed, it may be, but not done with
        if not self._ended and self._bounds and self._consumer is not None and self._membership.settled:
            now = self._now()
            try:
                self._ended = self._bounds.reached(self._consumer, self._membership.parts, now)
            except errors.KafkaError as error:
                self._poll_patience.bear(error, now)
        return self._ended

    def waits_for_acks(self) -> bool:
        """Return whether a hand-over, or a watch over records that may kill, waits for what is out.

        Sinks should not hold it back then.
        """
        if self._drain_until is not None and self._drain_until != DRAINED:
            return True
        return self._consumer is not None and any(part.held_up for part in self._membership.parts.values())

    def report(self) -> Mapping[str, float]:
        """Return figures for the live view; ``downspout.metrics`` explains them."""
        parts = list(self._membership.parts.values()) if self._consumer is not None else []
        return summarise(self._figures, parts, self._consumer, self._now())

    # --- inside ---

    def _join(self) -> None:
        """Make a consumer; the first poll joins the group."""
        consumer, self._bounds = open_consumer(self._cluster, self._setup, self._bounds, self._log)
        now, settings, figures = self._now(), self._settings, self._figures
        figures.uncommitted = 0
        last = self._membership.last_epoch if self._membership is not None else 0
        self._membership = Membership(consumer, settings, self._setup.identity, figures, self._log, last, self._bounds)
        self._membership.on_compacted = self._hooks.done
        self._source = source_of(consumer, self._membership, self._setup, now)
        self._reader = Reader(consumer, self._membership, settings, figures, self._poll_patience, now)
        self._consumer = consumer

    def _join_again(self, now: int) -> bool:
        """Make a consumer after it was closed; return whether there is one. A broker that is down is asked again."""
        if self._consumer is None and now >= self._join_at:
            try:
                self._join()
            except BrokerError as error:
                self._figures.errors += 1
                self._log.warning("%s; goes on trying", error)
                self._join_at = self._now() + JOIN_AGAIN_MS
        return self._consumer is not None

    def _leave_if_idle(self) -> None:
        if self._consumer is not None and not any(p.ledger.in_flight for p in self._membership.parts.values()):
            self._leave()

    def _leave(self, for_good: bool = False) -> None:
        """Commit and leave the group: others get the partitions at once."""
        self._giving_up.finish(self._now, self._membership)
        now = self._now()
        try:
            committed = self._commit(now, last=True)
            if not committed and not self._is_late(now):
                # There is no later commit: one that failed for the moment is worth one more try at once.
                self._commit_patience.succeeded()
                committed = self._commit(now, last=True)
            if not committed:
                self._figures.uncommitted = self._uncommitted()
            if not self._is_late(now):
                self.end_reached()
        finally:
            if for_good or not self._is_late(now):
                self._close_consumer()

    def _uncommitted(self) -> int:
        """Return how many offsets were done with, or are out, and are not committed: they come again."""
        ledgers = [part.ledger for part in self._membership.parts.values()]
        if self._guarantee.tracks:
            return sum(ledger.outstanding for ledger in ledgers)
        return sum(ledger.next - ledger.base for ledger in ledgers)

    def _close_consumer(self) -> None:
        consumer, self._consumer = self._need_consumer(), None
        try:
            consumer.close(leave_group=True)
        except errors.KafkaError as error:
            self._log.warning("leaving group %s failed: %s", self._setup.group, describe(error))

    def _put_back(self) -> None:
        """Drop what was polled and not emitted; it will be read again, by us or by another member."""
        self._turns.clear()
        if self._consumer is not None:
            self._catch_up()
            for part in self._membership.parts.values():
                part.drop_waiting(self._consumer)

    def _finished(self) -> bool:
        """Bounded run: return whether all is acked, so that there is no need to wait for the timer."""
        parts = self._membership.parts.values()
        return (
            self._setup.bounded
            and any(part.commit is None or part.commit[0] < (part.stop or 0) for part in parts)
            and not any(part.ledger.pending for part in parts)
            and self.exhausted()
        )

    def _need_consumer(self) -> ConsumerPort:
        assert self._consumer is not None
        return self._consumer

    def _is_late(self, now: int) -> bool:
        """Return whether the turn that began at ``now`` should ask the broker nothing more; the next one will."""
        return self._now() - now > TURN_MS_MAX

    def _now(self) -> int:
        return int(self.clock.monotonic() * 1000)


def _without_ackers(conf: Mapping[str, Any]) -> bool:
    """Return whether nobody tracks tuples; not set means as many ackers as workers."""
    return conf.get("topology.acker.executors") == 0
