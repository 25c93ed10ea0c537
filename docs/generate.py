"""Write the parts of the documentation that are made from tables in the code. ``make docs`` runs it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from docs import grafana, option_types
from downspout.cli.settings import default_of
from downspout.formatting import figure
from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS
from downspout.settings.table import SETTINGS, Setting
from downspout.spark.kafka_options import OPTIONS, Option
from downspout.spark.kafka_sink import SINK_OPTIONS

HERE = Path(__file__).parent
TITLES = {
    "kafka": ("KafkaSpout", "Arguments of `KafkaSpout.spec(...)`, where they have no prefix, or keys in any layer."),
    "parse": ("JsonParseBolt and CsvParseBolt", "Arguments of their `spec(...)`, without the prefix."),
    "lookup": ("LookupBolt", "Arguments of `LookupBolt.spec(...)`, without the prefix."),
    "produce": ("KafkaBolt", "Arguments of `KafkaBolt.spec(...)`, without the prefix."),
    "parquet": ("ParquetBolt and AggregateBolt", "Arguments of their `spec(...)`, without the prefix."),
    "state": ("StateBolt", "Arguments of `StateBolt.spec(...)`, without the prefix."),
    "sql": ("SqlBolt", "Arguments of `SqlBolt.spec(...)`, without the prefix."),
    "batch": ("KafkaBatches", "Arguments of `KafkaBatches.spec(...)`, without the prefix."),
    "run": ("The local engine", "Most have an option of `downspout run`."),
}
INTRO = """# Settings

A setting has one value for a topology, or one for each component. The first of these layers that gives a value wins:

1. the command line: `--set KEY=VALUE`, or `--set COMPONENT:KEY=VALUE` for one component
2. the environment: `DOWNSPOUT_KAFKA_GROUP` is `kafka.group`
3. the topology: first the component's `config`, then the topology's
4. `downspout.toml` in the working directory
5. the default

`downspout check --all topologies/x.py` prints each value and where it comes from. Fixed values may be written in any
case.

Properties of the Kafka client start with `kafka.client.` and have kafka-python's names. They are checked when the
topology is built. `kafka.client.partition_assignment_strategy` takes one or several of Kafka's names: `range`,
`roundrobin`, `sticky`, `cooperative-sticky`.

This page is made from the table in `downspout/settings/table.py`.
"""
METRICS_INTRO = """# Metrics

A component's `report()` holds its metrics; the live view, the summary of a run and `--json` show them. A counter only
grows, a gauge is the value of the moment. [Prometheus](../how-to/watch-in-production.md) reads all of them: a counter
`rows` as `downspout_rows_total`, a gauge `fetch_mean_s` as `downspout_fetch_mean_seconds`, `lag` of a partition as
`downspout_partition_lag`, `completed` of a run as `downspout_run_completed_total`.

"""
PARTITIONS_INTRO = """## By partition

A spout, and the emitter of batches, reports these for each of its partitions (`report_partitions()`); what is unknown
is null or left out. The live view and the page show them by partition and topic, `--json` has them under `partitions`
and their sums under `topics`, and they stay after `deactivate` and at the end of a run.
[Offsets](../concepts/offsets.md) explains the words; `downspout lag` asks Kafka for them.

"""
RUN_INTRO = """## Of a run

Of all components, tasks and workers together.

"""
SPARK_SOURCE = """# The Kafka source for PySpark

`format("downspout")` works with `spark.read` and `spark.readStream`, after `downspout.spark.register(spark)`. Columns,
options and defaults are those of Spark's own connector. `stoppingOffsets`, `skipOffsets`, `includeTopicId`,
`includeUnreadable`, `recordBytesMax` and `endMarker` are additions.
How to use it: [read Kafka with PySpark](../how-to/read-kafka-with-pyspark.md),
[hand over between Storm and Spark](../how-to/hand-over-between-storm-and-spark.md).

| column | type | |
| --- | --- | --- |
| `key`, `value` | binary | null if the record has none |
| `topic` | string | |
| `partition` | int | |
| `offset` | long | |
| `timestamp` | timestamp | |
| `timestampType` | int | 0: the producer's time, 1: the broker's |
| `headers` | array<struct<key: string, value: binary>> | with `includeHeaders`; null if the record has none |
| `unreadable` | struct<end: long, size: long, reason: string> | with `includeUnreadable`, see below |
| `topicId` | string | with `includeTopicId` |

## Options

Names may be written in any case. An unknown option is an error that suggests the nearest name.

{table}

## What cannot be read

