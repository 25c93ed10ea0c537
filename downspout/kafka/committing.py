"""Commits: the next offset to read, with what is done beyond it in the metadata, for what is ours and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from downspout.kafka.membership import Identity
from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.spout_state import Partition
from downspout.ledger.metadata import encode

__all__ = ["commit"]


def commit(consumer: ConsumerPort, parts: Iterable[Partition], identity: Identity) -> bool:
    """Commit what has changed and wait for the broker's word; return whether a request was sent.

    If it raises, the broker may have applied it or not: nothing is taken as committed, and the next commit says it
    again.

    Raises:
        KafkaError: what the client raises.
    """
    due: dict[TopicPartition, tuple[Partition, int, str]] = {}
    for part in parts:
        point = part.commit_point(consumer)
        metadata = encode(
            point,
            topology_id=identity.topology_id,
            task=identity.task,
            topic_id=part.topic_id,
            done=part.ledger.done_beyond(point),
            failures=part.ledger.failures_from(point),
        )
        if part.commit != (point, metadata):
            due[part.tp] = (part, point, metadata)
    if not due:
        return False
    consumer.commit({tp: OffsetAndMetadata(point, metadata, -1) for tp, (_, point, metadata) in due.items()})
    for part, point, metadata in due.values():
        part.commit = (point, metadata)
        part.ledger.committed(point)
        part.drop_waiting_below(point)
        if part.reading < point:
            part.seek(consumer, point)
    return True
