"""The options of ``format("downspout")``: the connector's names, checked all at once when the source is made.

A job moves between the two by changing ``format``. So whatever the connector accepts is accepted, with its defaults;
what differs stands in ``docs/decisions/0017-the-spark-source.md``. Three options are ours:
``stoppingOffsets``, ``skipOffsets`` and ``includeTopicId``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.structs import TopicPartition

from downspout.errors import ConfigError
from downspout.kafka.address import parse_bootstrap
from downspout.spark.source.client_properties import client_properties
from downspout.spark.source.ranges import Offsets, from_json, place
from downspout.spark.source.skips import Skips, parse_skips

LATEST, EARLIEST = -1, -2
"""What stands for an end of the log among offsets."""


@dataclass(frozen=True)
class Option:
    """One option, for checks and for the table in the documentation.

    Attributes:
        default: in words.
        use: ``both``, ``batch`` or ``stream``; elsewhere an option of the connector has no effect, and ``ending…``
            is refused.
        text: what it says.
    """

    default: str
    use: str
    text: str


OPTIONS: Mapping[str, Option] = {
    "kafka.bootstrap.servers": Option("", "both", "Where Kafka is: `host:port,host:port`. Required."),
    "subscribe": Option("", "both", "Topics, separated by commas. One of these three is required."),
    "subscribePattern": Option("", "both", "A regular expression (Python's) that a topic's whole name must match."),
    "assign": Option("", "both", 'Partitions: `{"orders": [0, 1]}`.'),
    "startingOffsets": Option(
        "`latest`; batch `earliest`",
        "both",
        '`earliest`, `latest`, or an offset for each partition: `{"orders": {"0": 23, "1": -2}}` (-2: earliest, '
        "-1: latest). A stream that has a checkpoint starts there instead; partitions that appear later start at "
        "their beginning.",
    ),
    "startingOffsetsByTimestamp": Option(
        "", "both", 'Milliseconds since 1970 for each partition: `{"orders": {"0": 1700000000000}}`.'
    ),
    "startingTimestamp": Option("", "both", "The same moment for all partitions, in milliseconds since 1970."),
    "startingOffsetsByTimestampStrategy": Option(
        "`error`", "both", "Where no record is at or after the moment: `error`, or `latest`: start at the end."
    ),
    "endingOffsets": Option("`latest`", "batch", "`latest`, or an offset (-1: latest) for each partition."),
    "endingOffsetsByTimestamp": Option("", "batch", "As for the start; where no record is that late: the end."),
    "endingTimestamp": Option("", "batch", "The same moment for all partitions, in milliseconds since 1970."),
    "stoppingOffsets": Option(
        "",
        "both",
        'Where reading stops for ever, by partition: `{"orders": {"0": 100}}`; 100 itself is not read. A stream that '
        "has come there idles, and with `availableNow` ends. Partitions that are not named have no stop. Not in the "
        "connector.",
    ),
    "skipOffsets": Option(
        "",
        "both",
        'Offsets that are left out, by partition, each range without its end: `{"orders": {"0": [[5, 9]]}}`, which '
        "`downspout offsets export` writes. With Kafka's `id` of the topic beside its partitions, nothing of another "
        "topic of that name is left out. It may stay when the query is started again. Not in the connector.",
    ),
    "includeHeaders": Option("`false`", "both", "Whether to add the column `headers`."),
    "includeTopicId": Option(
        "`false`", "both", "Whether to add the column `topicId`: Kafka's id of the topic. Not in the connector."
    ),
    "failOnDataLoss": Option(
        "`true`",
        "both",
        "Whether a query fails when offsets that it should read are gone (retention, truncation, a topic deleted or "
        "created again). Otherwise it warns and goes on with what is left.",
    ),
    "minPartitions": Option("", "both", "About how many tasks a batch gets at least; long ranges are cut."),
    "maxRecordsPerPartition": Option("", "both", "How many offsets a task reads at most; longer ranges are cut."),
    "maxOffsetsPerTrigger": Option(
        "", "stream", "About how many offsets a micro-batch takes, from each partition in proportion to what it has."
    ),
    "minOffsetsPerTrigger": Option(
        "", "stream", "How many offsets must be there before a micro-batch is made. `availableNow` ignores it."
    ),
    "maxTriggerDelay": Option("`15m`", "stream", "How long `minOffsetsPerTrigger` may hold a micro-batch back."),
    "kafkaConsumer.pollTimeoutMs": Option(
        "`120000`", "both", "How long a task waits for records that must be there before it fails."
    ),
    "fetchOffset.numRetries": Option("`3`", "both", "How often the driver asks again for offsets."),
    "fetchOffset.retryIntervalMs": Option("`1000`", "both", "How long it waits in between."),
    "groupIdPrefix": Option("", "both", "No effect: the source reads without a consumer group."),
}
"""Every option, by the connector's name."""

