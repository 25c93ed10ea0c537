"""KafkaSpout: the records of a consumer group as tuples; it resumes where it stopped, by default at least once.

One call of :meth:`KafkaSpout.next_tuple` is one turn of the loop:

    rebalance work → dead letters → commit → poll → emit

It follows the spout of Apache Storm's ``storm-kafka-client``. ``downspout.ledger`` records what happened to each
offset; this module connects it with Storm's callbacks and with the consumer port (``downspout.kafka.port``). Under
AT_LEAST_ONCE, the default:

* The spout commits the lowest offset that is not done. The commit's metadata lists what is done beyond it, so neither a
  restart nor a rebalance repeats it.
* A failed record is read again: the consumer seeks back to the lowest one whose back-off is over.
* Before a planned hand-over the spout drains: it stops polling, waits for acks, commits, and only then lets the
  consumer release its partitions.
* With ``kafka.emit=chunk`` a tuple is a range of records, as columns (``downspout.spout.emit_chunks``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import streamparse
from streamparse import Stream
from streamparse.dsl.spout import ShellSpoutSpec

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.dead_letters.dead_letter import DeadLetters
from downspout.errors import BrokerError, MissingExtraError
from downspout.kafka.client_values import client_values
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import Record, TopicPartition
from downspout.ledger.origin import Origin
from downspout.protocols import Failure, SpoutEngine
from downspout.settings.options import KafkaOptions
from downspout.settings.table import SETTINGS, component_config, parse_scope
from downspout.spout.dead_lettering import DeadLettering
from downspout.spout.emit_records import FlushRequests, RecordEmitter
from downspout.spout.findings import doubts, is_transactional, setup_of
from downspout.spout.observe import Stalls, by_partition, final_gauges, summarise
from downspout.spout.partition import CrashIsolation, Partition
from downspout.spout.ports import Hooks, SpoutMetrics
from downspout.spout.rebalancing import GroupSession, SessionState, SpoutServices
from downspout.spout.settings import data_streams, lag_config
from downspout.spout.spout_transactions import SpoutTransactions, TransactionDeadLetters
from downspout.spout.tuples import RECORDS, choose_mode, streams
from downspout.wire import MultilangComponent, Outlet, WireError
from downspout.wire.side_streams import TRANSACTIONS
from downspout.wire.specs import SpoutSpec
from downspout.wire.values import KRYO

if TYPE_CHECKING:
    from downspout.spout.tracing import Tracing

# If the broker does not answer a rejoin, next_tuple waits this long before the next try
JOIN_AGAIN_MS = 2_000
COMMIT_LOOK_S = 0.05  # Pause of deactivate and close between two tries of a commit
UNATTENDED_MS = 1_000  # Without next_tuple for this long (max spout pending is reached), acks run the timers


class KafkaSpout(MultilangComponent, streamparse.Spout):
    """Emits the records of Kafka topics. ``downspout settings kafka`` lists its settings.

    >>> spec = KafkaSpout.spec(topics=["orders"], fields=["key", "value", "origin"])
    >>> spec.outputs["default"].output_fields
    ['key', 'value', 'origin']
    """

    outputs: ClassVar[list[str]] = list(SETTINGS["kafka.fields"].default)
    settings_scopes: ClassVar[tuple[str, ...]] = ("kafka",)
    can_emit_chunks: ClassVar[bool] = True
    clock: Clock = SYSTEM_CLOCK
    engine_services: SpoutEngine | None = None
    _session: GroupSession | None = None
    _tracing: Tracing | None = None
    _open: int  # Unanswered tuples with an id, as the engine counts them: those of lost partitions included
    _idle: bool  # Whether the last poll was empty
    _had_retries_only: bool = False  # Whether the last call emitted retries, and had no room for more

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        par: int | dict[str, int] | None = None,
        config: dict[str, Any] | None = None,
        **settings: Unpack[KafkaOptions],
    ) -> ShellSpoutSpec:
        """Put the spout into a topology.

        Args:
            name: name of the component (default: that of the topology's attribute).
            par: number of tasks; each is a member of the consumer group.
            config: Storm's settings for this component, and Downspout's with their prefix.
            settings: settings without the prefix ``kafka.``: ``topics=["orders"], start="LATEST"``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range.
        """
        given = {**(config or {}), **component_config("kafka", settings)}
        parsed = parse_scope(given, "kafka", "spec")
        client_values(parsed["client"])
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
            RecordError: a record is exhausted and there is no dead-letter topic, or too many records are exhausted.
            DataLossError: records that were not processed are gone (``kafka.on_data_loss=fail``).
            BrokerError: Kafka refuses, and another try will not help.
        """
        now = self._next_at = self._now()
        if not self._active or (session := self._join_again(now)) is None:
            return
        session.update_assignment(now)
        self._stalls.check(session, now, now, self.whereabouts)
        if self._flush_requests is not None and session.parts:  # the first check should know the partitions
            self._flush_requests.look(now, lambda: session.waits_for_sinks(now))
        if not self.services.is_late(now):
            self._dead_lettering.write(self._now, session.assignment, eager=self._idle)
        if self.services.is_late(now) or (state := session.advance(now)) is SessionState.DRAINING:
            return
        active = session.active
        self._emitter.leave_behind(active, now)
        finished = session.finished()
        is_due = finished or session.ends_transaction or self.services.commit_timer.due(now)
        if is_due or session.reader.needs_early_commit(now, active):
            session.commit(now, wait=finished or self._setup.commits_wait)
            active = session.active  # it may have learned of a rebalance
        if state is SessionState.HANDED_OVER:
            # The last commit says that this process ended cleanly. If a record emitted now killed the process, the next
            # owner would start from that commit, see no unclean start, and not search for the record. So emit nothing
            # until the rebalance has decided which partitions stay.
            session.reader.join(now)
            return
        transactions = self.services.transactions
        if transactions is not None and transactions.awaits_answers:
            session.reader.stay_alive(now)
            return
        left, before = self._room(), self._open
        retries = self._for_retries(session, left)
        cached = self._emitter.emit_cached(active, retries, self._out, now) if active and not session.holds_back else 0
        self._had_retries_only = 0 < left <= cached
        self._open += cached
        if not session.turns and not self.services.poll_gate.waits(now):
            free_ms = self.engine_services.free_s() * 1000 if self.engine_services else 0
            free_ms = int(min(free_ms, self.services.commit_timer.left_ms(now)))
            session.turns.extend(session.reader.poll(now, self._dead_lettering.busy, free_ms))
            self._idle = not session.turns
        if self._guarantee.before_emit and session.turns and (self.services.is_late(now) or not session.commit(now)):
            return
        if session.turns:
            self._emit_waiting(session, left - cached, now)
        if transactions is not None and self._open != before:
            transactions.is_dirty = True
        for tup_id in self._outlet.take_acked() if self._outlet else ():
            self.ack(tup_id)

    def _room(self) -> int:
        """Return how many tuples this call may emit without exceeding max spout pending.

        Storm and the local engine check that limit before a call, not within it.
        """
        most: int = self._settings["emits_per_next_max"]
        if not self._open_max or self._session is None:
            return most
        in_flight = self._session.count_in_flight
        return min(most, self._setup.mode.room(self._settings, self._open_max, self._open, in_flight))

    def _for_retries(self, session: GroupSession, room: int) -> int:
        """Return how many tuples of this call may be retries: half, if others wait and the last call emitted only
        retries.

        Otherwise a record that always fails, without a back-off, would starve the others.
        """
        return room // 2 if self._had_retries_only and session.turns else room

    @property
    def session(self) -> GroupSession | None:
        """The spout's consumer, partitions and ledgers, for inspection; None once it has left the group."""
        return self._session

    def _emit_waiting(self, session: GroupSession, most: int, now: int) -> None:
        """Emit what was polled; partitions take turns, so that a busy one cannot starve the others."""
        turns, out, left = session.turns, self._out, most
        while left > 0 and turns and not session.holds_back:
            part = turns.popleft()
            fair = -(-left // (len(turns) + 1))
            sent = self._emitter.emit_turn(part, fair, out, now)
            left -= sent
            self._open += sent
            # Under crash isolation a partition waits for room, and others go on.
            if part.cursor.has_waiting and not part.isolation.searches:
                turns.append(part)

    def _write_down(self, part: Partition) -> bool:
        """Commit before a record of this partition goes out alone; return whether it succeeded and is still ours."""
        session = self._session
        if session is None or self.services.is_late(self._next_at):
            return False  # the next turn will
        return session.commit(self._now()) and session.assignment.parts.get(part.tp) is part

    def _other_isolations(self) -> list[CrashIsolation]:
        others = self.engine_services.other_spouts() if self.engine_services else ()
        emitters = [getattr(spout, "_emitter", None) for spout in others]
        return [each for one in emitters if isinstance(one, RecordEmitter) for each in one.isolations()]

    @property
    def _out(self) -> Any:
        """The function that emits tuples; ``emit`` may have been replaced."""
        return self._outlet.emit if self._outlet else self.emit

    def _refused(self, tup_id: str | None, error: WireError) -> None:
        """Fail a tuple that Storm's pipe refused."""
        self._log.error("%s", error)
        if tup_id is not None:
            self.fail_with(tup_id, Failure("exception", self.component_name, self.task_id, f"WireError: {error}"))

    # --- what comes back ---

    def ack(self, tup_id: str) -> None:
        """Process an ack. Unknown, duplicate and late acks do not change the ledger."""
        self._open -= 1
        if self._tracing is not None:
            self._tracing.ended((tup_id,))
        if self._answered(tup_id, None):
            return
        if self._emitter.ack(tup_id) and not (self._metrics.acked & self._emitter.look_up_mask and self._active):
            self._between_turns()

    def ack_many(self, tup_ids: Sequence[str]) -> None:
        """Process many acks."""
        self._open -= len(tup_ids)
        if self._tracing is not None:
            self._tracing.ended(tup_ids)
        self._emitter.ack_many(self._without_answers(tup_ids))
        self._between_turns()

    def fail(self, tup_id: str) -> None:
        """Process a fail without a reason: the tuple's age decides whether it is a timeout."""
        self.fail_with(tup_id, None)

    def fail_with(self, tup_id: str, failure: Failure | None) -> None:
        """Process a fail, with its reason if the engine knows it; a timeout does not count as an attempt."""
        self._open -= 1
        if self._tracing is not None:
            self._tracing.failed(tup_id, failure)
        if self._answered(tup_id, failure or Failure("fail")):
            return
        if self._emitter.fail(tup_id, failure):
            self._between_turns()

    def _answered(self, tup_id: str, failure: Failure | None) -> bool:
        """Process the answer of a transactional KafkaBolt; return False if ``tup_id`` is no such answer."""
        transactions, session = self.services.transactions, self._session
        if transactions is None or not transactions.is_answer(tup_id):
            return False
        if session is not None and transactions.answered(session, tup_id, failure, self._now()):
            self._metrics.uncommitted = 0
        self._between_turns()
        return True

    def _without_answers(self, tup_ids: Sequence[str]) -> Sequence[str]:
        """Process the answers of transactional KafkaBolts among these ids; return the other ids."""
        transactions = self.services.transactions
        if transactions is None or not transactions.awaits_answers:
            return tup_ids
        return [tup_id for tup_id in tup_ids if not self._answered(tup_id, None)]

    def _between_turns(self) -> None:
        """Do what is due: Storm does not call ``next_tuple`` at max spout pending, nor after ``deactivate``."""
        session, now = self._session, self._now()
        if session is None or (self._active and now - self._next_at < UNATTENDED_MS):
            return
        if not self._active and session.idle:
            self._leave(session)
            if self._session is not session:
                return
        session.catch_up()  # the last keep-alive poll may have reported lost partitions
        if self.services.commit_timer.due(now):
            session.commit(now, self._setup.commits_wait)
        if self._active:
            self._stalls.check(session, now, self._next_at, self.whereabouts)
        session.reader.stay_alive(now)

    def run_timers(self) -> None:
        """Run the timers while the engine does not ask for tuples."""
        now = self._now()
        if self._active:
            self._between_turns()
        elif now - self._next_at >= UNATTENDED_MS:
            self._next_at = now
            self._between_turns()

    def _on_idle(self) -> None:
        """Called by the wire while Storm is silent: Storm does not call a spout that is deactivated."""
        while self._session is not None and self.serializer.pipe.is_quiet(UNATTENDED_MS / 1000):
            self.run_timers()

    @property
    def retries_failed(self) -> bool:
        """Whether failed records are emitted again or dead-lettered: then the engine may drop their waiting tuples."""
        return self._guarantee.tracks

    def tried_before(self, tup_id: str) -> bool:
        """Return whether an earlier owner of the partition left a record behind while later ones got through."""
        return bool(self._emitter.tried_before(tup_id))

    def whereabouts(self, tup_id: str) -> str:
        """Return which bolts hold a tuple, if the engine knows."""
        return self.engine_services.bolts_with(tup_id) if self.engine_services else ""

    # --- life cycle ---

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings and look at the topics; the group is joined by the first poll.

        Raises:
            ConfigError: the settings make no sense.
            BrokerError: no broker answers, or a bounded run lacks a topic.
        """
        self._log = self.logger or logging.getLogger(__name__)
        conf = self._with_records(storm_conf, context)
        if TRANSACTIONS in (context.get("stream->outputfields") or ()):
            # A replayed dead letter is a record of its own: nothing of the one that failed is visible.
            conf = {**conf, "kafka.honour_replays": False}
        self._setup = setup = setup_of(conf, context)
        for what, cure in doubts(setup.settings):
            self._log.warning("%s. Try: %s", what, cure)
        self._settings, self._guarantee = setup.settings, setup.guarantee
        self._metrics = SpoutMetrics()
        hooks = Hooks.of(self._settings["listener"], storm_conf, context, self._log)
        self._cluster = cluster_for(self._settings["bootstrap"], self._settings["client"])
        transactions = self._transactions(context)
        dead_letters: DeadLetters | None = None
        if setup.dead_letter_topic and transactions is not None:
            dead_letters = TransactionDeadLetters(self._cluster, setup.dead_letter_topic, transactions)
        elif setup.dead_letter_topic:
            dead_letters = DeadLetters(self._cluster, setup.dead_letter_topic)
        self._dead_lettering = DeadLettering(dead_letters, self._metrics, self._log, hooks.given_up, setup.bounded)
        self.services = SpoutServices(
            setup, self._metrics, hooks, self._dead_lettering, self._log, self._now, transactions
        )
        name = self.component_name or ""
        emit_many = self.engine_services.emit_many if self.engine_services else None
        self._emitter = setup.mode.emitter(
            self.services,
            name,
            self.clock,
            write_down=self._write_down,
            other_isolations=self._other_isolations,
            emit_many=emit_many,
        )
        self._tracing = self._traced(name)
        self._open, self._open_max = 0, setup.pending_max
        self._stalls = Stalls(setup, self.services.gates, self._log, self._now())
        self._outlet = Outlet(self.emit, self._refused, storm_conf) if self.on_wire else None
        self._flush_requests = FlushRequests.of(self, context)
        self._left: GroupSession | None = None
        self._gauges: dict[str, float] = {}
        self._partitions: dict[str, dict[str, Any]] = {}
        self._ended, self._active = False, True
        self._idle = True
        self._next_at = self._join_at = self._now()
        self._join()

    def _traced(self, name: str) -> Tracing | None:
        """Return the maker of spans if ``kafka.trace_every`` is set; otherwise import nothing.

        Raises:
            MissingExtraError: OpenTelemetry is not installed.
        """
        every = self._settings["trace_every"]
        if not every or not isinstance(self._emitter, RecordEmitter):
            return None
        try:
            from downspout.spout.tracing import Tracing
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"kafka.trace_every needs the package {error.name}", cure="pip install 'downspout[otel]'"
            ) from None
        self._emitter.tracing = Tracing(every, self._setup.group, name)
        return self._emitter.tracing

    def _transactions(self, context: Mapping[str, Any]) -> SpoutTransactions | None:
        """Return the transactions that commit, if a KafkaBolt of this topology is transactional.

        Raises:
            ConfigError: two KafkaBolts are, or the settings rule transactions out.
        """
        if not is_transactional(self._settings, context, self.component_name or ""):
            return None

        def emit(values: list[str], tup_id: str, stream: str) -> None:
            self._open += 1
            self._out(values, tup_id=tup_id, stream=stream)

        return SpoutTransactions(f"{self.component_name}.{self._setup.index}", emit, self._log)

    def _with_records(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the configuration; it asks for records, not chunks, if Storm's pipe would take each chunk apart."""
        serializer = type(self.serializer).__name__ if self.on_foreign_wire else ""
        mode, why = choose_mode(conf, self.component_name or "", serializer)
        if mode.columns and self.on_wire and not self.chunk_streams >= data_streams(context):
            mode, why = RECORDS, "a reader needs them one by one"
        if why:
            self._log.info("kafka.emit: records are emitted, because %s", why)
        return {**conf, "kafka.emit": mode.name}

    def activate(self) -> None:
        """Resume after ``deactivate``; rejoin the group if the spout has left it."""
        self._active = True
        if self.on_wire:
            self.serializer.pipe.idle = None
        self._join_again(self._now())

    def deactivate(self) -> None:
        """Commit. Once no tuple is in flight (acks still count), commit again and leave the group.

        If commits keep failing, or the broker stays silent, the spout remains a member, keeps its ledgers, and commits
        at its next call, whichever that is.
        """
        self._active = False
        if (session := self._session) is None:
            return
        session.put_back()
        self._dead_lettering.finish(self._now, session.assignment)
        now = self._now()
        if session.idle:
            self._leave(session, patiently=True)
        else:
            self._insist(session.commit, now)
        if self.on_wire:
            self.serializer.pipe.idle = self._on_idle

    def close(self) -> None:
        """Commit what is done and leave the group."""
        if not hasattr(self, "_dead_lettering"):
            return  # initialize failed: perhaps no broker answered
        if self._session is not None:
            self._session.put_back()
            self._leave(self._session, for_good=True)
        self._dead_lettering.close()
        if self._tracing is not None:
            self._tracing.close()

    def before_exit(self) -> None:
        """On Storm, before the process ends: commit what is done, but remain a member of the group for a restart."""
        if (session := getattr(self, "_session", None)) is not None and self.services.transactions is None:
            self.services.commit_gate.succeeded()
            session.commit(self._now(), leaving=True)
        if self._tracing is not None:
            self._tracing.close()

    def _join(self) -> None:
        self._session = GroupSession(self._cluster, self.services, self._left)
        self._emitter.by_key = self._session.assignment.by_key

    def _join_again(self, now: int) -> GroupSession | None:
        """Return the session; rejoin the group if the spout has left it, and retry later if the broker is down."""
        if self._session is None and now >= self._join_at:
            try:
                self._join()
            except BrokerError as error:
                self._metrics.errors += 1
                self._log.warning("%s; goes on trying", error)
                self._join_at = self._now() + JOIN_AGAIN_MS
        return self._session

    def _leave(self, session: GroupSession, patiently: bool = False, for_good: bool = False) -> None:
        """Commit and leave the group; if a commit fails or the broker is slow, a later call must leave.

        With ``for_good`` there is no later call: the spout leaves in any case.
        """
        self._dead_lettering.finish(self._now, session.assignment)
        now = self._now()
        committed = False
        try:
            if patiently or for_good:
                committed = self._insist(session.commit_last, now)
            else:
                committed = session.commit_last(now)
            if not self.services.is_late(now):
                self.end_reached()
        finally:
            if for_good or (committed and not self.services.is_late(now)):
                self._gauges = final_gauges(session, self._now())
                self._partitions = by_partition(session, self._now(), self.clock.wall())
                self._metrics.fetches += session.consumer.fetches.calls
                self._metrics.fetched += session.consumer.fetches.records
                self._session, self._left = None, session
                session.close()

    def _insist(self, commit: Callable[[int], bool], since: int) -> bool:
        """Retry a commit briefly: if it fails at once (the coordinator is loading), it may succeed soon."""
        if self.services.transactions is not None:
            return commit(since)  # the answer comes later
        while not (committed := commit(self._now())) and not self.services.is_late(since):
            self.clock.sleep(COMMIT_LOOK_S)
            self.services.commit_gate.succeeded()
        return committed

    # --- what the engine asks ---

    def finish(self) -> bool:
        """Return whether everything is committed, once no tuple is in flight; if not, a commit is in progress."""
        session = self._session
        if self.services.transactions is None or session is None:
            return True
        return session.commit(self._now(), last=True)

    def exhausted(self) -> bool:
        """Bounded run: return whether all records of our partitions are emitted; acks may be outstanding."""
        if not self._setup.bounded or self._session is None:
            return self._ended
        return self._session.exhausted()

    def end_reached(self) -> bool:
        """Bounded run: return whether the group has committed up to the end of all partitions of the topics."""
        session = self._session
        if self._dead_lettering.busy or (session is not None and session.turns):
            return False  # perhaps committed, but not finished
        if not self._ended and session is not None:
            self._ended = session.end_reached()
        return self._ended

    def record_at(self, origin: Origin) -> Record | None:
        """Return the whole record of an origin as it was read, or None if it is not in memory."""
        parts = self._session.assignment.parts if self._session is not None else {}
        part = parts.get(TopicPartition(origin.topic, origin.partition))
        if part is None or part.topic_id != origin.topic_id or origin.offset in part.broken:
            return None
        return part.retry_cache.seen(origin.offset, part.cursor.waiting)

    def waits_for_acks(self) -> bool:
        """Return whether a hand-over, a transaction or crash isolation waits for tuples in flight.

        Sinks should not hold these tuples back then.
        """
        session = self._session
        if session is None:
            return False
        hands_over = session.state is SessionState.DRAINING
        return hands_over or session.ends_transaction or any(part.isolation.awaited for part in session.parts)

    def report(self) -> Mapping[str, float]:
        """Return metrics for the live view; ``downspout.metrics`` explains them."""
        now = self._now()
        gauges = self._gauges if self._session is None else {}
        return summarise(self._metrics, self._session, now) | gauges | self._stalls.report(now)

    def report_partitions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the group's position in each partition, by its name; after ``deactivate``, the last one known."""
        if self._session is None:
            return self._partitions
        now = self._now()
        reason = self._stalls.reason(self._session, now, self._next_at, self.whereabouts)
        return by_partition(self._session, now, self.clock.wall(), reason)

    def report_dead_letters(self) -> Mapping[str, Any]:
        """Return the dead letters by exception, and the last ones."""
        return self._dead_lettering.report()

    def _now(self) -> int:
        return int(self.clock.monotonic() * 1000)
