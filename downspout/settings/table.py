"""The table of all settings, and parsing of their values.

``downspout check`` and ``docs/reference/settings.md`` are generated from the table.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from downspout.errors import USER_ERRORS, ConfigError
from downspout.formatting import figure, nearest
from downspout.settings.folders import local_path
from downspout.settings.object_path import place_path

# --- Values ---


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if (text := str(value).strip().lower()) not in known:
        raise ValueError(value)
    return known[text]


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(str(value).replace("_", "")) if isinstance(value, str) else int(value)


def _parse_float(value: Any) -> float:
    if isinstance(value, bool) or math.isnan(number := float(value)):
        raise ValueError(value)
    return number


def _parse_list(value: Any) -> list[str]:
    if isinstance(value, str):
        text = value.strip()
        value = json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",") if part.strip()]
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise TypeError(value)
    return [str(item) for item in value]


def _parse_str(value: Any) -> str:
    if not isinstance(value, str | int | float | os.PathLike) or isinstance(value, bool):
        raise TypeError(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


PARSERS = {
    str: _parse_str, Path: _parse_str, PurePath: _parse_str, int: _parse_int, float: _parse_float, bool: _parse_bool,
    list: _parse_list,
}  # fmt: skip


def parse_as(kind: type, value: Any) -> Any:
    """Parse a value as a setting of this kind.

    Raises:
        TypeError, ValueError, OverflowError: it is malformed.

    >>> parse_as(int, "1_000"), parse_as(bool, "yes")
    (1000, True)
    """
    return PARSERS[kind](value)


def load(setting: str, path: str) -> Any:
    """Import the user's object ``module.name``: Storm's configuration is JSON and cannot hold a function.

    >>> load("kafka.listener", "collections.OrderedDict").__name__
    'OrderedDict'
    """
    module, dot, name = path.rpartition(".")
    try:
        if not dot:
            raise ImportError("there is no dot in it")
        return getattr(import_module(module), name)
    except USER_ERRORS as error:  # an import may raise anything
        raise ConfigError(f"{setting} = {path!r} cannot be imported: {error}", cure="module.name") from error


KIND_NAMES = {
    str: "text", Path: "a path", PurePath: "a path or a URL", int: "a whole number", float: "a number",
    bool: "true or false", list: "a list of names",
}  # fmt: skip


# --- The table ---


ENV_PREFIX = "DOWNSPOUT_"
CLIENT_PREFIX = "kafka.client."


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    key: str  # dotted; the part before the first dot is the scope, the last word is the unit, if any
    # ``str``, ``int``, ``float``, ``bool``, ``list`` (of strings), ``Path`` (local), ``PurePath`` (also an object store)
    kind: type
    default: Any  # None: not set
    help: str  # one sentence
    minimum: float | None = None  # lowest valid number
    maximum: float | None = None  # highest valid number
    choices: tuple[str, ...] = ()  # the allowed values; empty: any
    first_too: tuple[str, ...] = ()  # aliases of the first choice
    required: bool = False  # whether the component cannot start without it
    note: str = ""  # further Markdown for docs/reference/settings.md; links are relative to it

    @property
    def scope(self) -> str:
        """The first part of the key, by which components select their settings."""
        return self.key.partition(".")[0]

    @property
    def env(self) -> str:
        """Its environment variable."""
        return env_name(self.key)

    def parse(self, value: Any, source: str) -> Any:
        """Parse ``value`` as this setting's type.

        >>> SETTINGS["kafka.poll_timeout_ms"].parse("250", "command line")
        250
        >>> SETTINGS["kafka.topics"].parse("a, b", "environment")
        ['a', 'b']
        >>> SETTINGS["kafka.start"].parse("earliest", "command line")
        'EARLIEST'
        >>> SETTINGS["produce.acks"].parse(-1, "topology")  # as Kafka's own clients spell it
        'all'
        """
        if value is None:
            return None
        try:
            parsed = PARSERS[self.kind](value)
            if isinstance(parsed, float) and math.isinf(parsed):
                raise ValueError(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise ConfigError(
                f"{self.key} = {value!r} ({source}) is not {KIND_NAMES[self.kind]}", cure=self._example()
            ) from None
        if isinstance(parsed, list):
            return [self._checked(item, source) for item in parsed]
        return self._checked(parsed, source)

    def _example(self) -> str:
        """Return an example of a valid value."""
        if self.kind is bool:
            return "true or false"
        shown = ",".join(self.default) if isinstance(self.default, list) else self.default
        kind = KIND_NAMES[self.kind]
        fallback = {int: 10, float: 1.0, list: "a,b", Path: "/data/out", PurePath: "/data/out"}.get(self.kind, "x")
        return f"{kind}, such as {shown if shown not in (None, '') else fallback}"

    def _checked(self, value: Any, source: str) -> Any:
        """Check the range of a value; return a choice as spelled in the table, whatever its case."""
        where = f"{self.key} = {value!r} ({source})"
        if self.kind is Path:
            return local_path(value, where)
        if self.kind is PurePath:
            return place_path(value, where)
        if self.choices:
            by_lower = {choice.lower(): choice for choice in self.choices}
            by_lower |= dict.fromkeys(self.first_too, self.choices[0])
            if (known := by_lower.get(str(value).strip().lower())) is not None:
                return known
            near, every = nearest(str(value).lower(), by_lower, ""), ", ".join(self.choices)
            if near:
                raise ConfigError(f"{where} is not one of {every}", cure=by_lower[near])
            raise ConfigError(f"{where}: there is no such value", cure=f"one of {every}")
        if self.minimum is not None and value < self.minimum:
            least = figure(self.minimum)
            raise ConfigError(f"{where} is below {least}", cure=f"a value of at least {least}")
        if self.maximum is not None and value > self.maximum:
            most = figure(self.maximum)
            raise ConfigError(f"{where} is above {most}", cure=f"a value of at most {most}")
        return value


def env_name(key: str) -> str:
    """Return the environment variable for a key."""
    return ENV_PREFIX + key.upper().replace(".", "_")


START_STRATEGIES = (
    "EARLIEST",
    "LATEST",
    "UNCOMMITTED_EARLIEST",
    "UNCOMMITTED_LATEST",
    "TIMESTAMP",
    "UNCOMMITTED_TIMESTAMP",
    "OFFSETS",
    "UNCOMMITTED_OFFSETS",
)

# One row, one line: it reads as a table.
# fmt: off
TABLE: tuple[Setting, ...] = (
    # --- kafka: read by KafkaSpout ---
    Setting("kafka.bootstrap", str, "embedded", "Brokers, as `host:port,host:port`; `embedded` is the broker of `downspout kafka start`."),
    Setting("kafka.topics", list, None, "Topics to read."),
    Setting("kafka.pattern", str, None, "Regular expression that matches whole topic names; replaces `kafka.topics`."),
    Setting("kafka.mode", str, "subscribe", "How tasks share the partitions.", choices=("subscribe", "assign"), note="`subscribe`: as members of the consumer group, which discover topics and partitions within `kafka.client.metadata_max_age_ms` (30 s). `assign`: each task takes a fixed share without a group, and looks for new partitions every 2 s."),
    Setting("kafka.partitions", list, None, "Partitions to read with `kafka.mode=assign`, as `topic[partition,partition]`.", note="Topics that are not named are read whole."),
    Setting("kafka.group", str, None, "Consumer group; by default, the topology's name."),
    Setting("kafka.fields", list, ["topic", "partition", "offset", "key", "value"], "Fields of the tuple, in order.", choices=("topic", "partition", "offset", "key", "value", "timestamp", "headers", "origin")),
    Setting("kafka.key_format", str, "utf8", "How keys are decoded.", choices=("utf8", "bytes", "json")),
    Setting("kafka.value_format", str, "utf8", "How values are decoded.", choices=("utf8", "bytes", "json")),
    Setting("kafka.translator", list, None, "Functions that make tuples from a record, instead of `kafka.fields` and the formats.", note="Each is `[topic=]module.function[(field field)][@stream]`, or [a scheme](from-storm-kafka.md#schemes): `raw`, `string`, `string_with_topic`, `string_key_value`, `string_with_metadata`."),
    Setting("kafka.listener", str, None, "Import path of a `downspout.spout.SpoutListener`, which the spout notifies."),
    Setting("kafka.start", str, "UNCOMMITTED_EARLIEST", "Where reading starts: Storm's first-poll strategies, and named offsets.", choices=START_STRATEGIES),
    Setting("kafka.start_timestamp_ms", int, None, "Milliseconds since the epoch, for the `TIMESTAMP` strategies.", minimum=0, maximum=253_402_300_799_999),
    Setting("kafka.start_offsets", list, None, "Offsets for the `OFFSETS` strategies, as `topic[partition]=offset`.", note="Other partitions start at their beginning."),
    Setting("kafka.stop_offsets", list, None, "Where a run with `run.until=end` stops, as `topic[partition]=offset`.", note="The offset itself is not read. Other partitions stop at their end."),
    Setting("kafka.guarantee", str, "AT_LEAST_ONCE", "Processing guarantee.", choices=("AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT")),
    Setting("kafka.poll_timeout_ms", int, 200, "Longest wait for records in a poll.", minimum=0, maximum=5_000),
    Setting("kafka.poll_records_max", int, 2_000, "Most records per poll.", minimum=1, maximum=100_000),
    Setting("kafka.emits_per_next_max", int, 500, "Most tuples per call of `next_tuple`; Storm's spout emits 1.", minimum=1),
    Setting("kafka.emit", str, "auto", "What a tuple is: a record, or a chunk of many records of a partition as columns.", choices=("auto", "record", "chunk"), note="`auto` emits chunks if all components that the records reach take them; `downspout check` explains the choice. In chunk mode the broker gathers 512 KiB for at most 125 ms, unless `kafka.client.fetch_min_bytes` or `kafka.client.fetch_max_wait_ms` is set."),
    Setting("kafka.chunk_records_max", int, 10_000, "Most records per chunk.", minimum=1, maximum=1_000_000, note="In chunk mode, a poll takes at least as many records, if they are available."),
    Setting("kafka.chunk_bytes_max", int, 8 * 1024 * 1024, "Most bytes of keys, values and headers per chunk.", minimum=1, note="A larger record becomes a chunk of its own."),
    Setting("kafka.commit_period_ms", int, 30_000, "Time between commits.", minimum=0, maximum=86_400_000),
    Setting("kafka.commit", str, "sync", "Whether the spout waits for the answer to a commit.", choices=("sync", "async", "combined"), note="`sync`: always. `combined`: only before a rebalance and at the end. `async`: only at the end. See [when a commit counts](../concepts/offsets.md#when-a-commit-counts)."),
    Setting("kafka.offset_store", str, "kafka", "Where offsets are kept: `kafka`, or a URL such as `sqlite:///offsets.db`.", note="With a store, the spout starts at the store's offsets, and the group receives a copy. See [the stores](../how-to/write-to-sql.md#offsets-in-the-database)."),
    Setting("kafka.offset_store_password", str, None, "Password of the store, as `env:NAME` or `file:PATH`."),
    Setting("kafka.offset_store_adopt", bool, False, "Whether partitions without an offset in the store continue from the group's."),
    Setting("kafka.transaction_ms", int, 1_000, "Length of a transaction of a transactional KafkaBolt.", minimum=10, maximum=600_000),
    Setting("kafka.trace_every", int, 0, "Trace every N-th record, and each chunk, with OpenTelemetry; 0: none.", minimum=0, note="It traces records whose offset is a multiple of N, and needs `downspout[otel]` and `AT_LEAST_ONCE`."),
    Setting("kafka.uncommitted_max", int, 250_000, "Most offsets of a partition that may be emitted beyond the commit.", minimum=1),
    Setting("kafka.retry_delay_ms", int, 2, "Back-off before the first retry; it doubles each time.", minimum=0, maximum=86_400_000),
    Setting("kafka.retry_delay_ms_max", int, 10_000, "Longest back-off.", minimum=0, maximum=86_400_000),
    Setting("kafka.retry_policy", str, None, "Import path of a function that returns the back-off in milliseconds.", note="It receives the number of failures, including timeouts. If it raises or returns no number, the settings above apply."),
    Setting("kafka.retry_cache_bytes", int, 8 * 1024 * 1024, "Bytes of failed records that a partition keeps in memory for retries.", minimum=0),
    Setting("kafka.retries_max", int, 10, "Retries before a record is dead-lettered; -1: no limit.", minimum=-1),
    Setting("kafka.timeouts_max", int, 10, "Timeouts before a record is dead-lettered.", minimum=1, note="A timeout counts only if other records of the partition were acked meanwhile."),
    Setting("kafka.dead_letter_topic", str, "{group}.dead-letters", "Topic for exhausted records; if empty, the run stops at the first one."),
    Setting("kafka.breaker_ratio", float, 0.5, "Share of exhausted records among a partition's last 1,000 that stops the run; 0: never.", minimum=0.0, maximum=1.0),
    Setting("kafka.honour_replays", bool, True, "Whether a record written by `downspout dlq replay` keeps its original origin."),
    Setting("kafka.emit_null", bool, False, "Whether a translator's result of None is emitted as a tuple of nulls.", note="Otherwise the record is done without a tuple. Null values (tombstones) are emitted either way."),
    Setting("kafka.on_data_loss", str, "fail", "What to do if unprocessed records are gone from Kafka.", choices=("fail", "earliest", "latest", "start"), note="`start`: continue at the end if `kafka.start` is a `LATEST` strategy, otherwise at the beginning."),
    Setting("kafka.behind_max", int, None, "How many offsets a record may lie behind before it is dropped and counted.", minimum=0, note="For records that lose their value with age: [details](from-storm-kafka.md#records-that-are-too-old)."),
    Setting("kafka.on_corrupt_batch", str, "fail", "What to do with an unreadable batch: end the run, or dead-letter its offsets.", choices=("fail", "dead_letter"), note="A batch is unreadable if its checksum is wrong, or if it cannot be unpacked within four times `kafka.record_bytes_max`."),
    Setting("kafka.record_bytes_max", int, 32 * 1024 * 1024, "Most bytes of an unpacked record.", minimum=1_024, maximum=1 << 30, note="The beginning of a larger record is dead-lettered."),
    Setting("kafka.session_timeout_ms", int, 10_000, "How long a silent member keeps its partitions.", minimum=1_000, maximum=1_800_000),
    Setting("kafka.drain_ms_max", int, 5_000, "How long a planned hand-over waits for acks.", minimum=0, maximum=86_400_000),
    # --- parse and lookup: read by JsonParseBolt, CsvParseBolt and LookupBolt ---
    Setting("parse.fields", list, None, "Keys of the JSON object, or fields of the CSV line, that become fields of the tuple.", required=True, note="JSON: `key`, `field=key` or `field=path` (`user.id`, `items[0].sku`). CSV: the fields of a line in order; `-` skips a field."),
    Setting("parse.delimiter", str, ",", "Separator of the fields of a CSV line."),
    Setting("parse.registry", str, None, "URL of the schema registry.", note="Several URLs, separated by commas, are tried in turn. A URL may contain a user but no password."),
    Setting("parse.registry_password", str, None, "Password of the registry, as `env:NAME` or `file:PATH`."),
    Setting("parse.reader_schema", str, None, "Avro schema (JSON, or a file) with which all values are read.", note="By default, each value is read as it was written."),
    Setting("parse.carry", list, [], "Fields of the input to keep, such as `key`; they follow `origin`."),
    Setting("parse.on_null", str, "row", "What a null value (a tombstone) becomes: a row of nulls, or no row.", choices=("row", "filter"), note="A record without a row counts as `filtered`."),
    Setting("parse.types", list, None, "Types of the fields, as `field:type`.", note="[The types](schema.md) are those of a sink. Without them, each field has the type of its value, and chunks are split into records."),
    Setting("lookup.table", Path, None, "A CSV file with a header, a Parquet file, or a folder of Parquet files.", required=True),
    Setting("lookup.key", str, None, "Field to look up, or `field=column` if the table's column has another name.", required=True),
    Setting("lookup.fields", list, None, "Fields of the tuple to keep, besides `origin`."),
    Setting("lookup.add", list, None, "Columns of the table to add, as `name` or `field=name`.", required=True),
    Setting("lookup.types", list, None, "Types of CSV columns, as `column:type`; the others are text."),
    Setting("lookup.nulls", list, [], "Texts that mean null in CSV, such as `NA`; empty text always does."),
    Setting("lookup.missing", str, "null", "What to do with an unknown key: add nulls, or reject the tuple.", choices=("null", "reject")),
    # --- produce: read by KafkaBolt, besides kafka.bootstrap and kafka.client ---
    Setting("produce.bootstrap", str, None, "Brokers to write to; by default, those of `kafka.bootstrap`."),
    Setting("produce.topic", str, None, "Topic to write to.", note="If `produce.fields` or `produce.mapper` provides topics, this topic is the fallback."),
    Setting("produce.fields", list, [], "Fields of the tuple that become the parts of a record, as `part=field`.", note="Parts are `message`, `key`, `headers`, `timestamp`, `partition` and `topic`: [what each takes](../how-to/write-to-kafka.md#what-a-tuple-becomes). By default, the message is the field `message`, and the key is the field `key`, or null if the input has none."),
    Setting("produce.key_format", str, "utf8", "Format of keys.", choices=("utf8", "bytes", "json")),
    Setting("produce.message_format", str, "utf8", "Format of messages.", choices=("utf8", "bytes", "json")),
    Setting("produce.mapper", str, None, "Import path of a function that makes a record from a tuple's values.", note="It replaces `produce.fields`, and returns `(key, message)` or a `downspout.producing.mapper.Outgoing`."),
    Setting("produce.mode", str, "asynchronous", "When to ack a tuple: after the broker's answer, or at once.", choices=("asynchronous", "synchronous", "fire_and_forget"), note="`synchronous` waits for each answer before it takes the next tuple."),
    Setting("produce.acks", str, "all", "Replicas that must have a record: all in sync, the leader, or none.", choices=("all", "1", "0"), first_too=("-1",)),
    Setting("produce.idempotence", bool, None, "Whether the broker recognises resends.", note="On by default if `produce.acks` allows it."),
    Setting("produce.compression", str, "none", "Codec of the batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")),
    Setting("produce.partitioner", str, "sticky", "Which partition gets a record that names none.", note="A key determines the partition. Records without a key fill a batch per partition (`sticky`) or go to each partition in turn (`round_robin`). The import path of a function also works."),
    Setting("produce.linger_ms", int, 5, "How long an incomplete batch waits for more records.", minimum=0, maximum=60_000),
    Setting("produce.batch_bytes", int, 128 * 1024, "Size of a batch, which holds records of one partition.", minimum=1),
    Setting("produce.request_bytes_max", int, 16 * 1024 * 1024, "Size of the largest record.", minimum=1_024, maximum=1 << 30),
    Setting("produce.buffer_bytes", int, 32 * 1024 * 1024, "Bytes that may be unacknowledged before the bolt waits.", minimum=1_024),
    Setting("produce.auto_create", bool, None, "Whether the broker may create a missing topic.", note="By default, the broker decides."),
    Setting("produce.partitions", int, None, "Partitions of `produce.topic`, if the bolt is to create it.", minimum=1, maximum=1_000_000, note="Without it, the bolt creates no topic; see `produce.auto_create`."),
    Setting("produce.replication", int, None, "Replicas of each of these partitions.", minimum=1, maximum=32_767, note="By default, the broker decides."),
    Setting("produce.transactional", bool, False, "Whether records are written exactly once, in transactions with the offsets of their KafkaSpout.", note="Only in `KafkaBolt.spec(…)`. See `kafka.transaction_ms`."),
    Setting("produce.transaction_timeout_ms", int, None, "Time after which the broker aborts an open transaction.", minimum=1_000, maximum=86_400_000, note="By default, the message timeout plus a minute, at most 15 minutes."),
    Setting("produce.callback", str, None, "Import path of a function that receives each tuple and its result."),
    # --- parquet: read by the sinks ---
    Setting("parquet.directory", PurePath, None, "Where the files go: a folder, or `s3://bucket/name`, `gs://…`, `az://…`.", required=True, note="It must be new, empty, or this sink's own. See [object stores](../how-to/write-to-s3.md)."),
    Setting("parquet.storage_options", list, [], "Options of an object store, as `name=value`, with the names of `obstore`.", note="Pass keys as `env:NAME` or `file:PATH`. By default, the usual variables and profiles apply."),
    Setting("parquet.schema", list, None, "Columns as `name:type`, in order.", note="See [the types](schema.md)."),
    Setting("parquet.keys", list, [], "AggregateBolt: columns that form the key, and at most one window: `window(at, 10 minutes)`.", note="Sliding: `window(at, 1 hour, 10 minutes)`. Local days: `window(at, 1 day, Europe/Berlin)`. See [windows](../how-to/windows.md)."),
    Setting("parquet.aggregates", list, [], "AggregateBolt: `count`, or `sum:x`, `min:x`, `max:x`, `count:x` of a column x."),
    Setting("parquet.lateness_s", float, 60.0, "How far the time of a row may lie behind the latest time in its partition before its windows are final.", minimum=0.0),
    Setting("parquet.idle_s", float, 300.0, "How long a partition without rows holds windows open while other partitions have rows.", minimum=1.0, note="In a new directory, no window is final before this time has passed. It must exceed the time to replace a worker and the spout's time for the records of one fetch."),
    Setting("parquet.late", str, "add", "What happens to a row that arrives after all its windows are final.", choices=("add", "stream"), note="`add`: the row is added, and counted in `late_rows`. `stream`: it is emitted to the stream `late` instead."),
    Setting("parquet.partition_by", list, [], "Columns that become Hive folders (`month=7/`).", note="Each flush writes a file per value, so choose columns with few values. A flush of more than 400 files is written, and acked, in parts."),
    Setting("parquet.input_names", list, [], "`input=name`: the earlier name of an input, after a component was renamed."),
    Setting("parquet.flush_rows", int, 100_000, "Rows held that trigger a flush.", minimum=1),
    Setting("parquet.flush_bytes", int, 64 * 1024 * 1024, "Estimated bytes held that trigger a flush.", minimum=1),
    Setting("parquet.flush_age_s", float, 8.0, "Age of the oldest row that triggers a flush; at most a third of the message timeout.", minimum=0.0),
    Setting("parquet.outage_s_max", float, 0.0, "How long a store may be unavailable, or a disk full, before the run ends; 0: no limit.", minimum=0.0, note="Meanwhile, spouts pause, and the log names what is unavailable."),
    Setting("parquet.rebuild", int, 0, "Number of the directory's rebuild: a higher one starts the directory anew.", minimum=0, note="Use it to [process records anew](../concepts/exactly-once.md#to-process-records-anew)."),
    Setting("parquet.compact_every_s", float, 0.0, "Seconds between compactions while the topology runs; 0: none.", minimum=0.0, note="The first task starts `downspout compact` as a process. Not on Spark."),
    Setting("parquet.compression", str, "zstd", "Codec of the files.", choices=("zstd", "snappy", "none")),
    # --- state: read by StateBolt ---
    Setting("state.store", str, None, "Database of the state: `sqlite:///counts.db`, or `postgresql://user@host/name`.", required=True, note="Three slashes: relative to the project's folder; four: absolute."),
    Setting("state.password", str, None, "Password of the database, as `env:NAME` or `file:PATH`."),
    Setting("state.name", str, None, "Name of the state in its store; by default, the component's.", note="A state belongs to one `batch.id`."),
    Setting("state.kind", str, "opaque", "What is stored with a value, to recognise a repeated batch.", choices=("opaque", "transactional", "non_transactional"), note="[Which kind goes with which batches](../concepts/batches.md#which-pairs-are-exactly-once)."),
    Setting("state.exactly_once", bool, True, "Whether to refuse a state whose values would be wrong.", note="Values would be wrong if the state's kind does not fit the batches, or if the state starts in the middle of them. Set this to no for a state that you add to a topology, or to take over Trident's batches."),
    Setting("state.key", list, None, "Fields of the tuple that are the key.", required=True),
    Setting("state.update", str, None, "What a tuple does to the value of its key.", required=True, note="`count`, `sum:field`, `min:field`, `max:field`, `last:field`, or the import path of a function of the value and the tuple's values, or of a class with `init` and `combine`."),
    # --- sql: read by SqlBolt ---
    Setting("sql.database", str, None, "URL of the database: `sqlite:///flights.db`, or `postgresql://user@host/name`.", required=True, note="Three slashes: relative to the project's folder; four: absolute."),
    Setting("sql.password", str, None, "Password of the database, as `env:NAME` or `file:PATH`.", note="Without it, libpq looks in its usual places, such as `~/.pgpass`."),
    Setting("sql.table", str, None, "Existing table to write to; `schema.table` in PostgreSQL.", required=True),
    Setting("sql.keys", list, [], "Columns of the key for an upsert; without them, rows are inserted.", note="The table needs a primary key or unique index of these columns."),
    Setting("sql.schema", list, None, "Columns to write as `name:type`; by default, those of the table.", note="Needed if a column of the table has a type without a counterpart. See [the types](schema.md)."),
    Setting("sql.input_names", list, [], "`input=name`: the earlier name of an input, after a component was renamed."),
    Setting("sql.flush_rows", int, 20_000, "Rows held that trigger a flush, which is one transaction.", minimum=1),
    Setting("sql.flush_bytes", int, 32 * 1024 * 1024, "Estimated bytes held that trigger a flush.", minimum=1),
    Setting("sql.flush_age_s", float, 2.0, "Age of the oldest row that triggers a flush; at most a third of the message timeout.", minimum=0.0),
    Setting("sql.outage_s_max", float, 0.0, "How long a database may be unavailable, full or locked before the run ends; 0: no limit.", minimum=0.0),
    # --- batch: read by KafkaBatches ---
    Setting("batch.kind", str, "opaque", "What a repeated batch contains.", choices=("opaque", "transactional"), note="`transactional`: exactly the same records, or the run stops. `opaque`: possibly other records, so batches continue without an unavailable partition. See [the pairs](../concepts/batches.md#which-pairs-are-exactly-once)."),
    Setting("batch.max_active", int, 1, "Most batches processed at once; they commit in order.", minimum=1, maximum=1_000),
    Setting("batch.emit_interval_ms", int, 500, "Least time between the starts of two batches.", minimum=0, maximum=86_400_000),
    Setting("batch.records_max", int, 10_000, "Most records per batch, shared equally by the partitions.", minimum=1),
    Setting("batch.bytes_max", int, 16 * 1024 * 1024, "Most bytes of keys and values per batch, shared equally by the partitions.", minimum=1),
    Setting("batch.store", str, "sqlite:///batches.db", "URL of the store for the metadata of batches.", note="All machines must reach it."),
    Setting("batch.store_password", str, None, "Password of the store, as `env:NAME` or `file:PATH`."),
    Setting("batch.id", str, None, "Name of this series of batches in the store; by default, the topology's."),
    Setting("batch.attempts_max", int, 10, "Consecutive attempts in which a bolt raised before the run stops.", minimum=1, note="Timeouts and fails without an exception do not count."),
    # --- run: read by the local engine ---
    Setting("run.until", str, None, "`end`: stop when everything that was in the log at the start is processed.", choices=("end",)),
    Setting("run.for_s", float, None, "Stop after this time.", minimum=0.0),
    Setting("run.records", int, None, "Stop after this many tuple trees.", minimum=1),
    Setting("run.member", int, None, "Number of this process among those that run the topology.", minimum=1),
    Setting("run.workers", int, None, "Processes on this machine that share the partitions as one consumer group.", minimum=1, maximum=256),
    Setting("run.redeploy", bool, False, "Use a new topology id, as a new submit on Storm does."),
    Setting("run.drain_s", float, 30.0, "How long a stop waits for tuples in flight.", minimum=0.0),
    Setting("run.seed", int, None, "Seed of shuffles and message ids; random by default.", minimum=0),
    Setting("run.restarts_max", int, 3, "How often a bolt that has not processed anything yet may fail before it counts as broken.", minimum=0, note="A bolt that has worked, or that processes records of a KafkaSpout, may raise on 100 first attempts in a row."),
    Setting("run.stuck_s", float, 30.0, "Warn if a call of a component takes this long; 0: never.", minimum=0.0, note="The warning names component, record and line, and is repeated whenever the duration has doubled."),
    Setting("run.metrics_port", int, None, "Port for Prometheus metrics and Kubernetes health checks; 0: a free one.", minimum=0, maximum=65535, note="It needs `downspout[metrics]`. One port serves all workers."),
    Setting("run.ui", str, None, "Address of the run's web page, as `[HOST:]PORT`.", note="It needs `downspout[ui]`. The port also serves `/metrics`, `/healthz` and `/readyz`."),
    Setting("run.otel", bool, False, "Whether to export metrics with OpenTelemetry (OTLP over HTTP).", note="It needs `downspout[otel]`. `OTEL_EXPORTER_OTLP_ENDPOINT` is the target; `kafka.trace_every` adds spans."),
    Setting("run.metrics_host", str, "127.0.0.1", "Address on which `run.metrics_port` listens.", note="`0.0.0.0` for all addresses. There is no password; clients can read names, counts and offsets, but no records."),
)
# fmt: on
SETTINGS: dict[str, Setting] = {setting.key: setting for setting in TABLE}
SCOPES = frozenset(setting.scope for setting in TABLE)
STORM_PREFIXES = ("topology.", "storm.", "pystorm.", "supervisor.", "nimbus.", "worker.")


def check_known(key: str, source: str, declared: Iterable[str] = ()) -> None:
    """Raise a ConfigError if ``key`` is neither ours nor Storm's, and is not declared in the topology.

    >>> check_known("kafak.group", "downspout.toml")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: unknown setting kafak.group (downspout.toml). Try: kafka.group
    """
    check_key(key, source)
    known = {*SETTINGS, *declared}
    if key in known or key.startswith((*STORM_PREFIXES, CLIENT_PREFIX)):
        return
    by_last = {name.rpartition(".")[2]: name for name in SETTINGS}
    near = nearest(key, known, "") or by_last.get(nearest(key, by_last, ""), "`downspout settings` lists all")
    raise ConfigError(f"unknown setting {key} ({source})", cure=near)


NUMBERS: Mapping[str, type] = {
    "topology.max.spout.pending": int,
    "topology.message.timeout.secs": float,
    "topology.tick.tuple.freq.secs": float,
    "topology.acker.executors": int,
    "topology.workers": int,
}
"""Numeric keys of Storm that the engine reads."""
POSITIVE = {"topology.message.timeout.secs": 30, "topology.workers": 1}
"""Those that Storm rejects at submit if they are 0, with their defaults."""


def check_number(key: str, value: Any, source: str) -> None:
    """Raise a ConfigError if the value of one of Storm's numeric keys is not a valid number.

    >>> check_number("topology.max.spout.pending", "many", "file")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: topology.max.spout.pending = 'many' (file) is not a whole number of at least 0. Try: 10
    >>> check_number("topology.message.timeout.secs", 0, "file")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: topology.message.timeout.secs = 0 (file) must be greater than 0. Try: 30
    """
    if (kind := NUMBERS.get(key)) is None or value is None:
        return
    try:
        number: Any = PARSERS[kind](value)
        fits = 0 <= number < math.inf
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ConfigError(f"{key} = {value!r} ({source}) is not {KIND_NAMES[kind]} of at least 0", cure="10")
    if key in POSITIVE and not number:
        raise ConfigError(f"{key} = {value!r} ({source}) must be greater than 0", cure=str(POSITIVE[key]))


def check_key(key: str, source: str, also: Sequence[str] = ()) -> None:
    """Raise a ConfigError if ``key`` has one of our prefixes but is not in the table.

    ``also``: further scopes for suggestions.

    >>> check_key("kafka.topic", "topology")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: unknown setting kafka.topic (topology). Try: kafka.topics
    """
    scope = key.partition(".")[0]
    if scope not in SCOPES or key in SETTINGS or key.startswith(CLIENT_PREFIX):
        return
    if key.replace("_", ".") == "kafka.enable.auto.commit":
        raise ConfigError(f"{key} ({source}) cannot be set: kafka.guarantee decides it", cure="remove it")
    known = {f"{scope}.{each.key.partition('.')[2]}": each.key for each in TABLE if each.scope in also}
    known |= {each: each for each in SETTINGS}
    cure = known.get(nearest(key, known, "", 0.5), "`downspout settings` lists all")
    raise ConfigError(f"unknown setting {key} ({source})", cure=cure)


def parse_scope(conf: Mapping[str, Any], scope: str, source: str = "topology") -> dict[str, Any]:
    """Return all settings of one scope from a Storm configuration, by their keys without the prefix.

    Components read their settings with it in ``initialize``, on every engine. Client properties are under ``client``.

    >>> parse_scope({"kafka.topics": "orders", "topology.name": "x"}, "kafka")["topics"]
    ['orders']
    """
    for key in conf:
        if key.startswith(f"{scope}."):
            check_key(key, source)
    values: dict[str, Any] = {}
    for setting in TABLE:
        if setting.scope != scope:
            continue
        value = setting.parse(conf.get(setting.key, setting.default), source)
        if value is None and setting.required:
            raise ConfigError(f"{setting.key} is not set", cure=f"give it a value: {setting.help}")
        values[setting.key.partition(".")[2]] = value
    if scope == "kafka":
        values["client"] = {
            k.removeprefix(CLIENT_PREFIX).replace(".", "_"): v for k, v in conf.items() if k.startswith(CLIENT_PREFIX)
        }
    return values


def component_config(scope: str, given: Mapping[str, Any], also: Sequence[str] = ()) -> dict[str, Any]:
    """Check a component's ``spec`` arguments, and return them as configuration; ``also`` as for :func:`check_key`.

    >>> component_config("kafka", {"topics": ["orders"]})
    {'kafka.topics': ['orders']}
    """
    config: dict[str, Any] = {}
    for name, value in given.items():
        key = f"{scope}.{name}"
        if key == CLIENT_PREFIX[:-1]:
            config.update({CLIENT_PREFIX + k: v for k, v in value.items()})
            continue
        check_key(key, "spec", also)
        config[key] = SETTINGS[key].parse(value, "spec")
    return config
