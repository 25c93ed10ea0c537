"""The columns of Spark's Kafka connector, made of columns as the consumer has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.kafka.columns import RecordColumns
from downspout.kafka.unreadable import Unreadable

HEADERS: Any = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MICROSECONDS: Any = pa.timestamp("us", tz="UTC")
_COLUMNS: Any = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _MICROSECONDS),
    ("timestampType", pa.int32()),
]
SCHEMA = pa.schema(_COLUMNS)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))
"""The connector's columns, as Spark's Arrow types have them."""
UNREADABLE: Any = pa.struct([("end", pa.int64()), ("size", pa.int64()), ("reason", pa.string())])
"""What a row says that stands for offsets whose records cannot be given whole; null in all others."""


def to_batch(records: RecordColumns, headers: bool) -> pa.RecordBatch:
    """Return records as the connector has them: without headers, a record's are null."""
    count = len(records)
    columns: list[Any] = [
        records.keys,
        records.values,
        pa.repeat(pa.scalar(records.topic), count),
        pa.repeat(pa.scalar(records.partition, pa.int32()), count),
        pa.array(records.offsets),
        pa.array(records.timestamps * 1000).cast(_MICROSECONDS),
        pa.array(records.timestamp_types.astype(np.int32)),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    if records.has_headers:
        import pyarrow.compute as pc  # a quarter of a second of CPU, which few need

        found: Any = records.headers()
        are_none: Any = pc.equal(pc.list_value_length(found), pa.scalar(0, pa.int32()))
        columns.append(pc.if_else(are_none, pa.scalar(None, HEADERS), found))
    else:
        columns.append(pa.nulls(count, HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


def nulls(headers: bool, unreadable: bool = False) -> pa.RecordBatch:
    """Return one row that is null in every column."""
    schema = SCHEMA_WITH_HEADERS if headers else SCHEMA
    marker = pa.RecordBatch.from_pylist([{}], schema=schema)
    return with_note(marker, None) if unreadable else marker


def with_note(batch: pa.RecordBatch, note: Unreadable | None) -> pa.RecordBatch:
    """Return a batch with the column ``unreadable``; with a note it is a row that stands for what cannot be read."""
    notes: Any = pa.nulls(batch.num_rows, UNREADABLE)
    if note is not None:
        notes = pa.array([{"end": note.end, "size": note.size, "reason": note.why}], UNREADABLE)
    return batch.append_column("unreadable", notes)


def portions(records: RecordColumns, bytes_max: int) -> Iterator[RecordColumns]:
    """Yield the records in portions of about so many bytes, at least one record each."""
    while len(records) > 1 and records.nbytes > bytes_max:
        count = max(len(records) * bytes_max // records.nbytes, 1)
        while count > 1 and records[:count].nbytes > bytes_max:
            count //= 2
        yield records[:count]
        records = records[count:]
    if len(records):
        yield records
