"""Write the parts of the documentation that are made from tables in the code. ``make docs`` runs it."""

from __future__ import annotations

from pathlib import Path

from downspout.cli.settings import markdown
from downspout.config import SETTINGS
from downspout.metrics import METRICS
from downspout.spark.source.options import OPTIONS

HERE = Path(__file__).parent
TITLES = {
    "kafka": ("KafkaSpout", "Given to `KafkaSpout.spec(...)` without the prefix, or in any layer with it."),
    "parse": ("JsonParseBolt", "Given to `JsonParseBolt.spec(...)` without the prefix."),
    "split": ("SplitBolt", "Given to `SplitBolt.spec(...)` without the prefix."),
    "enrich": ("EnrichBolt", "Given to `EnrichBolt.spec(...)` without the prefix."),
    "parquet": ("ParquetBolt and AggregateBolt", "Given to their `spec(...)` without the prefix."),
    "run": ("The local engine", "Most have an option of `downspout run`."),
}
INTRO = """# Settings

A value comes from the first of: command line (`--set KEY=VALUE`, or `--set COMPONENT:KEY=VALUE` for one component),
environment (`kafka.group` is `DOWNSPOUT_KAFKA_GROUP`), topology (the component's `config`, then the topology's),
`downspout.toml` in the working directory, default. `downspout check topologies/x.py` prints each value and where it
came from. Properties of the Kafka client go below `kafka.client.`, in kafka-python's spelling.

This page is made from the table in `downspout/config.py`.
"""
SPARK_SOURCE = """# The Kafka source for PySpark

`format("downspout")`, for `spark.read` and `spark.readStream`, after `downspout.spark.register(spark)`. Columns,
options and their defaults are those of Spark's own connector; `stoppingOffsets`, `skipOffsets` and `includeTopicId`
are ours.
How to use it: [read Kafka with PySpark](../how-to/read-kafka-with-pyspark.md),
[hand over between Storm and Spark](../how-to/hand-over-between-storm-and-spark.md).

| column | type | |
| --- | --- | --- |
| `key`, `value` | binary | null where the record has none |
| `topic` | string | |
| `partition` | int | |
| `offset` | long | |
| `timestamp` | timestamp | |
| `timestampType` | int | 0: the producer's time, 1: the broker's |
| `headers` | array<struct<key: string, value: binary>> | with `includeHeaders`; null where the record has none |

## Options

Names may be written in any case. An unknown one is an error, which suggests the nearest.

{table}

## Properties of the client

`kafka.…` takes the Java client's properties, and kafka-python's with dots. Translated: `kafka.sasl.jaas.config` (PLAIN
and SCRAM), `kafka.ssl.truststore.location`, `kafka.ssl.keystore.location` (PEM files), `kafka.ssl.key.password`,
`kafka.ssl.endpoint.identification.algorithm`. Properties of consumer groups have no effect. Refused, as by the
connector: `kafka.auto.offset.reset`, `kafka.enable.auto.commit`, `kafka.key.deserializer`, `kafka.value.deserializer`,
`kafka.interceptor.classes`.

## Where it differs from the connector

| | connector | here |
| --- | --- | --- |
| `kafka.isolation.level` | `read_uncommitted` | `read_committed`: records of aborted transactions are not read |
| a topic in `subscribe` that does not exist | depends on the version | an error when the query starts |
| a topic deleted and created again while a query runs | noticed if the new one is shorter | noticed |
| the new log after that, `failOnDataLoss=false` | read from where the old one ended | read from its beginning |
| a stream's first batch from `latest` | has records | is empty: its end is where the query starts |
| triggers `continuous`, `realTime` | work | refused by Spark: sources in Python have micro-batches only |

A checkpoint holds offsets in the connector's form.

This page is made by `docs/generate.py`; the options are the table in `downspout/spark/source/options.py`.
"""


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
    table = "\n".join(["| figure | kind | unit | what it says |", "| --- | --- | --- | --- |", *rows])
    return f"# Figures\n\nWhat a component's `report()` holds; the live view and the summary show them.\n\n{table}\n"


USES = {"both": "batch, stream", "batch": "batch", "stream": "stream"}


def spark_source_page() -> str:
    """Return docs/reference/spark-source.md."""
    rows = [
        f"| `{name}` | {o.default} | {USES[o.use]} | {o.text.replace('|', '&#124;')} |" for name, o in OPTIONS.items()
    ]
    table = "\n".join(["| option | default | for | what it says |", "| --- | --- | --- | --- |", *rows])
    return SPARK_SOURCE.replace("{table}", table)


PAGES = {
    "reference/settings.md": settings_page,
    "reference/metrics.md": metrics_page,
    "reference/spark-source.md": spark_source_page,
}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_text(make(), encoding="utf-8")
        print(f"wrote docs/{name}")
