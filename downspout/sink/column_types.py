"""Convert Python values to Arrow arrays of a declared type, a whole column at a time, and encode them as Parquet.

::

    kind    = string | binary | bool | int8 … int64 | float32 | float64 | date | timestamp | timestamp_s | _ms | _us
            | decimal(precision,scale)
            | list<kind>
            | map<kind,kind>
            | struct<name:kind,name:kind,…>

Given a type, Arrow accepts values of other types: 1.5 becomes 1 in an integer column, 5 becomes a day in 1970, and a
text becomes the list of its letters. So the type is inferred from the values alone, compared with the declared type,
and only then cast; the cast checks ranges and fractions. A sink and a compaction encode files the same way.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
    """Parse the text of a type.

    Raises:
        ValueError: no such type. Its arguments are the error, and what to write instead.
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
        raise ValueError(f"{text}: what a {text[-1]} is only for whole columns", text[:-1])
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


def split_outside(text: str) -> list[str]:
    """Split a text at the commas that stand outside of all brackets.

    >>> split_outside("a:decimal(9,2), b:map<string,int8>")
    ['a:decimal(9,2)', 'b:map<string,int8>']
    """
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "(<") - (char in ")>")
        if char == "," and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


BARE_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?)(?:[.,](\d+))?(Z|[+-]\d{2}(?::?\d{2})?)?)?", re.ASCII
)
"""Day, time of the day, fraction of a second, zone: ISO 8601 and RFC 3339 with hyphens and colons."""
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
DIGITS_MAX = 15
"""A float holds every decimal of so many digits exactly enough to give it back; of a longer one some are lost."""
FLOAT_WHOLE_MAX = 2**53
"""From here on a float stands for several whole numbers."""
INT_DIGITS_MAX = 19
"""Places before the point from which on a number is beyond 64 bits, whatever its digits are."""
Values = Sequence[Any]


