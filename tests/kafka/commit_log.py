"""Every commit that a real broker has accepted, in order: read from its internal topic."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kafka import KafkaConsumer

from downspout.kafka import TopicPartition
from tests.waiting import eventually

LOG = "__consumer_offsets"
COMPACT_SINCE = 4
"""From this version of its value on, strings have a varint for their length, which counts from 1."""


@dataclass(frozen=True)
class Commit:
    group: str
    partition: TopicPartition
    offset: int
    metadata: str


class CommitLog:
    """Reads the commits that come after it was made, or told to forget."""

    def __init__(self, bootstrap: str) -> None:
        # Leaders move in some tests; a question to a former one is asked again only when that is known.
        self._reader = KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_uncommitted", metadata_max_age_ms=1_000
        )
        self._partitions: list[TopicPartition] = []
        self._commits: list[Commit] = []

    def forget(self) -> None:
        """Begin anew: what was committed so far does not count."""
        if not self._partitions:  # the topic is made with the first group
            found = self._reader.partitions_for_topic(LOG) or ()
            self._partitions = [TopicPartition(LOG, number) for number in found]
            self._reader.assign(self._partitions)
        for partition, end in self._reader.end_offsets(self._partitions).items():
            self._reader.seek(partition, end)
        self._commits.clear()

    def commits(self, group: str) -> list[Commit]:
        ends = self._reader.end_offsets(self._partitions)

        def is_read() -> bool:
            if all(self._reader.position(partition) >= end for partition, end in ends.items()):
                return True
            for records in self._reader.poll(timeout_ms=100).values():
                self._commits += [made for record in records for made in _parse(record.key, record.value)]
            return False

        eventually(is_read, every_s=0)
        return [commit for commit in self._commits if commit.group == group]

    def close(self) -> None:
        self._reader.close()


def _parse(key: bytes, value: bytes | None) -> Iterator[Commit]:
    """Yield the commit that an entry holds; entries on members, and those that delete, hold none."""
    version, at = struct.unpack_from(">h", key)[0], 2
    if version > 1 or value is None:
        return
    group, at = _string(key, at)
    topic, at = _string(key, at)
    (number,) = struct.unpack_from(">i", key, at)
    form, offset = struct.unpack_from(">hq", value)
    if form >= COMPACT_SINCE:
        length = value[14] - 1 if value[14] < 0x80 else (value[14] & 0x7F | value[15] << 7) - 1
        start = 15 if value[14] < 0x80 else 16
        metadata = value[start : start + length].decode()
    else:
        metadata, _ = _string(value, 14 if form == 3 else 10)
    yield Commit(group, TopicPartition(topic, number), offset, metadata)


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length
