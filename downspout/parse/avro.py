"""Avro documents, by fastavro.

fastavro gets each schema wrapped in a record with one field, which has the same bytes: so a schema may be a union or
the name of another schema, which fastavro would not find. Logical types follow Avro's specification: unknown or invalid
ones are ignored. Some that fastavro reads differently get a reader here, through its documented hook for custom logical
types.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.errors import ConfigError, MissingExtraError
from downspout.parse.binary_columns import TYPES_MAX, BinaryColumns, Cursor, Decoder, Found, Leaf, Schema, zigzag
from downspout.parse.columns import Mask
from downspout.parse.json import Path

_VALUE = "downspout_value"
PRECISION_MAX = 1_000  # Digits of a decimal; a type that declares more is read as its bytes
DECIMAL_BYTES_MAX = 512  # What a decimal may take: to make a number of a million bytes takes many minutes
_EXACT = Context(prec=2 * DECIMAL_BYTES_MAX * 3, Emax=MAX_EMAX, Emin=MIN_EMIN)
_LOGICAL = {
    "bytes-decimal": "downspout-decimal", "fixed-decimal": "downspout-decimal",
    "int-time-millis": "downspout-time-millis", "long-time-micros": "downspout-time-micros",
    **{f"{kind}-{name}": name for kind, name in (
        ("int", "date"), ("long", "timestamp-millis"), ("long", "timestamp-micros"),
        ("long", "local-timestamp-millis"), ("long", "local-timestamp-micros"),
    )},
}  # fmt: skip
"""The logical types that are read, with the names under which fastavro knows their readers. A uuid is its text."""


def avro_decoder(schema: Schema, reader_schema: str | None) -> Decoder:
    """Return the decoder of a schema's Avro records, which uses the reader's schema if there is one.

    Raises:
        ValueError: the schema is invalid.
        MissingExtraError: fastavro is not installed.
    """
    fastavro = _library()
    named: dict[str, Any] = {}
    try:
        for _, imported in schema.references:
            fastavro.parse_schema(readable(json.loads(imported)), named_schemas=named)
        writer = _parsed(fastavro, json.loads(schema.text), named)
        check = bounds_of(writer["fields"][0]["type"], named)
    except Exception as error:  # fastavro raises whatever the text makes it trip over
        raise ValueError(f"it is not an Avro schema: {error}") from error
    reader = None if reader_schema is None else read_schema(reader_schema)
    read = fastavro.schemaless_reader

    def decode(content: bytes) -> dict[str, Any]:
        if check is not None:
            check(content)
        source = BytesIO(content)
        try:
            document: dict[str, Any] = read(source, writer, reader)[_VALUE]
        except Exception as error:  # of bytes that are not what the schema says, fastavro raises all sorts of errors
            raise ValueError(_reason(error)) from error
        if source.tell() < len(content):
            raise ValueError(f"{len(content) - source.tell()} bytes follow its end")
        if type(document) is not dict:
            raise ValueError("an Avro record is needed")
        return document

    return Decoder(decode, _in_columns(fastavro, writer["fields"][0]["type"], named) if reader is None else None)


def _library() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtraError("Avro needs the package fastavro", cure="pip install 'downspout[avro]'") from error
    fastavro.read.LOGICAL_READERS.update(_READERS)
    return fastavro


def _parsed(fastavro: Any, schema: Any, named: dict[str, Any]) -> Any:
    """Return a schema parsed by fastavro, wrapped in a record; add its named types to ``named``."""
    outer = {"type": "record", "name": _VALUE, "fields": [{"name": _VALUE, "type": readable(schema)}]}
    return fastavro.parse_schema(outer, named_schemas=named)


def readable(schema: Any) -> Any:
    """Return a schema with only the logical types that are read, under the names of their readers.

    >>> readable({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5})
    {'type': 'bytes', 'precision': 2, 'scale': 5}
    >>> readable([{"type": "string", "logicalType": "uuid"}, {"type": "int", "logicalType": "date"}])
    [{'type': 'string'}, {'type': 'int', 'logicalType': 'date'}]
    """
    if isinstance(schema, list):
        return [readable(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if key in made:
            made[key] = readable(made[key])
    if isinstance(made.get("fields"), list):
        made["fields"] = [readable(field) for field in made["fields"]]
    kind, name = made.get("type"), schema.get("logicalType")
    if (
        isinstance(kind, str)
        and (reader := _LOGICAL.get(f"{kind}-{name}"))
        and (name != "decimal" or _is_decimal(made))
    ):
        made["logicalType"] = reader
    return made


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    """Return whether precision and scale are valid, and the bytes of a fixed type suffice."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= PRECISION_MAX:
        return False
    size = schema.get("size") if schema["type"] == "fixed" else DECIMAL_BYTES_MAX
    return (
        precision > 0 and type(size) is int and precision <= len(str(2 ** (8 * min(size, DECIMAL_BYTES_MAX) - 1))) - 1
    )


