"""KafkaBolt: tuples in, records out to Kafka; a tuple is acked when the broker has answered.

::

    out = KafkaBolt.spec(inputs=[delays], topic="delays", fields={"key": "route", "message": "delay"},
                         message_format="json")

Each tuple becomes one record. By default its field ``message`` becomes the message and its field ``key``, if it has
one, the key. A chunk is sent whole, from its columns, and acked as a unit. ``docs/how-to/write-to-kafka.md`` lists the
guarantees; ``downspout/producing/`` has the logic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar, Unpack

import pyarrow as pa
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.component import Bolt, input_fields, task_number
from downspout.errors import USER_ERRORS, ConfigError, RecordError, UserError, coordinates
from downspout.formatting import counted
from downspout.kafka.clusters import cluster_for
from downspout.kafka.partitioners import partition_of_key
from downspout.kafka.port import TopicPartition, TransactionalPort
from downspout.kafka.retry_gate import LogThrottle
from downspout.ledger.origin import Origin
from downspout.origins import FIELD, is_origins, origin_at
from downspout.producing.mapper import Maker, field_mapper, fields_of, function_mapper, rows_of_chunk
from downspout.producing.sending import Sending, TransactionalSending
from downspout.producing.settings import (
    AGE_SHARE,
    FLUSH_S_MAX,
    check,
    message_timeout_s,
    produce_settings,
    producer_client,
)
from downspout.producing.transaction import Refused, SpoutMessage
from downspout.producing.transaction_routing import Transactions
from downspout.settings.options import ProduceOptions
from downspout.settings.secrets import with_secrets
from downspout.settings.table import component_config, load, parse_scope
from downspout.wire.side_streams import TRANSACTIONS

EXIT_S_MAX = 2.0  # How long a flush may take when Storm ends the process: 2.5 s later it is killed
QUIET_S = 0.002

Sends = TypeVar("Sends", bound=Sending)


class KafkaBolt(Bolt):
    """Writes each tuple, or each row of a chunk, to a topic; emits nothing."""

    auto_ack = False
    auto_anchor = False
    wants_tick_s = 1
    outputs: ClassVar[list[str]] = []
    settings_scopes: ClassVar[tuple[str, ...]] = ("produce", "kafka")
    stateful: ClassVar[bool] = False  # On Spark, whatever the grouping: the bolt holds nothing past the end of a batch

    @classmethod
    def spec(  # type: ignore[override]  # the base takes any settings, so that subclasses can declare theirs
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | dict[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[ProduceOptions],
    ) -> ShellBoltSpec:
        """Put the bolt into a topology.

        Args:
            name: default: the name of the topology's attribute.
            inputs: streamparse's inputs.
            par: how many tasks; each has its own producer.
            config: Storm's settings for this component, and ours by their whole names.
            settings: those of ``downspout settings produce`` without the prefix: ``topic="delays"``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range, or no topic is named.
        """
        if isinstance(fields := settings.get("fields"), Mapping):
            settings["fields"] = [f"{part}={name}" for part, name in fields.items()]
        given = {**(config or cls.config or {}), **component_config("produce", settings)}
        check(given, is_whole=False)
        return super().spec(name, inputs, par, given)

    @classmethod
    def requires_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields that the settings name, unless a function makes the records."""
        settings = produce_settings(config)
        names = [FIELD] if settings["transactional"] else []
        if settings["mapper"] is not None:
            return tuple(names)
        with suppress(ConfigError):  # which `check` reports
            names += [name for part, name in fields_of(settings).items() if part != "topic"]
        return tuple(names)

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings, find the fields in the inputs, and make the producer.

        Raises:
            ConfigError: settings contradict each other, no topic is named, or an input lacks a field.
            BrokerError: no broker answers.
        """
        try:
            check(storm_conf)
        except ConfigError as error:
            raise ConfigError(f"{self.component_name}: {error.message}", cure=error.cure) from None
        self._settings = settings = produce_settings(storm_conf)
        kafka = parse_scope(with_secrets(storm_conf), "kafka")
        self._inputs: dict[tuple[str, str], tuple[Maker, int | None]] = {}
        for source, fields in input_fields(context).items():
            self._learn(source, fields)
        self._topic: str | None = settings["topic"] or None  # of records that name none
        self._untopiced = 0
        self._throttle = LogThrottle()
        self._timeout_s = message_timeout_s(storm_conf)
        self._cluster = cluster_for(settings["bootstrap"] or kafka["bootstrap"], kafka["client"])
        if settings["partitions"]:
            self._create_topic()
        self._client = producer_client(settings, kafka["client"], self._timeout_s, kafka["transaction_ms"])
        self._heard = load("produce.callback", settings["callback"]) if settings["callback"] else None
        self._sending: Sending | Transactions
        if settings["transactional"]:
            self._sending = self._transactions(storm_conf, context)
        else:
            producer = self._cluster.producer(client=self._client, partitioner=settings["partitioner"])
            self._sending = self._sender(Sending, producer)
        if self.on_wire:
            self.serializer.pipe.idle = self._on_idle

    def _create_topic(self) -> None:
        """Create the configured topic if it does not exist; if it does, no right to create topics is needed.

        Raises:
            BrokerError: the broker refuses.
        """
        topic, partitions, replicas = (self._settings[name] for name in ("topic", "partitions", "replication"))
        if self._cluster.describe_logs([topic])[topic].partitions:
            return
        if self._cluster.ensure_topic(topic, partitions, replication=replicas):
            self.logger.info("created topic %s with %s", topic, counted(partitions, "partition"))

    def _sender(self, kind: type[Sends], producer: Any) -> Sends:
        settings = self._settings
        return kind(
            producer,
            self,
            self.clock,
            self.logger,
            mode=settings["mode"],
            buffer_bytes=settings["buffer_bytes"],
            age_s_max=self._timeout_s * AGE_SHARE,
            one_topic=settings["mapper"] is None and "topic" not in fields_of(settings),
            heard=self._heard,
        )

    def _transactions(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> Transactions:
        """Return the transactions of this task.

        Raises:
            ConfigError: no KafkaSpout is connected to end them, or not all tasks get all tuples.
        """
        index, tasks = task_number(context)
        groupings = context.get("source->stream->grouping") or {}
        if not any(TRANSACTIONS in streams for streams in groupings.values()):
            raise ConfigError(
                f"{self.component_name}: transactional, but not connected with a KafkaSpout",
                cure="transactional=True in KafkaBolt.spec(…), in a topology whose records come from a KafkaSpout",
            )
        kinds = {str(each.get("type")).upper() for streams in groupings.values() for each in streams.values()}
        if tasks > 1 and kinds != {"ALL"}:
            raise ConfigError(
                f"{self.component_name}: {tasks} tasks, but the topology was made for one",
                cure=f"par={tasks} in KafkaBolt.spec(…): then each task takes the partitions that are its own",
            )

        def new(transactional_id: str) -> tuple[TransactionalPort, TransactionalSending]:
            producer = self._cluster.transactional_producer(
                transactional_id, client=self._client, partitioner=self._settings["partitioner"]
            )
            return producer, self._sender(TransactionalSending, producer)

        def owns(tp: TopicPartition) -> bool:
            return partition_of_key(f"{tp.topic}/{tp.partition}".encode(), tasks) == index

        # With workers each process has all tasks, and is a separate member of the group.
        names = conf.get("topology.name") or "topology", conf.get("run.member") or 1, self.component_name, index
        prefix = ".".join(map(str, names))
        return Transactions(self, prefix, new, owns, self.logger)

    def _learn(self, source: tuple[str, str], fields: Sequence[str]) -> tuple[Maker, int | None]:
        """Make the function that turns tuples of an input into records."""
        settings = self._settings
        mapper = settings["mapper"]
        make = function_mapper("produce.mapper", mapper) if mapper else field_mapper(fields, settings, self.logger)
        origin = list(fields).index(FIELD) if FIELD in fields else None
        found = self._inputs[source] = make, origin
        return found

    # --- tuples -----------------------------------------------------------------------------------------

    def process(self, tup: Any) -> None:
        """Send a tuple; it is acked or failed later."""
        self._send(tup)

    def process_many(self, tups: Sequence[Any]) -> int:
        """Send tuples."""
        send = self._send
        for tup in tups:
            send(tup)
        return len(tups)

    def _send(self, tup: Any) -> None:
        values = tup[4]
        if tup[2] == TRANSACTIONS:
            self._hear(values[0], tup)
            return
        found = self._inputs.get((tup[1], tup[2])) or self._learn((tup[1], tup[2]), values._fields)
        try:
            record = found[0](values)
            topic = record.topic or self._topic
        except USER_ERRORS as error:
            self.fail_because(tup, self._wrong(tup, None, error))
            return
        if topic is None:
            self._drop(tup)
            return
        self._sending.send(tup, topic, record)

    def _hear(self, text: str, tup: Any) -> None:
        """Process a spout's message about its transaction."""
        assert isinstance(self._sending, Transactions)
        try:
            self._sending.take(SpoutMessage.of(text))
        except Refused as error:
            if self._throttle.due("transaction", int(self.clock.monotonic() * 1000)):
                self.logger.warning(
                    "%s: what is not committed comes again, since a transaction is not begun or not committed: %s",
                    self.component_name, error,
                )  # fmt: skip
            self.fail(tup)
        else:
            self.ack(tup)

    def origin_of(self, tup: Any) -> Origin:
        """Return the origin of a tuple.

        Raises:
            RecordError: the tuple has none.
        """
        place = self._inputs[tup[1], tup[2]][1]
        if place is None:
            raise RecordError(
                "a tuple without the field origin cannot be in a transaction", cure="hand on the field origin"
            )
        value = tup[4][place]
        if type(value) is Origin:  # on Storm it may have another type; this runs for each record
            return value
        try:
            return Origin.of(value)
        except ValueError as error:
            raise RecordError(str(error), cure="hand on the field origin as it came") from None

    def origins_of(self, tup: Any) -> pa.Array[Any]:
        """Return the column of origins of a chunk.

        Raises:
            RecordError: it has no column for them.
        """
        chunk: pa.RecordBatch = tup.values
        if FIELD not in chunk.schema.names or not is_origins(chunk.schema.field(FIELD).type):
            raise RecordError("a chunk without the column origin cannot be in a transaction", cure="hand on the column")
        return chunk.column(FIELD)

    def _wrong(self, tup: Any, row: int | None, error: UserError) -> RecordError:
        """Return the error of a tuple that cannot become a record."""
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return RecordError(
            f"{self.place_of(tup, row)}{self.component_name}: {what}",
            cure="correct the bolt before, or produce.message_format, key_format or mapper",
        )

    def _drop(self, tup: Any) -> None:
        """Ack a tuple without a topic."""
        self._note_untopiced(tup, [None])
        self.ack(tup)

    def _note_untopiced(self, tup: Any, rows: Sequence[int | None]) -> None:
        """Count tuples, or rows of a chunk, without a topic; warn about the first."""
        if rows and not self._untopiced:
            self.logger.warning(
                "%s%s: no topic is named for this tuple, and none in produce.topic: it is acked and not written "
                "(further ones are counted as `untopiced`)", self.place_of(tup, rows[0]), self.component_name,
            )  # fmt: skip
        self._untopiced += len(rows)

    def process_chunk(self, tup: Any) -> None:
        """Send the rows of a chunk; it is acked when all of them are written.

        If a row cannot become a record, the chunk fails and none of its rows is sent: its spout retries it in halves
        until that row is alone.
        """
        chunk: pa.RecordBatch = tup.values
        found = self._inputs.get((tup.component, tup.stream))
        make, _ = found or self._learn((tup.component, tup.stream), chunk.schema.names)
        records, untopiced = [], []
        for row, values in enumerate(rows_of_chunk(chunk)):
            try:
                record = make(values)
                topic = record.topic or self._topic
            except USER_ERRORS as error:
                self.fail_because(tup, self._wrong(tup, row, error))
                return
            if topic is None:
                untopiced.append(row)
            else:
                records.append((row, topic, record))
        self._note_untopiced(tup, untopiced)
        self._sending.send_chunk(tup, records)

    def place_of(self, tup: Any, row: int | None) -> str:
        """Return the coordinates of a tuple's or chunk row's record and a colon; an empty text without an origin."""
        values = tup.values
        try:
            if row is not None:
                origin = origin_at(values.column(FIELD), row)
            else:
                place = self._inputs[tup.component, tup.stream][1]
                if place is None:
                    return ""
                origin = Origin.of(values[place])
        except (KeyError, ValueError, TypeError):
            return ""
        return coordinates(origin.topic, origin.partition, origin.offset) + ": "

    # --- time -------------------------------------------------------------------------------------------

    def process_tick(self, tup: Any) -> None:
        """Send records that have lingered for ``linger_ms``, and ack written ones."""
        self._sending.collect()
        self.ack(tup)

    def drain(self) -> None:
        """Send lingering records and ack written ones, without waiting."""
        self._sending.hand_over()

    def drain_and_wait(self) -> None:
        """Send lingering records; wait until they are acked or failed, at most the message timeout."""
        self._sending.flush(self._timeout_s)

    def drain_at(self) -> float | None:
        """Return when to check for answers next."""
        return self._sending.look_at()

    def drain_old(self) -> None:
        """Send records that have lingered for ``linger_ms``, and ack written ones."""
        self._sending.collect()

    def _on_idle(self) -> None:
        """On Storm, while the input is idle: ack as answers arrive."""
        sending, pipe = self._sending, self.serializer.pipe
        sending.collect()
        while sending.in_flight:
            pipe.flush()
            if not pipe.is_quiet(QUIET_S):
                return
            sending.collect()

    def before_exit(self) -> None:
        """On Storm, before the process ends: wait briefly for records in flight."""
        self._end(EXIT_S_MAX)

    def close(self) -> None:
        """Wait at most 5 s for records in flight; ack written ones, fail the rest, and release the producer."""
        self._end(FLUSH_S_MAX)

    def _end(self, seconds: float) -> None:
        if hasattr(self, "_sending"):  # else initialize failed: settings were refused, or no broker answered
            self._sending.close(seconds)

    def report(self) -> Mapping[str, float]:
        """Return how many records were written, were refused, are in flight, and had no topic."""
        return {**self._sending.report(), "untopiced": self._untopiced}
