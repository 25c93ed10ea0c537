"""Binary records decoded a column at a time: the common part of Avro and Protobuf.

Such a record has no index of its values: each begins where the one before it ends. So each record has a position that
advances from value to value, for all records at once, with numpy. Numbers of variable length are assembled within one
64-bit word, and texts are copied.

Nothing is guessed. A record counts as read only if all its values lie inside it and the last one ends where the record
does; all others are left to the format's library, which reports their errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.errors import USER_ERRORS
from downspout.parse.columns import Ints, Mask, convert, nulls
from downspout.parse.flat import Block, Words, numbers_of, utf8
from downspout.parse.json import Path
from downspout.sink.schema import Column

Found = dict[Path, tuple[Any, Mask]]
"""Of each value that records have, an array, and in which records there is one."""
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_WHOLE = {"int8", "int16", "int32", "int64", "timestamp_s", "timestamp_ms", "timestamp_us"}
_AS_IT_IS = {
    ("float64", "float64"), ("float32", "float64"), ("float32", "float32"), ("bool", "bool"), ("string", "string"),
    ("binary", "binary"),
}  # fmt: skip
"""Leaves and the columns that take their values as they are."""
_CONTINUES = np.uint64(0x8080808080808080)  # Of each byte of a number, the bit that says that another one follows
TYPES_MAX = 4_096
"""Values of a schema, those inside one another too, that are decoded by columns: where types name types, a schema of a
few hundred bytes may have a million."""
_ONE, _SEVEN, _BYTE = np.uint64(1), np.uint64(7), np.uint64(56)
_LENGTHS = np.uint64(sum((k + 1) << (8 * (7 - k)) for k in range(8)))
"""Times 2 to the 8k, its uppermost byte is k + 1."""


@dataclass(frozen=True)
class Leaf:
    """A scalar value of a record.

    Args:
        kind: what its arrays hold: ``int``, ``float32``, ``float64``, ``bool``, ``string``, ``binary``, ``null``;
            ``date``, ``timestamp_ms`` and ``timestamp_us`` are whole numbers since the epoch.
        read: converts an item to its value in record mode; None: the item is that value.
    """

    kind: str
    read: Callable[[Any], Any] | None = None

    def values(self, found: Any, live: Mask, fits: Mask) -> list[Any]:
        """Return the values as in record mode; clear ``fits`` for rows without one."""
        values: list[Any] = found.tolist() if isinstance(found, np.ndarray) else found.to_pylist()
        for row, alive in enumerate(live.tolist()):
            if not alive:
                values[row] = None
            elif self.read is not None and fits[row]:
                try:
                    values[row] = self.read(values[row])
                except USER_ERRORS:
                    values[row], fits[row] = None, False
        return values

    def array(self, found: Any, live: Mask, fits: Mask, column: Column) -> Any:
        """Return the values as an array of a column; clear ``fits`` for rows whose value does not fit."""
        if self.kind == "string":
            found = utf8(found, fits)
        if (made := self._directly(found, live, fits, column)) is None:
            return convert(column, self.values(found, live, fits), fits)
        if column.required:
            fits &= live
        return made

    def _directly(self, found: Any, live: Mask, fits: Mask, column: Column) -> Any:
        """Return the same where a value of the leaf is one of the column; None where that must be found out."""
        mask = None if live.all() else ~live
        if self.kind == "int" and column.kind in _WHOLE:
            return numbers_of(found, live, ~live, fits, column)
        if self.kind.startswith("timestamp_") and column.kind == "timestamp":
            return numbers_of(found, live, ~live, fits, replace(column, kind=self.kind))
        if self.kind == column.kind == "date":
            fits &= (found >= _FIRST_DAY) & (found <= _LAST_DAY)
            return pa.array(found.astype(np.int32), pa.int32(), mask=mask).cast(pa.date32())
        if self.read is not None or column.is_folder or (self.kind, column.kind) not in _AS_IT_IS:
            return None
        if isinstance(found, np.ndarray):
            return pa.array(found.astype(column.type.to_pandas_dtype()), column.type, mask=mask)
        return found


class BinaryColumns(ABC):
    """Decodes records of one schema.

    Args:
        leaves: the scalar values that records may have, by their paths.
        roots: the names of all fields of a record, even those without leaves.
    """

    def __init__(self, leaves: Mapping[Path, Leaf], roots: Sequence[str]) -> None:
        self._leaves = leaves
        self._roots = set(roots)

    @abstractmethod
    def _walk(self, cursor: Cursor) -> Found:
        """Read the records from their beginning to their end."""

    def paths(self, wanted: Sequence[Path]) -> list[Path | None] | None:
        """Return of which leaf each wanted value is, None: the schema has no such field. None as a whole: no way."""
        found: list[Path | None] = []
        for path in wanted:
            if path in self._leaves:
                found.append(path)
            elif path[0] in self._roots:  # something with parts, or a mistake that is named one by one
                return None
            else:
                found.append(None)
        return found

    def parse(self, block: Block, paths: Sequence[Path | None], columns: Sequence[Column]) -> tuple[Mask, list[Any]]:
        """Return which records of a block are read, and an array for each column.

        Args:
            block: the records, without their prefixes.
            paths: for each column, the leaf of its values.
            columns: the declared columns.
        """
        cursor = Cursor(block)
        found = self._walk(cursor)
        fits = cursor.done()
        arrays = []
        for path, column in zip(paths, columns, strict=True):
            if path is None:
                fits &= not column.required
                arrays.append(nulls(len(fits), column.type))
            else:
                arrays.append(self._leaves[path].array(*found[path], fits, column))
        for path in found.keys() - set(paths):  # nobody wants them, but they must be right all the same
            leaf, (values, live) = self._leaves[path], found[path]
            if leaf.kind == "string":
                values = utf8(values, fits)
            if leaf.read is not None:
                leaf.values(values, live, fits)
        return fits, arrays


class Cursor:
    """The read positions in the records of a block."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.at = block.starts.copy()
        self.ends = block.ends
        self.good = np.ones(len(self.at), dtype=bool)
        self.all = np.ones(len(self.at), dtype=bool)

    def done(self) -> Mask:
        """Return which records are valid and end here."""
        complete: Mask = self.good & (self.at == self.ends)
        return complete

    def words(self) -> Words:
        """Return the next eight bytes of each record, whether they are its own or not."""
        words: Words = self._block.words[self.at]
        return words

    def move(self, length: Any, live: Mask) -> None:
        """Advance by this many bytes in some records; mark too short ones as invalid."""
        self.at += np.where(live, length, 0)
        over = self.at > self.ends
        if over.any():
            self.good &= ~over
            np.minimum(self.at, self.ends, out=self.at)

    def number(self, live: Mask) -> Words:
        """Return whole numbers of variable length as their bits, zeros in all other records."""
        words = self.words()
        ends = ~words & _CONTINUES
        last = ends & (~ends + _ONE)  # the lowest of these bits: it is in the number's last byte
        if ((last == np.uint64(0x80)) | ~live).all():
            length: Any = 1
            bits = words & np.uint64(0x7F)
        else:
            length = (((last >> _SEVEN) * _LENGTHS) >> _BYTE).view(np.int64)
            bits = _seven_bits_each(words & (last - _ONE) & ~_CONTINUES)
            if len(long := np.flatnonzero(live & (length == 0))):
                length[long], bits[long] = self._long(long, bits[long])
        self.move(length, live)
        return np.where(live, bits, np.uint64(0))

    def _long(self, rows: Ints, bits: Words) -> tuple[Ints, Words]:
        """Return the lengths of numbers of nine and ten bytes, and their bits beside those of the first eight."""
        words = self._block.words[self.at[rows] + 8]
        ninth, tenth = words & np.uint64(0xFF), (words >> np.uint64(8)) & np.uint64(0xFF)
        ends = ninth < 0x80
        self.good[rows] &= ends | (tenth <= 1)
        bits = bits | (ninth & np.uint64(0x7F)) << np.uint64(56) | np.where(ends, 0, tenth) << np.uint64(63)
        return np.where(ends, 9, 10), bits

    def room(self, length: Ints, live: Mask) -> Ints:
        """Return lengths that lie within the records; mark records with other lengths as invalid."""
        right = (length >= 0) & (length <= self.ends - self.at)
        self.good &= ~live | right
        return np.where(right & live, length, 0)

    def spans(self, length: Any, live: Mask, null: Mask) -> Any:
        """Return bytes of these lengths; empty, or null, in the records without any."""
        begin = self.at.copy()
        self.move(self.room(length, live), live)
        return self._block.spans(begin, self.at, null if null.any() else None)

    def fixed(self, kind: str, live: Mask) -> Any:
        """Return numbers of four or eight bytes, zeros in all other records."""
        words = self.words()
        if kind in ("float32", "int32", "uint32"):
            self.move(4, live)
            return np.where(live, words.astype(np.uint32).view(kind), 0)
        self.move(8, live)
        return np.where(live, words.view(kind), 0)


