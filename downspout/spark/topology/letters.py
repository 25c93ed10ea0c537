"""Dead letters of a batch: written by the driver, durable before any sink commits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from downspout.config import resolve_client
from downspout.errors import RecordError, coordinates
from downspout.kafka.deadletter import DeadLetters
from downspout.kafka.port import TopicPartition, cluster_for
from downspout.kafka.replayed import PlainRecord
from downspout.spark.topology.rows import Letter, Place, Span
from downspout.spark.topology.spout import Spout
from downspout.wording import counted

__all__ = ["where_is", "write_letters"]

READ_MS_MAX = 10_000
WRITE_S_MAX = 30.0


def write_letters(letters: Iterable[Letter], spouts: Mapping[str, Spout], topics: Mapping[str, str]) -> None:
    """Write dead letters; they are durable when this returns.

    Args:
        letters: of any spouts.
        spouts: by name.
        topics: where the letters of each spout go; empty: the run stops instead.

    Raises:
        RecordError: there is no topic for one, or its record is not there any more.
        BrokerError: they cannot be written.
    """
    by_spout: dict[str, list[Letter]] = {}
    for letter in letters:
        by_spout.setdefault(letter.spout, []).append(letter)
    for name, own in by_spout.items():
        if not topics[name]:
            first = own[0]
            raise RecordError(
                f"{where_is(first.place)} failed for good, last by {first.failure.kind}: {first.failure.error}",
                cure="correct the bolt or the record; or set kafka.dead_letter_topic, to go on without it",
            )
        _write(own, spouts[name].settings, topics[name])


def _write(letters: Iterable[Letter], settings: Mapping[str, Any], topic: str) -> None:
    client = resolve_client(settings["client"])
    cluster = cluster_for(settings["bootstrap"], client)
    writer = DeadLetters(cluster, topic, timeout_s=WRITE_S_MAX)
    try:
        for letter in letters:
            writer.queue(
                letter.record or _read(cluster, letter.place, client),
                attempts=letter.attempts,
                first_failure_ms=letter.first_ms,
                last_failure_ms=letter.last_ms,
                failure=letter.failure,
                topic_id=letter.place.topic_id,
            )
        writer.flush()
    finally:
        writer.close()


def _read(cluster: Any, place: Place, client: Mapping[str, Any]) -> PlainRecord:
    """Return a record of which a later stage knew the place only."""
    tp = TopicPartition(place.topic, place.partition)
    consumer = cluster.consumer(group=None, client=client)
    try:
        consumer.assign([tp])
        consumer.seek(tp, place.offset)
        deadline = time.monotonic() + READ_MS_MAX / 1000
        while time.monotonic() < deadline:
            for found in consumer.poll(500, 1).get(tp, ()):
                if found.offset == place.offset:
                    return PlainRecord(*(getattr(found, name) for name in PlainRecord.__slots__))
                deadline = 0.0
    finally:
        consumer.close()
    raise RecordError(
        f"{where_is(place)} failed for good, and is not there to be read for its dead letter",
        cure="longer retention; or correct the bolt, and the batch succeeds",
    )


def where_is(place: Place | Span) -> str:
    """Name a record the way all messages do; of several, the first and the last."""
    first = coordinates(place.topic, place.partition, place.offset)
    return first if isinstance(place, Place) else f"{first} to {place.end - 1} ({counted(place.size, 'record')})"
