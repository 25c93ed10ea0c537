"""KafkaBatches: the records of Kafka topics in numbered batches, committed strictly in order.

::

    coordinator, lines = KafkaBatches.spec(topics=["lines"], fields=["value"])
    split = SplitBolt.spec(inputs=[lines])
    counts = StateBolt.spec(coordinator=coordinator, inputs={split: Grouping.fields("word")}, …)

This is what Storm's Trident does, with plain components: :class:`BatchCoordinator` is a spout, :class:`KafkaBatchBolt`
a bolt whose tasks share the partitions. ``downspout.batches.core.protocol`` defines the messages between them and to
the states. Each tuple has its attempt in the field ``attempt``, which bolts in between pass on.

Coordinator and emitter can be replaced: by subclasses (:meth:`BatchCoordinator.is_ready` is meant for that), or by any
spout and bolt that emit on the same streams.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import streamparse
from kafka import errors
from streamparse import Grouping, Stream
from streamparse.dsl.bolt import ShellBoltSpec
from streamparse.dsl.spout import ShellSpoutSpec

from downspout.batches.coordinating import Coordinating, KafkaSource
from downspout.batches.core.protocol import ATTEMPT, BATCH, COMMIT, CONTROL, FIELDS, Attempt
from downspout.batches.emitting import Emitting, NotYetError, Records
from downspout.batches.setup import BatchSetup, check, check_ackers
from downspout.batches.stores import BatchStoreError, StaleCoordinatorError
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.component import Bolt
from downspout.errors import ConfigError, RecordError, coordinates
from downspout.kafka.port import Record, TopicPartition
from downspout.kafka.retry_gate import LogThrottle, describe
from downspout.protocols import Failure, SpoutEngine
from downspout.settings.table import SETTINGS, component_config, parse_scope
from downspout.spout.emit_records import FlushRequests
from downspout.spout.tuples import rows_maker, tuple_maker
from downspout.wire import MultilangComponent
from downspout.wire.specs import SpoutSpec


class BatchCoordinator(MultilangComponent, streamparse.Spout):
    """Begins batches and commits them one after the other. It has one task."""

    outputs: ClassVar[list[Stream]] = [Stream(list(FIELDS[stream]), name=stream) for stream in CONTROL]
    settings_scopes: ClassVar[tuple[str, ...]] = ("batch", "kafka")
    retries_failed: ClassVar[bool] = True
    replaced_by_micro_batches: ClassVar[bool] = True  # on Spark; not what a subclass does instead
    clock: Clock = SYSTEM_CLOCK
    engine_services: SpoutEngine | None = None
    _batches: Coordinating | None = None

    def is_ready(self, txid: int) -> bool:
        """Return whether a transaction may begin now. For subclasses; called before each attempt."""
        return True

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings and open the store; the claim is taken by the first ``next_tuple``.

        Raises:
            ConfigError: the settings make no sense.
            BrokerError: no broker answers.
            BatchStoreError: the store cannot be opened.
        """
        log = self.logger or logging.getLogger(__name__)
        check_ackers(storm_conf, self.component_name or "BatchCoordinator")
        setup = BatchSetup.of(storm_conf, context)
        if setup.kafka.tasks > 1:
            raise ConfigError(f"{self.component_name}: {setup.kafka.tasks} tasks, but one coordinates", cure="par=1")
        consumer = setup.open_consumer(log)
        try:
            store = setup.open_store()
        except BaseException:
            consumer.close()
            raise
        self._source = KafkaSource(setup, consumer, store, self.is_ready, log)
        self._batches = Coordinating(store, setup.topology_id, self._source, self._send, setup.batch, log)
        self._flush_requests = FlushRequests.of(self, context)
        self._active = True

    def _send(self, stream: str, values: list[Any], tup_id: str | None) -> None:
        self.emit(values, tup_id=tup_id, stream=stream)

    def _now(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def next_tuple(self) -> None:
        """One turn: take the claim, do what is due, and perhaps begin a batch."""
        assert self._batches is not None
        self._batches.turn(now := self._now(), begins=self._active)
        if self._flush_requests is not None:
            self._flush_requests.look(now, self.waits_for_acks)

    def run_timers(self) -> None:
        """Do what is due while the engine does not ask for tuples."""
        assert self._batches is not None
        self._batches.turn(self._now(), begins=False)

    def ack(self, tup_id: str) -> None:
        """Process an ack: a batch is processed or committed."""
        assert self._batches is not None
        self._batches.acked(tup_id, self._now())

    def fail(self, tup_id: str) -> None:
        """Process a fail: an attempt failed or timed out; it and all later attempts begin again."""
        self.fail_with(tup_id, None)

    def fail_with(self, tup_id: str, failure: Failure | None) -> None:
        """Process a fail, with its reason if the engine knows it.

        Raises:
            ComponentError: a bolt has raised in too many attempts of a transaction.
        """
        assert self._batches is not None
        self._batches.failed(tup_id, failure, self._now())

    def activate(self) -> None:
        """Let batches begin again."""
        self._active = True

    def deactivate(self) -> None:
        """Begin no more batches; active batches finish."""
        self._active = False

    def waits_for_acks(self) -> bool:
        """Return whether a batch must finish before the next begins: sinks then flush the rows they hold of it."""
        return self._batches is not None and self._batches.waits

    def exhausted(self) -> bool:
        """Bounded run: return whether the committed batches reach its end."""
        return self._batches is not None and self._batches.end_reached()

    def end_reached(self) -> bool:
        """Bounded run: return whether the committed batches reach its end and no batch is active."""
        return self._batches is not None and self._batches.end_reached() and self._batches.is_idle

    def finish(self) -> bool:
        """Do what is due; return whether no batch is active."""
        self.run_timers()
        return self._batches is None or self._batches.is_idle

    def report(self) -> Mapping[str, float]:
        """Return how many batches were begun, failed and committed."""
        return {} if self._batches is None else self._batches.report()

    def close(self) -> None:
        """Give the claim back."""
        if self._batches is not None:
            self._batches.close()
            self._source.close()


class _Makers(NamedTuple):
    many: Callable[[Sequence[Record]], list[tuple[Any, ...]] | None]
    one: Callable[[Record], list[Any]]


class KafkaBatchBolt(Bolt):
    """Emits the records of batches; its tasks share the partitions."""

    auto_ack = False
    auto_anchor = False
    outputs: ClassVar[list[str]] = [ATTEMPT, *SETTINGS["kafka.fields"].default]
    replaced_by_micro_batches: ClassVar[bool] = True  # on Spark; not what a subclass does instead
    settings_scopes: ClassVar[tuple[str, ...]] = ("batch", "kafka")
    _emitting: Emitting | None = None

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> Any:
        """Return the attempt and the fields of the records."""
        return [ATTEMPT, *parse_scope(config, "kafka")["fields"]]

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings, and open consumer and store.

        Raises:
            ConfigError: the settings make no sense.
            BrokerError: no broker answers.
            BatchStoreError: the store cannot be opened.
        """
        self._log = self.logger or logging.getLogger(__name__)
        setup = BatchSetup.of(storm_conf, context)
        self._settings = setup.kafka.settings
        self._consumer = consumer = setup.open_consumer(self._log)
        try:
            store = setup.open_store()
        except BaseException:
            consumer.close()
            raise
        self._emitting = Emitting(setup, consumer, store, self.clock, self._log)
        self._makers: dict[tuple[str, str], _Makers] = {}  # by topic and its id
        self._throttle = LogThrottle()
        self._records = 0

    def process(self, tup: Any) -> None:
        """Emit, commit or forget a batch, depending on the stream."""
        assert self._emitting is not None
        attempt, epoch = Attempt.of(tup.values[0]), tup.values[1]
        try:
            if tup.stream == BATCH:
                self._emit_batch(tup, attempt, self._emitting.batch(attempt, epoch, tup.values[2]))
            elif tup.stream == COMMIT:
                if not self._emitting.commit(attempt, epoch):
                    self._later(tup, attempt, "this task has not seen its beginning")
                    return
            else:
                self._emitting.success(attempt, epoch)
        except (errors.KafkaError, BatchStoreError, StaleCoordinatorError, NotYetError) as error:
            if not _passes(error):
                raise
            self._later(tup, attempt, describe(error))
            return
        self.ack(tup)

    def _later(self, tup: Any, attempt: Attempt, why: str) -> None:
        """Fail a tuple that may succeed in the next attempt."""
        if self._throttle.due("later", int(self.clock.monotonic() * 1000)):
            self._log.warning("%s: %s fails: %s", self.component_name, attempt, why)
        self.fail(tup)

    def _emit_batch(self, tup: Any, attempt: Attempt, found: Records | None) -> None:
        """Emit the records of this task, anchored to the batch."""
        for tp, records in (found or {}).items():
            if records:
                rows = self._rows(tp, records)
                self._records += len(rows)
                self.emit_many([[attempt, *row] for row in rows], [tup] * len(rows))

    def _rows(self, tp: TopicPartition, records: Sequence[Record]) -> Sequence[Sequence[Any]]:
        """Return the tuple values of each record.

        Raises:
            RecordError: a record cannot be decoded.
        """
        assert self._emitting is not None
        topic_id = self._emitting.topic_id(tp.topic)
        makers = self._makers.get((tp.topic, topic_id))
        if makers is None:
            names, key, value = (self._settings[name] for name in ("fields", "key_format", "value_format"))
            how = names, key, value, topic_id, self._settings["honour_replays"]
            makers = self._makers[tp.topic, topic_id] = _Makers(rows_maker(*how), tuple_maker(*how))
        if (rows := makers.many(records)) is not None:
            return rows
        found = []
        for record in records:
            try:
                found.append(makers.one(record))
            except ValueError as error:
                raise RecordError(
                    f"{coordinates(tp.topic, tp.partition, record.offset)}: it cannot be decoded: {describe(error)}",
                    cure="kafka.value_format=bytes and kafka.key_format=bytes, and a bolt that decodes and may reject",
                ) from error
        return found

    def report(self) -> Mapping[str, float]:
        """Return how many records were emitted, those of failed attempts included, how many were lost, and the lag."""
        if self._emitting is None:
            return {}
        lag = self._emitting.lag
        counted = {"records": self._records, "lost": self._emitting.starts.lost}
        return counted if lag is None else {**counted, "lag": lag}

    def report_partitions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the position of the batches in each partition of this task."""
        return {} if self._emitting is None else self._emitting.by_partition()

    def close(self) -> None:
        """Release consumer and store."""
        if self._emitting is not None:
            self._emitting.close()


def _passes(error: Exception) -> bool:
    """Return whether the next attempt may succeed."""
    if isinstance(error, BatchStoreError):
        return error.passes
    return isinstance(error, StaleCoordinatorError | NotYetError) or bool(getattr(error, "retriable", False))


class BatchSpecs(NamedTuple):
    """The two components of a source of batches."""

    coordinator: ShellSpoutSpec
    emitter: ShellBoltSpec


class KafkaBatches:
    """A source of batches, made of two components."""

    @staticmethod
    def spec(
        *,
        par: int = 1,
        config: Mapping[str, Any] | None = None,
        coordinator: type[BatchCoordinator] = BatchCoordinator,
        emitter: type[KafkaBatchBolt] = KafkaBatchBolt,
        **settings: Any,
    ) -> BatchSpecs:
        """Put both components into a topology.

        >>> coordinator, lines = KafkaBatches.spec(topics=["lines"], fields=["value"], kind="transactional")
        >>> lines.outputs["default"].output_fields
        ['attempt', 'value']

        Args:
            par: how many tasks emit; they share the partitions.
            config: Storm's settings for both, and ours by their whole names.
            coordinator: the class of the coordinator, or a subclass of it.
            emitter: the class of the emitter, or a subclass of it.
            settings: those of ``downspout settings batch`` and ``downspout settings kafka``, without the prefix.

        Raises:
            ConfigError: a setting is unknown, malformed, out of range, or does not go with batches.
        """
        of_batch = {name: value for name, value in settings.items() if f"batch.{name}" in SETTINGS}
        of_kafka = {name: value for name, value in settings.items() if name not in of_batch}
        given = {
            **(config or {}),
            **component_config("batch", of_batch),
            **component_config("kafka", of_kafka, ["batch"]),
        }
        check(parse_scope(given, "kafka", "spec"))
        if settings.get("dead_letter_topic"):
            raise ConfigError(
                "kafka.dead_letter_topic does not go with KafkaBatches: a batch writes no dead letters",
                cure="a DeadLetterBolt for the rejects of JsonParseBolt; for it, the setting in the topology's config",
            )
        head = SpoutSpec(
            coordinator,
            command="streamparse_run",
            script=f"{coordinator.__module__}.{coordinator.__name__}",
            par=1,
            config=given,
            outputs=[Stream(list(FIELDS[stream]), name=stream) for stream in CONTROL],
        )
        body = emitter.spec(inputs={head[stream]: Grouping.ALL for stream in CONTROL}, par=par, config=given)
        return BatchSpecs(head, body)
