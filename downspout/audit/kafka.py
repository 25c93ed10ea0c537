"""The audit's view of Kafka: the records at offsets without a row, and the offsets named by dead letters.

It reads only offsets that need an explanation: for a complete directory, it asks Kafka for two offsets per partition
and reads no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kafka.errors import KafkaError

from downspout import offset_ranges
from downspout.dead_letters.dead_letter import read_copies
from downspout.errors import BrokerError, coordinates
from downspout.kafka.port import Cluster, ConsumerPort, Record, TopicPartition
from downspout.kafka.scan import scan
from downspout.kafka.unreadable import Limits
from downspout.ledger.origin import Origin
from downspout.ledger.ranges import Ranges
from downspout.offset_ranges import OffsetRange, OffsetRanges
from downspout.sink.log import read_entries
from downspout.spout.starting import partitions_of

JUMP_OVER = 5_000
"""Largest gap between two wanted ranges that is read through: a seek drops the fetched records."""


@dataclass(frozen=True)
class Log:
    """One partition's log in Kafka: ``[earliest, end)``."""

    topic: str
    topic_id: str
    partition: int
    earliest: int
    end: int


class KafkaSide:
    """Queries topics without a group, so it moves no offsets.

    Raises (from all methods):
        BrokerError: Kafka did not answer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._consumer: ConsumerPort = cluster.consumer(group=None)
        self._consumer.tolerate(Limits(), corrupt=True)
        self._unreadable: dict[tuple[str, int], Ranges] = {}

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()

    def unreadable(self, log: Log) -> OffsetRanges:
        """Return the offsets read so far whose records Kafka could not return in full."""
        return list(self._unreadable.get((log.topic, log.partition), ()))

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones, in order."""
        try:
            return sorted(name for name in self._consumer.topic_names() if not name.startswith("__"))
        except KafkaError as error:
            raise _no_answer("the list of topics", error) from error

    def logs(self, topic: str) -> list[Log]:
        """Return the partitions of a topic, in order; none if it does not exist."""
        try:
            partitions = partitions_of(self._consumer, [topic])
            if not partitions:
                return []
            starts = self._consumer.beginning_offsets(partitions)
            ends = self._consumer.end_offsets(partitions)
            topic_id = self._consumer.topic_id(topic)
        except KafkaError as error:
            raise _no_answer(topic, error) from error
        return [Log(topic, topic_id, tp.partition, starts[tp], ends[tp]) for tp in partitions]

    def records(self, log: Log, wanted: Sequence[OffsetRange]) -> Iterator[Record]:
        """Yield the records at the wanted offsets, in order.

        Offsets that are not yielded hold none: compacted, deleted by retention, aborted, or a transaction marker.
        """
        partition = TopicPartition(log.topic, log.partition)
        try:
            if wanted:
                self._consumer.assign([partition])
            for start, end, parts in _groups(wanted):
                at = 0
                for record in self._read(partition, start, end):
                    while at < len(parts) and parts[at][1] <= record.offset:
                        at += 1
                    if at < len(parts) and parts[at][0] <= record.offset:
                        yield record
        except KafkaError as error:
            raise _no_answer(coordinates(log.topic, log.partition), error) from error

    def _read(self, partition: TopicPartition, start: int, end: int) -> Iterator[Record]:
        broken = self._unreadable.setdefault((partition.topic, partition.partition), Ranges())
        for records in scan(self._consumer, partition, start, end):
            for note in self._consumer.take_unreadable():
                broken.add_range(note.offset, note.end)
            yield from (each for each in records if not (broken.total and each.offset in broken))


def _groups(wanted: Sequence[OffsetRange]) -> Iterator[tuple[int, int, OffsetRanges]]:
    """Yield ranges to read without a seek, each with the wanted ranges in it."""
    parts: OffsetRanges = []
    for span in wanted:
        if parts and span[0] - parts[-1][1] > JUMP_OVER:
            yield parts[0][0], parts[-1][1], parts
            parts = []
        parts.append(span)
    if parts:
        yield parts[0][0], parts[-1][1], parts


