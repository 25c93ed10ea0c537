"""The options of ``format("downspout")``: the connector's names, all checked when the source is created.

A job switches between the two by changing ``format``. So every option of the connector is accepted, with its default;
``docs/reference/spark-source.md`` lists the differences. Six options are ours: ``stoppingOffsets``, ``skipOffsets``,
``includeTopicId``, ``includeUnreadable``, ``recordBytesMax`` and ``endMarker``.

**``kafka.…`` options** are the Java client's properties, as for the connector, mapped to kafka-python's names. Most
names differ only in the dots. Other forms (JAAS, key stores) are translated. Properties about group membership have no
effect, because the source reads without a group. The group's name is rejected, and so are properties that the source or
the sink sets itself. Errors never contain a value: it may be a secret.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from downspout.errors import ConfigError
from downspout.formatting import nearest, seconds_of
from downspout.kafka.address import parse_bootstrap
from downspout.kafka.unreadable import Limits
from downspout.settings.secrets import REFERENCE, resolve_client
from downspout.spark.source_offsets import Offsets, Skips, from_json, parse_skips, place

LATEST, EARLIEST = -1, -2  # Stand for the ends of the log among offsets
LIMIT_MIN, LIMIT_MAX = 1024, 1 << 30  # Bounds of recordBytesMax


@dataclass(frozen=True)
class Option:
    """One option, for checks and for the table in the documentation."""

    text: str  # its effect, in a sentence
    note: str = ""  # further remarks
    default: str = ""  # in words
    # ``both``, ``batch`` or ``stream``; in other queries the option has no effect, except that ``ending…`` is rejected
    use: str = "both"


OPTIONS: Mapping[str, Option] = {
    "kafka.bootstrap.servers": Option("Brokers, as `host:port,host:port`.", default="required"),
    "subscribe": Option(
        "Topics, separated by commas.", "One of `subscribe`, `subscribePattern` and `assign` is required."
    ),
    "subscribePattern": Option("A Python regular expression that matches whole topic names."),
    "assign": Option('Partitions: `{"orders": [0, 1]}`.'),
    "startingOffsets": Option(
        '`earliest`, `latest`, or an offset per partition: `{"orders": {"0": 23, "1": -2}}`.',
        "-2 is the earliest offset, -1 the latest. A stream with a checkpoint starts there instead. "
        "Partitions that appear later start at their beginning.",
        default="`latest`; batch `earliest`",
    ),
    "startingOffsetsByTimestamp": Option('Milliseconds since 1970 per partition: `{"orders": {"0": 1700000000000}}`.'),
    "startingTimestamp": Option("One time for all partitions, in milliseconds since 1970."),
    "startingOffsetsByTimestampStrategy": Option(
        "If no record is that late: `error`, or `latest`, which starts at the end.", default="`error`"
    ),
    "endingOffsets": Option("`latest`, or an offset (-1: latest) per partition.", default="`latest`", use="batch"),
    "endingOffsetsByTimestamp": Option("As for the start; if no record is that late, the end.", use="batch"),
    "endingTimestamp": Option("One time for all partitions, in milliseconds since 1970.", use="batch"),
    "stoppingOffsets": Option(
        'Where reading stops for good, per partition: `{"orders": {"0": 100}}`.',
        "Offset 100 itself is not read. A stream that has reached these offsets idles, or ends with `availableNow`. "
        "Other partitions have no stop. Not in the connector.",
    ),
    "skipOffsets": Option(
        'Offsets to skip, per partition, as half-open ranges: `{"orders": {"0": [[5, 9]]}}`.',
        "`downspout offsets export` writes it. If it includes Kafka's `id` of the topic, a topic that was "
        "created again is read whole. You may keep it when the query restarts. Not in the connector.",
    ),
    "includeHeaders": Option("Whether to add the column `headers`.", default="`false`"),
    "includeTopicId": Option(
        "Whether to add the column `topicId`, Kafka's id of the topic.", "Not in the connector.", default="`false`"
    ),
    "includeUnreadable": Option(
        "Whether unreadable data becomes a row instead of an error: `false`, `records` or `true`.",
        "`records`: a row for each record above `recordBytesMax`, with its first 64 KiB. `true`: also for "
        "each batch that is damaged or unpacks to more than four times `recordBytesMax`. The column "
        "`unreadable` has the reason. Not in the connector.",
        default="`false`",
    ),
    "recordBytesMax": Option(
        "Most bytes of an unpacked record.",
        "Not in the connector.",
        default="`67108864`",
    ),
    "endMarker": Option(
        "Whether the last batch of a stream that ends (`availableNow`) has an extra row of nulls.",
        "The row appears once, even if an earlier run processed the records before it. Not in the connector.",
        default="`false`",
        use="stream",
    ),
    "failOnDataLoss": Option(
        "Whether a query fails if offsets that it should read are gone.",
        "Causes are retention, truncation, and a topic that was deleted or created again. With `false`, the query"
        " warns and reads the remaining records.",
        default="`true`",
    ),
    "minPartitions": Option("Approximate minimum number of tasks per batch; long ranges are split."),
    "maxRecordsPerPartition": Option("Maximum number of offsets per task; longer ranges are split."),
    "maxOffsetsPerTrigger": Option(
        "Approximate number of offsets per micro-batch, shared in proportion to the backlog.", use="stream"
    ),
    "minOffsetsPerTrigger": Option(
        "How many offsets must be available before a micro-batch starts; `availableNow` ignores it.", use="stream"
    ),
    "maxTriggerDelay": Option(
        "How long `minOffsetsPerTrigger` may hold a micro-batch back.", default="`15m`", use="stream"
    ),
    "kafkaConsumer.pollTimeoutMs": Option(
        "How long a task waits for existing records before it fails.", default="`120000`"
    ),
    "fetchOffset.numRetries": Option("How often the driver retries a request for offsets.", default="`3`"),
    "fetchOffset.retryIntervalMs": Option("How long the driver waits between these retries.", default="`1000`"),
    "groupIdPrefix": Option("Refused: the source reads without a consumer group."),
}
"""Every option, by the connector's name."""

