"""What each component's ``spec`` takes, for type checkers and editors (PEP 692).

Made by ``make docs`` from the table of settings, which decides at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

# fmt: off


class KafkaOptions(TypedDict, total=False):
    """Settings ``kafka.…``."""

    bootstrap: str
    """Brokers, as ``host:port,host:port``; ``embedded`` is the one that ``downspout kafka start`` runs."""
    topics: str | Sequence[str] | None
    """Topics to read."""
    pattern: str | None
    """Regular expression that must match a topic's whole name; used instead of ``kafka.topics``."""
    mode: Literal["subscribe", "assign"]
    """How tasks share the partitions."""
    partitions: str | Sequence[str] | None
    """Partitions that ``kafka.mode=assign`` reads of a topic, instead of all, as ``topic[partition,partition]``."""
    group: str | None
    """Consumer group; if not set, the topology's name."""
    fields: str | Sequence[str]
    """Fields of the tuple, in order."""
    key_format: Literal["utf8", "bytes", "json"]
    """How keys are decoded."""
    value_format: Literal["utf8", "bytes", "json"]
    """How values are decoded."""
    translator: str | Sequence[str] | None
    """Functions that make tuples of a record, instead of ``kafka.fields`` and the formats."""
    listener: str | None
    """Import path of a class whose methods the spout calls (a ``downspout.spout.ports.SpoutListener``)."""
    start: Literal["EARLIEST", "LATEST", "UNCOMMITTED_EARLIEST", "UNCOMMITTED_LATEST", "TIMESTAMP", "UNCOMMITTED_TIMESTAMP", "OFFSETS", "UNCOMMITTED_OFFSETS"]
    """Where reading starts: Storm's first-poll strategies, and named offsets."""
    start_timestamp_ms: int | None
    """Milliseconds since the epoch, for the ``TIMESTAMP`` strategies."""
    start_offsets: str | Sequence[str] | None
    """Offsets for the ``OFFSETS`` strategies, as ``topic[partition]=offset``."""
    stop_offsets: str | Sequence[str] | None
    """Where a run with ``run.until=end`` stops, as ``topic[partition]=offset``."""
    guarantee: Literal["AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT"]
    """Processing guarantee."""
    poll_timeout_ms: int
    """Longest wait for records in one poll."""
    poll_records_max: int
    """Most records in one poll."""
    emits_per_next_max: int
    """Most tuples that one call of ``next_tuple`` emits; Storm's spout emits 1."""
    emit: Literal["auto", "record", "chunk"]
    """What a tuple is: one record, or a chunk, which holds many records of a partition as columns."""
    chunk_records_max: int
    """Most records in one chunk."""
    chunk_bytes_max: int
    """Most bytes of keys, values and headers in one chunk."""
    commit_period_ms: int
    """Time between commits."""
    commit: Literal["sync", "async", "combined"]
    """Whether the spout waits for the broker's answer to a commit."""
    offset_store: str
    """Where offsets are kept: ``kafka`` for the consumer group, or the URL of a store, such as
    ``sqlite:///offsets.db``."""
    offset_store_password: str | None
    """Password for the store, as ``env:NAME`` or ``file:PATH``."""
    offset_store_adopt: bool
    """Whether partitions of which the store holds nothing go on from the group's offsets."""
    transaction_ms: int
    """Length of a transaction; the time between commits where a KafkaBolt is transactional."""
    trace_every: int
    """One of so many records has a span of OpenTelemetry, and each chunk; 0: none."""
    uncommitted_max: int
    """Most offsets of a partition that may be emitted beyond the commit."""
    retry_delay_ms: int
    """Back-off before the first retry; each later one is twice as long."""
    retry_delay_ms_max: int
    """Longest back-off."""
    retry_policy: str | None
    """Import path of a function that returns a record's back-off in milliseconds, instead of the settings before."""
    retry_cache_bytes: int
    """Bytes of failed records that a partition keeps in memory for their retries; 0 keeps none."""
    retries_max: int
    """Retries of a record before it is dead-lettered; -1 retries for ever."""
    timeouts_max: int
    """Timeouts of a record before it is dead-lettered."""
    dead_letter_topic: str
    """Topic for exhausted records; if empty, the run stops at the first one."""
    breaker_ratio: float
    """Share of a partition's last 1,000 records that, if exhausted, stops the run; 0 never stops it."""
    honour_replays: bool
    """Whether a record that ``downspout dlq replay`` wrote keeps the origin of the record it stands for."""
    emit_null: bool
    """Whether a translator's result of None is emitted as a tuple of nulls."""
    on_data_loss: Literal["fail", "earliest", "latest", "start"]
    """What to do when records are gone that were not processed yet."""
    behind_max: int | None
    """Offsets that a record may lie behind; older ones are left out and counted, which loses them."""
    on_corrupt_batch: Literal["fail", "dead_letter"]
    """What to do with a batch that cannot be read: end the run, or dead-letter its offsets and go on."""
    record_bytes_max: int
    """Most bytes of a record, unpacked."""
    session_timeout_ms: int
    """How long a silent member keeps its partitions."""
    drain_ms_max: int
    """How long a planned hand-over waits for outstanding acks."""
    client: Mapping[str, Any]
    """Properties of kafka-python's client."""