def _decimal(data: bytes, schema: Mapping[str, Any], _: Any) -> Decimal:
    """Return a decimal with all its digits; fastavro's own reader rounds to the precision."""
    if len(data) > DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal of {len(data):,} bytes")
    return _EXACT.scaleb(Decimal(int.from_bytes(data, "big", signed=True)), -schema.get("scale", 0))


def _time(unit: str, number: int) -> str:
    """Return a time of the day as text."""
    passed = timedelta(**{unit: number})
    if not timedelta(0) <= passed < timedelta(days=1):
        raise ValueError(f"{number} is not a time of day in {unit}")
    return (datetime.min + passed).time().isoformat()


_READERS: dict[str, Any] = {
    "bytes-downspout-decimal": _decimal,
    "fixed-downspout-decimal": _decimal,
    "int-downspout-time-millis": lambda data, *_: _time("milliseconds", data),
    "long-downspout-time-micros": lambda data, *_: _time("microseconds", data),
}


def _in_columns(fastavro: Any, parsed: Any, named: dict[str, Any]) -> AvroColumns | None:
    try:
        return AvroColumns(parsed, named, fastavro.read.LOGICAL_READERS)
    except ValueError:  # it has lists, maps or the like
        return None


def read_schema(given: str) -> Any:
    """Return the Avro schema of ``parse.reader_schema``: JSON, or a file that holds it.

    Raises:
        ConfigError: it is neither.
    """
    fastavro = _library()
    try:
        text = given if given.lstrip().startswith(("{", "[", '"')) else pathlib.Path(given).read_text(encoding="utf-8")
        return _parsed(fastavro, json.loads(text), {})
    except OSError as error:
        raise ConfigError(
            f"parse.reader_schema: {given} cannot be read: {error.strerror}", cure="the path of an .avsc file, or JSON"
        ) from error
    except Exception as error:  # fastavro raises whatever the text makes it trip over
        raise ConfigError(f"parse.reader_schema is not an Avro schema: {error}", cure="correct it") from error


def _reason(error: Exception) -> str:
    import fastavro

    if isinstance(error, fastavro.read.SchemaResolutionError):
        return f"it cannot be read as parse.reader_schema: {error}"
    if isinstance(error, (EOFError, IndexError)):
        return "it is truncated"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# --- what a record costs ---
# What an Avro record costs, found out before fastavro reads it: numbers in a record decide how much work it is.
#
# Nearly all records are bounded by their own bytes. Three kinds of schemas have others: an array whose items take no
# bytes (16 bytes can announce 2^40 nulls); a type that contains itself, through which C code calls itself for each
# level until the stack is full and the process dies; and types that name the next one twice, forty times, with nothing
# in the last. Records of the first two are walked through first, and the third is refused as a schema.

DEPTH_MAX = 500  # Values inside one another; fastavro's own stack lasts for some thousands
EMPTY_ITEMS_MAX = 1_000_000  # Items that take no bytes, of all arrays in a record
EMPTY_VALUES_MAX = 1_000  # Values that take no bytes and are in one value by its type

