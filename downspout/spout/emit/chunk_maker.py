"""From the columns of some Kafka records to a chunk: the record batch that goes out as one tuple.

Its columns are the fields of the stream, in their order; row by row they hold what a tuple of a single record would
(``downspout.spout.emit.tuple_maker``):

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

from downspout.dead_letters.replayed import PREFIX, origin_of
from downspout.kafka.columns import RecordColumns
from downspout.ledger.origin import Origin
from downspout.origins import column_of, origins

TYPES = {"utf8": pa.string(), "bytes": pa.binary()}  # By the name of the format. Others have no column of one type.


class Unreadable(ValueError):
    """A key or value is not in its format; :meth:`ChunkMaker.unreadable` finds which."""


class ChunkMaker:
    """Makes chunks of the records of one partition.

    Args:
        fields: the columns, of :data:`downspout.spout.emit.tuple_maker.FIELDS`.

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
        # whether the origin of a replayed record is that of the record it stands for
        self._honour_replays = honour_replays
        makers: dict[str, Callable[[RecordColumns], Any]] = {
            "topic": lambda rows: pa.repeat(pa.scalar(rows.topic, pa.string()), len(rows)),
            "partition": lambda rows: pa.repeat(pa.scalar(rows.partition, pa.int32()), len(rows)),
            "offset": lambda rows: pa.array(rows.offsets),
            "timestamp": lambda rows: pa.array(rows.timestamps),
            "key": lambda rows: self._text("key", rows.keys),
            "value": lambda rows: self._text("value", rows.values),
            "headers": _headers,
            "origin": self._origins,
        }
        self._makers = [makers[field] for field in fields]

    def make(self, rows: RecordColumns) -> pa.RecordBatch:
        """Return the chunk of these rows. Raises Unreadable: a key or value is not text."""
        return pa.RecordBatch.from_arrays([make(rows) for make in self._makers], names=self._fields)

    def unreadable(self, rows: RecordColumns) -> list[int]:
        """Return which of the rows cannot be read."""
        found: set[int] = set()
        for name, column in (("key", rows.keys), ("value", rows.values)):
            if name in self._fields and self._formats[name] == TYPES["utf8"]:
                found.update(row for row, raw in enumerate(column.to_pylist()) if not _is_text(raw))
        return sorted(found)

    def _text(self, name: str, column: pa.BinaryArray) -> Any:
        try:
            return column.cast(self._formats[name])
        except pa.ArrowInvalid as error:
            raise Unreadable(str(error)) from error

    def _origins(self, rows: RecordColumns) -> Any:
        if not (self._honour_replays and rows.may_have_header(PREFIX)):
            return origins(rows.topic, self._topic_id, rows.partition, rows.offsets)
        own = (Origin(rows.topic, self._topic_id, rows.partition, row.offset) for row in rows)
        return column_of([origin_of(row, self._topic_id) or origin for row, origin in zip(rows, own, strict=True)])


def _headers(rows: RecordColumns) -> Any:
    import pyarrow.compute as pc  # a quarter of a second of CPU, which few need

    found = rows.headers()
    pairs = found.flatten()
    places: Any = pa.array(np.concatenate([[0], np.cumsum(pc.list_value_length(found).to_numpy())]), pa.int32())
    return pa.MapArray.from_arrays(places, pairs.field(0), pairs.field(1))


def _is_text(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
