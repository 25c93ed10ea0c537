"""Commits that are asked for one at a time.

Wrong: ``committed`` takes one partition, so a member with a thousand of them sends a thousand requests, one after
    the other. The protocol has all in one, and the client's coordinator can ask so.
Patch: the coordinator is asked, once.
Self-test: it has the method.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: ``KafkaConsumer.committed`` takes several partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from downspout.kafka.port import OffsetAndMetadata, TopicPartition

CONSUMER = {"_coordinator.fetch_committed_offsets": "method"}


def committed(
    consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int
) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
    """Return a group's commits with their metadata, in one request. Raises KafkaTimeoutError: no answer in time."""
    found = consumer._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
    return {partition: found.get(partition) for partition in partitions}
