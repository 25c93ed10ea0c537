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
    """Brokers, as ``host:port,host:port``; ``embedded`` is the broker of ``downspout kafka start``."""
    topics: str | Sequence[str] | None
    """Topics to read."""
    pattern: str | None
    """Regular expression that matches whole topic names; replaces ``kafka.topics``."""
    mode: Literal["subscribe", "assign"]
    """How tasks share the partitions."""
    partitions: str | Sequence[str] | None
    """Partitions to read with ``kafka.mode=assign``, as ``topic[partition,partition]``."""
    group: str | None
    """Consumer group; by default, the topology's name."""
    fields: str | Sequence[str]
    """Fields of the tuple, in order."""
    key_format: Literal["utf8", "bytes", "json"]
    """How keys are decoded."""
    value_format: Literal["utf8", "bytes", "json"]
    """How values are decoded."""
    translator: str | Sequence[str] | None
    """Functions that make tuples from a record, instead of ``kafka.fields`` and the formats."""
    listener: str | None
    """Import path of a ``downspout.spout.SpoutListener``, which the spout notifies."""
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
    """Longest wait for records in a poll."""
    poll_records_max: int
    """Most records per poll."""
    emits_per_next_max: int
    """Most tuples per call of ``next_tuple``; Storm's spout emits 1."""
    emit: Literal["auto", "record", "chunk"]
    """What a tuple is: a record, or a chunk of many records of a partition as columns."""
    chunk_records_max: int
    """Most records per chunk."""
    chunk_bytes_max: int
    """Most bytes of keys, values and headers per chunk."""
    commit_period_ms: int
    """Time between commits."""
    commit: Literal["sync", "async", "combined"]
    """Whether the spout waits for the answer to a commit."""
    offset_store: str
    """Where offsets are kept: ``kafka``, or a URL such as ``sqlite:///offsets.db``."""
    offset_store_password: str | None
    """Password of the store, as ``env:NAME`` or ``file:PATH``."""
    offset_store_adopt: bool
    """Whether partitions without an offset in the store continue from the group's."""
    transaction_ms: int
    """Length of a transaction of a transactional KafkaBolt."""
    trace_every: int
    """Trace every N-th record, and each chunk, with OpenTelemetry; 0: none."""
    uncommitted_max: int
    """Most offsets of a partition that may be emitted beyond the commit."""
    retry_delay_ms: int
    """Back-off before the first retry; it doubles each time."""
    retry_delay_ms_max: int
    """Longest back-off."""
    retry_policy: str | None
    """Import path of a function that returns the back-off in milliseconds."""
    retry_cache_bytes: int
    """Bytes of failed records that a partition keeps in memory for retries."""
    retries_max: int
    """Retries before a record is dead-lettered; -1: no limit."""
    timeouts_max: int
    """Timeouts before a record is dead-lettered."""
    dead_letter_topic: str
    """Topic for exhausted records; if empty, the run stops at the first one."""
    breaker_ratio: float
    """Share of exhausted records among a partition's last 1,000 that stops the run; 0: never."""
    honour_replays: bool
    """Whether a record written by ``downspout dlq replay`` keeps its original origin."""
    emit_null: bool
    """Whether a translator's result of None is emitted as a tuple of nulls."""
    on_data_loss: Literal["fail", "earliest", "latest", "start"]
    """What to do if unprocessed records are gone from Kafka."""
    behind_max: int | None
    """How many offsets a record may lie behind before it is dropped and counted."""
    on_corrupt_batch: Literal["fail", "dead_letter"]
    """What to do with an unreadable batch: end the run, or dead-letter its offsets."""
    record_bytes_max: int
    """Most bytes of an unpacked record."""
    session_timeout_ms: int
    """How long a silent member keeps its partitions."""
    drain_ms_max: int
    """How long a planned hand-over waits for acks."""
    client: Mapping[str, Any]
    """Properties of kafka-python's client."""


class ParseOptions(TypedDict, total=False):
    """Settings ``parse.…``."""

    fields: str | Sequence[str]
    """Keys of the JSON object, or fields of the CSV line, that become fields of the tuple."""
    delimiter: str
    """Separator of the fields of a CSV line."""
    registry: str | None
    """URL of the schema registry."""
    registry_password: str | None
    """Password of the registry, as ``env:NAME`` or ``file:PATH``."""
    reader_schema: str | None
    """Avro schema (JSON, or a file) with which all values are read."""
    carry: str | Sequence[str]
    """Fields of the input to keep, such as ``key``; they follow ``origin``."""
    on_null: Literal["row", "filter"]
    """What a null value (a tombstone) becomes: a row of nulls, or no row."""
    types: str | Sequence[str] | Mapping[str, str] | None
    """Types of the fields, as ``field:type``."""


class LookupOptions(TypedDict, total=False):
    """Settings ``lookup.…``."""

    table: str | PathLike[str]
    """A CSV file with a header, a Parquet file, or a folder of Parquet files."""
    key: str
    """Field to look up, or ``field=column`` if the table's column has another name."""
    fields: str | Sequence[str] | None
    """Fields of the tuple to keep, besides ``origin``."""
    add: str | Sequence[str]
    """Columns of the table to add, as ``name`` or ``field=name``."""
    types: str | Sequence[str] | Mapping[str, str] | None
    """Types of CSV columns, as ``column:type``; the others are text."""
    nulls: str | Sequence[str]
    """Texts that mean null in CSV, such as ``NA``; empty text always does."""
    missing: Literal["null", "reject"]
    """What to do with an unknown key: add nulls, or reject the tuple."""


