"""From a KafkaSpout's settings to the options of the Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from downspout import config
from downspout.errors import BrokerError
from downspout.kafka import sense
from downspout.kafka.explicit import offsets_of
from downspout.kafka.port import TopicPartition, cluster_for
from downspout.spark.source.options import EARLIEST
from downspout.spark.source.ranges import to_json

__all__ = ["ends_now", "letters_topic", "source_options"]


def source_options(conf: Mapping[str, Any], group: str, *, bounded: bool, records_max: int | None) -> dict[str, str]:
    """Return the options that make the source read what the spout would.

    The spout's strategies look at the group's commits first (UNCOMMITTED_…). A query has its checkpoint in their place;
    without one it starts where a group without commits would.

    Args:
        conf: the spout's configuration.
        group: its consumer group.
        bounded: whether the run ends at the end of the log as of its start.
        records_max: the most offsets of one batch.

    Raises:
        ConfigError: the settings make no sense, or demand what the source cannot.
        BrokerError: no broker answers.
    """
    # Secrets are looked up here: the environment of Spark's own processes is that of the session's start. The option of
    # each has a name ("…password") whose value Spark shows nowhere.
    settings = config.parse_scope(config.with_secrets(conf), "kafka")
    sense.check(settings, bounded, None)
    options = {
        "kafka.bootstrap.servers": settings["bootstrap"],
        "includeHeaders": "true",
        "includeTopicId": "true",
        "failOnDataLoss": str(settings["on_data_loss"] == "fail").lower(),
        **{f"kafka.{name.replace('_', '.')}": str(value) for name, value in settings["client"].items()},
    }
    if settings["topics"]:
        options["subscribe"] = ",".join(settings["topics"])
    else:
        options["subscribePattern"] = sense.pattern_without(letters_topic(conf, group), settings["pattern"])
    if records_max:
        options["maxOffsetsPerTrigger"] = str(records_max)
    start = settings["start"].removeprefix("UNCOMMITTED_")
    if start == "TIMESTAMP":
        options["startingTimestamp"] = str(settings["start_timestamp_ms"])
        options["startingOffsetsByTimestampStrategy"] = "latest"
    elif start == "OFFSETS":
        named = offsets_of("kafka.start_offsets", settings["start_offsets"])
        everywhere = dict.fromkeys(ends_now(conf), EARLIEST)
        options["startingOffsets"] = json.dumps(to_json(everywhere | named))
    else:
        options["startingOffsets"] = start.lower()
    if stops := offsets_of("kafka.stop_offsets", settings["stop_offsets"]):
        options["stoppingOffsets"] = json.dumps(to_json(stops))
    return options


def letters_topic(conf: Mapping[str, Any], group: str) -> str:
    """Return where a spout's dead letters go; empty: the run stops instead."""
    return sense.dead_letter_topic(config.parse_scope(conf, "kafka"), group)


def ends_now(conf: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return where the log of each partition ends that a spout reads.

    Raises:
        BrokerError: no broker answers, or there are no such topics.
    """
    settings = config.parse_scope(config.with_secrets(conf), "kafka")
    cluster = cluster_for(settings["bootstrap"], settings["client"])
    consumer = cluster.consumer(group=None, client=settings["client"])
    try:
        pattern = settings["pattern"]
        names = settings["topics"] or [n for n in consumer.topic_names() if re.fullmatch(pattern, n)]
        found = [TopicPartition(name, number) for name in names for number in consumer.partitions_for(name)]
        if not found:
            raise BrokerError(
                f"there is nothing to read at {settings['bootstrap']} ({', '.join(names) or pattern})",
                cure="create the topic first",
            )
        return dict(consumer.end_offsets(found))
    finally:
        consumer.close()