A row whose `unreadable` is not null stands for the offsets from `offset` up to `end`, which is not included. It is
either one record of `size` bytes, of which key and value hold the beginning, or a damaged batch, of which only the
`reason` is known. Such a row ends with the range of its task, so one batch may have several.

## Properties of the client

`kafka.…` takes the properties of the Java client, and those of kafka-python with dots. Translated are
`kafka.sasl.jaas.config` (PLAIN and SCRAM), `kafka.ssl.truststore.location`, `kafka.ssl.keystore.location` (PEM files),
`kafka.ssl.key.password` and `kafka.ssl.endpoint.identification.algorithm`. The source reads
without a consumer group: its name is refused (`kafka.group.id`, `groupIdPrefix`), and how to be a member has no effect.
The connector's own exceptions are refused here too: `kafka.auto.offset.reset`, `kafka.enable.auto.commit`,
`kafka.key.deserializer`, `kafka.value.deserializer`, `kafka.interceptor.classes`.

## Where it differs from the connector

| | connector | here |
| --- | --- | --- |
| `kafka.isolation.level` | `read_uncommitted` | `read_committed`: records of aborted transactions are not read |
| a topic in `subscribe` that does not exist | depends on the version | an error when the query starts |
| a topic deleted and created again, also while the query is stopped | noticed if the new one is shorter | noticed |
| the new log after that, with `failOnDataLoss=false` | read from where the old one ended | read from its beginning |
| a batch that unpacks to too much | is read | an error with coordinates, or a row in its place (`includeUnreadable`) |
| the first batch of a stream from `latest` | has records | is empty: its end is where the query starts |
| the triggers `continuous` and `realTime` | work | are refused by Spark for sources in Python |

## What a checkpoint holds

A checkpoint has offsets in the connector's form. Beside them each topic has an empty object whose name is the topic, a
colon and Kafka's id of the topic: `{"orders": {"0": 23}, "orders:rZk3…": {}}`. By the id the query notices that a topic
was deleted and created again, even while the query was stopped. The connector reads such a checkpoint and ignores the
id. A checkpoint without ids gets them with its next batch; what happened to the topic before that is not known. Brokers
older than Kafka 2.8 have no ids. `:end` marks that a bounded run has ended (`endMarker`).

This page is made by `docs/generate.py`; the options are the table in `downspout/spark/kafka_options.py`.
"""

SPARK_SINK = """# The Kafka sink for PySpark