def committed(
    cluster: Cluster, group: str, directory: Path, topics: Sequence[str], also: Sequence[str] = ()
) -> dict[tuple[str, int], int]:
    """Return a group's commits by topic and partition; 0 without a commit.

    Args:
        directory: the sink's; its log names the topics.
        topics: by default, those of the log, and ``also``.
        also: topics that the topology reads.
    """
    logged = {stream.topic for entry in read_entries(directory) for stream in entry.coverage.streams()}
    names = topics or sorted({*logged, *also})
    consumer = cluster.consumer(group=group)
    try:
        wanted = partitions_of(consumer, names)
        found = consumer.committed(wanted) if wanted else {}
    except KafkaError as error:
        raise _no_answer(f"group {group}", error) from error
    finally:
        consumer.close()
    if wanted and not any(found.values()):
        raise BrokerError(
            f"group {group} has committed nothing for {', '.join(names)}",
            cure="the group of the topology's spout (kafka.group)",
        )
    return {(tp.topic, tp.partition): commit.offset if commit else 0 for tp, commit in found.items()}


class Letters:
    """The offsets named by dead-letter topics."""

    def __init__(self) -> None:
        # by topic, topic id (``""`` if the letter has none) and partition
        self.offsets: dict[tuple[str, str, int], OffsetRanges] = {}
        # Further letters per record, beyond the first. A replay that a bolt rejects is dead-lettered under the original
        # record, the only one that the bolt knows.
        self.again: Counter[tuple[str, int, int]] = Counter()
        # by topic and partition, the offsets whose letter does not hold the whole record
        self.cut: dict[tuple[str, int], OffsetRanges] = {}

    def read(self, cluster: Cluster, topic: str) -> bool:
        """Read a topic; return whether it exists. Raises BrokerError: Kafka does not answer."""
        with closing(KafkaSide(cluster)) as side:
            if not side.logs(topic):
                return False
        offsets: dict[tuple[str, str, int], list[int]] = {}
        ranges: dict[tuple[str, str, int], OffsetRanges] = {}
        cut: dict[tuple[str, int], OffsetRanges] = {}
        for dead_letter in read_copies(cluster, topic):
            if dead_letter.origin is not None:
                name, topic_id, partition, offset = dead_letter.origin
                offsets.setdefault((name, topic_id, partition), []).append(offset)
                if dead_letter.is_cut:
                    span = (dead_letter.offsets.start, dead_letter.offsets.stop)
                    cut.setdefault((name, partition), []).append(span)
                    ranges.setdefault((name, topic_id, partition), []).append(span)
        for partition_name, spans in cut.items():
            self.cut[partition_name] = offset_ranges.union(self.cut.get(partition_name, []), spans)
        for place, found in offsets.items():
            batches = offset_ranges.union(ranges.get(place, []))
            self.offsets[place] = offset_ranges.union(
                self.offsets.get(place, []), offset_ranges.of_offsets(found), batches
            )
            counts = Counter(found)
            self.again.update({(place[0], place[2], at): count - 1 for at, count in counts.items() if count > 1})
        return True

    def of(self, log: Log) -> OffsetRanges:
        """Return the dead-lettered offsets of a partition."""
        ids = {log.topic_id, ""}
        return offset_ranges.union(*(self.offsets.get((log.topic, topic_id, log.partition), []) for topic_id in ids))

    def take_again(self, origin: Origin) -> bool:
        """Take one of a record's further letters; return whether one was left."""
        place = (origin.topic, origin.partition, origin.offset)
        self.again[place] -= 1
        return self.again[place] >= 0


def _no_answer(place: str, error: KafkaError) -> BrokerError:
    text = " ".join(str(error).split()) or type(error).__name__
    return BrokerError(f"{place} cannot be read for the audit: {text}", cure="`downspout kafka status`")
