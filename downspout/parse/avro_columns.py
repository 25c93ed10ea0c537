"""Avro records of one schema, decoded a column at a time.

Schemas with lists, maps, unions of several types or records inside themselves are left to fastavro as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.parse.binary_columns import TYPES_MAX, BinaryColumns, Cursor, Found, Leaf, zigzag
from downspout.parse.columns import Mask
from downspout.parse.paths import Path

_KINDS = {
    "null": "null", "boolean": "bool", "int": "int", "long": "int", "float": "float32", "double": "float64",
    "string": "string", "bytes": "binary", "fixed": "binary", "enum": "string",
}  # fmt: skip
_LOGICAL = {"int-date": "date", "long-timestamp-millis": "timestamp_ms", "long-timestamp-micros": "timestamp_us"}
Readers = Mapping[str, Callable[[Any, Any, Any], Any]]


class AvroColumns(BinaryColumns):
    """Decodes records of one schema.

    Args:
        schema: the parsed schema.
        named: the named types in it, as fastavro collects them.
        readers: fastavro's readers of logical types.

    Raises:
        ValueError: records of this schema cannot be decoded this way.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any], readers: Readers) -> None:
        self._named, self._readers = named, readers
        self._types = 0
        self._schema = self._resolved(schema)
        if _kind(self._schema) != "record":
            raise ValueError("it is no record")
        leaves: dict[Path, Leaf] = {}
        self._collect(self._schema, (), (), leaves)
        super().__init__(leaves, [field["name"] for field in self._schema["fields"]])

    def _resolved(self, schema: Any) -> Any:
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _collect(self, schema: Any, path: Path, inside: tuple[str, ...], leaves: dict[Path, Leaf]) -> None:
        """Find the leaves of a type."""
        self._types += 1
        if self._types > TYPES_MAX:
            raise ValueError("too many values")
        schema = self._resolved(schema)
        if isinstance(schema, list):
            schema = self._resolved(_other(schema))
        if (kind := _kind(schema)) != "record":
            leaves[path] = self._leaf(schema, kind)
        elif schema["name"] in inside:
            raise ValueError(f"{schema['name']} is inside of itself")
        else:
            for field in schema["fields"]:
                self._collect(field["type"], (*path, field["name"]), (*inside, schema["name"]), leaves)

    def _leaf(self, schema: Any, kind: str) -> Leaf:
        if kind not in _KINDS:
            raise ValueError(f"a value of type {kind} has no fixed place")
        logical = f"{kind}-{schema['logicalType']}" if isinstance(schema, dict) and "logicalType" in schema else ""
        if (read := self._readers.get(logical)) is None:
            return Leaf(_KINDS[kind])
        return Leaf(_LOGICAL.get(logical, _KINDS[kind]), partial(_value, read, schema))

    def _walk(self, cursor: Cursor) -> Found:
        found: Found = {}
        self._read(cursor, self._schema, (), cursor.all, found)
        return found

    def _read(self, cursor: Cursor, schema: Any, path: Path, live: Mask, found: Found) -> None:
        """Move on behind a value of this type in the records in which there is one, and keep what it is."""
        schema = self._resolved(schema)
        if isinstance(schema, list):
            other = _other(schema)
            branch = zigzag(cursor.number(live))
            cursor.good &= (branch >= 0) & (branch < len(schema))
            live = live & (branch == schema.index(other))
            schema = self._resolved(other)
        if (kind := _kind(schema)) == "record":
            for field in schema["fields"]:
                self._read(cursor, field["type"], (*path, field["name"]), live, found)
        else:
            found[path] = _read_leaf(cursor, schema, kind, live), live & (kind != "null")


def _value(read: Callable[[Any, Any, Any], Any], schema: Any, item: Any) -> Any:
    return read(item, schema, None)


def _read_leaf(cursor: Cursor, schema: Any, kind: str, live: Mask) -> Any:
    if kind in ("int", "long"):
        return zigzag(cursor.number(live))
    if kind in ("float", "double"):
        return cursor.fixed(_KINDS[kind], live)
    if kind in ("string", "bytes"):
        return cursor.spans(zigzag(cursor.number(live)), live, ~live)
    if kind == "fixed":
        return cursor.spans(np.full(len(live), schema["size"]), live, ~live)
    if kind == "enum":
        places, symbols = zigzag(cursor.number(live)), schema["symbols"]
        known = (places >= 0) & (places < len(symbols))
        cursor.good &= known
        indices: Any = pa.array(np.where(known, places, 0), mask=~live)
        return pa.array(symbols, pa.string()).take(indices)
    first = cursor.words() & np.uint64(0xFF)
    cursor.move(int(kind == "boolean"), live)
    return first != 0


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return kind if isinstance(kind, str) else "union"


def _other(union: list[Any]) -> Any:
    """Return the one type of a union that is not null."""
    others = [item for item in union if item != "null"]
    if len(others) != 1 or len(union) > 2:
        raise ValueError("a union of several types")
    return others[0]
