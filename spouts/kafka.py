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
* With ``kafka.emit=chunk`` a tuple is a range of records, as columns, under the same rules
  (``downspout.kafka.chunked``).
* So it is under AT_LEAST_ONCE. The other guarantees are in ``downspout.kafka.guarantee``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import streamparse
from streamparse import Stream
from streamparse.dsl.spout import ShellSpoutSpec

from downspout import config as configuration
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.component import Failure
from downspout.errors import BrokerError, ConfigError
from downspout.kafka.deadletter import DeadLetters
from downspout.kafka.giving_up import GivingUp
from downspout.kafka.hooks import Hooks
from downspout.kafka.member import Means, Member
from downspout.kafka.port import cluster_for
from downspout.kafka.spout_report import summarise
from downspout.kafka.spout_setup import Setup, lag_config
from downspout.kafka.spout_state import Figures, Partition
from downspout.kafka.stalls import Stalls
from downspout.kafka.tracked import Tracked
from downspout.kafka.translate import streams
from downspout.kafka.untracked import Untracked
from downspout.wire import Outlet, Wired, WireError
from downspout.wire.kryo import KRYO
from downspout.wire.specs import SpoutSpec

JOIN_AGAIN_MS = 2_000
"""How long ``next_tuple`` leaves a broker alone that did not answer when the group was to be joined again."""
UNATTENDED_MS = 1_000
"""After so long without ``next_tuple`` (max spout pending is reached), acks and fails look at the timers."""