_BY_LOWER = {name.lower(): name for name in OPTIONS}


@dataclass(frozen=True)
class SourcePosition:
    """The start or end of reading, before Kafka resolves it."""

    option: str  # that sets it, for errors
    everywhere: int | None = None  # ``LATEST``, ``EARLIEST`` or None
    offsets: Offsets | None = None  # by partition, if given
    timestamp_ms: int | None = None  # one moment for all partitions
    timestamps_ms: Offsets | None = None  # by partition, if given
    latest_if_none: bool = True  # whether a moment after the last record means the end instead of an error


@dataclass(frozen=True)
class SourceOptions:
    """All options, checked and typed. Sent to the executors; its repr contains no property of the client."""

    bootstrap: str
    client: Mapping[str, Any] = field(repr=False)
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...] | None
    starting: SourcePosition
    ending: SourcePosition
    include_headers: bool = False
    include_topic_id: bool = False
    unreadable: str = "false"
    limits: Limits = field(default_factory=Limits)
    end_marker: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    records_per_partition_max: int | None = None
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = 15 * 60_000
    poll_ms_max: int = 120_000
    offset_retries_max: int = 3
    offset_retry_ms: int = 1000
    stopping: Offsets = field(default_factory=dict)
    skips: Skips = field(default_factory=Skips)

    def selects(self, partition: TopicPartition) -> bool:
        """Return whether the options name this partition, whether it exists or not."""
        if self.topics is not None:
            return partition.topic in self.topics
        if self.pattern is not None:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition in (self.assigned or ())

    @property
    def include_unreadable(self) -> bool:
        """Whether there is a column ``unreadable``."""
        return self.unreadable != "false"

    @property
    def selection(self) -> str:
        """The selected topics or partitions, as the option that selects them."""
        if self.topics is not None:
            return f"subscribe = {','.join(self.topics)}"
        if self.pattern is not None:
            return f"subscribePattern = {self.pattern}"
        return "assign = " + ",".join(f"{tp.topic}[{tp.partition}]" for tp in self.assigned or ())


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check options and return them typed.

    Args:
        given: Spark's options; names are case-insensitive.
        streaming: for ``readStream``; otherwise for ``read``.

    Raises:
        ConfigError: an option is unknown, malformed or contradicts another.
    """
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options, streaming)
    bootstrap, properties = connection_of(options)
    topics, pattern, assigned = _selection(options)
    found = SourceOptions(
        bootstrap=bootstrap,
        client=client_properties(properties),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_position(options, "starting", LATEST if streaming else EARLIEST, streaming),
        ending=_position(options, "ending", LATEST, streaming),
        include_headers=flag(options, "includeHeaders", False),
        include_topic_id=flag(options, "includeTopicId", False),
        unreadable=_unreadable(options),
        limits=_limits(options),
        end_marker=flag(options, "endMarker", False),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        min_partitions=_whole(options, "minPartitions"),
        records_per_partition_max=_whole(options, "maxRecordsPerPartition"),
        offsets_per_trigger_max=_whole(options, "maxOffsetsPerTrigger"),
        offsets_per_trigger_min=_whole(options, "minOffsetsPerTrigger"),
        trigger_delay_ms_max=_duration_ms(options.get("maxtriggerdelay", "15m")),
        poll_ms_max=_whole(options, "kafkaConsumer.pollTimeoutMs") or 120_000,
        offset_retries_max=_whole(options, "fetchOffset.numRetries", lowest=0, default=3) or 0,
        offset_retry_ms=_whole(options, "fetchOffset.retryIntervalMs", lowest=0, default=1000) or 0,
        stopping=from_json(_json(options.get("stoppingoffsets", "{}"), "stoppingOffsets"), "stoppingOffsets"),
        skips=parse_skips(options["skipoffsets"]) if "skipoffsets" in options else Skips(),
    )
    _check_ours(found)
    return found


def connection_of(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the brokers, and the other ``kafka.…`` options without their prefix."""
    text = options.get("kafka.bootstrap.servers", "")
    if not text:
        raise ConfigError(
            "the option kafka.bootstrap.servers is missing", cure='.option("kafka.bootstrap.servers", "host:9092")'
        )
    if "://" not in text:  # with it, the name of a registered cluster
        parse_bootstrap(text)
    properties = {name[6:]: value for name, value in options.items() if name.startswith("kafka.")}
    properties.pop("bootstrap.servers")
    return text.replace(" ", ""), properties