_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def bounds_of(schema: Any, named: Mapping[str, Any]) -> Callable[[bytes], None] | None:
    """Return the function that checks the size of a schema's records and raises ValueError; None if it needs no check.

    Raises:
        ValueError: no record of this schema is bounded.
    """
    walk = _Walk(named)
    walk.count_empty(schema, ())
    return walk.check(schema) if walk.is_risky(schema, ()) else None


class _Walk:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._judged: dict[str, bool] = {}  # whether a named type is risky
        self._nothing: dict[str, bool] = {}  # whether its values take no bytes
        self._counted: dict[str, int] = {}  # how many values in one of its values take no bytes
        self._content = b""
        self._at = self._empty = 0

    def is_risky(self, schema: Any, inside: tuple[str, ...]) -> bool:
        """Return whether a type contains itself, or has an array whose items take no bytes."""
        if isinstance(schema, list):
            return any(self.is_risky(branch, inside) for branch in schema)
        if isinstance(schema, str):
            if schema not in self._named:
                return False
            return self.is_risky(self._named[schema], inside)
        kind = schema["type"]
        if kind in ("record", "error"):
            name = schema["name"]
            if name in inside:
                return True
            if name not in self._judged:  # once for each: a schema may name one type very often
                fields = (field["type"] for field in schema["fields"])
                self._judged[name] = any(self.is_risky(field, (*inside, name)) for field in fields)
            return self._judged[name]
        if kind == "array":
            return self._takes_nothing(schema["items"], ()) or self.is_risky(schema["items"], inside)
        if kind == "map":
            return self.is_risky(schema["values"], inside)
        return not isinstance(kind, str) and self.is_risky(kind, inside)

    def _takes_nothing(self, schema: Any, inside: tuple[str, ...]) -> bool:
        if isinstance(schema, list):
            return False  # which type it is takes a byte
        if isinstance(schema, str):
            return schema == "null" or (schema in self._named and self._takes_nothing(self._named[schema], inside))
        kind = schema["type"]
        if kind in ("record", "error"):
            name = schema["name"]
            if name in inside:
                return False
            if name not in self._nothing:
                fields = (field["type"] for field in schema["fields"])
                self._nothing[name] = all(self._takes_nothing(field, (*inside, name)) for field in fields)
            return self._nothing[name]
        if kind == "fixed":
            return bool(schema["size"] == 0)
        return kind == "null" or (not isinstance(kind, str) and self._takes_nothing(kind, inside))

    def count_empty(self, schema: Any, inside: tuple[str, ...]) -> int:
        """Return how many zero-byte values are in a value of this type, whatever its bytes."""
        if isinstance(schema, list):
            for branch in schema:
                self.count_empty(branch, inside)
            return 0
        if isinstance(schema, str):
            if schema in self._named:
                return self.count_empty(self._named[schema], inside)
            return int(schema == "null")
        kind = schema["type"]
        if kind in ("record", "error"):
            name = schema["name"]
            if name in inside:
                return 0
            if name not in self._counted:
                found = 1 + sum(self.count_empty(field["type"], (*inside, name)) for field in schema["fields"])
                if found > EMPTY_VALUES_MAX:
                    raise ValueError(f"{name} has more than {EMPTY_VALUES_MAX:,} values that take no bytes")
                self._counted[name] = found
            return self._counted[name]
        if kind in ("array", "map"):
            self.count_empty(schema["items" if kind == "array" else "values"], inside)
            return 0
        return int(kind == "null") if isinstance(kind, str) else self.count_empty(kind, inside)

    def check(self, schema: Any) -> Callable[[bytes], None]:
        def checked(content: bytes) -> None:
            self._content, self._at, self._empty = content, 0, 0
            self._skip(schema, 0)

        return checked

    def _skip(self, schema: Any, depth: int) -> None:
        """Advance past a value of this type."""
        if depth > DEPTH_MAX:
            raise ValueError(f"it nests more than {DEPTH_MAX} values")
        if isinstance(schema, list):
            branch = self._number()
            if not 0 <= branch < len(schema):
                raise ValueError("it does not name a type of a union")
            self._skip(schema[branch], depth + 1)
            return
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(schema, str) and schema in self._named:
            self._skip(self._named[schema], depth)
        elif not isinstance(kind, str):
            self._skip(kind, depth)
        elif kind in ("record", "error"):
            for field in schema["fields"]:
                self._skip(field["type"], depth + 1)
        elif kind == "array":
            self._skip_blocks(schema["items"], depth, has_keys=False)
        elif kind == "map":
            self._skip_blocks(schema["values"], depth, has_keys=True)
        elif kind in ("string", "bytes"):
            self._move(self._number())
        elif kind == "fixed":
            self._move(schema["size"])
        elif kind in _FIXED_BYTES:
            self._move(_FIXED_BYTES[kind])
        else:  # int, long, enum
            self._number()

    def _skip_blocks(self, items: Any, depth: int, *, has_keys: bool) -> None:
        is_empty = not has_keys and self._takes_nothing(items, ())
        while count := self._number():
            if count < 0:
                count = -count
                self._number()  # how many bytes the block has
            if is_empty:
                self._empty += count
                if self._empty > EMPTY_ITEMS_MAX:
                    raise ValueError(f"it announces more than {EMPTY_ITEMS_MAX:,} items that take no bytes")
                continue
            for _ in range(count):  # each takes a byte at least, so this ends where the record does
                if has_keys:
                    self._move(self._number())
                self._skip(items, depth + 1)

    def _move(self, length: int) -> None:
        if not 0 <= length <= len(self._content) - self._at:
            raise ValueError("it is truncated")
        self._at += length

    def _number(self) -> int:
        number = shift = 0
        while self._at < len(self._content) and shift < 70:
            byte = self._content[self._at]
            number |= (byte & 0x7F) << shift
            self._at, shift = self._at + 1, shift + 7
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)
        raise ValueError("it is truncated, or has a number of more than 64 bits")


