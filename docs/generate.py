"""Write the parts of the documentation that are made from tables in the code. ``make docs`` runs it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from docs import contents, grafana, option_types, packages
from downspout.cli.settings import default_of
from downspout.formatting import figure
from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS
from downspout.settings.table import SETTINGS, Setting
from downspout.spark.kafka_options import OPTIONS, Option
from downspout.spark.kafka_sink import SINK_OPTIONS

HERE = Path(__file__).parent
TITLES = {
    "kafka": "KafkaSpout",
    "parse": "JsonParseBolt and CsvParseBolt",
    "lookup": "LookupBolt",
    "produce": "KafkaBolt",
    "parquet": "ParquetBolt and AggregateBolt",
    "state": "StateBolt",
    "sql": "SqlBolt",
    "batch": "KafkaBatches",
    "run": "The local engine",
}
INTRO = """# Settings

A setting has one value for a topology, or one per component. The first layer that gives a value wins:

1. the command line: `--set KEY=VALUE`, or `--set COMPONENT:KEY=VALUE` for one component
2. the environment: `DOWNSPOUT_KAFKA_GROUP` is `kafka.group`
3. the topology: first the component's `config`, or arguments of its `spec(...)` without the prefix, then the topology's
4. `downspout.toml` in the working directory
5. the default

`downspout check --all topologies/x.py` prints each value and its source. Choices are not case-sensitive.

Properties of the Kafka client are settings under `kafka.client.`, with kafka-python's names. They are checked when the
topology is built. `kafka.client.partition_assignment_strategy` takes `range`, `roundrobin`, `sticky` or
`cooperative-sticky`, or several of them.
"""
METRICS_INTRO = """# Metrics

A component's `report()` holds its metrics; the live view, the summary of a run and `--json` show them. A counter only
grows; a gauge is a current value. [Prometheus](../how-to/monitor.md#prometheus-and-health-checks) names a counter
`rows` `downspout_rows_total`, a gauge `fetch_mean_s` `downspout_fetch_mean_seconds`, a partition's `lag`
`downspout_partition_lag`, and a run's `completed` `downspout_run_completed_total`.

"""
PARTITIONS_INTRO = """## By partition

A spout, and the emitter of batches, reports these for each partition (`report_partitions()`); an unknown value is null
or left out. `--json` has them under `partitions` and their sums under `topics`, also after the end of a run.
[Offsets](../concepts/offsets.md) explains the terms.

"""
RUN_INTRO = """## Of a run

These cover all components, tasks and workers.

"""
SPARK_SOURCE = """# The Kafka source for PySpark

`format("downspout")` works with `spark.read` and `spark.readStream`, after `downspout.spark.register(spark)`. Columns,
options and defaults are those of Spark's own connector, with some additions. [Read Kafka with
PySpark](../how-to/read-kafka-with-pyspark.md) shows how to use it.

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

Names are not case-sensitive. An unknown option is an error that suggests the nearest name.

{table}

## What cannot be read

A row whose `unreadable` is not null stands for the offsets from `offset` up to `end` (excluded): either a record of
`size` bytes, whose key and value hold the beginning, or a damaged batch with only a `reason`. Such a row covers no
offsets outside the range of its task, so a batch may have several.

## Properties of the client

`kafka.…` takes the properties of the Java client, and kafka-python's with dots. `kafka.sasl.jaas.config` (PLAIN and
SCRAM), `kafka.ssl.truststore.location`, `kafka.ssl.keystore.location` (PEM files), `kafka.ssl.key.password` and
`kafka.ssl.endpoint.identification.algorithm` are translated. There is no consumer group, so `kafka.group.id` and
`groupIdPrefix` are refused. So are `kafka.auto.offset.reset`, `kafka.enable.auto.commit`, `kafka.key.deserializer`,
`kafka.value.deserializer` and `kafka.interceptor.classes`, as in the connector.

## Differences from the connector

| | connector | here |
| --- | --- | --- |
| `kafka.isolation.level` | `read_uncommitted` | `read_committed`: records of aborted transactions are skipped |
| a topic in `subscribe` that does not exist | depends on the version | an error at the start |
| a topic deleted and created again, even while the query is stopped | noticed if the new one is shorter | noticed |
| the new log after that, with `failOnDataLoss=false` | read from where the old one ended | read from its beginning |
| a batch that unpacks to more than the limit | is read | an error with coordinates, or a row (`includeUnreadable`) |
| the first batch of a stream from `latest` | has records | is empty: it ends where the query starts |
| the triggers `continuous` and `realTime` | work | are refused by Spark for Python sources |

## What a checkpoint holds

Offsets in the connector's form, and for each topic an empty object that names Kafka's id of the topic:
`{"orders": {"0": 23}, "orders:rZk3…": {}}`. The id tells the query if a topic was created again. The connector reads
such a checkpoint and ignores the id; a checkpoint without ids gets them with its next batch. Brokers older than 2.8
have no ids. `:end` marks the end of a bounded run (`endMarker`).
"""

SPARK_SINK = """# The Kafka sink for PySpark

