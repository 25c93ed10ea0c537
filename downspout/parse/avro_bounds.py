"""What an Avro record costs, found out before fastavro reads it: numbers in a record decide how much work it is.

Nearly all records are bounded by their own bytes. Three kinds of schemas have others: an array whose items take no
bytes (16 bytes can announce 2^40 nulls); a type that contains itself, through which C code calls itself for each level
until the stack is full and the process dies; and types that name the next one twice, forty times, with nothing in the
last. Records of the first two are walked through first, and the third is refused as a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DEPTH_MAX = 500  # Values inside one another; fastavro's own stack lasts for some thousands
EMPTY_ITEMS_MAX = 1_000_000  # Items that take no bytes, of all arrays in a record
EMPTY_VALUES_MAX = 1_000  # Values that take no bytes and are in one value by its type

_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def bounds_of(schema: Any, named: Mapping[str, Any]) -> Callable[[bytes], None] | None:
    """Return what checks records of a parsed schema, and raises a ValueError; None where their bytes bound them.

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
        """Return how many values that take no bytes are in a value of this type, whatever its bytes are."""
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
        """Move on behind a value of this type."""
        if depth > DEPTH_MAX:
            raise ValueError(f"it has more than {DEPTH_MAX} values inside one another")
        if isinstance(schema, list):
            branch = self._number()
            if not 0 <= branch < len(schema):
                raise ValueError("it names no type of a union")
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
