"""The options of ``df.write.format("downspout-kafka")``: the connector's names, checked when the writer is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from downspout.errors import ConfigError
from downspout.formatting import nearest
from downspout.kafka.client_values import producer_properties
from downspout.kafka.partitioners import PARTITIONERS
from downspout.spark.source.client_properties import PRODUCER, client_properties
from downspout.spark.source.options import Option, connection_of, flag

# Every option, by the connector's name.
SINK_OPTIONS: Mapping[str, Option] = {
    "kafka.bootstrap.servers": Option("Brokers, as `host:port,host:port`.", default="required"),
    "topic": Option("Topic of all rows; without it there must be a column `topic`, which it overrides."),
    "partitioner": Option(
        "Which partition gets a row that names none: `sticky`, `round_robin` or an import path.",
        "As `produce.partitioner` of KafkaBolt. Not in the connector.",
        default="`sticky`",
    ),
    "includeRecordIds": Option(
        "Whether each record gets the three headers by which a reader can drop repeats.",
        "Not in the connector.",
        default="`true`",
    ),
    "batchId": Option(
        "Name of this batch in these headers.",
        "In `foreachBatch`, give it one that is made of the query's name and of the batch's number: a batch that is "
        "computed again then has the same. Without it, each write has its own. Not in the connector.",
        use="batch",
    ),
    "includeHeaders": Option("No effect: a column `headers` is always written."),
}

_BY_LOWER = {name.lower(): name for name in SINK_OPTIONS}
_OF_SPARK = {"checkpointlocation", "outputmode", "queryname"}  # what Spark itself reads


@dataclass(frozen=True)
class SinkOptions:
    """All options, checked and typed. It travels to the executors; its text holds no property of the client."""

    bootstrap: str
    client: Mapping[str, Any] = field(repr=False)
    topic: str | None = None
    partitioner: str = "sticky"
    has_ids: bool = True
    batch: str = ""


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check options, as Spark hands them over, and return them typed; an error suggests the nearest name.

    Raises:
        MissingExtraError: the package of the compression is not installed.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name in _BY_LOWER or name in _OF_SPARK or name.startswith("kafka."):
            continue
        if name == "path":
            raise ConfigError("Kafka has no path", cure='.option("topic", "orders"), and save() or start() without one')
        near = nearest(name, _BY_LOWER, "", 0.5)
        raise ConfigError(f"{name} is not an option of the sink", cure=_BY_LOWER.get(near, "leave it out"))
    if streaming and "batchid" in options:
        raise ConfigError("batchId is for batch queries: Spark numbers the batches of a stream", cure="leave it out")
    bootstrap, properties = connection_of(options)
    partitioner = options.get("partitioner", "sticky")
    if partitioner not in PARTITIONERS and "." not in partitioner:
        raise ConfigError(
            f"partitioner = {partitioner} is not a partitioner",
            cure=f"one of {', '.join(PARTITIONERS)}, or module.function",
        )
    client = client_properties(properties, PRODUCER)
    producer_properties(client)
    return SinkOptions(
        bootstrap=bootstrap,
        client=client,
        topic=options.get("topic", "").strip() or None,
        partitioner=partitioner,
        has_ids=flag(options, "includeRecordIds", True),
        batch=options.get("batchid", ""),
    )
