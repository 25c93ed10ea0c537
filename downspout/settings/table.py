"""The one table of settings. ``downspout check`` and ``docs/reference/settings.md`` are made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from downspout.errors import ConfigError
from downspout.formatting import figure, nearest
from downspout.settings.folders import local_path
from downspout.settings.object_path import place_path
from downspout.settings.values import KIND_NAMES, PARSERS

ENV_PREFIX = "DOWNSPOUT_"
CLIENT_PREFIX = "kafka.client."


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    key: str  # the dotted name; the part before the first dot is the scope, the unit is the last word
    # ``str``, ``int``, ``float``, ``bool``, ``list`` (of strings), ``Path`` (text that names a file or folder on this
    # machine) or ``PurePath`` (or one on an object store)
    kind: type
    default: Any  # the value where none is given; None means "not set"
    help: str  # one sentence
    minimum: float | None = None  # lowest value that makes sense, for numbers
    maximum: float | None = None  # highest value that makes sense, for numbers
    choices: tuple[str, ...] = ()  # the only values allowed, where there is a list
    first_too: tuple[str, ...] = ()  # what else means the first of the choices
    required: bool = False  # whether the component cannot start without it
    note: str = ""  # what else there is to say, for the page: Markdown, beside docs/reference/settings.md

    @property
    def scope(self) -> str:
        """The prefix: which kind of component reads it."""
        return self.key.partition(".")[0]

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return env_name(self.key)

    def parse(self, value: Any, source: str) -> Any:
        """Return ``value`` as this setting's type.

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
        except (TypeError, ValueError, RecursionError):
            raise ConfigError(
                f"{self.key} = {value!r} ({source}) is not {KIND_NAMES[self.kind]}", cure=self._example()
            ) from None
        if isinstance(parsed, list):
            return [self._checked(item, source) for item in parsed]
        return self._checked(parsed, source)

    def _example(self) -> str:
        """Return what would fit."""
        if self.kind is bool:
            return "true or false"
        shown = ",".join(self.default) if isinstance(self.default, list) else self.default
        kind = KIND_NAMES[self.kind]
        fallback = {int: 10, float: 1.0, list: "a,b", Path: "/data/out", PurePath: "/data/out"}.get(self.kind, "x")
        return f"{kind}, such as {shown if shown not in (None, '') else fallback}"

    def _checked(self, value: Any, source: str) -> Any:
        """Return a value that is in range; one of several choices as it is written in the table, in whatever case."""
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
    """Return the environment variable that stands for a key."""
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
    Setting("kafka.bootstrap", str, "embedded", "Brokers, as `host:port,host:port`; `embedded` is the one that `downspout kafka start` runs."),
    Setting("kafka.topics", list, None, "Topics to read."),
    Setting("kafka.pattern", str, None, "Regular expression that must match a topic's whole name; used instead of `kafka.topics`."),
    Setting("kafka.mode", str, "subscribe", "How tasks share the partitions.", choices=("subscribe", "assign"), note="`subscribe`: as members of the consumer group, which see new topics and partitions within `kafka.client.metadata_max_age_ms` (30 s). `assign`: each task takes its share by its number, without a group, and looks for new ones every 2 s."),
    Setting("kafka.partitions", list, None, "Partitions that `kafka.mode=assign` reads of a topic, instead of all, as `topic[partition,partition]`.", note="A topic of `kafka.topics` or `kafka.pattern` that is not named is read whole."),
    Setting("kafka.group", str, None, "Consumer group; if not set, the topology's name."),
    Setting("kafka.fields", list, ["topic", "partition", "offset", "key", "value"], "Fields of the tuple, in order.", choices=("topic", "partition", "offset", "key", "value", "timestamp", "headers", "origin")),
    Setting("kafka.key_format", str, "utf8", "How keys are decoded.", choices=("utf8", "bytes", "json")),
    Setting("kafka.value_format", str, "utf8", "How values are decoded.", choices=("utf8", "bytes", "json")),
    Setting("kafka.translator", list, None, "Functions that make tuples of a record, instead of `kafka.fields` and the formats.", note="Each is written as `[topic=]module.function[(field field)][@stream]`. `raw`, `string`, `string_with_topic`, `string_key_value` and `string_with_metadata` are [the schemes of the spout for Kafka 0.8](from-storm-kafka.md#schemes)."),
    Setting("kafka.listener", str, None, "Import path of a class whose methods the spout calls (a `downspout.spout.ports.SpoutListener`)."),
    Setting("kafka.start", str, "UNCOMMITTED_EARLIEST", "Where reading starts: Storm's first-poll strategies, and named offsets.", choices=START_STRATEGIES),
    Setting("kafka.start_timestamp_ms", int, None, "Milliseconds since the epoch, for the `TIMESTAMP` strategies.", minimum=0, maximum=253_402_300_799_999),
    Setting("kafka.start_offsets", list, None, "Offsets for the `OFFSETS` strategies, as `topic[partition]=offset`.", note="A partition that is not named starts at its beginning."),
    Setting("kafka.stop_offsets", list, None, "Where a run with `run.until=end` stops, as `topic[partition]=offset`.", note="The offset itself is not read. A partition that is not named ends where its log does."),
    Setting("kafka.guarantee", str, "AT_LEAST_ONCE", "Processing guarantee.", choices=("AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT")),
    Setting("kafka.poll_timeout_ms", int, 200, "Longest wait for records in one poll.", minimum=0, maximum=5_000),
    Setting("kafka.poll_records_max", int, 2_000, "Most records in one poll.", minimum=1, maximum=100_000),
    Setting("kafka.emits_per_next_max", int, 500, "Most tuples that one call of `next_tuple` emits; Storm's spout emits 1.", minimum=1),
    Setting("kafka.emit", str, "auto", "What a tuple is: one record, or a chunk, which holds many records of a partition as columns.", choices=("auto", "record", "chunk"), note="`auto` emits chunks where all components that their records reach take chunks, and records otherwise; `downspout check` says which, and why. For chunks the broker gathers 512 KiB per fetch, and waits at most 125 ms for them, unless `kafka.client.fetch_min_bytes` or `kafka.client.fetch_max_wait_ms` is set."),
    Setting("kafka.chunk_records_max", int, 10_000, "Most records in one chunk.", minimum=1, maximum=1_000_000, note="With `kafka.emit=chunk` a poll takes at least this many records, if that many are there."),
    Setting("kafka.chunk_bytes_max", int, 8 * 1024 * 1024, "Most bytes of keys, values and headers in one chunk.", minimum=1, note="A single record that is larger still becomes a chunk."),
    Setting("kafka.commit_period_ms", int, 30_000, "Time between commits.", minimum=0, maximum=86_400_000),
    Setting("kafka.commit", str, "sync", "Whether the spout waits for the broker's answer to a commit.", choices=("sync", "async", "combined"), note="`sync`: always. `combined`: only before a rebalance, at deactivate and at a stop; while running a commit is sent, and counts when its answer comes. `async`: at deactivate and at a stop alone. [More](../concepts/offsets.md#when-a-commit-counts)."),
    Setting("kafka.offset_store", str, "kafka", "Where offsets are kept: `kafka` for the consumer group, or the URL of a store, such as `sqlite:///offsets.db`.", note="With a store the spout starts at its offsets, whatever the group says; the group gets a copy of each commit, for lag tools. [The stores](../how-to/write-to-sql.md#offsets-in-the-database)."),
    Setting("kafka.offset_store_password", str, None, "Password for the store, as `env:NAME` or `file:PATH`."),
    Setting("kafka.offset_store_adopt", bool, False, "Whether partitions of which the store holds nothing go on from the group's offsets."),
    Setting("kafka.transaction_ms", int, 1_000, "Length of a transaction; the time between commits where a KafkaBolt is transactional.", minimum=10, maximum=600_000),
    Setting("kafka.trace_every", int, 0, "One of so many records has a span of OpenTelemetry, and each chunk; 0: none.", minimum=0, note="Those whose offset is a multiple of it. It needs `downspout[otel]`, and `kafka.guarantee=AT_LEAST_ONCE`."),
    Setting("kafka.uncommitted_max", int, 250_000, "Most offsets of a partition that may be emitted beyond the commit.", minimum=1),
    Setting("kafka.retry_delay_ms", int, 2, "Back-off before the first retry; each later one is twice as long.", minimum=0, maximum=86_400_000),
    Setting("kafka.retry_delay_ms_max", int, 10_000, "Longest back-off.", minimum=0, maximum=86_400_000),
    Setting("kafka.retry_policy", str, None, "Import path of a function that returns a record's back-off in milliseconds, instead of the settings before.", note="It gets the number of failures, which for the back-off include timeouts. If it raises, or returns no number, those settings hold."),
    Setting("kafka.retry_cache_bytes", int, 8 * 1024 * 1024, "Bytes of failed records that a partition keeps in memory for their retries; 0 keeps none.", minimum=0),
    Setting("kafka.retries_max", int, 10, "Retries of a record before it is dead-lettered; -1 retries for ever.", minimum=-1),
    Setting("kafka.timeouts_max", int, 10, "Timeouts of a record before it is dead-lettered.", minimum=1, note="A timeout counts only if other records of the partition were acked meanwhile."),
    Setting("kafka.dead_letter_topic", str, "{group}.dead-letters", "Topic for exhausted records; if empty, the run stops at the first one."),
    Setting("kafka.breaker_ratio", float, 0.5, "Share of a partition's last 1,000 records that, if exhausted, stops the run; 0 never stops it.", minimum=0.0, maximum=1.0),
    Setting("kafka.honour_replays", bool, True, "Whether a record that `downspout dlq replay` wrote keeps the origin of the record it stands for."),
    Setting("kafka.emit_null", bool, False, "Whether a translator's result of None is emitted as a tuple of nulls.", note="If not, the record is done at once, without a tuple. A record with a null value (a tombstone) is emitted either way."),
    Setting("kafka.on_data_loss", str, "fail", "What to do when records are gone that were not processed yet.", choices=("fail", "earliest", "latest", "start"), note="`start`: go on at the end of the log if `kafka.start` is one of the `LATEST` strategies, else at its beginning."),
    Setting("kafka.behind_max", int, None, "Offsets that a record may lie behind; older ones are left out and counted, which loses them.", minimum=0, note="For records that are worth nothing once they are old: [what it does](from-storm-kafka.md#records-that-are-too-old)."),
    Setting("kafka.on_corrupt_batch", str, "fail", "What to do with a batch that cannot be read: end the run, or dead-letter its offsets and go on.", choices=("fail", "dead_letter"), note="A batch cannot be read if its checksum is wrong, if it cannot be unpacked, or if it unpacks to more than four times `kafka.record_bytes_max`."),
    Setting("kafka.record_bytes_max", int, 32 * 1024 * 1024, "Most bytes of a record, unpacked.", minimum=1_024, maximum=1 << 30, note="The beginning of a larger record goes to the dead-letter topic."),
    Setting("kafka.session_timeout_ms", int, 10_000, "How long a silent member keeps its partitions.", minimum=1_000, maximum=1_800_000),
    Setting("kafka.drain_ms_max", int, 5_000, "How long a planned hand-over waits for outstanding acks.", minimum=0, maximum=86_400_000),
    # --- parse and lookup: read by JsonParseBolt, CsvParseBolt and LookupBolt ---
    Setting("parse.fields", list, None, "Keys of the JSON object, or fields of the CSV line, that become fields of the tuple.", required=True, note="JSON: `key`, `field=key` or `field=path` (`user.id`, `items[0].sku`). CSV: the fields of a line in order, with `-` for one to leave out."),
    Setting("parse.delimiter", str, ",", "Separator of the fields of a CSV line."),
    Setting("parse.registry", str, None, "URL of the schema registry that knows the schemas of the values.", note="Several, with commas between them, are asked in turn. A user's name may stand in it, the password may not."),
    Setting("parse.registry_password", str, None, "Password for the schema registry, as `env:NAME` or `file:PATH`."),
    Setting("parse.reader_schema", str, None, "Avro schema as which values are read, as JSON or as the path of a file: its defaults, aliases and wider types hold.", note="If not set, each value is read as it was written."),
    Setting("parse.carry", list, [], "Fields of the input to keep, such as `key`; they stand between `origin` and the parsed fields."),
    Setting("parse.on_null", str, "row", "What a null value (a tombstone) becomes: a row in which each parsed field is null, or no row.", choices=("row", "filter"), note="A record without a row is counted as `filtered`."),
    Setting("parse.types", list, None, "Types of the fields, as `field:type`.", note="The types are [those of a sink's columns](schema.md). If they are not set, each field keeps the type that it has in the value, and chunks are taken apart into records."),
    Setting("lookup.table", Path, None, "The table: a CSV file with a header, a Parquet file, or a folder of Parquet files.", required=True),
    Setting("lookup.key", str, None, "Field of the tuple to look up, or `field=column` if the table's column has another name.", required=True),
    Setting("lookup.fields", list, None, "Fields of the tuple to keep, besides `origin`."),
    Setting("lookup.add", list, None, "Columns of the table to add, as `name` or `field=name`.", required=True),
    Setting("lookup.types", list, None, "Types of CSV columns, as `column:type`; the other columns are text."),
    Setting("lookup.nulls", list, [], "Texts that mean null in CSV, such as `NA`; the empty text always does."),
    Setting("lookup.missing", str, "null", "What to do with a tuple whose key is not in the table: add nulls, or reject it.", choices=("null", "reject")),
    # --- produce: read by KafkaBolt, besides kafka.bootstrap and kafka.client ---
    Setting("produce.bootstrap", str, None, "Brokers to write to, if they are not those of `kafka.bootstrap`."),
    Setting("produce.topic", str, None, "Topic to write to.", note="If `produce.fields` or `produce.mapper` name the topic, this one is for tuples for which they name none."),
    Setting("produce.fields", list, [], "Fields of the tuple that become the parts of a record, as `part=field`.", note="Parts are `message`, `key`, `headers`, `timestamp`, `partition` and `topic`: [what each takes](../how-to/write-to-kafka.md#what-a-tuple-becomes). If they are not named, the message is the field `message`, and the key the field `key`, or null if the input has none."),
    Setting("produce.key_format", str, "utf8", "Format of keys.", choices=("utf8", "bytes", "json")),
    Setting("produce.message_format", str, "utf8", "Format of messages.", choices=("utf8", "bytes", "json")),
    Setting("produce.mapper", str, None, "Import path of a function that makes a record of a tuple's values.", note="It takes the place of the fields, and returns `(key, message)` or a `downspout.producing.mapper.Outgoing`."),
    Setting("produce.mode", str, "asynchronous", "When to ack a tuple: after the broker's answer, or at once.", choices=("asynchronous", "synchronous", "fire_and_forget"), note="`synchronous` waits for the answer before it takes the next tuple."),
    Setting("produce.acks", str, "all", "Replicas that must have a record before the broker answers: all in sync, the leader, or none.", choices=("all", "1", "0"), first_too=("-1",)),
    Setting("produce.idempotence", bool, None, "Whether the broker recognises repetitions.", note="If it is not set, it is on wherever `produce.acks` allows it."),
    Setting("produce.compression", str, "none", "Codec of the batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")),
    Setting("produce.partitioner", str, "sticky", "Which partition gets a record that names none.", note="`sticky`: the key decides; records without one stay with a partition until its batch is full. `round_robin`: the key decides; records without one take turns. Or the import path of a function."),
    Setting("produce.linger_ms", int, 5, "How long a batch that is not full waits for more records.", minimum=0, maximum=60_000),
    Setting("produce.batch_bytes", int, 128 * 1024, "Size of a batch, which holds records of one partition.", minimum=1),
    Setting("produce.request_bytes_max", int, 16 * 1024 * 1024, "Size of the largest record.", minimum=1_024, maximum=1 << 30),
    Setting("produce.buffer_bytes", int, 32 * 1024 * 1024, "Bytes that may wait for an answer; at this limit the bolt waits.", minimum=1_024),
    Setting("produce.auto_create", bool, None, "Whether the broker may create a topic that does not exist.", note="If it is not set, the broker's own setting decides."),
    Setting("produce.partitions", int, None, "Partitions of `produce.topic`, which the bolt creates if it does not exist.", minimum=1, maximum=1_000_000, note="If it is not set, the bolt creates no topic; see `produce.auto_create`."),
    Setting("produce.replication", int, None, "Replicas of each of these partitions.", minimum=1, maximum=32_767, note="If it is not set, the broker's own setting decides."),
    Setting("produce.transactional", bool, False, "Whether records are written exactly once, in transactions with the offsets of their KafkaSpout.", note="Only in `KafkaBolt.spec(…)`. `kafka.transaction_ms` is the length of a transaction."),
    Setting("produce.transaction_timeout_ms", int, None, "Time after which the broker aborts a transaction that is not ended.", minimum=1_000, maximum=86_400_000, note="If it is not set, a minute more than the message timeout, 15 minutes at most (the broker's `transaction.max.timeout.ms`)."),
    Setting("produce.callback", str, None, "Import path of a function that is called with each tuple and its result."),
    # --- parquet: read by the sinks ---
    Setting("parquet.directory", PurePath, None, "Where the files go: a folder, or `s3://bucket/name`, `gs://…`, `az://…`.", required=True, note="It must be new, empty, or this sink's own. See [how to write to S3](../how-to/write-to-s3.md)."),
    Setting("parquet.storage_options", list, [], "How an object store is reached, as `name=value`: `endpoint`, `region`, and other names that `obstore` knows.", note="Keys and secrets are `env:NAME` or `file:PATH`. If nothing is set, the usual variables of the environment and profiles hold."),
    Setting("parquet.schema", list, None, "Columns as `name:type`, in order.", note="See [the types](schema.md)."),
    Setting("parquet.keys", list, [], "AggregateBolt: columns that form the key, and at most one window: `window(at, 10 minutes)`.", note="Sliding: `window(at, 1 hour, 10 minutes)`. Local days: `window(at, 1 day, Europe/Berlin)`. See [windows](../how-to/windows.md)."),
    Setting("parquet.aggregates", list, [], "AggregateBolt: `count`, or `sum:x`, `min:x`, `max:x`, `count:x` of a column x."),
    Setting("parquet.lateness_s", float, 60.0, "How far the time of a row may lie behind that of a later row of its partition, before windows are final.", minimum=0.0),
    Setting("parquet.idle_s", float, 300.0, "For how long a partition without rows keeps windows from being final, while others have rows.", minimum=1.0, note="For so long no window of a new directory is final. It must be longer than a worker takes to be replaced, and than the spout is busy with the records of one fetch."),
    Setting("parquet.late", str, "add", "What becomes of a row that comes when all its windows are final.", choices=("add", "stream"), note="`add`: it is added, and counted in `late_rows`. `stream`: it is emitted to the stream `late` instead."),
    Setting("parquet.partition_by", list, [], "Columns that become Hive folders (`month=7/`).", note="Every flush writes one file per value, so choose columns with few values. A flush of more than 400 files is written, and acked, in parts."),
    Setting("parquet.input_names", list, [], "`input=name`: the name under which the directory knows an input, after a component was renamed."),
    Setting("parquet.flush_rows", int, 100_000, "Rows held that cause a flush.", minimum=1),
    Setting("parquet.flush_bytes", int, 64 * 1024 * 1024, "Estimated bytes held that cause a flush.", minimum=1),
    Setting("parquet.flush_age_s", float, 8.0, "Age of the oldest row held that causes a flush; at most a third of the message timeout.", minimum=0.0),
    Setting("parquet.outage_s_max", float, 0.0, "How long a store may be away, or a disk full, before the run ends; 0: without end.", minimum=0.0, note="Meanwhile spouts rest, what was read stays as it is, and a line a minute says what is waited for."),
    Setting("parquet.rebuild", int, 0, "Number of the directory's rebuild: a higher one than before starts the directory anew.", minimum=0, note="Use it to process records again. 0 leaves the directory as it is."),
    Setting("parquet.compact_every_s", float, 0.0, "Seconds from one compaction to the next while the topology runs; 0: none.", minimum=0.0, note="The sink's first task starts `downspout compact` as a process of its own. Not on Spark."),
    Setting("parquet.compression", str, "zstd", "Codec of the files.", choices=("zstd", "snappy", "none")),
    # --- state: read by StateBolt ---
    Setting("state.store", str, None, "URL of the database that holds the state: `sqlite:///counts.db`, or `postgresql://user@host/name`.", required=True, note="Three slashes: relative to the project's folder; four: absolute. No password is in it."),
    Setting("state.password", str, None, "Password for the database, as `env:NAME` or `file:PATH`."),
    Setting("state.name", str, None, "Name of the state in its store; if not set, the component's.", note="A state belongs to the batches of one `batch.id`."),
    Setting("state.kind", str, "opaque", "What is stored beside a value, to tell a repeated batch from a new one.", choices=("opaque", "transactional", "non_transactional"), note="[Which kind goes with which batches](../concepts/batches.md)."),
    Setting("state.exactly_once", bool, True, "Whether a state is refused whose values would be wrong.", note="It would be if its kind does not hold each record exactly once with these batches, or if it is new and others are past these batches: what came before is missing in its values. Set it to no for a state that is added to a topology, or for batches that were Trident's."),
    Setting("state.key", list, None, "Fields of the tuple that are the key.", required=True),
    Setting("state.update", str, None, "What a tuple does to the value of its key.", required=True, note="`count`, `sum:field`, `min:field`, `max:field`, `last:field`; or `module.name` of a function that is given the value (at first None) and a tuple's values, or of a class with `init` and `combine`."),
    # --- sql: read by SqlBolt ---
    Setting("sql.database", str, None, "URL of the database: `sqlite:///flights.db`, or `postgresql://user@host/name`.", required=True, note="Three slashes: relative to the project's folder; four: absolute. No password is in it."),
    Setting("sql.password", str, None, "Password for the database, as `env:NAME` or `file:PATH`.", note="If it is not set, PostgreSQL's own ways hold, such as `~/.pgpass`."),
    Setting("sql.table", str, None, "Table to write to, which must exist; `schema.table` in PostgreSQL.", required=True),
    Setting("sql.keys", list, [], "Columns by which a row takes the place of an earlier one (upsert); if there are none, rows are inserted.", note="The table needs a primary key or a unique index of these columns."),
    Setting("sql.schema", list, None, "Columns to write as `name:type`; if not set, those of the table.", note="Needed where a type of the table has no counterpart. The types are on [a page of their own](schema.md)."),
    Setting("sql.input_names", list, [], "`input=name`: the name under which the table's log knows an input, after a component was renamed."),
    Setting("sql.flush_rows", int, 20_000, "Rows held that cause a flush, which is one transaction.", minimum=1),
    Setting("sql.flush_bytes", int, 32 * 1024 * 1024, "Estimated bytes held that cause a flush.", minimum=1),
    Setting("sql.flush_age_s", float, 2.0, "Age of the oldest row held that causes a flush; at most a third of the message timeout.", minimum=0.0),
    Setting("sql.outage_s_max", float, 0.0, "How long a database may be away, full or locked before the run ends; 0: without end.", minimum=0.0),
    # --- batch: read by KafkaBatches ---
    Setting("batch.kind", str, "opaque", "What a batch that is tried again holds.", choices=("opaque", "transactional"), note="`transactional`: exactly the records of its first attempt, or the run stops. `opaque`: perhaps others, so that it goes on without a partition that is gone; its states must be opaque too. [The pairs that are exactly once](../concepts/batches.md)."),
    Setting("batch.max_active", int, 1, "Most batches that are processed at once; they are committed one after the other.", minimum=1, maximum=1_000),
    Setting("batch.emit_interval_ms", int, 500, "Least time between the beginnings of two batches.", minimum=0, maximum=86_400_000),
    Setting("batch.records_max", int, 10_000, "Most records in a batch; each partition has an equal share of them.", minimum=1),
    Setting("batch.bytes_max", int, 16 * 1024 * 1024, "Most bytes of keys and values in a batch; each partition has an equal share, and one record at least.", minimum=1),
    Setting("batch.store", str, "sqlite:///batches.db", "URL of the store that holds the metadata of batches.", note="On Storm with several machines it must be one that all of them reach."),
    Setting("batch.store_password", str, None, "Password for the store, as `env:NAME` or `file:PATH`."),
    Setting("batch.id", str, None, "Name under which the store holds this series of batches; if not set, the topology's name."),
    Setting("batch.attempts_max", int, 10, "Attempts of one transaction, in a row, in which a bolt raised, before the run stops.", minimum=1, note="Timeouts, and fails without an exception, do not count."),
    # --- run: read by the local engine ---
    Setting("run.until", str, None, "`end`: stop when all that was in the log at the start is processed.", choices=("end",)),
    Setting("run.for_s", float, None, "Stop after this long.", minimum=0.0),
    Setting("run.records", int, None, "Stop after this many tuple trees are done.", minimum=1),
    Setting("run.member", int, None, "Number of this process among those that run one topology.", minimum=1),
    Setting("run.workers", int, None, "Number of processes on this machine; they share the partitions as one consumer group.", minimum=1, maximum=256),
    Setting("run.redeploy", bool, False, "Use a new topology id, as a new submit on Storm does."),
    Setting("run.drain_s", float, 30.0, "How long a stop waits for outstanding tuples.", minimum=0.0),
    Setting("run.seed", int, None, "Seed of shuffles and message ids; if not set, they are random.", minimum=0),
    Setting("run.restarts_max", int, 3, "Failures that are allowed to a bolt which has not processed anything yet.", minimum=0, note="The run stops when such a bolt has raised on every tuple so far, and on more of them than this. A bolt that has worked before may raise on 100 tuples in a row, and so may one that processes records of a KafkaSpout, which dead-letters them. Retries never count."),
    Setting("run.stuck_s", float, 30.0, "Warn when one call of a component takes this long; 0 never warns.", minimum=0.0, note="The warning names the component, the record and the line of code. It comes again each time the duration has doubled."),
    Setting("run.metrics_port", int, None, "Port of this machine at which Prometheus reads metrics, and Kubernetes health; 0: a free one.", minimum=0, maximum=65535, note="It needs `downspout[metrics]`. With `run.workers` it is one port for all of them."),
    Setting("run.ui", str, None, "Address of the run's web page, as `[HOST:]PORT`.", note="It needs `downspout[ui]`. The same port has `/metrics`, `/healthz` and `/readyz`."),
    Setting("run.otel", bool, False, "Whether the metrics are exported by OpenTelemetry (OTLP over HTTP).", note="It needs `downspout[otel]`. `OTEL_EXPORTER_OTLP_ENDPOINT` says where they go; spans are made with `kafka.trace_every`."),
    Setting("run.metrics_host", str, "127.0.0.1", "Address at which `run.metrics_port` listens.", note="`0.0.0.0` for all addresses of the machine. There is no password: a program that reaches the port reads names, counts and offsets, but no records."),
)
# fmt: on
SETTINGS: dict[str, Setting] = {setting.key: setting for setting in TABLE}
SCOPES = frozenset(setting.scope for setting in TABLE)
STORM_PREFIXES = ("topology.", "storm.", "pystorm.", "supervisor.", "nimbus.", "worker.")