def _check_names(options: Mapping[str, str], streaming: bool) -> None:
    if "groupidprefix" in options:
        raise ConfigError(f"groupIdPrefix cannot be set: {NO_GROUP}", cure=WITHOUT_GROUP)
    for name in options:
        if name not in _BY_LOWER and not name.startswith("kafka."):
            cure = _BY_LOWER.get(nearest(name, _BY_LOWER, "", 0.5), "docs: spark-source")
            raise ConfigError(f"{name} is not an option of the source", cure=cure)
        if streaming and name.startswith("ending"):
            raise ConfigError(
                f"{_BY_LOWER[name]} is for batch queries: a stream has no end",
                cure="spark.read, or the trigger availableNow",
            )


def _selection(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, str | None, tuple[TopicPartition, ...] | None]:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in options]
    if len(chosen) != 1:
        raise ConfigError(
            f"exactly one of subscribe, subscribePattern and assign is needed, not {' and '.join(chosen) or 'none'}",
            cure='.option("subscribe", "topic")',
        )
    value = options[chosen[0].lower()]
    if chosen == ["subscribe"]:
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise ConfigError("subscribe does not name a topic", cure="one,two")
        return topics, None, None
    if chosen == ["subscribePattern"]:
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(
                f"subscribePattern = {value!r} is not a regular expression: {error}", cure="x.*"
            ) from None
        return None, value, None
    return None, None, _assigned(value)


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    found = _json(value, "assign")
    listed = isinstance(found, dict) and all(
        isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
        for numbers in found.values()
    )
    if not listed or not any(found.values()):
        raise ConfigError("assign is not of the form {topic: [partitions]}", cure='{"orders": [0, 1]}')
    return tuple(sorted(TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers))


def _position(options: Mapping[str, str], side: str, default: int, streaming: bool) -> SourcePosition:
    """Return one side's position; as in the connector, one timestamp precedes timestamps, and these precede offsets."""
    name = f"{side}Timestamp"
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy = {strategy} is unknown", cure="error or latest")
    latest = side == "ending" or strategy == "latest"
    if name.lower() in options:
        return SourcePosition(name, timestamp_ms=_whole(options, name, lowest=0), latest_if_none=latest)
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in options:
        moments = from_json(_json(options[name.lower()], name), name)
        return SourcePosition(name, timestamps_ms=moments, latest_if_none=latest)
    name = f"{side}Offsets"
    value = options.get(name.lower(), "").strip()
    word = {"": default, "latest": LATEST, "earliest": EARLIEST}.get(value.lower())
    refused = () if streaming else ((LATEST,) if side == "starting" else (EARLIEST,))
    offsets = None if word is not None else from_json(_json(value, name), name, lowest=EARLIEST)
    if word in refused or any(offset in refused for offset in (offsets or {}).values()):
        empty = "latest" if side == "starting" else "earliest"
        raise ConfigError(f"{name} cannot be {empty} in a batch query: nothing would be read", cure="an offset")
    return SourcePosition(name, everywhere=word, offsets=offsets)