class ExactNumber(float):
    """A float that keeps its source text, so that a column of exact numbers gets every digit.

    >>> to_array([ExactNumber("12345678901234567.89")], "decimal(20,2)").to_pylist()
    [Decimal('12345678901234567.89')]
    >>> to_array([ExactNumber("9007199254740993.0")], "int64").to_pylist()
    [9007199254740993]
    """

    text: str

    def __new__(cls, text: str) -> ExactNumber:
        """Return the number that a text means."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def to_array(values: Values, kind: str) -> Any:
    """Return the values as an array of the type that ``kind`` declares.

    Raises:
        ValueError, TypeError, OverflowError: a value does not fit (Arrow's errors are of these kinds).

    >>> to_array([1, 2.0, None], "int8").to_pylist()
    [1, 2, None]
    >>> to_array([1.5], "int8")
    Traceback (most recent call last):
        ...
    ValueError: 1.5 has a fraction
    >>> to_array([{"sku": "a", "colour": "red"}], "struct<sku:string,price:decimal(9,2)>").to_pylist()
    [{'sku': 'a', 'price': None}]
    """
    return _array(values, kind_of(kind))


def _array(values: Values, kind: Kind) -> Any:
    return _BY_NAME[kind.name](values, kind)


def _as_they_are(values: Values, kind: Kind) -> Any:
    return pa.array(values, kind.type)  # Arrow is strict about these types, and about the UTF-8 in bytes


def _since_the_epoch(values: Values, kind: Kind) -> Any:
    """Take whole numbers since the epoch, and moments: what a parser with the same type has made of the numbers."""
    if any(isinstance(value, datetime) for value in values):
        if not all(value is None or isinstance(value, datetime) for value in values):
            raise TypeError("moments and numbers in one column")  # each by itself is right
        return _moments(values, kind)
    found = _whole_numbers(values, pa.int64())
    return pc.multiply_checked(found, EPOCH_UNITS[kind.name]).cast(TIMESTAMP)


def _whole_numbers(values: Values, target: Any) -> Any:
    """Return whole numbers as they are; floats that are whole, too."""
    found = _as_found(values, target)
    if pa.types.is_floating(found.type):
        _check_alone(values, found.type, target)
        found = pa.array([None if value is None else _whole(value) for value in values])
    _check(found.type, target, values)
    return found.cast(target)


def _numbers(values: Values, kind: Kind) -> Any:
    target = kind.type
    if pa.types.is_integer(target):
        return _whole_numbers(values, target)
    found = _as_found(values, target)
    if found.type == target:
        _check_alone(values, found.type, target)
        return found
    _check(found.type, target, values)
    _check_alone(values, found.type, target)
    made = found.cast(target)
    _check_finite(found, made)
    return made


def _as_found(values: Values, target: pa.DataType) -> Any:
    """Return numbers as an array of the type that Arrow finds for them."""
    try:
        return pa.array(values)
    except OverflowError:
        half = 2 ** ((target.bit_width if pa.types.is_integer(target) else 64) - 1)
        raise OverflowError(f"a whole number not in range: {-half} to {half - 1}") from None


def _check(found: pa.DataType, target: pa.DataType, values: Values) -> None:
    """Raise a TypeError unless values of the type ``found`` may become ``target``, if they are in range."""
    types = pa.types
    fits = types.is_integer(found) or (types.is_floating(target) and types.is_floating(found))
    if not (fits or types.is_null(found)):
        numbers = types.is_string(found) and all(value is None or _is_number(value) for value in values)
        hint = " (a decimal column takes numbers in text)" if numbers else ""
        raise TypeError(f"{found} instead of {target}{hint}")


def _is_number(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def _check_alone(values: Values, found: pa.DataType, target: pa.DataType) -> None:
    """Raise where floats lend their type to a neighbour that would not fit alone: True, or 2**24 + 1 as float32."""
    if pa.types.is_floating(found) and not {float, type(None)}.issuperset(map(type, values)):
        if any(isinstance(value, bool) for value in values):
            raise TypeError("bool instead of a number")
        if target == pa.float32() and any(isinstance(value, int) and abs(value) > 2**24 for value in values):
            raise ValueError("a whole number beyond 2**24, which float32 may not hold")


def _check_finite(found: Any, made: Any) -> None:
    """Raise a ValueError where a finite number became infinite; a cast from float64 to float32 does not say so."""
    if made.type != pa.float32() or found.type != pa.float64():
        return
    lost = pc.and_not(pc.is_inf(made), pc.is_inf(found))
    if pc.any(lost).as_py():
        raise ValueError("a number out of the range of float32: ±3.4e38")


def _whole(value: Any) -> int:
    """Return a float that is whole as a number; one that was read from a text counts as that text says."""
    if isinstance(value, ExactNumber):
        exact = Decimal(value.text)
        if exact.adjusted() > INT_DIGITS_MAX:  # such a number is not written out: its text may be short and it long
            raise ValueError("a whole number out of range")
        if exact != exact.to_integral_value():
            raise ValueError("it has a fraction")
        return int(exact)
    if isinstance(value, bool) or value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{value} is not a whole number")
    if int(value) != value:
        raise ValueError(f"{value} has a fraction")
    if abs(value) >= FLOAT_WHOLE_MAX:
        raise ValueError(f"{value} is a float that may stand for several whole numbers; give the whole number itself")
    return int(value)


def _decimals(values: Values, kind: Kind) -> Any:
    """Take Decimals, whole numbers, texts of numbers, and floats that have no more digits than a float can hold."""
    return pa.array([None if value is None else _decimal(value) for value in values], kind.type)


def _decimal(value: Any) -> Decimal | int:
    if isinstance(value, bool):
        raise TypeError("a bool is not a decimal")
    if isinstance(value, Decimal | int):
        return value
    is_exact = isinstance(value, ExactNumber | str)
    text = (
        value.text if isinstance(value, ExactNumber) else float.__repr__(value) if isinstance(value, float) else value
    )
    if not isinstance(text, str):
        raise TypeError(f"a {type(value).__name__} is not a decimal")
    if not NUMBER.fullmatch(text):
        raise ValueError("no number")
    number = Decimal(text)
    if not is_exact and len(number.as_tuple().digits) > DIGITS_MAX:
        raise ValueError(f"a float of more than {DIGITS_MAX} digits is not exact; give the text or a Decimal")
    return number


def _lists(values: Values, kind: Kind) -> Any:
    for value in values:
        if value is not None and not isinstance(value, list | tuple | np.ndarray):
            raise TypeError(f"a {type(value).__name__} is not a list")
    items = _array(list(chain.from_iterable(value for value in values if value is not None)), kind.parts[0])
    made: Any = pa.ListArray  # its stubs know arrays of known types alone
    return made.from_arrays(_offsets(values), items)


def _offsets(values: Values) -> Any:
    """Return where the items of each value begin, null for one that is null, and where the last ones end."""
    places: list[int | None] = []
    end = 0
    for value in values:
        places.append(None if value is None else end)
        end += 0 if value is None else len(value)
    return pa.array([*places, end], pa.int32())


def _maps(values: Values, kind: Kind) -> Any:
    """Take mappings, and what Arrow and a pipe make of them: lists of pairs; an empty one may be a list of anything."""
    maps: list[Mapping[Any, Any] | None] = []
    for value in values:
        if value is None or isinstance(value, Mapping):
            maps.append(value)
            continue
        if not isinstance(value, list | tuple) or not value or any(len(pair) != 2 for pair in value):
            raise TypeError(f"a {type(value).__name__} is not a map")
        maps.append(dict(value))
        if len(maps[-1] or ()) != len(value):
            raise ValueError("a key appears twice")
    there = [value for value in maps if value is not None]
    keys = _array(list(chain.from_iterable(value.keys() for value in there)), kind.parts[0])
    items = _array(list(chain.from_iterable(value.values() for value in there)), kind.parts[1])
    if keys.null_count:
        raise ValueError("null cannot be a key")
    made: Any = pa.MapArray
    return made.from_arrays(_offsets(maps), keys, items)


def _structs(values: Values, kind: Kind) -> Any:
    """Take mappings; a field that one lacks is null, and what is not declared is left out."""
    for value in values:
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"a {type(value).__name__} is not an object with fields")
    fields = [
        _array([None if value is None else value.get(name) for value in values], part)
        for name, part in zip(kind.names, kind.parts, strict=True)
    ]
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(fields, names=list(kind.names), mask=nulls)


def _moments(values: Values, kind: Kind) -> Any:
    """Take datetimes (without a zone: UTC) and ISO texts."""
    try:
        found: Any = pa.array(values)
    except (TypeError, ValueError):  # datetimes among texts
        found = None
    if found is not None and pa.types.is_timestamp(found.type):
        return pa.array(values, TIMESTAMP)
    if found is not None and pa.types.is_string(found.type):
        try:
            return found.cast(TIMESTAMP)  # ten times as fast as Python; texts without a zone are no moments to it
        except ValueError:
            pass
    return pa.array([None if value is None else _moment(value) for value in values], TIMESTAMP)


def _moment(value: Any) -> datetime:
    moment = moment_of(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise TypeError(f"a {type(value).__name__} is neither a datetime nor an ISO text")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def moment_of(text: str) -> datetime:
    """Return the moment that a text names. ``fromisoformat`` takes more: digits alone, and any sign before the time.

    >>> moment_of("2013-01-31 05:17:00.5Z").isoformat()
    '2013-01-31T05:17:00.500000+00:00'
    >>> moment_of("2013-01-31T05:17:00.1234567Z")
    Traceback (most recent call last):
        ...
    ValueError: it is finer than a microsecond
    """
    if (found := _MOMENT.fullmatch(text)) is None:
        raise ValueError("no moment such as 2013-01-31T05:17:00Z")
    day, time, fraction, zone = found.groups()
    if fraction and fraction[6:].strip("0"):
        raise ValueError("it is finer than a microsecond")
    return datetime.fromisoformat(
        day + (f"T{time}" if time else "") + (f".{fraction[:6]:0<6}" if fraction else "") + (zone or "")
    )


def _days(values: Values, kind: Kind) -> Any:
    """Take dates and texts such as 2013-01-31; a datetime is not a date, because its hour would be lost."""
    days: list[date | None] = []
    for value in values:
        if isinstance(value, str) and BARE_DAY.fullmatch(value):
            days.append(date.fromisoformat(value))
        elif value is None or (isinstance(value, date) and not isinstance(value, datetime)):
            days.append(value)
        else:
            raise TypeError(f"a {type(value).__name__} is neither a date nor a text such as 2013-01-31")
    return pa.array(days, pa.date32())


_BY_NAME: dict[str, Callable[[Values, Kind], Any]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float32", "float64"), _numbers),
    **dict.fromkeys(("string", "binary", "bool"), _as_they_are),
    **dict.fromkeys(EPOCH_UNITS, _since_the_epoch),
    "timestamp": _moments, "date": _days, "decimal": _decimals,
    "list": _lists, "map": _maps, "struct": _structs,
}  # fmt: skip
"""Who converts which types."""


OFFSET = "_offset"
"""Each value is there once, mostly the one before plus one: no dictionary for it, but differences (Parquet's
DELTA_BINARY_PACKED). A quarter fewer bytes for a row of a dozen short columns, and an eighth less CPU time to write."""


def encode(tables: Iterable[pa.Table], schema: pa.Schema, compression: Any, row_group_size: int | None = None) -> bytes:
    """Return one file with the rows of all tables.

    >>> table = pa.table({"_offset": [7, 8], "name": ["a", "b"]})
    >>> content = encode([table], table.schema, "zstd")
    >>> chunk = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0)
    >>> chunk.path_in_schema, "DELTA_BINARY_PACKED" in chunk.encodings
    ('_offset', True)
    """
    buffer = io.BytesIO()
    options = {
        "compression": compression, "coerce_timestamps": "us", "write_page_checksum": True, **_encodings(schema),
    }  # fmt: skip
    with pq.ParquetWriter(buffer, schema, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=row_group_size)
    return buffer.getvalue()


@lru_cache(maxsize=64)
def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return the options for a schema: a dictionary for all but the offset, as Parquet names the columns within."""
    if OFFSET not in schema.names or schema.field(OFFSET).type != pa.int64():
        return {}
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    found = pq.ParquetFile(empty).schema
    paths = [found.column(index).path for index in range(len(found))]
    return {
        "use_dictionary": [path for path in paths if path != OFFSET],
        "column_encoding": {OFFSET: "DELTA_BINARY_PACKED"},
    }