class ParseOptions(TypedDict, total=False):
    """Settings ``parse.…``."""

    fields: str | Sequence[str]
    """Keys of the JSON object, or fields of the CSV line, that become fields of the tuple."""
    delimiter: str
    """Separator of the fields of a CSV line."""
    registry: str | None
    """URL of the schema registry that knows the schemas of the values."""
    registry_password: str | None
    """Password for the schema registry, as ``env:NAME`` or ``file:PATH``."""
    reader_schema: str | None
    """Avro schema as which values are read, as JSON or as the path of a file: its defaults, aliases and wider types
    hold."""
    carry: str | Sequence[str]
    """Fields of the input to keep, such as ``key``; they stand between ``origin`` and the parsed fields."""
    on_null: Literal["row", "filter"]
    """What a null value (a tombstone) becomes: a row in which each parsed field is null, or no row."""
    types: str | Sequence[str] | Mapping[str, str] | None
    """Types of the fields, as ``field:type``."""


class LookupOptions(TypedDict, total=False):
    """Settings ``lookup.…``."""

    table: str | PathLike[str]
    """The table: a CSV file with a header, a Parquet file, or a folder of Parquet files."""
    key: str
    """Field of the tuple to look up, or ``field=column`` if the table's column has another name."""
    fields: str | Sequence[str] | None
    """Fields of the tuple to keep, besides ``origin``."""
    add: str | Sequence[str]
    """Columns of the table to add, as ``name`` or ``field=name``."""
    types: str | Sequence[str] | Mapping[str, str] | None
    """Types of CSV columns, as ``column:type``; the other columns are text."""
    nulls: str | Sequence[str]
    """Texts that mean null in CSV, such as ``NA``; the empty text always does."""
    missing: Literal["null", "reject"]
    """What to do with a tuple whose key is not in the table: add nulls, or reject it."""