# --- in columns ---
# Avro records of one schema, decoded a column at a time.
#
# Schemas with lists, maps, unions of several types or records inside themselves are left to fastavro as a whole.

_KINDS = {
    "null": "null", "boolean": "bool", "int": "int", "long": "int", "float": "float32", "double": "float64",
    "string": "string", "bytes": "binary", "fixed": "binary", "enum": "string",
}  # fmt: skip
_WHOLE_LOGICAL = {"int-date": "date", "long-timestamp-millis": "timestamp_ms", "long-timestamp-micros": "timestamp_us"}
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
            raise ValueError("it is not a record")
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
            raise ValueError(f"{schema['name']} contains itself")
        else:
            for field in schema["fields"]:
                self._collect(field["type"], (*path, field["name"]), (*inside, schema["name"]), leaves)

    def _leaf(self, schema: Any, kind: str) -> Leaf:
        if kind not in _KINDS:
            raise ValueError(f"a value of type {kind} has no fixed place")
        logical = f"{kind}-{schema['logicalType']}" if isinstance(schema, dict) and "logicalType" in schema else ""
        if (read := self._readers.get(logical)) is None:
            return Leaf(_KINDS[kind])
        return Leaf(_WHOLE_LOGICAL.get(logical, _KINDS[kind]), partial(_value, read, schema))

    def _walk(self, cursor: Cursor) -> Found:
        found: Found = {}
        self._read(cursor, self._schema, (), cursor.all, found)
        return found

    def _read(self, cursor: Cursor, schema: Any, path: Path, live: Mask, found: Found) -> None:
        """Advance past a value of this type in the records that have one, and keep the value."""
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
    """Return the only non-null type of a union."""
    others = [item for item in union if item != "null"]
    if len(others) != 1 or len(union) > 2:
        raise ValueError("a union of several types")
    return others[0]
