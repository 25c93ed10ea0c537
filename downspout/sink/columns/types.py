"""The types that a column may be declared with, as text, and the Arrow types that they are written as.

::

    kind    = string | binary | bool | int8 … int64 | float32 | float64 | date | timestamp | timestamp_s | _ms | _us
            | decimal(precision,scale)
            | list<kind>
            | map<kind,kind>
            | struct<name:kind,name:kind,…>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")
EPOCH_UNITS = {"timestamp_s": 1_000_000, "timestamp_ms": 1_000, "timestamp_us": 1}
"""Kinds of columns that take whole numbers since the epoch, with the microseconds in one."""

SCALARS: dict[str, pa.DataType] = {
    "string": pa.string(), "binary": pa.binary(), "bool": pa.bool_(),
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float32": pa.float32(), "float64": pa.float64(), "date": pa.date32(),
    "timestamp": TIMESTAMP, **dict.fromkeys(EPOCH_UNITS, TIMESTAMP),
}  # fmt: skip
KEYS = ("string", "int8", "int16", "int32", "int64", "date", "bool")  # What a key of a map may be
_INSTEAD = {
    "uint64": "int64 or decimal(20,0)", "float16": "float32", "timestamp_ns": "timestamp", "time": "string",
    "int": "int32 or int64", "long": "int64", "float": "float32 or float64", "double": "float64", "str": "string",
    "bytes": "binary", "boolean": "bool", "datetime": "timestamp", "array": "list<string>", "decimal": "decimal(18,2)",
    "list": "list<string>", "map": "map<string,int64>", "struct": "struct<name:string>", "json": "string or struct<…>",
}  # fmt: skip
"""Names that people try, and what they mean here."""
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_NESTED = re.compile(r"(list|map|struct)<(.*)>", re.DOTALL)
_DEPTH_MAX = 16


@dataclass(frozen=True)
class Kind:
    """A declared type.

    >>> kind_of("struct<sku:string, prices:list<decimal(9,2)>>").type
    StructType(struct<sku: string, prices: list<item: decimal128(9, 2)>>)
    """

    text: str  # as declared, without ``!`` and ``?``
    type: pa.DataType  # the Arrow type that it is written as
    name: str  # ``int8``, ``decimal``, ``list``, ``map``, ``struct`` …
    parts: tuple[Kind, ...] = ()  # of a list its items, of a map its keys and its values, of a struct its fields
    names: tuple[str, ...] = ()  # of a struct's fields

    def holds(self, name: str) -> bool:
        """Return whether this is such a type, or has one inside."""
        return self.name == name or any(part.holds(name) for part in self.parts)


@lru_cache(maxsize=1024)
def kind_of(text: str) -> Kind:
    """Return what a type's text declares.

    Raises:
        ValueError: no such type. Its arguments are what is wrong, and what to write in its place.
    """
    return _parse(text.strip(), 0)


def _parse(text: str, depth: int) -> Kind:
    if (scalar := SCALARS.get(text)) is not None:
        return Kind(text, scalar, text)
    if (match := _DECIMAL.fullmatch(text)) is not None:
        precision, scale = int(match.group(1)), int(match.group(2))
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError("precision is 1 to 38, scale at most that", "decimal(18,2)")
        return Kind(text, pa.decimal128(precision, scale), "decimal")
    if (match := _NESTED.fullmatch(text)) is not None:
        if depth == _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} types inside one another", "string, for the JSON text")
        return _PARSERS[match.group(1)](text, split_outside(match.group(2)), depth + 1)
    if text.endswith(("!", "?")) and depth:
        raise ValueError(f"{text}: what a {text[-1]} says is for whole columns", text[:-1])
    others = ", ".join([*SCALARS, "decimal(p,s)", "list<…>", "map<string,…>", "struct<name:…>"])
    raise ValueError(f"no type {text}", _INSTEAD.get(text.partition("<")[0], others))


def _list(text: str, parts: list[str], depth: int) -> Kind:
    if len(parts) != 1:
        raise ValueError(f"no type {text}: a list has one type of items", "list<string>")
    item = _parse(parts[0], depth)
    return Kind(text, pa.list_(item.type), "list", (item,))


def _map(text: str, parts: list[str], depth: int) -> Kind:
    if len(parts) != 2:
        raise ValueError(f"no type {text}: a map has a type of keys and one of values", "map<string,int64>")
    key, value = (_parse(part, depth) for part in parts)
    if key.name not in KEYS:
        raise ValueError(f"{key.text} cannot be the key of a map", ", ".join(KEYS))
    return Kind(text, pa.map_(key.type, value.type), "map", (key, value))


def _struct(text: str, parts: list[str], depth: int) -> Kind:
    names: list[str] = []
    kinds: list[Kind] = []
    for part in parts:
        name, colon, kind = part.partition(":")
        if not colon or not (name := name.strip()):
            raise ValueError(f"{part!r} in {text} is not name:type", "struct<name:string,price:decimal(9,2)>")
        if name.lower() in (other.lower() for other in names):
            raise ValueError(f"{name} appears twice in {text} (Spark ignores case)", "another name")
        names.append(name)
        kinds.append(_parse(kind.strip(), depth))
    fields = [pa.field(name, kind.type) for name, kind in zip(names, kinds, strict=True)]
    return Kind(text, pa.struct(fields), "struct", tuple(kinds), tuple(names))


_PARSERS: dict[str, Callable[[str, list[str], int], Kind]] = {"list": _list, "map": _map, "struct": _struct}


def split_outside(text: str, separator: str = ",") -> list[str]:
    """Split a text at the separators that stand outside of all brackets.

    >>> split_outside("a:decimal(9,2), b:map<string,int8>")
    ['a:decimal(9,2)', 'b:map<string,int8>']
    """
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "(<") - (char in ")>")
        if char == separator and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]