`format("downspout-kafka")` works with `df.write` and `df.writeStream`, after `downspout.spark.register(spark)`. Columns
and options are those of Spark's own connector; `partitioner`, `includeRecordIds` and `batchId` are additions. The name
works for reading too, as [`format("downspout")`](spark-source.md) does for writing.
How to use it: [write to Kafka with PySpark](../how-to/write-to-kafka.md#with-pyspark).

| column | type | |
| --- | --- | --- |
| `value` | string or binary | required; null is a tombstone |
| `topic` | string | required without the option `topic` |
| `key` | string or binary | null, or without the column: a record without key |
| `headers` | array<struct<key: string, value: binary>> | |
| `partition` | int | null, or without the column: the partitioner decides |

Other columns are an error, and so is another type. Records are only appended: `.mode("append")` must be given, because
Spark refuses its default for sinks in Python, and the output mode `complete` is refused.

## Options

Names may be written in any case. An unknown option is an error that suggests the nearest name.

{table}

`kafka.…` takes the producer's properties of the Java client, and those of kafka-python with dots, with TLS and SASL [as
for the source](spark-source.md#properties-of-the-client): `kafka.acks`, `kafka.compression.type`, `kafka.linger.ms`.
References (`env:NAME`, `file:PATH`) are looked up on the driver. The producer is idempotent, with `acks=all`. A record
may take `kafka.delivery.timeout.ms` (2 minutes), and a topic that does not exist is waited for `kafka.max.block.ms`
(10 s). Refused are `kafka.key.serializer`, `kafka.value.serializer`, `kafka.partitioner.class`,
`kafka.transactional.id` and `kafka.interceptor.classes`.

## What is promised

Each record is written **at least once**. A task waits for the brokers' answers before it says that it is done. What a
task wrote that failed is written again by its next try, and so is a batch that is computed again.

## How repeats are found

| header | what it holds |
| --- | --- |
| `__downspout.batch` | id of the query and number of the batch; of `df.write`, `batchId` or an id of this write |
| `__downspout.record` | Spark's partition, number of the row in it, hash of topic, partition, key, value and headers |
| `__downspout.run` | run of the query, or id of this write, and Spark's number of the task's try |

Records of one topic that are equal in the first two are repeats. `downspout.spark.kafka_sink.without_repeats(frame)`
drops them from a frame that was read with `includeHeaders`. They are found as long as a batch that is computed again
has the same rows in the same order: after reading Kafka or files, `select` and `filter`. Behind a shuffle (`groupBy`,
`join`, `repartition`) the order may change. The hash differs then: repeats stay, but nothing is dropped that is no
repeat. Such rows need their own identity, in the key for instance. The headers take about 150 bytes of a record.

This page is made by `docs/generate.py`; the options are the table in `downspout/spark/kafka_sink.py`.
"""


def markdown(settings: list[Setting]) -> str:
    """Return the settings as a Markdown table, and below it what takes more than a sentence."""
    lines = ["| setting | values | default | what it does |", "| --- | --- | --- | --- |"]
    lines += [f"| `{each.key}` | {_values(each)} | {default_of(each)} | {each.help} |" for each in settings]
    return "\n".join(lines) + notes({each.key: each.note for each in settings})


def notes(by_name: Mapping[str, str]) -> str:
    """Return what stands below a table: a list of the notes that are not empty."""
    shown = [f"* `{name}`: {note}" for name, note in by_name.items() if note]
    wrap = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "".join(f"\n{'' if number else chr(10)}{wrap.fill(note)}" for number, note in enumerate(shown))


def _values(setting: Setting) -> str:
    if setting.choices:
        return ("list of " if setting.kind is list else "") + ", ".join(f"`{choice}`" for choice in setting.choices)
    kind = {bool: "yes, no", int: "integer", float: "number", str: "text", list: "list"}.get(setting.kind, "path")
    low, high = setting.minimum, setting.maximum
    if low is None:
        return kind
    return f"{kind} ≥ {figure(low)}" if high is None else f"{kind}, {figure(low)} to {figure(high)}"


def settings_page() -> str:
    """Return docs/reference/settings.md."""
    parts = [INTRO]
    for scope in dict.fromkeys(setting.scope for setting in SETTINGS.values()):
        title, lead = TITLES.get(scope, (scope, ""))
        table = markdown([setting for setting in SETTINGS.values() if setting.scope == scope])
        parts.append(f"## {title}\n\n{lead}\n\n{table}\n")
    return "\n".join(parts)


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    rows = [f"| `{m.name}` | {m.kind} | {m.unit} | {m.help} |" for m in METRICS.values()]
    table = "\n".join(["| metric | kind | unit | what it says |", "| --- | --- | --- | --- |", *rows])
    rows = [f"| `{m.name}` | {m.unit} | {m.help} |" for m in PARTITION_METRICS.values()]
    partitions = "\n".join(["| name | unit | what it says |", "| --- | --- | --- |", *rows])
    of_run = "\n".join(
        [
            "| metric | kind | unit | what it says |",
            "| --- | --- | --- | --- |",
            *(f"| `{m.name}` | {m.kind} | {m.unit} | {m.help} |" for m in RUN_METRICS.values()),
        ]
    )
    page = METRICS_INTRO + table + notes({m.name: m.note for m in METRICS.values()}) + "\n"
    return f"{page}\n{PARTITIONS_INTRO}{partitions}\n\n{RUN_INTRO}{of_run}\n"


USES = {"both": "batch, stream", "batch": "batch", "stream": "stream"}


def spark_source_page() -> str:
    """Return docs/reference/spark-source.md."""
    return SPARK_SOURCE.replace("{table}", options_table(OPTIONS))


def spark_sink_page() -> str:
    """Return docs/reference/spark-sink.md."""
    return SPARK_SINK.replace("{table}", options_table(SINK_OPTIONS))


def options_table(options: Mapping[str, Option]) -> str:
    """Return a table of options, and below it what else there is to say."""
    rows = [
        f"| `{name}` | {o.default} | {USES[o.use]} | {o.text.replace('|', '&#124;')} |" for name, o in options.items()
    ]
    table = "\n".join(["| option | default | for | what it says |", "| --- | --- | --- | --- |", *rows])
    return table + notes({name: o.note for name, o in options.items()})


PAGES = {
    "reference/settings.md": settings_page,
    "reference/metrics.md": metrics_page,
    "reference/grafana.json": grafana.dashboard,
    "reference/grafana-alerts.json": grafana.alerts,
    "reference/spark-source.md": spark_source_page,
    "reference/spark-sink.md": spark_sink_page,
}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_text(make(), encoding="utf-8")
        print(f"wrote docs/{name}")
    option_types.FILE.write_text(option_types.module(), encoding="utf-8")
    print(f"wrote {option_types.FILE.name}")
