"""The columns of Spark's Kafka connector, made of columns as the consumer has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from downspout.kafka.columns import RecordColumns

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
        found: Any = records.headers()
        are_none: Any = pc.equal(pc.list_value_length(found), pa.scalar(0, pa.int32()))
        columns.append(pc.if_else(are_none, pa.scalar(None, HEADERS), found))
    else:
        columns.append(pa.nulls(count, HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


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
