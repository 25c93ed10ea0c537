"""Convert a KafkaSpout's settings to options of the Kafka source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from downspout.errors import BrokerError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.settings.secrets import with_secrets
from downspout.settings.table import parse_scope
from downspout.spark.kafka_options import EARLIEST
from downspout.spark.source_offsets import to_json
from downspout.spout.findings import check
from downspout.spout.settings import dead_letter_topic, offsets_of, reading
from downspout.spout.starting import partitions_of, topics_of


def source_options(conf: Mapping[str, Any], group: str, *, bounded: bool, records_max: int | None) -> dict[str, str]:
    """Return the options that make the source read the same records as the spout.

    The spout's UNCOMMITTED_… strategies use the group's commits first. A query uses its checkpoint instead; without
    one, it starts as a group without commits does.

    Raises:
        ConfigError: the settings are contradictory, or the source does not support them.
        BrokerError: no broker answers.
    """
    # Secrets are resolved here, because Spark's own processes have the environment of the session's start. Spark
    # redacts options with such names ("…password").
    settings = parse_scope(with_secrets(conf), "kafka")
    check(settings, bounded, None)
    options = {
        "kafka.bootstrap.servers": settings["bootstrap"],
        "includeHeaders": "true",
        "includeTopicId": "true",
        "includeUnreadable": "true" if settings["on_corrupt_batch"] == "dead_letter" else "records",
        "recordBytesMax": str(settings["record_bytes_max"]),
        "failOnDataLoss": str(settings["on_data_loss"] == "fail").lower(),
        **{f"kafka.{name.replace('_', '.')}": str(value) for name, value in settings["client"].items()},
    }
    if settings["topics"]:
        options["subscribe"] = ",".join(settings["topics"])
    else:
        options["subscribePattern"] = reading(settings, group)["pattern"]
    if records_max:
        options["maxOffsetsPerTrigger"] = str(records_max)
    start = settings["start"].removeprefix("UNCOMMITTED_")
    if start == "TIMESTAMP":
        options["startingTimestamp"] = str(settings["start_timestamp_ms"])
        options["startingOffsetsByTimestampStrategy"] = "latest"
    elif start == "OFFSETS":
        named = offsets_of("kafka.start_offsets", settings["start_offsets"])
        everywhere = dict.fromkeys(ends_now(conf, group), EARLIEST)
        options["startingOffsets"] = json.dumps(to_json(everywhere | named))
    else:
        options["startingOffsets"] = start.lower()
    if stops := offsets_of("kafka.stop_offsets", settings["stop_offsets"]):
        options["stoppingOffsets"] = json.dumps(to_json(stops))
    return options


def dead_letter_topic_of(conf: Mapping[str, Any], group: str) -> str:
    """Return the topic of a spout's dead letters; empty: the run stops instead."""
    return dead_letter_topic(parse_scope(conf, "kafka"), group)


def ends_now(conf: Mapping[str, Any], group: str) -> dict[TopicPartition, int]:
    """Return the current end of each partition that a spout reads."""
    settings = parse_scope(with_secrets(conf), "kafka")
    cluster = cluster_for(settings["bootstrap"], settings["client"])
    with closing(cluster.consumer(group=None, client=settings["client"])) as consumer:
        names = topics_of(consumer, reading(settings, group))
        found = partitions_of(consumer, names)
        if not found:
            raise BrokerError(
                f"there is nothing to read at {settings['bootstrap']} ({', '.join(names) or settings['pattern']})",
                cure="create the topic first",
            )
        return dict(consumer.end_offsets(found))
