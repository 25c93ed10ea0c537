"""Single records read again by their offsets.

The caller has a record's place and needs the whole record. One consumer, in no group and without commits, seeks from
place to place; where the next one is near it reads on, because a seek discards what was fetched. Records come as
columns, so those in between cost next to nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from kafka.errors import KafkaError, OffsetOutOfRangeError

from downspout.clock import Clock
from downspout.kafka.columns import RecordColumns
from downspout.kafka.port import Cluster, ConsumerPort, Record, TopicPartition

Place = tuple[str, str, int, int]  # Topic, Kafka's id of it (empty: not known), partition and offset

NEAR = 3_000  # Up to this distance records are read rather than skipped by a seek, which costs as much as their columns
CLIENT = {"max_partition_fetch_bytes": 256 * 1024, "fetch_max_wait_ms": 100, "auto_offset_reset": "none"}
POLL_MS = 100


class Rereader:
    """Reads records by their places."""

    def __init__(self, cluster: Cluster, clock: Clock, client: Mapping[str, Any] | None = None) -> None:
        self._cluster = cluster
        self._clock = clock
        self._client = {**(client or {}), **CLIENT}
        self._consumer: ConsumerPort | None = None
        self._partitions: dict[str, frozenset[int]] = {}
        self._until, self._idle_left = 0.0, 0

    def read(self, places: Collection[Place], wait_s: float) -> dict[Place, Record | None]:
        """Return the records at some places, and None for those that are gone for good.

        What is not read in time is not in the result.

        Raises:
            KafkaError: the broker does not answer, or refuses.
        """
        found: dict[Place, Record | None] = {}
        self._until = self._clock.monotonic() + wait_s
        self._idle_left = max(1, round(wait_s * 1000 / POLL_MS))  # a clock may stand still while a broker is asked
        if self._consumer is None:
            self._consumer = self._cluster.consumer(group=None, client=self._client, columns=True)
            self._partitions.clear()
        try:
            ids = self._consumer.topic_ids({place[0] for place in places})
            parts: dict[TopicPartition, list[Place]] = {}
            for place in sorted(places):
                if place[1] and ids.get(place[0]) != place[1]:
                    found[place] = None  # its topic was deleted; one of the same name holds other records
                else:
                    parts.setdefault(TopicPartition(place[0], place[2]), []).append(place)
            for partition, wanted in parts.items():
                if self._is_there(self._consumer, partition):
                    self._read_partition(self._consumer, partition, wanted, found)
                else:
                    found.update(dict.fromkeys(wanted))
        except KafkaError:
            self.close()
            raise
        return found

    def _is_there(self, consumer: ConsumerPort, partition: TopicPartition) -> bool:
        if partition.partition not in self._partitions.get(partition.topic, ()):
            self._partitions[partition.topic] = consumer.partitions_for(partition.topic)
        return partition.partition in self._partitions[partition.topic]

    def _read_partition(
        self,
        consumer: ConsumerPort,
        partition: TopicPartition,
        wanted: Sequence[Place],
        found: dict[Place, Record | None],
    ) -> None:
        """Read the records at some places of a partition, which rise."""
        consumer.assign([partition])
        at: int | None = None
        for place in wanted:
            if place in found:
                continue
            if at is None or not at <= place[3] < at + NEAR:
                consumer.seek(partition, place[3])
            try:
                at = self._read_on(consumer, partition, place, wanted, found)
            except OffsetOutOfRangeError:  # below the start of the log, or beyond its end
                found[place], at = None, None
                continue
            if at is None:
                return  # out of time

    def _read_on(
        self,
        consumer: ConsumerPort,
        partition: TopicPartition,
        place: Place,
        wanted: Sequence[Place],
        found: dict[Place, Record | None],
    ) -> int | None:
        """Read up to one place, and take others of them on the way; return where reading is; None: out of time."""
        while self._idle_left and self._clock.monotonic() < self._until:
            records = consumer.poll(POLL_MS, NEAR).get(partition, ())
            if len(records):
                _pick(records, wanted, found)
            elif place[3] >= consumer.end_offsets([partition])[partition]:
                found[place] = None
                return place[3]
            else:
                self._idle_left -= 1
            at = consumer.position(partition)
            if place not in found and at > place[3]:
                found[place] = None  # reading has passed it by: the log's cleaner was there
            if place in found:
                return at
        return None

    def close(self) -> None:
        """Release the consumer; the next call makes another."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _pick(records: Sequence[Record], wanted: Sequence[Place], found: dict[Place, Record | None]) -> None:
    """Take the records whose places are wanted; the latter rise."""
    columns = RecordColumns.of(records)
    offsets = columns.offsets
    first = bisect_left(wanted, int(offsets[0]), key=_offset)
    last = bisect_left(wanted, int(offsets[-1]) + 1, key=_offset)
    asked = np.array([place[3] for place in wanted[first:last]], dtype=np.int64)
    at = np.searchsorted(offsets, asked)
    for place, row in zip(wanted[first:last], at.tolist(), strict=True):
        if offsets[row] == place[3]:
            found[place] = columns[row]


def _offset(place: Place) -> int:
    return place[3]