def check_known(key: str, source: str, declared: Iterable[str] = ()) -> None:
    """Raise a ConfigError if ``key`` is neither ours nor Storm's, and no configuration in the topology declares it.

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
"""Storm's keys that the engine reads as numbers."""
POSITIVE = {"topology.message.timeout.secs": 30, "topology.workers": 1}
"""Those that Storm refuses at the submit if they are 0, and what they are by default."""


def check_number(key: str, value: Any, source: str) -> None:
    """Raise a ConfigError if the value of one of Storm's numeric keys is no such number.

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
        fits = 0 <= number < float("inf")
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ConfigError(f"{key} = {value!r} ({source}) is not {KIND_NAMES[kind]} of at least 0", cure="10")
    if key in POSITIVE and not number:
        raise ConfigError(f"{key} = {value!r} ({source}) must be greater than 0", cure=str(POSITIVE[key]))


def check_key(key: str, source: str, also: Sequence[str] = ()) -> None:
    """Raise a ConfigError if ``key`` is below one of our prefixes and not in the table; ``also`` are the scopes, besides
    its own, from which a name is suggested.

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

    This is how a component reads its settings in ``initialize``, on every engine. Client properties are under ``client``.

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
    """Return keyword arguments of a component's ``spec`` as configuration, checked; ``also`` as for :func:`check_key`.

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