def _check_ours(options: SourceOptions) -> None:
    """Raise if an option of ours names a partition that is not read."""
    for name, named in (("stoppingOffsets", options.stopping), ("skipOffsets", options.skips.ranges)):
        for tp in named:
            if not options.selects(tp):
                raise ConfigError(f"{name} names {place(tp)}, which is not read", cure="leave it out")


def _json(value: str, name: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ConfigError(f"{name} is neither a known word nor JSON", cure='{"orders": {"0": 23}}') from None


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return a boolean option."""
    value = options.get(name.lower(), str(default)).lower()
    if value not in ("true", "false"):
        raise ConfigError(f"{name} = {value} is neither true nor false", cure="true or false")
    return value == "true"


def _unreadable(options: Mapping[str, str]) -> str:
    value = options.get("includeunreadable", "false").lower()
    if value not in ("false", "records", "true"):
        raise ConfigError(f"includeUnreadable = {value} is unknown", cure="false, records or true")
    return value


def _limits(options: Mapping[str, str]) -> Limits:
    record = _whole(options, "recordBytesMax", lowest=LIMIT_MIN, default=Limits().record_bytes)
    assert record is not None
    if record > LIMIT_MAX:
        raise ConfigError(f"recordBytesMax = {record} is too large", cure=f"{LIMIT_MAX} at most")
    return Limits.of(record)


def _whole(options: Mapping[str, str], name: str, *, lowest: int = 1, default: int | None = None) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return default
    if not re.fullmatch(r"\s*\d{1,19}\s*", value) or int(value) < lowest:
        raise ConfigError(f"{name} = {value} is not a whole number of at least {lowest}", cure="a number")
    return int(value)


def _duration_ms(text: str) -> int:
    """Return a duration in Spark's notation in milliseconds.

    >>> _duration_ms("15m"), _duration_ms("30 s"), _duration_ms("500")
    (900000, 30000, 500)
    """
    if (found := seconds_of(text, "ms")) is None:
        raise ConfigError(f"maxTriggerDelay = {text} is not a duration", cure="15m, 30s or 500ms")
    return round(found * 1000)


# --- properties of the client ---

_NOT_TEXT = {"api_version", "kafka_client", "metric_reporters", "partitioner", "sasl_oauth_token_provider", "selector",
             "socket_options", "ssl_context"}  # fmt: skip
_TEXT = {"acks"}
_WHOLE = {"receive_buffer_bytes", "send_buffer_bytes"}
_TRANSLATED = (
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.location",
)


@dataclass(frozen=True)
class Client:
    """The properties of a kind of client."""

    defaults: Mapping[str, Any]  # kafka-python's properties
    decided: Mapping[str, str]  # set by the source or the sink, as in the connector; with what to use instead
    # Accepted so that jobs can move here: properties about groups, or of the Java client alone.
    without_effect: frozenset[str]

    def names(self) -> dict[str, str]:
        """Map the dotted names of properties that can be given as text to kafka-python's names."""
        found = {name: value for name, value in self.defaults.items() if name not in _NOT_TEXT and not callable(value)}
        return {name.replace("_", "."): name for name in found}


NO_GROUP = "the source reads without a consumer group, so it needs no rights on one and commits to none"
WITHOUT_GROUP = (
    "remove it; downspout.spark.query_progress.commit_progress(spark, group, options) shows the query's progress "
    "under a group's name"
)
INTERCEPTORS = {"interceptor.classes": "use DataFrame operators"}
CONSUMER = Client(
    KafkaConsumer.DEFAULT_CONFIG,
    {
        "auto.offset.reset": "startingOffsets says where to start",
        "group.id": f"{WITHOUT_GROUP}: {NO_GROUP}",
        "enable.auto.commit": "offsets are in Spark's checkpoint; query_progress.commit_progress tells lag tools",
        "key.deserializer": "keys are binary; cast the column",
        "value.deserializer": "values are binary; cast the column",
        **INTERCEPTORS,
    },
    frozenset(
        {
            "allow.auto.create.topics", "auto.commit.interval.ms", "default.api.timeout.ms",
            "group.instance.id", "heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records",
            "partition.assignment.strategy", "session.timeout.ms", "socket.connection.setup.timeout.ms",
            "socket.connection.setup.timeout.max.ms", "ssl.enabled.protocols", "ssl.keystore.type", "ssl.protocol",
            "ssl.truststore.type",
        }
    ),
)  # fmt: skip
PRODUCER = Client(
    KafkaProducer.DEFAULT_CONFIG,
    {
        "key.serializer": "the column key is a string or binary",
        "value.serializer": "the column value is a string or binary",
        "partitioner.class": "the option partitioner",
        "transactional.id": "a batch of Spark's is written at least once; a reader can drop repeats by the headers",
        **INTERCEPTORS,
    },
    frozenset(
        {
            "buffer.memory", "client.rack", "enable.metrics.push", "metadata.max.idle.ms",
            "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
            "partitioner.ignore.keys", "retry.backoff.max.ms", "socket.connection.setup.timeout.ms",
            "socket.connection.setup.timeout.max.ms", "ssl.enabled.protocols", "ssl.keystore.type", "ssl.protocol",
            "ssl.truststore.type", "transaction.timeout.ms",
        }
    ),
)  # fmt: skip


def client_properties(given: Mapping[str, str], client: Client = CONSUMER) -> dict[str, Any]:
    """Return kafka-python's properties for options without the prefix ``kafka.``.

    >>> client_properties({"security.protocol": "SSL", "fetch.max.wait.ms": "100", "ssl.truststore.location": "ca.pem"})
    {'fetch_max_wait_ms': 100, 'security_protocol': 'SSL', 'ssl_cafile': 'ca.pem'}
    """
    properties: dict[str, Any] = {}
    given, known = _looked_up(given), client.names()
    for name in sorted(given):
        if name in client.decided:
            raise ConfigError(f"kafka.{name} cannot be set", cure=client.decided[name])
        if name in _TRANSLATED:
            properties |= _translate(name, given[name], given)
        elif name in known and name not in client.without_effect:
            properties[known[name]] = _typed(name, given[name], client.defaults[known[name]])
        elif name not in client.without_effect:
            near = difflib.get_close_matches(name, [*known, *_TRANSLATED], n=1, cutoff=0.5)
            raise ConfigError(
                f"kafka.{name} is not a property of the client", cure=f"kafka.{near[0]}" if near else "remove it"
            )
    return properties


def _looked_up(given: Mapping[str, str]) -> dict[str, str]:
    """Replace references (``env:NAME``, ``file:PATH``) by the secrets; options may hold only references, as Spark shows
    them."""
    # They are resolved on the driver; tasks receive the values.
    return {**given, **resolve_client({name: value for name, value in given.items() if REFERENCE.match(value)})}


def _typed(name: str, text: str, default: Any) -> Any:
    """Return a value in the type of kafka-python's default."""
    if name in _TEXT:
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"kafka.{name} is neither true nor false", cure="true or false")
        return text.lower() == "true"
    if isinstance(default, (int, float)) or name.replace(".", "_") in _WHOLE:
        if not re.fullmatch(r"-?\d+", text):
            raise ConfigError(f"kafka.{name} is not a whole number", cure="a number without unit")
        return int(text)
    return text