`format("downspout-kafka")` works with `df.write` and `df.writeStream`, after `downspout.spark.register(spark)`. Columns
and options are those of Spark's own connector, with some additions. [Write to
Kafka](../how-to/write-to-kafka.md#with-pyspark) shows how to use it.

| column | type | |
| --- | --- | --- |
| `value` | string or binary | required; null is a tombstone |
| `topic` | string | required without the option `topic` |
| `key` | string or binary | null or missing: no key |
| `headers` | array<struct<key: string, value: binary>> | |
| `partition` | int | null or missing: the partitioner decides |

Other columns and types are an error. Records are only appended: `.mode("append")` is required, because Spark refuses
its default for Python sinks, and the output mode `complete` is refused.

## Options

Names are not case-sensitive. An unknown option is an error that suggests the nearest name.

{table}

`kafka.…` takes the producer's properties of the Java client, and kafka-python's with dots, with TLS and SASL [as for
the source](spark-source.md#properties-of-the-client): `kafka.acks`, `kafka.compression.type`, `kafka.linger.ms`.
References (`env:NAME`, `file:PATH`) are resolved on the driver. The producer is idempotent, with `acks=all`. Delivery
of a record may take `kafka.delivery.timeout.ms` (2 minutes), and the sink waits `kafka.max.block.ms` (10 s) for a
missing topic. `kafka.key.serializer`, `kafka.value.serializer`, `kafka.partitioner.class`, `kafka.transactional.id` and
`kafka.interceptor.classes` are refused.

## What is promised

Each record is written **at least once**. A task ends when the brokers have acknowledged its records. A failed task or
a repeated batch writes its records again.

## How repeats are found

| header | content |
| --- | --- |
| `__downspout.batch` | query id and batch number; for `df.write`, `batchId` or an id of this write |
| `__downspout.record` | Spark's partition, row number, and a hash of topic, partition, key, value and headers |
| `__downspout.run` | run of the query, or id of this write, and number of the task's attempt |

Records of a topic with the same first two headers are repeats; `downspout.spark.kafka_sink.without_repeats(frame)`
drops them from a frame read with `includeHeaders`. A repeated batch must have the same rows in the same order, as after
reading Kafka or files, `select` and `filter`. After a shuffle (`groupBy`, `join`, `repartition`), the order may change,
and repeats remain; give such rows their own identity. The headers take about 150 bytes per record.
"""


def markdown(settings: list[Setting]) -> str:
    """Return the settings as a Markdown table, and below it what takes more than a sentence."""
    lines = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
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
        table = markdown([setting for setting in SETTINGS.values() if setting.scope == scope])
        parts.append(f"## {TITLES.get(scope, scope)}\n\n{table}\n")
    return "\n".join(parts)


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    rows = [f"| `{m.name}` | {m.kind}, {m.unit} | {m.help} |" for m in METRICS.values()]
    table = "\n".join(["| metric | kind | meaning |", "| --- | --- | --- |", *rows])
    rows = [f"| `{m.name}` | {m.unit} | {m.help} |" for m in PARTITION_METRICS.values()]
    partitions = "\n".join(["| name | unit | meaning |", "| --- | --- | --- |", *rows])
    of_run = "\n".join(
        [
            "| metric | kind | meaning |",
            "| --- | --- | --- |",
            *(f"| `{m.name}` | {m.kind}, {m.unit} | {m.help} |" for m in RUN_METRICS.values()),
        ]
    )
    page = METRICS_INTRO + table + notes({m.name: m.note for m in METRICS.values()}) + "\n"
    partitions += notes({m.name: m.note for m in PARTITION_METRICS.values()})
    return f"{page}\n{PARTITIONS_INTRO}{partitions}\n\n{RUN_INTRO}{of_run}\n"


USES = {"both": ".", "batch": " (batch only).", "stream": " (streams only)."}
"""How the meaning of an option ends."""


def spark_source_page() -> str:
    """Return docs/reference/spark-source.md."""
    return SPARK_SOURCE.replace("{table}", options_table(OPTIONS))


def spark_sink_page() -> str:
    """Return docs/reference/spark-sink.md."""
    return SPARK_SINK.replace("{table}", options_table(SINK_OPTIONS))


def options_table(options: Mapping[str, Option]) -> str:
    """Return a table of options, and below it what else there is to say."""
    rows = [
        f"| `{name}` | {o.default} | {o.text.replace('|', '&#124;').removesuffix('.')}{USES[o.use]} |"
        for name, o in options.items()
    ]
    table = "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows])
    return table + notes({name: o.note for name, o in options.items()})


PAGES = {
    "architecture.md": packages.architecture_page,
    "where-to-change.md": packages.where_page,
    "README.md": contents.contents_page,
    "reference/settings.md": settings_page,
    "reference/metrics.md": metrics_page,
    "reference/grafana.json": grafana.dashboard,
    "reference/grafana-alerts.json": grafana.alerts,
    "reference/spark-source.md": spark_source_page,
    "reference/spark-sink.md": spark_sink_page,
}


def main(check: bool) -> int:
    """Write the files, or only say which are not current; return 1 if one was not and is not now."""
    made = {HERE / name: make for name, make in PAGES.items()} | {option_types.FILE: option_types.module}
    stale = 0
    for file, make in made.items():
        text = make()
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        print(f"{file.relative_to(HERE.parent)} {'is not current: `make docs`' if check else 'is written'}")
        if check:
            stale = 1
        else:
            file.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
