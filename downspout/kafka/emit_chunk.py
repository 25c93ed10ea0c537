"""From the columns of some Kafka records to a chunk: the record batch that goes out as one tuple.

Its columns are the fields of the stream, in their order; row by row they hold what a tuple of a single record would
(``downspout.kafka.emit``):

=================  ==========================================================
offset, timestamp  int64
partition          int32
key, value         string, or binary where ``kafka.key_format`` or
                   ``kafka.value_format`` says bytes
topic              string
headers            map of string to binary; a name may come more than once
origin             the struct of :mod:`downspout.origins`
=================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from downspout.kafka.columns import RecordColumns
from downspout.kafka.replayed import PREFIX, origin_of
from downspout.ledger.origin import Origin
from downspout.origins import column_of, origins

__all__ = ["ChunkMaker", "Unreadable"]

Mask = NDArray[np.bool_] | None
TYPES = {"utf8": pa.string(), "bytes": pa.binary()}
"""By the name of the format. Others have no column of one type."""


class Unreadable(ValueError):
    """A key or value is not in its format; which, :meth:`ChunkMaker.unreadable` tells."""


class ChunkMaker:
    """Makes chunks of the records of one partition.

    Args:
        fields: the columns, of :data:`downspout.kafka.emit.FIELDS`.
        key_format: ``utf8`` or ``bytes``.
        value_format: likewise.
        topic_id: Kafka's id of the topic.
        honour_replays: whether the origin of a replayed record is that of the record it stands for.

    >>> from downspout.kafka.columns import ColumnRecord
    >>> first, second = ColumnRecord("t", 0, 7, 1000, None, b"a", []), ColumnRecord("t", 0, 9, 1001, b"k", b"b", [])
    >>> maker = ChunkMaker(["offset", "key", "value"], "utf8", "bytes", "")
    >>> maker.make(RecordColumns.of([first, second])).to_pylist()
    [{'offset': 7, 'key': None, 'value': b'a'}, {'offset': 9, 'key': 'k', 'value': b'b'}]
    """

    def __init__(
        self, fields: Sequence[str], key_format: str, value_format: str, topic_id: str, honour_replays: bool = True
    ) -> None:
        self._fields = list(fields)
        self._formats = {"key": TYPES[key_format], "value": TYPES[value_format]}
        self._topic_id = topic_id
        self._honour_replays = honour_replays
        makers: dict[str, Callable[[RecordColumns, Mask], Any]] = {
            "topic": lambda rows, mask: pa.repeat(pa.scalar(rows.topic, pa.string()), _count(rows, mask)),
            "partition": lambda rows, mask: pa.repeat(pa.scalar(rows.partition, pa.int32()), _count(rows, mask)),
            "offset": lambda rows, mask: pa.array(_chosen(rows.offsets, mask)),
            "timestamp": lambda rows, mask: pa.array(_chosen(rows.timestamps, mask)),
            "key": lambda rows, mask: self._text("key", rows.keys, mask),
            "value": lambda rows, mask: self._text("value", rows.values, mask),
            "headers": _headers,
            "origin": self._origins,
        }
        self._makers = [makers[field] for field in fields]

    def make(self, rows: RecordColumns, mask: Mask = None) -> pa.RecordBatch:
        """Return the chunk of these rows, or of those of them that ``mask`` has.

        Raises:
            Unreadable: a key or value is no text.
        """
        return pa.RecordBatch.from_arrays([make(rows, mask) for make in self._makers], names=self._fields)

    def unreadable(self, rows: RecordColumns, mask: Mask = None) -> list[int]:
        """Return which of the rows cannot be read."""
        asked = range(len(rows)) if mask is None else np.flatnonzero(mask).tolist()
        found: set[int] = set()
        for name, column in (("key", rows.keys), ("value", rows.values)):
            if name in self._fields and self._formats[name] == TYPES["utf8"]:
                raw = column.to_pylist()
                found.update(row for row in asked if not _is_text(raw[row]))
        return sorted(found)

    def _text(self, name: str, column: pa.BinaryArray, mask: Mask) -> Any:
        try:
            return (column if mask is None else column.filter(pa.array(mask))).cast(self._formats[name])
        except pa.ArrowInvalid as error:
            raise Unreadable(str(error)) from error

    def _origins(self, rows: RecordColumns, mask: Mask) -> Any:
        if not (self._honour_replays and rows.may_have_header(PREFIX)):
            return origins(rows.topic, self._topic_id, rows.partition, _chosen(rows.offsets, mask))
        chosen = rows if mask is None else [row for row, wanted in zip(rows, mask, strict=True) if wanted]
        own = (Origin(rows.topic, self._topic_id, rows.partition, row.offset) for row in chosen)
        return column_of([origin_of(row, self._topic_id) or origin for row, origin in zip(chosen, own, strict=True)])


def _count(rows: RecordColumns, mask: Mask) -> int:
    return len(rows) if mask is None else int(np.count_nonzero(mask))


def _chosen(numbers: NDArray[np.int64], mask: Mask) -> NDArray[np.int64]:
    return numbers if mask is None else numbers[mask]


def _headers(rows: RecordColumns, mask: Mask) -> Any:
    found = rows.headers() if mask is None else rows.headers().filter(pa.array(mask))
    pairs = found.flatten()
    places: Any = pa.array(np.concatenate([[0], np.cumsum(pc.list_value_length(found).to_numpy())]), pa.int32())
    return pa.MapArray.from_arrays(places, pairs.field(0), pairs.field(1))


def _is_text(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
