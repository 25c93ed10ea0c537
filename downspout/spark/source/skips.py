"""``skipOffsets``: offsets that a query leaves out, because somebody has processed them already.

A spout that stops may have processed records beyond the one that its commit waits for. A query that goes on for it
starts at the commit and leaves these out: ``downspout offsets export`` writes them down. The option may stay for ever:
it is about offsets, and these lie behind the query sooner or later.

Unless the topic is created again: then the same offsets are other records. So a topic's *id* may stand among its
partitions; where Kafka knows another one, nothing of the topic is left out.

>>> skips = parse_skips('{"orders": {"id": "x1", "0": [[5, 9], [7, 12]]}}')
>>> skips.within(OffsetRange("orders", 0, 0, 10)), skips.ids
(((5, 10),), {'orders': 'x1'})
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.structs import TopicPartition

from downspout.errors import ConfigError
from downspout.ledger.ranges import Ranges
from downspout.spark.source.ranges import OFFSET_MAX, OffsetRange, is_partition

NAME = "skipOffsets"

Skipped = tuple[tuple[int, int], ...]  # Sorted, disjoint half-open ranges of one partition's offsets


@dataclass(frozen=True)
class Skips:
    """What the option says."""

    ranges: Mapping[TopicPartition, Skipped] = field(default_factory=dict)  # by partition
    # Kafka's ids of the topics that are meant, where they are given
    ids: Mapping[str, str] = field(default_factory=dict)

    def within(self, piece: OffsetRange) -> Skipped:
        """Return what of a range is left out."""
        cut = [(max(start, piece.start), min(end, piece.end)) for start, end in self.ranges.get(piece.where, ())]
        return tuple((start, end) for start, end in cut if start < end)


def parse_skips(text: str) -> Skips:
    """Return what the option says, ranges that overlap or touch as one. Raises ConfigError: it has another shape."""
    wrong = ConfigError(
        f"{NAME} is not of the form {{topic: {{partition: [[from, to]]}}}}, each range without its end",
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


def to_json(ranges: Mapping[TopicPartition, Collection[tuple[int, int]]], ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the option's value for these ranges; topics and partitions without any are left out.

    >>> to_json({TopicPartition("t", 0): [(5, 9)], TopicPartition("t", 1): []}, {"t": "x1"})
    {'t': {'id': 'x1', '0': [[5, 9]]}}
    """
    found: dict[str, Any] = {}
    for tp in sorted(ranges):
        if ranges[tp]:
            parts = found.setdefault(tp.topic, {"id": ids[tp.topic]} if ids.get(tp.topic) else {})
            parts[str(tp.partition)] = [[start, end] for start, end in ranges[tp]]
    return found


class Sieve:
    """What one task leaves out of its range.

    >>> sieve = Sieve(((0, 2), (5, 9)))
    >>> list(sieve.wanted(0, 9)), sieve.keep(pa.record_batch({"offset": [2, 4, 5, 8, 9]})).column("offset").to_pylist()
    ([(2, 5)], [2, 4, 9])
    """

    def __init__(self, skipped: Skipped) -> None:
        self._ranges = Ranges(skipped)
        self._bounds = np.asarray([bound for ends in self._ranges for bound in ends], np.int64)

    def wanted(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that are not left out."""
        return self._ranges.missing(start, end)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch without what is left out; without a copy where that is nothing, or lies at its ends."""
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
