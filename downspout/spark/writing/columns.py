"""The columns that a frame may have that is written to Kafka, and the rows of its Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from downspout.errors import ConfigError
from downspout.formatting import nearest

COLUMNS = ("topic", "key", "value", "headers", "partition")
TEXT_OR_BYTES = "string or binary"
TYPES = {
    "topic": "string",
    "key": TEXT_OR_BYTES,
    "value": TEXT_OR_BYTES,
    "headers": "array<struct<key: string, value: binary>>",
    "partition": "int",
}
CASTS = {
    "topic": "string(topic) AS topic",
    "key": "string(key) AS key",
    "value": "string(value) AS value, or to_json(struct(*)) AS value",
    "headers": "array(struct('name' AS key, binary('text') AS value)) AS headers",
    "partition": "int(partition) AS partition",
}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise a ConfigError where a frame's column is missing, unknown, there twice, or of another type."""
    names = schema.fieldNames()
    for name in names:
        if name not in COLUMNS:
            near = nearest(name.lower(), COLUMNS, "")
            cure = f"rename it to {near}" if near else f"select only {', '.join(COLUMNS)}; value may hold all others"
            raise ConfigError(f"the column {name} cannot be written to Kafka", cure=cure)
        if names.count(name) > 1:
            raise ConfigError(f"the column {name} is there twice", cure="select it once")
    if "value" not in names:
        raise ConfigError("there is no column value", cure="to_json(struct(*)) AS value")
    if topic is None and "topic" not in names:
        raise ConfigError("there is neither an option topic nor a column topic", cure='.option("topic", "orders")')
    for column in schema.fields:
        if not _fits(column.name, column.dataType):
            found = column.dataType.simpleString()
            raise ConfigError(
                f"the column {column.name} is of type {found}, not {TYPES[column.name]}", cure=CASTS[column.name]
            )


def _fits(name: str, found: DataType) -> bool:
    if name == "topic":
        return isinstance(found, StringType)
    if name == "partition":
        return isinstance(found, IntegerType)
    if name in ("key", "value"):
        return isinstance(found, (StringType, BinaryType))
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = {each.name: each.dataType for each in found.elementType.fields}
    return (
        list(fields) == ["key", "value"]
        and isinstance(fields["key"], StringType)
        and isinstance(fields["value"], BinaryType)
    )


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield topic, key, value, headers and partition of each row, as Python has them; key and value are bytes.

    >>> list(rows_of(pa.RecordBatch.from_pydict({"value": ["x", None], "partition": [1, None]})))
    [(None, None, b'x', None, 1), (None, None, None, None, None)]
    """
    return zip(*[_column(batch, name) for name in COLUMNS], strict=True)


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if column.null_count == len(column):
        return [None] * batch.num_rows
    if name in ("key", "value"):
        is_large = column.type in (pa.large_string(), pa.large_binary())  # spark.sql.execution.arrow.useLargeVarTypes
        column = column.cast(pa.large_binary() if is_large else pa.binary())
    found: list[Any] = column.to_pylist()
    return found