_BY_LOWER = {name.lower(): name for name in OPTIONS}
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Position:
    """Where reading starts or ends, before Kafka was asked.

    Attributes:
        option: the option that says it, for errors.
        everywhere: ``LATEST``, ``EARLIEST`` or None.
        offsets: by partition, where they are given.
        timestamp_ms: the moment for all partitions.
        timestamps_ms: by partition, where they are given.
        latest_if_none: whether a moment after the last record means the end; otherwise it is an error.
    """

    option: str
    everywhere: int | None = None
    offsets: Offsets | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Offsets | None = None
    latest_if_none: bool = True


@dataclass(frozen=True)
class SourceOptions:
    """All options, checked and typed. It travels to the executors; its text holds no property of the client."""

    bootstrap: str
    client: Mapping[str, Any] = field(repr=False)
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...] | None
    starting: Position
    ending: Position
    include_headers: bool = False
    include_topic_id: bool = False
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
    def selection(self) -> str:
        """What is read, in the words of the options."""
        if self.topics is not None:
            return f"subscribe = {','.join(self.topics)}"
        if self.pattern is not None:
            return f"subscribePattern = {self.pattern}"
        return "assign = " + ",".join(f"{tp.topic}[{tp.partition}]" for tp in self.assigned or ())


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check options and return them typed.

    Args:
        given: as Spark hands them over; names in any case.
        streaming: for ``readStream``, else for ``read``.

    Raises:
        ConfigError: an option is unknown (the nearest one is suggested), malformed, missing, or not for this use.
    """
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options, streaming)
    text = options.get("kafka.bootstrap.servers", "")
    if not text:
        raise ConfigError(
            "the option kafka.bootstrap.servers is missing", cure='.option("kafka.bootstrap.servers", "host:9092")'
        )
    if "://" not in text:  # a cluster that was registered has such a name
        parse_bootstrap(text)
    properties = {name[6:]: value for name, value in options.items() if name.startswith("kafka.")}
    properties.pop("bootstrap.servers")
    topics, pattern, assigned = _selection(options)
    found = SourceOptions(
        bootstrap=text.replace(" ", ""),
        client=client_properties(properties),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_position(options, "starting", LATEST if streaming else EARLIEST, streaming),
        ending=_position(options, "ending", LATEST, streaming),
        include_headers=_flag(options, "includeHeaders", False),
        include_topic_id=_flag(options, "includeTopicId", False),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        min_partitions=_whole(options, "minPartitions"),
        records_per_partition_max=_whole(options, "maxRecordsPerPartition"),
        offsets_per_trigger_max=_whole(options, "maxOffsetsPerTrigger"),
        offsets_per_trigger_min=_whole(options, "minOffsetsPerTrigger"),
        trigger_delay_ms_max=_duration_ms(options.get("maxtriggerdelay", "15m")),
        poll_ms_max=_whole(options, "kafkaConsumer.pollTimeoutMs") or 120_000,
        offset_retries_max=_whole(options, "fetchOffset.numRetries", lowest=0, default=3) or 0,
        offset_retry_ms=_whole(options, "fetchOffset.retryIntervalMs", lowest=0, default=1000) or 0,
        stopping=_stopping(options),
        skips=parse_skips(options["skipoffsets"]) if "skipoffsets" in options else Skips(),
    )
    _check_ours(found)
    return found


def _check_names(options: Mapping[str, str], streaming: bool) -> None:
    for name in options:
        if name not in _BY_LOWER and not name.startswith("kafka."):
            near = difflib.get_close_matches(name, _BY_LOWER, n=1, cutoff=0.5)
            raise ConfigError(
                f"{name} is no option of the source", cure=_BY_LOWER[near[0]] if near else "docs: spark-source"
            )
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
            f"of subscribe, subscribePattern and assign exactly one is needed, not {' and '.join(chosen) or 'none'}",
            cure='.option("subscribe", "topic")',
        )
    value = options[chosen[0].lower()]
    if chosen == ["subscribe"]:
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise ConfigError("subscribe names no topic", cure="one,two")
        return topics, None, None
    if chosen == ["subscribePattern"]:
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(f"subscribePattern = {value!r} is no regular expression: {error}", cure="x.*") from None
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


def _position(options: Mapping[str, str], side: str, default: int, streaming: bool) -> Position:
    """Return where one side lies; as with the connector a moment precedes moments, and these precede offsets."""
    name = f"{side}Timestamp"
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy = {strategy} is unknown", cure="error or latest")
    latest = side == "ending" or strategy == "latest"
    if name.lower() in options:
        return Position(name, timestamp_ms=_whole(options, name, lowest=0), latest_if_none=latest)
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in options:
        moments = from_json(_json(options[name.lower()], name), name)
        return Position(name, timestamps_ms=moments, latest_if_none=latest)
    name = f"{side}Offsets"
    value = options.get(name.lower(), "").strip()
    word = {"": default, "latest": LATEST, "earliest": EARLIEST}.get(value.lower())
    refused = () if streaming else ((LATEST,) if side == "starting" else (EARLIEST,))
    offsets = None if word is not None else from_json(_json(value, name), name, lowest=EARLIEST)
    if word in refused or any(offset in refused for offset in (offsets or {}).values()):
        empty = "latest" if side == "starting" else "earliest"
        raise ConfigError(f"{name} cannot be {empty} in a batch query: there is nothing in between", cure="an offset")
    return Position(name, everywhere=word, offsets=offsets)


def _stopping(options: Mapping[str, str]) -> Offsets:
    value = options.get("stoppingoffsets")
    return {} if value is None else from_json(_json(value, "stoppingOffsets"), "stoppingOffsets")


def _check_ours(options: SourceOptions) -> None:
    """Raise where an option of ours names what is not read."""
    for name, named in (("stoppingOffsets", options.stopping), ("skipOffsets", options.skips.ranges)):
        for tp in named:
            if not options.selects(tp):
                raise ConfigError(f"{name} names {place(tp)}, which is not read", cure="leave it out")


def _json(value: str, name: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ConfigError(f"{name} is neither a word that it knows nor JSON", cure='{"orders": {"0": 23}}') from None


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower(), str(default)).lower()
    if value not in ("true", "false"):
        raise ConfigError(f"{name} = {value} is neither true nor false", cure="true or false")
    return value == "true"


def _whole(options: Mapping[str, str], name: str, *, lowest: int = 1, default: int | None = None) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return default
    if not re.fullmatch(r"\s*\d{1,19}\s*", value) or int(value) < lowest:
        raise ConfigError(f"{name} = {value} is no whole number of at least {lowest}", cure="a number")
    return int(value)


def _duration_ms(text: str) -> int:
    """Return a time with its unit, as Spark writes it, in milliseconds.

    >>> _duration_ms("15m"), _duration_ms("30 s"), _duration_ms("500")
    (900000, 30000, 500)
    """
    found = re.fullmatch(r"\s*(\d{1,18})\s*(ms|s|min|m|h|d|)\s*", text.lower())
    if found is None:
        raise ConfigError(f"maxTriggerDelay = {text} is no time", cure="15m, 30s or 500ms")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]
