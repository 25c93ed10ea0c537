"""Avro records of one schema, decoded a column at a time.

Nothing in an Avro record says where a value begins: one begins where the one before it ends. So each record has a place
that is moved on from field to field, those of all records at once, with numpy. Numbers of variable length are taken
together within one 64-bit word, and texts are copied.

Nothing is guessed here either. A record counts as read only if all its values lie inside of it and the last one ends
where the record does; all others are left to fastavro, which says what is wrong with them. Schemas with lists, maps,
unions of several types or records inside themselves are left to it as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.errors import USER_ERRORS
from downspout.parse.columns import Ints, Mask, convert, nulls
from downspout.parse.paths import Path
from downspout.parse.tokens import Block, Words, numbers_of, utf8
from downspout.sink.columns.schema import Column

_TEXTS = ("string", "bytes", "fixed")
_WHOLE = ("int", "long")
_MOMENTS = {"long-timestamp-millis": "timestamp_ms", "long-timestamp-micros": "timestamp_us"}
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_CONTINUES = np.uint64(0x8080808080808080)  # Of each byte of a number, the bit that says that another one follows
_ONE, _SEVEN, _BYTE = np.uint64(1), np.uint64(7), np.uint64(56)
_LENGTHS = np.uint64(sum((k + 1) << (8 * (7 - k)) for k in range(8)))
"""Times 2 to the 8k, its uppermost byte is k + 1."""


@dataclass(frozen=True)
class Leaf:
    """A value of a record that is neither a record nor a union."""

    schema: Any  # what the schema says of it
    kind: str  # the primitive type, or ``fixed`` or ``enum``
    logical: str  # the key of its logical type among fastavro's readers; empty: it has none
    read: Callable[[Any, Any, Any], Any] | None  # what makes the value of its logical type

    def values(self, raw: Any, live: Mask, fits: Mask, finish: Callable[[Any], Any]) -> list[Any]:
        """Return the values as fastavro gives them; take rows out of ``fits`` where it would give none."""
        values: list[Any] = raw.tolist() if isinstance(raw, np.ndarray) else raw.to_pylist()
        for row, alive in enumerate(live.tolist()):
            if not alive:
                values[row] = None
            elif self.read is not None and fits[row]:
                try:
                    values[row] = finish(self.read(values[row], self.schema, None))
                except USER_ERRORS:
                    values[row], fits[row] = None, False
        return values


class AvroColumns:
    """Decodes records of one schema.

    Args:
        schema: the parsed schema.
        named: the named types in it, as fastavro collects them.
        readers: fastavro's readers of logical types.
        finish: what becomes of a value of a logical type.

    Raises:
        ValueError: records of this schema cannot be decoded this way.
    """

    def __init__(
        self, schema: Any, named: Mapping[str, Any], readers: Mapping[str, Any], finish: Callable[[Any], Any]
    ) -> None:
        self._schema, self._named, self._readers, self._finish = schema, named, readers, finish
        self._leaves: dict[Path, Leaf] = {}
        if _kind(self._resolved(schema)) != "record":
            raise ValueError("it is no record")
        self._look(schema, (), ())

    def _resolved(self, schema: Any) -> Any:
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _look(self, schema: Any, path: Path, inside: tuple[str, ...]) -> None:
        """Collect the leaves of a type."""
        schema = self._resolved(schema)
        if isinstance(schema, list):
            schema = self._resolved(_other(schema))
        if (kind := _kind(schema)) != "record":
            self._leaves[path] = self._leaf(schema, kind)
        elif schema["name"] in inside:
            raise ValueError(f"{schema['name']} is inside of itself")
        else:
            for field in schema["fields"]:
                self._look(field["type"], (*path, field["name"]), (*inside, schema["name"]))

    def _leaf(self, schema: Any, kind: str) -> Leaf:
        if kind not in (*_TEXTS, *_WHOLE, "null", "boolean", "float", "double", "enum"):
            raise ValueError(f"a value of type {kind} has no fixed place")
        logical = f"{kind}-{schema['logicalType']}" if isinstance(schema, dict) and "logicalType" in schema else ""
        read = self._readers.get(logical)
        return Leaf(schema, kind, logical if read is not None else "", read)

    def paths(self, wanted: Sequence[Path]) -> list[Path | None] | None:
        """Return of which leaf each wanted value is, None: the schema has no such field. None as a whole: no way."""
        roots = {path[0] for path in self._leaves}
        found: list[Path | None] = []
        for path in wanted:
            text = ".".join(map(str, path))
            if path in self._leaves:
                found.append(path)
            elif path[0] in roots or text in roots:  # a struct, or a mistake that the exact way names
                return None
            else:
                found.append(None)
        return found

    def parse(self, block: Block, paths: Sequence[Path | None], columns: Sequence[Column]) -> tuple[Mask, list[Any]]:
        """Return which records of a block are read, and an array for each column.

        Args:
            block: the records, without what stands before them.
            paths: of each column, whose value it takes.
            columns: what is declared.
        """
        cursor = _Cursor(block)
        raw: dict[Path, tuple[Any, Mask]] = {}
        self._read(cursor, self._schema, (), np.ones(len(block.starts), dtype=bool), raw)
        fits = cursor.done()
        arrays = []
        for path, column in zip(paths, columns, strict=True):
            if path is None:
                fits &= not column.required
                arrays.append(nulls(len(fits), column.type))
            else:
                arrays.append(self._made(self._leaves[path], *raw[path], fits, column))
        for path in raw.keys() - set(paths):  # nobody wants them, but they must be right all the same
            leaf, (values, live) = self._leaves[path], raw[path]
            if leaf.kind == "string":
                values = utf8(values, fits)
            if leaf.read is not None:
                leaf.values(values, live, fits, self._finish)
        return fits, arrays

    def _read(self, cursor: _Cursor, schema: Any, path: Path, live: Mask, raw: dict[Path, tuple[Any, Mask]]) -> None:
        """Move on behind a value of this type in the records in which there is one, and keep what it is."""
        schema = self._resolved(schema)
        if isinstance(schema, list):
            live = cursor.chosen(live, schema.index(_other(schema)), len(schema))
            schema = self._resolved(_other(schema))
        if (kind := _kind(schema)) == "record":
            for field in schema["fields"]:
                self._read(cursor, field["type"], (*path, field["name"]), live, raw)
        else:
            raw[path] = cursor.value(schema, live), live & (kind != "null")

    def _made(self, leaf: Leaf, raw: Any, live: Mask, fits: Mask, column: Column) -> Any:
        """Return the values of a leaf as an array of a column; take rows out of ``fits`` whose value is none."""
        if leaf.kind in ("string", "enum"):
            raw = utf8(raw, fits) if leaf.kind == "string" else raw
        if (made := _directly(leaf, raw, live, fits, column)) is None:
            return convert(column, leaf.values(raw, live, fits, self._finish), fits)
        if column.required:
            fits &= live
        return made


def _directly(leaf: Leaf, raw: Any, live: Mask, fits: Mask, column: Column) -> Any:
    """Return the same where a value of the leaf is one of the column as it stands; None where it may not be."""
    kind, wanted = leaf.logical or leaf.kind, column.kind
    if kind in _WHOLE and (wanted.startswith("timestamp_") or wanted in ("int8", "int16", "int32", "int64")):
        return numbers_of(raw, live, ~live, fits, column)
    if kind in _MOMENTS and wanted == "timestamp":
        return numbers_of(raw, live, ~live, fits, replace(column, kind=_MOMENTS[kind]))
    mask = None if live.all() else ~live
    if kind == "int-date" and wanted == "date":
        fits &= (raw >= _FIRST_DAY) & (raw <= _LAST_DAY)
        return pa.array(raw.astype(np.int32), pa.int32(), mask=mask).cast(pa.date32())
    if (kind, wanted) in {("double", "float64"), ("float", "float64"), ("float", "float32"), ("boolean", "bool")}:
        return pa.array(raw.astype(column.type.to_pandas_dtype()), column.type, mask=mask)
    if (kind, wanted) in {("string", "string"), ("enum", "string"), ("bytes", "binary"), ("fixed", "binary")}:
        return raw if not column.is_folder else None
    return None


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return kind if isinstance(kind, str) else "union"


def _other(union: list[Any]) -> Any:
    """Return the one type of a union that is not null."""
    others = [item for item in union if item != "null"]
    if len(others) != 1 or len(union) > 2:
        raise ValueError("a union of several types")
    return others[0]


class _Cursor:
    """The places up to which the records of a block are read, and what is read there."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._at = block.starts.copy()
        self._good = np.ones(len(self._at), dtype=bool)

    def done(self) -> Mask:
        """Return which records are right, and end here."""
        complete: Mask = self._good & (self._at == self._block.ends)
        return complete

    def _move(self, length: Any, live: Mask) -> None:
        """Go on by so many bytes in the records that have the value; one that is too short for it is not right."""
        self._at += np.where(live, length, 0)
        over = self._at > self._block.ends
        if over.any():
            self._good &= ~over
            np.minimum(self._at, self._block.ends, out=self._at)

    def value(self, schema: Any, live: Mask) -> Any:
        """Return the values of a leaf; what stands for those that are not there means nothing, unless it is null."""
        kind = _kind(schema)
        if kind in _WHOLE:
            return self.number(live)
        if kind == "enum":
            return self._symbols(self.number(live), schema["symbols"], live)
        if kind in _TEXTS:
            return self._texts(schema["size"] if kind == "fixed" else self.number(live), live)
        return self._of_fixed_length(kind, live)

    def chosen(self, live: Mask, wanted: int, branches: int) -> Mask:
        """Return in which records the wanted branch of a union follows."""
        branch = self.number(live)
        self._good &= (branch >= 0) & (branch < branches)
        follows: Mask = live & (branch == wanted)
        return follows

    def number(self, live: Mask) -> Ints:
        """Return whole numbers, zeros where there is none."""
        words: Words = self._block.words[self._at]
        ends = ~words & _CONTINUES
        last = ends & (~ends + _ONE)  # the lowest of these bits: it is in the number's last byte
        if (last == np.uint64(0x80)).all():
            length: Any = 1
            bits = words & np.uint64(0x7F)
        else:
            length = (((last >> _SEVEN) * _LENGTHS) >> _BYTE).view(np.int64)
            bits = _seven_bits_each(words & (last - _ONE) & ~_CONTINUES)
            if len(long := np.flatnonzero(live & (length == 0))):
                length[long], bits[long] = self._long(long, bits[long])
        self._move(length, live)
        numbers = (bits >> _ONE) ^ (~(bits & _ONE) + _ONE)
        return np.where(live, numbers.view(np.int64), 0)

    def _long(self, rows: Ints, bits: Words) -> tuple[Ints, Words]:
        """Return the lengths of numbers of nine and ten bytes, and their bits beside those of the first eight."""
        words = self._block.words[self._at[rows] + 8]
        ninth, tenth = words & np.uint64(0xFF), (words >> np.uint64(8)) & np.uint64(0xFF)
        ends = ninth < 0x80
        self._good[rows] &= ends | (tenth <= 1)
        bits = bits | (ninth & np.uint64(0x7F)) << np.uint64(56) | np.where(ends, 0, tenth) << np.uint64(63)
        return np.where(ends, 9, 10), bits

    def _texts(self, length: Any, live: Mask) -> Any:
        begin = self._at.copy()
        room = self._block.ends - begin
        right = (length >= 0) & (length <= room)
        self._good &= ~live | right
        self._move(np.where(right, length, 0), live)
        return self._block.spans(begin, self._at, None if live.all() else ~live)

    def _symbols(self, places: Ints, symbols: Sequence[str], live: Mask) -> Any:
        known = (places >= 0) & (places < len(symbols))
        self._good &= known
        indices: Any = pa.array(np.where(known, places, 0), mask=~live)
        return pa.array(symbols, pa.string()).take(indices)

    def _of_fixed_length(self, kind: str, live: Mask) -> Any:
        words: Words = self._block.words[self._at]
        if kind == "double":
            self._move(8, live)
            return words.view(np.float64)
        if kind == "float":
            self._move(4, live)
            return words.astype(np.uint32).view(np.float32)
        if kind == "boolean":
            self._move(1, live)
            return (words & np.uint64(0xFF)) != 0
        return np.zeros(len(words), dtype=np.int64)  # null: its values are never looked at


def _seven_bits_each(words: Words) -> Words:
    """Return the number in the lower seven bits of each byte of a word, lowest byte first."""
    # Bytes are put together in pairs, the pairs in pairs and so on, all within the word.
    for width in (7, 14, 28):
        low = np.uint64(sum((2**width - 1) << at for at in range(0, 64, 16 * width // 7)))
        words = (words & low) | ((words >> np.uint64(8 * width // 7)) & low) << np.uint64(width)
    return words