def zigzag(bits: Words) -> Ints:
    """Return numbers whose lowest bit is their sign.

    >>> zigzag(np.array([0, 1, 2, 3], dtype=np.uint64)).tolist()
    [0, -1, 1, -2]
    """
    return ((bits >> _ONE) ^ (~(bits & _ONE) + _ONE)).view(np.int64)


def _seven_bits_each(words: Words) -> Words:
    """Return the number in the lower seven bits of each byte of a word, lowest byte first."""
    # Bytes are put together in pairs, the pairs in pairs and so on, all within the word.
    for width in (7, 14, 28):
        low = np.uint64(sum((2**width - 1) << at for at in range(0, 64, 16 * width // 7)))
        words = (words & low) | ((words >> np.uint64(8 * width // 7)) & low) << np.uint64(width)
    return words


Decode = Callable[[bytes], dict[str, Any]]
"""Makes a document of what follows the id; a ValueError says why it cannot."""


@dataclass(frozen=True)
class Schema:
    """A schema as a registry has it."""

    kind: str  # AVRO, PROTOBUF or JSON
    text: str
    # the schemas that it imports, each before those that import it, as (the name in the import, the text)
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Decoder:
    """The decoder of one schema's documents."""

    decode: Decode
    columns: BinaryColumns | None = None  # many at once; None: they are read one by one
