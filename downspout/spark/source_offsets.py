"""The offsets of a batch: arithmetic with the connector's rules, and the JSON of Spark's checkpoints.

Everything here is a function of its arguments: no Kafka, no Spark, no clock.

The JSON is the connector's plus notes beside the topics: empty objects whose names contain a colon, which topic names
cannot. The connector, and versions of Downspout that do not know a note, ignore it.

===============  ===================================================================================
``topic:ID``     Kafka's id of the topic when the batch was planned
``:end``         the bounded run has ended, and its last batch ends with the end marker
===============  ===================================================================================

**``skipOffsets``** are offsets that a query skips because they are already processed. A spout that stops may have
processed records beyond the one that its commit waits for. A query that takes over starts at the commit and skips
these; ``downspout offsets export`` writes them. The option may stay for ever, because the query will have passed these
offsets sooner or later.

If the topic is created again, the same offsets are other records. So a topic's *id* may be given among its partitions;
if Kafka's id differs, none of the topic's offsets are skipped.

>>> skips = parse_skips('{"orders": {"id": "x1", "0": [[5, 9], [7, 12]]}}')
>>> skips.within(OffsetRange("orders", 0, 0, 10)), skips.ids
(((5, 10),), {'orders': 'x1'})
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.structs import TopicPartition

from downspout.errors import ConfigError, coordinates
from downspout.ledger.ranges import Ranges

Offsets = dict[TopicPartition, int]  # The next offset to read, by partition

_END = ":end"

PARTITION_MAX, OFFSET_MAX = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets of one partition from ``start`` up to, and without, ``end``.

    >>> str(OffsetRange("orders", 3, 900, 950)), OffsetRange("orders", 3, 900, 950).size
    ('orders[3]@900..950', 50)
    """

    topic: str
    partition: int
    start: int
    end: int

    @classmethod
    def of(cls, where: TopicPartition, start: int, end: int) -> OffsetRange:
        """Return a range of this partition."""
        return cls(where.topic, where.partition, start, end)

    @property
    def size(self) -> int:
        """The number of offsets; there may be fewer records."""
        return self.end - self.start

    @property
    def where(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{coordinates(self.topic, self.partition, self.start)}..{self.end}"


def place(where: TopicPartition, offset: int | None = None) -> str:
    """Name a partition, or an offset in it, as all messages do."""
    return coordinates(where.topic, where.partition, offset)


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets in the connector's JSON for checkpoints, in a fixed order.

    >>> to_json({TopicPartition("t", 10): 1, TopicPartition("t", 9): 2})
    {'t': {'9': 2, '10': 1}}
    """
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found


def is_partition(text: str) -> bool:
    """Return whether a key can be the number of a partition.

    >>> is_partition("0"), is_partition("2147483648"), is_partition("9" * 5000)
    (True, False, False)
    """
    return text.isdecimal() and len(text) <= 10 and int(text) <= PARTITION_MAX


def from_json(value: Any, name: str = "the offset", lowest: int = 0) -> Offsets:
    """Return the offsets in such an object.

    Args:
        value: parsed JSON from a checkpoint, a progress report or an option.
        name: of the value, for the error.
        lowest: the lowest permitted number.

    Raises:
        ConfigError: it has another shape.

    >>> from_json({"t": {"0": 5}})
    {TopicPartition(topic='t', partition=0): 5}
    """
    wrong = ConfigError(f"{name} is not of the form {{topic: {{partition: number}}}}", cure='{"orders": {"0": 23}}')
    if not isinstance(value, dict):
        raise wrong
    offsets: Offsets = {}
    for topic, by_partition in value.items():
        if not isinstance(by_partition, dict) or (":" in topic and by_partition):
            raise wrong
        for partition, offset in by_partition.items():
            whole = isinstance(offset, int) and not isinstance(offset, bool)
            if not is_partition(partition) or not whole or not lowest <= offset <= OFFSET_MAX:
                raise wrong
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


@dataclass(frozen=True)
class StreamOffset:
    """The position of a stream after a batch, as stored in Spark's checkpoint.

    >>> StreamOffset({TopicPartition("t", 0): 5}, {"t": "x1"}, is_end=True).to_json()
    {'t': {'0': 5}, 't:x1': {}, ':end': {}}
    >>> StreamOffset.from_json({"t": {"0": 5}})
    StreamOffset(offsets={TopicPartition(topic='t', partition=0): 5}, topic_ids={}, is_end=False)
    """

    offsets: Offsets  # the next offset to read, by partition
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # Kafka's ids of the topics, if known
    is_end: bool = False  # whether a bounded run ended with this batch

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the offset in the checkpoint's JSON, in a fixed order."""
        found = to_json(self.offsets)
        known = ((topic, self.topic_ids.get(topic)) for topic in list(found))
        notes = [f"{topic}:{topic_id}" for topic, topic_id in known if topic_id]
        return {**found, **{note: {} for note in [*notes, *([_END] if self.is_end else [])]}}

    @classmethod
    def from_json(cls, value: Any, name: str = "the offset in the checkpoint") -> StreamOffset:
        """Parse the result of :meth:`to_json`, with or without notes. Raises ConfigError: it has another shape."""
        offsets = from_json(value, name)
        notes = [key.partition(":") for key in value if ":" in key]
        ids = {topic: topic_id for topic, _, topic_id in notes if topic and topic_id}
        return cls(offsets, ids, is_end=_END in value)


def prorate(begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """Return ends for about ``limit`` offsets, shared between the partitions in proportion to their backlog.

    Each partition with a backlog gets at least one offset, so there may be a few more than ``limit`` (the rule of the
    connector's ``rateLimit``).

    >>> a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    >>> list(prorate({a: 0, b: 0}, {a: 900, b: 100}, 10).values())
    [9, 1]
    """
    sizes = {tp: end - begins[tp] for tp, end in ends.items() if end > begins[tp]}
    total = sum(sizes.values())
    limited = dict(ends)
    for tp, size in sizes.items():
        share = limit * size / total
        limited[tp] = min(ends[tp], begins[tp] + (ceil(share) if share < 1 else floor(share)))
    return limited


def split(ranges: list[OffsetRange], minimum: int | None = None, records_max: int | None = None) -> list[OffsetRange]:
    """Split ranges for more parallel tasks; by default, there is one task per partition with offsets to read.

    Args:
        ranges: of one batch; empty ones are dropped.
        minimum: ``minPartitions``. Long ranges are split into about so many in total. Shares are rounded; a range whose
            share is below one and a half stays whole and does not count.
        records_max: ``maxRecordsPerPartition``, the maximum length of a range.

    >>> [str(piece) for piece in split([OffsetRange("t", 0, 0, 10)], 3)]
    ['t[0]@0..3', 't[0]@3..6', 't[0]@6..10']
    """
    pieces = [piece for piece in ranges if piece.size > 0]
    if records_max is not None:
        pieces = [part for piece in pieces for part in _cut(piece, -(-piece.size // records_max))]
    if minimum is None or len(pieces) >= minimum:
        return pieces
    total = sum(piece.size for piece in pieces)
    whole = {piece for piece in pieces if _parts(piece.size, total, minimum) == 1}
    shared = total - sum(piece.size for piece in whole)
    wanted = max(minimum - len(whole), 1)
    cut = []
    for piece in pieces:
        cut += [piece] if piece in whole else _cut(piece, _parts(piece.size, shared, wanted))
    return cut


def _parts(size: int, total: int, wanted: int) -> int:
    return max(floor(size / total * wanted + 0.5), 1)


def _cut(piece: OffsetRange, parts: int) -> list[OffsetRange]:
    """Return ``parts`` pieces, without empty ones, whose sizes differ by at most one."""
    cut, start = [], piece.start
    for part in range(parts):
        end = start + (piece.end - start) // (parts - part)
        if end > start:
            cut.append(OffsetRange(piece.topic, piece.partition, start, end))
        start = end
    return cut


# --- skipOffsets ---

SKIP_OFFSETS = "skipOffsets"

Skipped = tuple[tuple[int, int], ...]  # Sorted, disjoint half-open ranges of one partition's offsets


@dataclass(frozen=True)
class Skips:
    """The parsed option."""

    ranges: Mapping[TopicPartition, Skipped] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)  # Kafka's ids of the topics, if given

    def within(self, piece: OffsetRange) -> Skipped:
        """Return the skipped part of a range."""
        cut = [(max(start, piece.start), min(end, piece.end)) for start, end in self.ranges.get(piece.where, ())]
        return tuple((start, end) for start, end in cut if start < end)


def parse_skips(text: str) -> Skips:
    """Parse the option and merge overlapping or adjacent ranges. Raises ConfigError: it has another shape."""
    wrong = ConfigError(
        f"{SKIP_OFFSETS} is not of the form {{topic: {{partition: [[from, to]]}}}}, each range without its end",
        cure='{"orders": {"0": [[5, 9]]}}',
    )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(found, dict) or not all(isinstance(parts, dict) for parts in found.values()):
        raise wrong
    ranges: dict[TopicPartition, Skipped] = {}
    ids: dict[str, str] = {}
    for topic, parts in found.items():
        for key, value in parts.items():
            if key == "id" and isinstance(value, str):
                ids[topic] = value
            elif is_partition(key) and isinstance(value, list) and all(map(_is_range, value)):
                ranges[TopicPartition(topic, int(key))] = tuple(Ranges((start, end) for start, end in value))
            else:
                raise wrong
    return Skips(ranges, ids)


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(number) is int for number in value)
        and 0 <= value[0] < value[1] <= OFFSET_MAX
    )


def skips_json(ranges: Mapping[TopicPartition, Collection[tuple[int, int]]], ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the option's value for these ranges, without empty topics and partitions.

    >>> skips_json({TopicPartition("t", 0): [(5, 9)], TopicPartition("t", 1): []}, {"t": "x1"})
    {'t': {'id': 'x1', '0': [[5, 9]]}}
    """
    found: dict[str, Any] = {}
    for tp in sorted(ranges):
        if ranges[tp]:
            parts = found.setdefault(tp.topic, {"id": ids[tp.topic]} if ids.get(tp.topic) else {})
            parts[str(tp.partition)] = [[start, end] for start, end in ranges[tp]]
    return found


class Sieve:
    """Filters the skipped offsets out of a task's range.

    >>> sieve = Sieve(((0, 2), (5, 9)))
    >>> list(sieve.wanted(0, 9)), sieve.keep(pa.record_batch({"offset": [2, 4, 5, 8, 9]})).column("offset").to_pylist()
    ([(2, 5)], [2, 4, 9])
    """

    def __init__(self, skipped: Skipped) -> None:
        self._ranges = Ranges(skipped)
        self._bounds = np.asarray([bound for ends in self._ranges for bound in ends], np.int64)

    def wanted(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that are not skipped."""
        return self._ranges.missing(start, end)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch without skipped rows; copies only if kept rows lie on both sides of skipped ones."""
        if not len(self._bounds):
            return batch
        # The bounds alternate: an odd number of them at or below an offset means that it lies in a range.
        below = np.searchsorted(self._bounds, batch.column("offset").to_numpy(), side="right")
        rows = np.flatnonzero(below % 2 == 0)
        if not len(rows):
            return batch.slice(0, 0)
        first, count = int(rows[0]), len(rows)
        if int(rows[-1]) - first + 1 == count:
            return batch.slice(first, count)
        return batch.take(rows)
