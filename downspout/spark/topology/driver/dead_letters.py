"""Dead letters of a batch: written by the driver, durable before any sink commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from downspout.dead_letters.dead_letter import DeadLetters
from downspout.dead_letters.replayed import PlainRecord
from downspout.errors import RecordError, coordinates
from downspout.formatting import counted
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.kafka.scan import scan
from downspout.kafka.unreadable import Limits
from downspout.settings.secrets import resolve_client
from downspout.spark.topology.rows import ChunkPlace, ExhaustedRecord, Place
from downspout.spark.topology.stages.spout_settings import SpoutSettings

WRITE_S_MAX = 30.0


def write_dead_letters(
    exhausted: Iterable[ExhaustedRecord],
    spouts: Mapping[str, SpoutSettings],
    topics: Mapping[str, str],
    *,
    feeds_states: bool = False,
) -> None:
    """Write dead letters to the topic of each spout; they are durable when this returns.

    Args:
        exhausted: records that have failed for good.
        spouts: the settings of the spouts that they are of.
        topics: by spout; where it is empty, a record that has failed for good ends the run.
        feeds_states: whether the topology is one of batches, which write no dead letters.

    Raises:
        BrokerError: they cannot be written.
    """
    by_spout: dict[str, list[ExhaustedRecord]] = {}
    for each in exhausted:
        by_spout.setdefault(each.spout, []).append(each)
    for name, own in by_spout.items():
        if not topics[name]:
            first = own[0]
            raise RecordError(
                f"{where_is(first.place)} failed for good, last by {first.failure.kind}: {first.failure.error}",
                cure="correct the bolt; or let such records leave before, as rejects that a DeadLetterBolt reads"
                if feeds_states
                else "correct the bolt or the record; or set kafka.dead_letter_topic, to go on without it",
            )
        _write(own, spouts[name].settings, topics[name])


def _write(exhausted: Iterable[ExhaustedRecord], settings: Mapping[str, Any], topic: str) -> None:
    client = resolve_client(settings["client"])
    cluster = cluster_for(settings["bootstrap"], client)
    with closing(DeadLetters(cluster, topic, timeout_s=WRITE_S_MAX)) as writer:
        for each in exhausted:
            writer.queue(
                each.record or _read(cluster, each.place, client, settings),
                attempts=each.attempts,
                first_failure_ms=each.first_ms,
                last_failure_ms=each.last_ms,
                failure=each.failure,
                topic_id=each.place.topic_id,
                unreadable=each.unreadable,
            )
        writer.flush()


def _read(cluster: Any, place: Place, client: Mapping[str, Any], settings: Mapping[str, Any]) -> PlainRecord:
    """Return a record of which a later stage knew the place only."""
    tp = TopicPartition(place.topic, place.partition)
    consumer = cluster.consumer(group=None, client=client)
    consumer.tolerate(Limits.of(settings["record_bytes_max"]), large=False, corrupt=False)
    try:
        consumer.assign([tp])
        for (found,) in scan(consumer, tp, place.offset, place.offset + 1):
            return PlainRecord(*(getattr(found, name) for name in PlainRecord.__slots__))
    finally:
        consumer.close()
    raise RecordError(
        f"{where_is(place)} failed for good, and Kafka no longer has it for its dead letter",
        cure="extend the retention; or correct the bolt, so that the batch succeeds",
    )


def where_is(place: Place | ChunkPlace) -> str:
    """Name a record the way all messages do; of several, the first and the last."""
    first = coordinates(place.topic, place.partition, place.offset)
    return first if isinstance(place, Place) else f"{first} to {place.end - 1} ({counted(place.size, 'record')})"