class ProduceOptions(TypedDict, total=False):
    """Settings ``produce.…``."""

    bootstrap: str | None
    """Brokers to write to, if they are not those of ``kafka.bootstrap``."""
    topic: str | None
    """Topic to write to."""
    fields: str | Sequence[str] | Mapping[str, str]
    """Fields of the tuple that become the parts of a record, as ``part=field``."""
    key_format: Literal["utf8", "bytes", "json"]
    """Format of keys."""
    message_format: Literal["utf8", "bytes", "json"]
    """Format of messages."""
    mapper: str | None
    """Import path of a function that makes a record of a tuple's values."""
    mode: Literal["asynchronous", "synchronous", "fire_and_forget"]
    """When to ack a tuple: after the broker's answer, or at once."""
    acks: Literal["all", "1", "0"]
    """Replicas that must have a record before the broker answers: all in sync, the leader, or none."""
    idempotence: bool | None
    """Whether the broker recognises repetitions."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """Codec of the batches."""
    partitioner: str
    """Which partition gets a record that names none."""
    linger_ms: int
    """How long a batch that is not full waits for more records."""
    batch_bytes: int
    """Size of a batch, which holds records of one partition."""
    request_bytes_max: int
    """Size of the largest record."""
    buffer_bytes: int
    """Bytes that may wait for an answer; at this limit the bolt waits."""
    auto_create: bool | None
    """Whether the broker may create a topic that does not exist."""
    partitions: int | None
    """Partitions of ``produce.topic``, which the bolt creates if it does not exist."""
    replication: int | None
    """Replicas of each of these partitions."""
    transactional: bool
    """Whether records are written exactly once, in transactions with the offsets of their KafkaSpout."""
    transaction_timeout_ms: int | None
    """Time after which the broker aborts a transaction that is not ended."""
    callback: str | None
    """Import path of a function that is called with each tuple and its result."""


class ParquetOptions(TypedDict, total=False):
    """Settings ``parquet.…``."""

    directory: str | PathLike[str]
    """Where the files go: a folder, or ``s3://bucket/name``, ``gs://…``, ``az://…``."""
    storage_options: str | Sequence[str]
    """How an object store is reached, as ``name=value``: ``endpoint``, ``region``, and other names that ``obstore``
    knows."""
    schema: str | Sequence[str] | Mapping[str, str] | None
    """Columns as ``name:type``, in order."""
    keys: str | Sequence[str]
    """AggregateBolt: columns that form the key, and at most one window: ``window(at, 10 minutes)``."""
    aggregates: str | Sequence[str]
    """AggregateBolt: ``count``, or ``sum:x``, ``min:x``, ``max:x``, ``count:x`` of a column x."""
    lateness_s: float
    """How far the time of a row may lie behind that of a later row of its partition, before windows are final."""
    idle_s: float
    """For how long a partition without rows keeps windows from being final, while others have rows."""
    late: Literal["add", "stream"]
    """What becomes of a row that comes when all its windows are final."""
    partition_by: str | Sequence[str]
    """Columns that become Hive folders (``month=7/``)."""
    input_names: str | Sequence[str] | Mapping[str, str]
    """``input=name``: the name under which the directory knows an input, after a component was renamed."""
    flush_rows: int
    """Rows held that cause a flush."""
    flush_bytes: int
    """Estimated bytes held that cause a flush."""
    flush_age_s: float
    """Age of the oldest row held that causes a flush; at most a third of the message timeout."""
    outage_s_max: float
    """How long a store may be away, or a disk full, before the run ends; 0: without end."""
    rebuild: int
    """Number of the directory's rebuild: a higher one than before starts the directory anew."""
    compact_every_s: float
    """Seconds from one compaction to the next while the topology runs; 0: none."""
    compression: Literal["zstd", "snappy", "none"]
    """Codec of the files."""


class SqlOptions(TypedDict, total=False):
    """Settings ``sql.…``."""

    database: str
    """URL of the database: ``sqlite:///flights.db``, or ``postgresql://user@host/name``."""
    password: str | None
    """Password for the database, as ``env:NAME`` or ``file:PATH``."""
    table: str
    """Table to write to, which must exist; ``schema.table`` in PostgreSQL."""
    keys: str | Sequence[str]
    """Columns by which a row takes the place of an earlier one (upsert); if there are none, rows are inserted."""
    schema: str | Sequence[str] | Mapping[str, str] | None
    """Columns to write as ``name:type``; if not set, those of the table."""
    input_names: str | Sequence[str] | Mapping[str, str]
    """``input=name``: the name under which the table's log knows an input, after a component was renamed."""
    flush_rows: int
    """Rows held that cause a flush, which is one transaction."""
    flush_bytes: int
    """Estimated bytes held that cause a flush."""
    flush_age_s: float
    """Age of the oldest row held that causes a flush; at most a third of the message timeout."""
    outage_s_max: float
    """How long a database may be away, full or locked before the run ends; 0: without end."""
