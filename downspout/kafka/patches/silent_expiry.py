"""Records that are given up without a reason.

Wrong: a batch that is tried again until its time is over fails with "Expiring 1 record(s) …", whatever the brokers have
    answered meanwhile: that too few replicas are in sync, or that they do not lead the partition.
Patch: the last error of a batch is kept, and is the cause (``__cause__``) of the one with which it expires. Where it is
    about replicas, the client's metadata are asked for anew, and the error that follows says which are in sync.
Self-test: where errors of batches are decided about, and the book of partitions.
Since: 3.0.12 was read.
Goes when: the error of an expired batch tells the last one.
"""

from __future__ import annotations

from typing import Any

from kafka import errors
from kafka.structs import TopicPartition

PRODUCER = {
    "producer._sender._dispatch_error": "method",
    "producer._metadata._partitions": "dict",
    "producer._metadata.request_update": "method",
}

NO_REPLICAS = (errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError)


def keep_reasons(producer: Any) -> None:
    """Let the error of a batch that expires have the last answer for its cause."""
    metadata, dispatch = producer._metadata, producer._sender._dispatch_error

    def replicas(tp: TopicPartition) -> str:
        found = metadata._partitions.get(tp.topic, {}).get(tp.partition)
        if found is None:
            return ""
        isr, rest = (sorted(nodes) for nodes in (found.isr_nodes, set(found.replica_nodes) - set(found.isr_nodes)))
        return f"in sync: {_brokers(isr)}; not in sync: {_brokers(rest)}"

    def decide(batch: Any, error: Any, partition_response: Any = None) -> None:
        before = getattr(batch, "last_error", None)
        if type(error) is errors.KafkaTimeoutError:
            error.__cause__ = before
        elif isinstance(error, NO_REPLICAS):
            if isinstance(before, NO_REPLICAS):  # so these metadata were asked for after the first of these errors
                error = type(error)(replicas(batch.topic_partition))
            metadata.request_update()
        batch.last_error = error
        dispatch(batch, error, partition_response)

    producer._sender._dispatch_error = decide


def _brokers(numbers: list[int]) -> str:
    noun = "broker" if len(numbers) == 1 else "brokers"
    return f"{noun} {', '.join(map(str, numbers))}" if numbers else "none"
