"""What the settings of a KafkaSpout mean for its records on Spark: what a tuple is, how long to wait, when to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from downspout.batches.streams import MICRO_BATCHES
from downspout.component import Failure
from downspout.errors import RecordError, coordinates
from downspout.kafka.columns import RecordColumns
from downspout.ledger.breaker import Breaker, Trip
from downspout.settings.table import parse_scope
from downspout.spark.topology.micro_batches import with_attempt
from downspout.spark.topology.rows import Place
from downspout.spout.emit_chunks import ChunkMaker
from downspout.spout.emit_modes import mode_of
from downspout.spout.settings import policy_of, retries_of
from downspout.spout.tuples import translator_of, tuple_maker


class SpoutSettings:
    """What the settings of one KafkaSpout say of its records."""

    def __init__(self, name: str, conf: Mapping[str, Any]) -> None:
        self.name = name
        settings = parse_scope(conf, "kafka")
        self.settings = settings = {**settings, "retries_max": retries_of(settings["retries_max"])}
        self.backoff = policy_of(settings, logging.getLogger(__name__))
        self._is_batched = bool(conf.get(MICRO_BATCHES))
        self.in_chunks = mode_of(settings).columns
        self._makers: dict[tuple[str, str], tuple[Callable[[Any], Any], str | None]] = {}
        self._chunk_makers: dict[tuple[str, str], ChunkMaker] = {}
        self._breakers: dict[tuple[str, int], Breaker] = {}

    def maker(self, topic: str, topic_id: str) -> tuple[Callable[[Any], Any], str | None]:
        """Return what makes tuples of a topic's records, and their stream, if a translator makes several."""
        if (found := self._makers.get((topic, topic_id))) is None:
            settings = self.settings
            if (translator := translator_of(settings, topic)) is not None:
                make = translator.maker(topic_id, settings["emit_null"], settings["honour_replays"])
                found = make, translator.stream
            else:
                make = tuple_maker(*self._formats, topic_id, settings["honour_replays"])
                make = with_attempt(make) if self._is_batched else make
                found = self._alone(make, topic, topic_id) if self.in_chunks else make, None
            self._makers[topic, topic_id] = found
        return found

    def chunk_maker(self, topic: str, topic_id: str) -> ChunkMaker:
        """Return what makes chunks of a topic's records."""
        if (found := self._chunk_makers.get((topic, topic_id))) is None:
            found = ChunkMaker(*self._formats, topic_id, self.settings["honour_replays"])
            self._chunk_makers[topic, topic_id] = found
        return found

    @property
    def _formats(self) -> tuple[Any, Any, Any]:
        return self.settings["fields"], self.settings["key_format"], self.settings["value_format"]

    def _alone(self, make: Callable[[Any], Any], topic: str, topic_id: str) -> Callable[[Any], Any]:
        """Return what makes a chunk of one record."""
        chunks = self.chunk_maker(topic, topic_id)

        def make_chunk(record: Any) -> Any:
            make(record)  # raises the error of record mode, which says more
            return chunks.make(RecordColumns.of([record]))

        return make_chunk

    def breaker(self, topic: str, partition: int) -> Breaker:
        """Return the circuit breaker of a partition."""
        if (found := self._breakers.get((topic, partition))) is None:
            found = Breaker(self.settings["breaker_ratio"])
            self._breakers[topic, partition] = found
        return found

    def note_read(self, topic: str, partition: int, first: int, count: int) -> None:
        """Tell the breaker of records that were read."""
        breaker = self.breaker(topic, partition)
        for start in range(0, count, breaker.width):
            breaker.read(first + start, min(breaker.width, count - start))


def breaker_opens(place: Place, trip: Trip, failure: Failure) -> RecordError:
    """Return the error of a batch in which too many records failed for good."""
    where = coordinates(place.topic, place.partition, place.offset)
    return RecordError(
        f"{where}: {trip.given_up:,} of the last {trip.read:,} records "
        f"failed for good, most often with {trip.error} ({trip.times:,} times); last by {failure.kind}"
        f"{f' in {failure.component}' if failure.component else ''}{f': {failure.error}' if failure.error else ''}",
        cure="fix what was deployed last; nothing of this batch is written, and its records come again "
        "(kafka.breaker_ratio decides how many may fail)",
    )