def _translate(name: str, value: str, given: Mapping[str, str]) -> dict[str, Any]:
    if name == "sasl.jaas.config":
        return _jaas(value)
    if name == "ssl.endpoint.identification.algorithm":
        return {"ssl_check_hostname": value != ""}
    if name == "ssl.key.password":
        return {"ssl_password": value}
    if name == "ssl.keystore.password":
        return {} if "ssl.key.password" in given else {"ssl_password": value}
    kind = given.get(name.replace("location", "type"), "PEM")
    if kind.upper() != "PEM" or value.lower().endswith((".jks", ".p12", ".pfx")):
        raise ConfigError(
            f"kafka.{name} must name a PEM file", cure="convert the store with `keytool` and `openssl pkcs12 -nodes`"
        )
    return {"ssl_cafile": value} if "truststore" in name else {"ssl_certfile": value, "ssl_keyfile": value}


def _jaas(value: str) -> dict[str, str]:
    """Return the user and password of a PLAIN or SCRAM login module.

    >>> _jaas('org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";')
    {'sasl_plain_username': 'u', 'sasl_plain_password': 'p'}
    """
    fields = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', value))
    if not re.search(r"(Plain|Scram)LoginModule", value) or not {"username", "password"} <= set(fields):
        raise ConfigError(
            "kafka.sasl.jaas.config is not a PLAIN or SCRAM login with username and password",
            cure="kafka.sasl.plain.username and kafka.sasl.plain.password, or kafka-python's Kerberos properties",
        )
    plain = {key: re.sub(r"\\(.)", r"\1", text) for key, text in fields.items()}
    return {"sasl_plain_username": plain["username"], "sasl_plain_password": plain["password"]}