class KafkaSpout(Wired, streamparse.Spout):
    """Emits the records of Kafka topics; see ``downspout settings`` for what can be set (``kafka.…``).

    >>> spec = KafkaSpout.spec(topics=["orders"], fields=["key", "value", "origin"])
    >>> spec.outputs["default"].output_fields
    ['key', 'value', 'origin']
    """

    outputs: ClassVar[list[str]] = list(configuration.SETTINGS["kafka.fields"].default)
    settings_scopes: ClassVar[tuple[str, ...]] = ("kafka",)
    clock: Clock = SYSTEM_CLOCK
    neighbours: Collection[Any] = ()
    """The other spouts of this process; the local engine, which knows, puts them here."""
    emit_many: Any = None
    """Emits many tuples by one call; the local engine puts its own here."""
    _member: Member | None = None
    _idle: bool
    """Whether the last poll brought nothing."""

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
        return SpoutSpec(
            cls,
            command="streamparse_run",
            script=f"{cls.__module__}.{cls.__name__}",
            name=name,
            par=par,
            config={**KRYO, **lag_config(parsed), **given},
            outputs=[Stream(list(fields), name=stream) for stream, fields in streams(parsed).items()],
        )

    # --- the loop ---

    def next_tuple(self) -> None:
        """One turn: rebalance work, dead letters, commit, poll, emit. Never waits longer than one poll.

        Raises:
            RecordError: a record failed for good, and there is no dead-letter topic; or too many did.
            DataLossError: records that were not processed are gone (``kafka.on_data_loss=fail``).
            BrokerError: Kafka says no, and will go on saying it.
        """
        now = self._next_at = self._now()
        if not self._active or (member := self._join_again(now)) is None:
            return
        member.settle(now)
        self._stalls.look(member, now, now, self.whereabouts)
        if not self._means.is_late(now):
            self._giving_up.write(self._now, member.membership, eager=self._idle)
        if self._means.is_late(now) or member.drains(now):
            return
        finished = member.finished()
        if self._means.commit_timer.due(now) or finished or member.reader.crowded():
            member.commit(now, wait=finished or self._guarantee.waits)
        if member.handed_over:
            # The last commit says that we have ended in order. A record that is out now and kills us would not be
            # found guilty, and the next owner would not know of it: so nothing leaves before we are told what stays.
            member.reader.join(now)
            return
        self._work.emit_held(member.membership.parts.values(), self._out, now)
        if not member.turns and not self._means.poll_patience.waits(now):
            member.turns.extend(member.reader.poll(now, busy=self._giving_up.busy))
            self._idle = not member.turns
        if self._guarantee.before_emit and member.turns and (self._means.is_late(now) or not member.commit(now)):
            return
        self._emit_waiting(member, now)
        for tup_id in self._outlet.take_acked() if self._outlet else ():
            self.ack(tup_id)

    def _emit_waiting(self, member: Member, now: int) -> None:
        """Emit what was polled; partitions take turns, so that a busy one cannot starve the others."""
        turns, out = member.turns, self._out
        left = self._settings["emits_per_next_max"]
        while left > 0 and turns:
            part = turns.popleft()
            fair = -(-left // (len(turns) + 1))
            left -= self._work.emit_turn(part, fair, out, now)
            if part.has_waiting and not part.watch.until:  # under a watch it waits for room, and others go on
                turns.append(part)

    def _write_down(self, part: Partition) -> bool:
        """Commit, as a record of this partition is about to be out alone; return whether that is written, and ours."""
        member = self._member
        if member is None or self._means.is_late(self._next_at):
            return False  # the next turn will
        return member.commit(self._now()) and member.membership.parts.get(part.tp) is part

    def _lone_elsewhere(self) -> list[Partition]:
        works = [getattr(spout, "_work", None) for spout in self.neighbours]
        return [part for work in works if isinstance(work, Tracked) for part in work.lone()]

    @property
    def _out(self) -> Any:
        """Where tuples go; another may have been put in the place of ``emit``."""
        return self._outlet.emit if self._outlet else self.emit

    def _refused(self, tup_id: str | None, error: WireError) -> None:
        """Storm's pipe did not take a tuple."""
        self._log.error("%s", error)
        if tup_id is not None:
            self.fail_with(tup_id, Failure("exception", self.component_name, self.task_id, f"WireError: {error}"))

    # --- what comes back ---

    def ack(self, tup_id: str) -> None:
        """Take an ack. Unknown, double and late ones change nothing."""
        if self._work.ack(tup_id) and not (self._figures.acked & self._work.look_up_mask and self._active):
            self._between_turns()

    def ack_many(self, tup_ids: Sequence[str]) -> None:
        """Take many acks."""
        self._work.ack_many(tup_ids)
        self._between_turns()

    def fail(self, tup_id: str) -> None:
        """Take a fail of unknown reason: its age tells whether it is a timeout."""
        self.fail_with(tup_id, None)

    def fail_with(self, tup_id: str, failure: Failure | None) -> None:
        """Take a fail, with its reason where the engine knows it; a timeout counts no attempt."""
        if self._work.fail(tup_id, failure):
            self._between_turns()

    def _between_turns(self) -> None:
        """Storm does not call ``next_tuple`` while it has enough, or after ``deactivate``; but time passes."""
        member = self._member
        if not self._active:
            if member is not None and member.idle:
                self._leave(member)
            return
        now = self._now()
        if now - self._next_at < UNATTENDED_MS or member is None:
            return
        member.catch_up()  # the last poll that kept us alive may have told what is lost
        if self._means.commit_timer.due(now):
            member.commit(now, self._guarantee.waits)
        self._stalls.look(member, now, self._next_at, self.whereabouts)
        member.reader.stay_alive(now)

    def attend(self) -> None:
        """Look at the timers while nobody asks for tuples: the engine has enough out, and nothing comes back."""
        if self._active:
            self._between_turns()

    @property
    def retries_failed(self) -> bool:
        """Whether what fails is emitted again, or given up: tuples of it that no bolt has begun with may be dropped."""
        return self._guarantee.tracks

    def whereabouts(self, tup_id: str) -> str:
        """Return which bolts have a tuple; the local engine, which knows, puts its own here."""
        return ""

    # --- life cycle ---

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings and look at the topics; the group is joined by the first poll.

        Raises:
            ConfigError: the settings make no sense.
            BrokerError: no broker answers, or a bounded run lacks a topic.
        """
        self._log = self.logger or logging.getLogger(__name__)
        self._setup = setup = Setup.of(self._emitting(storm_conf, context), context)
        setup.warn(self._log)
        self._settings, self._guarantee = setup.settings, setup.guarantee
        self._figures = Figures()
        hooks = Hooks.of(self._settings["listener"], storm_conf, context, self._log)
        self._cluster = cluster_for(self._settings["bootstrap"], self._settings["client"])
        letters = DeadLetters(self._cluster, setup.dead_letter_topic) if setup.dead_letter_topic else None
        self._giving_up = GivingUp(letters, self._figures, self._log, hooks.given_up, setup.bounded)
        self._means = Means.of(setup, self._figures, hooks, self._giving_up, self._log, self._now)
        name = self.component_name or ""
        self._work: Tracked | Untracked = Untracked(self._means, name, self.clock)
        if self._guarantee.tracks:
            kind = Tracked
            if self._settings["emit"] == "chunk":
                from downspout.kafka.chunked import Chunked as kind
            emit_many = None if self.on_wire else self.emit_many
            self._work = kind(self._means, name, self.clock, self._write_down, self._lone_elsewhere, emit_many)
        self._stalls = Stalls(setup, self._means.patiences, self._log, self._now())
        self._outlet = Outlet(self.emit, self._refused, storm_conf) if self.on_wire else None
        self._left: Member | None = None
        self._ended, self._active = False, True
        self._idle = True
        self._next_at = self._join_at = self._now()
        self._join()

    def _emitting(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the configuration; with records where Storm's pipe would take each chunk apart.

        Raises:
            ConfigError: chunks are asked for on a pipe that is not ours.
        """
        if conf.get("kafka.emit") != "chunk":
            return conf
        if self.on_foreign_wire:
            raise ConfigError(
                f"kafka.emit = chunk: {type(self.serializer).__name__} cannot send columns",
                cure="streamparse's JSON serializer, or kafka.emit=record",
            )
        if not self.on_wire or self.chunk_streams.issuperset(context.get("stream->outputfields") or ()):
            return conf
        self._log.info("kafka.emit = chunk: records are emitted, because a reader needs them one by one")
        return {**conf, "kafka.emit": "record"}

    def activate(self) -> None:
        """Go on after ``deactivate``, joining the group again if it was left."""
        self._active = True
        self._join_again(self._now())

    def deactivate(self) -> None:
        """Commit. Once nothing is out (acks are still taken), commit again and leave the group.

        A broker that stays silent keeps nobody waiting: then the spout remains a member, and knows what it knew.
        """
        self._active = False
        if (member := self._member) is None:
            return
        member.put_back()
        self._giving_up.finish(self._now, member.membership)
        now = self._now()
        member.commit(now)
        if not self._means.is_late(now) and member.idle:
            self._leave(member)

    def close(self) -> None:
        """Commit what is done and leave the group."""
        if not hasattr(self, "_giving_up"):
            return  # it never began: no broker has answered, perhaps
        if self._member is not None:
            self._member.put_back()
            self._leave(self._member, for_good=True)
        self._giving_up.close()

    def before_exit(self) -> None:
        """On Storm, before the process ends: commit what is done. The place in the group is kept for a restart."""
        if (member := getattr(self, "_member", None)) is not None:
            self._means.commit_patience.succeeded()
            member.commit(self._now(), leaving=True)

    def _join(self) -> None:
        self._member = Member(self._cluster, self._means, self._left)
        self._work.by_key = self._member.membership.by_key

    def _join_again(self, now: int) -> Member | None:
        """Return the member; a new one if the group was left. A broker that is down then is asked again."""
        if self._member is None and now >= self._join_at:
            try:
                self._join()
            except BrokerError as error:
                self._figures.errors += 1
                self._log.warning("%s; goes on trying", error)
                self._join_at = self._now() + JOIN_AGAIN_MS
        return self._member

    def _leave(self, member: Member, for_good: bool = False) -> None:
        """Commit and leave the group, unless the broker is so slow that a later call must, or can be the last."""
        self._giving_up.finish(self._now, member.membership)
        now = self._now()
        try:
            member.commit_last(now)
            if not self._means.is_late(now):
                self.end_reached()
        finally:
            if for_good or not self._means.is_late(now):
                self._member, self._left = None, member
                member.close()

    # --- what the engine asks ---

    def exhausted(self) -> bool:
        """Bounded run: return whether all of our partitions is emitted; acks may be outstanding."""
        if not self._setup.bounded or self._member is None:
            return self._ended
        return self._member.exhausted()

    def end_reached(self) -> bool:
        """Bounded run: return whether the group has committed up to the end of all partitions of the topics."""
        member = self._member
        if self._giving_up.busy or (member is not None and member.turns):
            return False  # committed, it may be, but not done with
        if not self._ended and member is not None:
            self._ended = member.end_reached()
        return self._ended

    def waits_for_acks(self) -> bool:
        """Return whether a hand-over, or a watch over records that may kill, waits for what is out.

        Sinks should not hold it back then.
        """
        member = self._member
        return member is not None and (member.draining or any(part.held_up for part in member.parts))

    def report(self) -> Mapping[str, float]:
        """Return figures for the live view; ``downspout.metrics`` explains them."""
        now = self._now()
        return summarise(self._figures, self._member, now) | self._stalls.report(now)

    def _now(self) -> int:
        return int(self.clock.monotonic() * 1000)