class ProduceOptions(TypedDict, total=False):
    """Settings ``produce.…``."""

    bootstrap: str | None
    """Brokers to write to; by default, those of ``kafka.bootstrap``."""
    topic: str | None
    """Topic to write to."""
    fields: str | Sequence[str] | Mapping[str, str]
    """Fields of the tuple that become the parts of a record, as ``part=field``."""
    key_format: Literal["utf8", "bytes", "json"]
    """Format of keys."""
    message_format: Literal["utf8", "bytes", "json"]
    """Format of messages."""
    mapper: str | None
    """Import path of a function that makes a record from a tuple's values."""
    mode: Literal["asynchronous", "synchronous", "fire_and_forget"]
    """When to ack a tuple: after the broker's answer, or at once."""
    acks: Literal["all", "1", "0"]
    """Replicas that must have a record: all in sync, the leader, or none."""
    idempotence: bool | None
    """Whether the broker recognises resends."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """Codec of the batches."""
    partitioner: str
    """Which partition gets a record that names none."""
    linger_ms: int
    """How long an incomplete batch waits for more records."""
    batch_bytes: int
    """Size of a batch, which holds records of one partition."""
    request_bytes_max: int
    """Size of the largest record."""
    buffer_bytes: int
    """Bytes that may be unacknowledged before the bolt waits."""
    auto_create: bool | None
    """Whether the broker may create a missing topic."""
    partitions: int | None
    """Partitions of ``produce.topic``, if the bolt is to create it."""
    replication: int | None
    """Replicas of each of these partitions."""
    transactional: bool
    """Whether records are written exactly once, in transactions with the offsets of their KafkaSpout."""
    transaction_timeout_ms: int | None
    """Time after which the broker aborts an open transaction."""
    callback: str | None
    """Import path of a function that receives each tuple and its result."""


class ParquetOptions(TypedDict, total=False):
    """Settings ``parquet.…``."""

    directory: str | PathLike[str]
    """Where the files go: a folder, or ``s3://bucket/name``, ``gs://…``, ``az://…``."""
    storage_options: str | Sequence[str]
    """Options of an object store, as ``name=value``, with the names of ``obstore``."""
    schema: str | Sequence[str] | Mapping[str, str] | None
    """Columns as ``name:type``, in order."""
    keys: str | Sequence[str]
    """AggregateBolt: columns that form the key, and at most one window: ``window(at, 10 minutes)``."""
    aggregates: str | Sequence[str]
    """AggregateBolt: ``count``, or ``sum:x``, ``min:x``, ``max:x``, ``count:x`` of a column x."""
    lateness_s: float
    """How far the time of a row may lie behind the latest time in its partition before its windows are final."""
    idle_s: float
    """How long a partition without rows holds windows open while other partitions have rows."""
    late: Literal["add", "stream"]
    """What happens to a row that arrives after all its windows are final."""
    partition_by: str | Sequence[str]
    """Columns that become Hive folders (``month=7/``)."""
    input_names: str | Sequence[str] | Mapping[str, str]
    """``input=name``: the earlier name of an input, after a component was renamed."""
    flush_rows: int
    """Rows held that trigger a flush."""
    flush_bytes: int
    """Estimated bytes held that trigger a flush."""
    flush_age_s: float
    """Age of the oldest row that triggers a flush; at most a third of the message timeout."""
    outage_s_max: float
    """How long a store may be unavailable, or a disk full, before the run ends; 0: no limit."""
    rebuild: int
    """Number of the directory's rebuild: a higher one starts the directory anew."""
    compact_every_s: float
    """Seconds between compactions while the topology runs; 0: none."""
    compression: Literal["zstd", "snappy", "none"]
    """Codec of the files."""


class SqlOptions(TypedDict, total=False):
    """Settings ``sql.…``."""

    database: str
    """URL of the database: ``sqlite:///flights.db``, or ``postgresql://user@host/name``."""
    password: str | None
    """Password of the database, as ``env:NAME`` or ``file:PATH``."""
    table: str
    """Existing table to write to; ``schema.table`` in PostgreSQL."""
    keys: str | Sequence[str]
    """Columns of the key for an upsert; without them, rows are inserted."""
    schema: str | Sequence[str] | Mapping[str, str] | None
    """Columns to write as ``name:type``; by default, those of the table."""
    input_names: str | Sequence[str] | Mapping[str, str]
    """``input=name``: the earlier name of an input, after a component was renamed."""
    flush_rows: int
    """Rows held that trigger a flush, which is one transaction."""
    flush_bytes: int
    """Estimated bytes held that trigger a flush."""
    flush_age_s: float
    """Age of the oldest row that triggers a flush; at most a third of the message timeout."""
    outage_s_max: float
    """How long a database may be unavailable, full or locked before the run ends; 0: no limit."""
