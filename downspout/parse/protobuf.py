"""Protobuf documents: protoc, which grpcio-tools ships, compiles the registry's text, and Google's library reads."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.errors import MissingExtraError
from downspout.parse.binary_columns import TYPES_MAX, BinaryColumns, Cursor, Decoder, Found, Leaf, Schema, zigzag
from downspout.parse.columns import MOMENT_MAX_US, MOMENT_MIN_US, Ints, Mask
from downspout.parse.json import Path

_FIRST = (0,)
_MAIN = "downspout_value.proto"
_KNOWN = pathlib.Path(__file__).with_name("proto")
"""Files that Confluent's registry lets schemas import without naming a subject."""
COMPILE_S_MAX = 60.0
INDEX_MAX = 64  # Messages inside one another


def protobuf_decoder(schema: Schema) -> Decoder:
    """Return the decoder of a schema's messages.

    Raises:
        ValueError: the schema does not compile.
        MissingExtraError: grpcio-tools is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise _missing() from error
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled(schema))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    main = pool.FindFileByName(_MAIN)
    top = [main.message_types_by_name[message.name] for message in files.file[-1].message_type]
    readers: dict[tuple[int, ...], tuple[Callable[[bytes], Any], _Reader]] = {}

    def decode(content: bytes) -> dict[str, Any]:
        place, at = (_FIRST, 1) if content[:1] == b"\0" else _message_index(content)
        if (found := readers.get(place)) is None:
            kind = _message(top, place)
            found = readers[place] = message_factory.GetMessageClass(kind).FromString, _Reader(kind, {})
        parse, read = found
        try:
            message = parse(content[at:])
        except DecodeError as error:
            raise ValueError(f"it is truncated, or belongs to another message: {error}") from error
        return read(message)

    columns = None
    if top:
        with suppress(ValueError):  # too many values: they are read one by one
            columns = ProtobufColumns(top[0])
    return Decoder(decode, columns)


def _missing() -> MissingExtraError:
    return MissingExtraError("Protobuf needs the package grpcio-tools", cure="pip install 'downspout[protobuf]'")


def compiled(schema: Schema) -> bytes:
    """Return the descriptors of a schema and of all that it imports, the schema's own last."""
    try:
        import grpc_tools
    except ImportError as error:
        raise _missing() from error
    with tempfile.TemporaryDirectory(prefix="downspout-proto-") as folder:
        for name, text in (*schema.references, (_MAIN, schema.text)):
            path = pathlib.Path(folder, name)
            if not path.resolve().is_relative_to(pathlib.Path(folder).resolve()):
                raise ValueError(f"it imports {name}, which is not the name of a schema")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        made = pathlib.Path(folder, "made.bin")
        # What a schema brings itself comes first.
        known = [pathlib.Path(folder), pathlib.Path(grpc_tools.__file__).with_name("_proto"), _KNOWN, *_google()]
        words = [*(f"-I{place}" for place in known), f"--descriptor_set_out={made}", "--include_imports", _MAIN]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", *words],
                capture_output=True, text=True, check=False, timeout=COMPILE_S_MAX,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ValueError(f"protoc takes more than {COMPILE_S_MAX:g} s for it") from None
        if done.returncode:
            raise ValueError(f"protoc refuses it: {done.stderr.strip()[:500]}")
        return made.read_bytes()


def _google() -> list[pathlib.Path]:
    """Return where ``google/type/date.proto`` and its like are, if they are installed."""
    found = importlib.util.find_spec("google.type")
    return [pathlib.Path(place).parents[1] for place in (found.submodule_search_locations or ())] if found else []


def _message_index(content: bytes) -> tuple[tuple[int, ...], int]:
    """Return the index path of a value's message type in the schema, outermost first, and the message's offset.

    >>> _message_index(bytes([0, 8])), _message_index(bytes([4, 2, 0, 8]))
    (((0,), 1), ((1, 0), 3))
    """
    count, at = _zigzag(content, 0)
    if not count:
        return _FIRST, at
    if not 0 < count <= INDEX_MAX:
        raise ValueError(f"its message is {count} messages deep; {INDEX_MAX} are read")
    places = []
    for _ in range(count):
        place, at = _zigzag(content, at)
        places.append(place)
    return tuple(places), at


def _zigzag(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(content) and shift < 35:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
    raise ValueError("it is truncated, or does not say which message of its schema it is")


def _message(top: list[Any], place: tuple[int, ...]) -> Any:
    messages, found = top, None
    for number in place:
        if not 0 <= number < len(messages):
            raise ValueError(f"the schema has no message at {list(place)}")
        found = messages[number]
        messages = found.nested_types
    return found


class _Reader:
    """Makes documents of messages of one type: fields by their names; one that is not set is None, if that can be told.

    Args:
        kind: the type's descriptor.
        known: the readers of other types, by name; a type may contain itself.
    """

    def __init__(self, kind: Any, known: dict[str, _Reader]) -> None:
        known[kind.full_name] = self
        self._fields = [(field.name, field.has_presence, _of_field(field, known)) for field in kind.fields]

    def __call__(self, message: Any) -> dict[str, Any]:
        """Return a message's document."""
        document: dict[str, Any] = {}
        for name, can_tell, read in self._fields:
            if can_tell and not message.HasField(name):
                document[name] = None
            else:
                value = getattr(message, name)
                document[name] = value if read is None else read(value)
        return document


def _of_field(field: Any, known: dict[str, _Reader]) -> Callable[[Any], Any] | None:
    """Return what makes a field's value; None: it is as it should be."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_values = _of_value(field.message_type.fields_by_name["value"], known) or _same
        return lambda items: {key: of_values(item) for key, item in items.items()}
    read = _of_value(field, known)
    if not field.is_repeated:
        return read
    return list if read is None else lambda items: [read(item) for item in items]


def _of_value(field: Any, known: dict[str, _Reader]) -> Callable[[Any], Any] | None:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return lambda message: message.ToDatetime(tzinfo=UTC)
        if name in WRAPPERS:
            return lambda message: message.value
        return known.get(name) or _Reader(field.message_type, known)
    if field.enum_type is not None:
        names: Mapping[int, str] = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # A number that the schema has no name for is right in proto3: it is of a later version of the schema.
        return lambda number: names.get(number) or str(number)
    return None


def _same(value: Any) -> Any:
    return value


# --- in columns ---
# Protobuf messages of one type, decoded a column at a time.
#
# Producers' libraries write each field once, in the order of the numbers. Messages with fields in another order, more
# than once, repeated or unknown are right, too; they are left to Google's library.

TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5  # How the wire says what follows
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _Kind:
    """How values of a type stand on the wire."""

    name: str  # of the leaf
    wire: int
    number: str = ""  # numpy's type of what stands there


_KINDS = {
    "TYPE_INT32": _Kind("int", _VARINT, "int32"), "TYPE_INT64": _Kind("int", _VARINT, "int64"),
    "TYPE_UINT32": _Kind("int", _VARINT, "uint32"), "TYPE_UINT64": _Kind("int", _VARINT, "uint64"),
    "TYPE_SINT32": _Kind("int", _VARINT, "zigzag32"), "TYPE_SINT64": _Kind("int", _VARINT, "zigzag"),
    "TYPE_FIXED32": _Kind("int", _FOUR, "uint32"), "TYPE_FIXED64": _Kind("int", _EIGHT, "uint64"),
    "TYPE_SFIXED32": _Kind("int", _FOUR, "int32"), "TYPE_SFIXED64": _Kind("int", _EIGHT, "int64"),
    "TYPE_FLOAT": _Kind("float32", _FOUR, "float32"), "TYPE_DOUBLE": _Kind("float64", _EIGHT, "float64"),
    "TYPE_BOOL": _Kind("bool", _VARINT), "TYPE_ENUM": _Kind("string", _VARINT),
    "TYPE_STRING": _Kind("string", _LENGTH), "TYPE_BYTES": _Kind("binary", _LENGTH),
}  # fmt: skip


_TYPES = (*_KINDS, "TYPE_MESSAGE", "TYPE_GROUP")


class ProtobufColumns(BinaryColumns):
    """Decodes messages of one type.

    Args:
        kind: the type's descriptor.

    Raises:
        ValueError: messages of this type have too many values.
    """

    def __init__(self, kind: Any) -> None:
        self._message = _Message(kind, (), count(1))
        super().__init__(dict(self._message.leaves(())), [field.name for field in kind.fields])

    def _walk(self, cursor: Cursor) -> Found:
        found: Found = {}
        # Which of the schema's messages this is: zero is the first one.
        cursor.good &= _is_next(cursor, b"\0")
        cursor.move(1, cursor.all)
        self._message.read(cursor, (), cursor.all, found)
        return found


class _Message:
    """Reads messages of one type, which may stand inside of others."""

    def __init__(self, kind: Any, inside: tuple[str, ...], types: Iterator[int]) -> None:
        inside = (*inside, kind.full_name)
        self._fields = [
            _Field(field, inside, types)
            for field in sorted(kind.fields, key=lambda field: field.number)
            if not field.is_repeated and _type(field) != "TYPE_GROUP" and _message_name(field) not in inside
        ]

    def leaves(self, path: Path) -> Iterator[tuple[Path, Leaf]]:
        for field in self._fields:
            if field.inner is not None:
                yield from field.inner.leaves((*path, field.name))
            else:
                yield (*path, field.name), field.leaf

    def read(self, cursor: Cursor, path: Path, live: Mask, found: Found) -> None:
        """Advance past the message in the records that have one, and keep its values."""
        chosen: dict[str, Mask] = {}
        for field in self._fields:
            there = live & field.begins(cursor)
            if field.choice:  # of several fields that exclude each other, the last one on the wire counts
                before = chosen.get(field.choice)
                cursor.good &= ~there if before is None else ~(there & before)
                chosen[field.choice] = there if before is None else there | before
            field.read(cursor, (*path, field.name), there, live, found)


class _Field:
    def __init__(self, field: Any, inside: tuple[str, ...], types: Iterator[int]) -> None:
        if next(types) > TYPES_MAX:
            raise ValueError("too many values")
        self.name: str = field.name
        oneof = field.containing_oneof
        self.choice: str = oneof.name if oneof is not None and len(oneof.fields) > 1 else ""
        self._is_required = field.is_required if hasattr(field, "is_required") else field.label == field.LABEL_REQUIRED
        self._can_tell: bool = field.has_presence
        self._message = _message_name(field)
        value = field.message_type.fields_by_name["value"] if self._message in WRAPPERS else field
        self._kind = _KINDS.get(_type(value), _Kind("message", _LENGTH))
        self._tag = _varint(field.number << 3 | (_LENGTH if self._message else self._kind.wire))
        self._inner_tag = _varint(1 << 3 | self._kind.wire) if value is not field else b""
        self._symbols = {}
        if _type(value) == "TYPE_ENUM":
            self._symbols = {number: symbol.name for number, symbol in value.enum_type.values_by_number.items()}
        self.inner: _Message | None = None
        self.leaf = Leaf(self._kind.name)
        if self._message == TIMESTAMP:
            self.leaf = Leaf("timestamp_us", _moment)
        elif self._message and not self._inner_tag:
            self.inner = _Message(field.message_type, inside, types)

    def begins(self, cursor: Cursor) -> Mask:
        """Return in which records this field stands next."""
        return _is_next(cursor, self._tag)

    def read(self, cursor: Cursor, path: Path, there: Mask, live: Mask, found: Found) -> None:
        """Advance past the field in the records that have it, and keep its values.

        Args:
            live: which records have the message that contains it.
        """
        if self._is_required:
            cursor.good &= ~live | there
        cursor.move(len(self._tag), there)
        if not self._message:
            known = there if self._can_tell else live
            found[path] = self._values(cursor, there, known), known
            return
        outer = cursor.ends
        length = cursor.number(there).view(np.int64)
        cursor.ends = np.where(there, cursor.at + cursor.room(length, there), outer)
        if self.inner is not None:
            self.inner.read(cursor, path, there, found)
        elif self._message == TIMESTAMP:
            found[path] = _micros(cursor, there), there
        else:
            inside = there & _is_next(cursor, self._inner_tag)
            cursor.move(len(self._inner_tag), inside)
            found[path] = self._values(cursor, inside, there), there
        cursor.good &= ~there | (cursor.at == cursor.ends)
        cursor.ends = outer

    def _values(self, cursor: Cursor, there: Mask, known: Mask) -> Any:
        """Return the values, and those that a field without one has, of type zero or empty."""
        kind = self._kind
        if kind.wire == _LENGTH:
            return cursor.spans(cursor.number(there).view(np.int64), there, ~known)
        if kind.wire != _VARINT:
            return _signed(cursor, cursor.fixed(kind.number, there))
        bits = cursor.number(there)
        if kind.name == "bool":
            return bits != 0
        if self._symbols:
            return self._names(cursor, bits.view(np.int64), known)
        if kind.number.startswith("zigzag"):
            return zigzag(bits & np.uint64(2**32 - 1) if kind.number.endswith("32") else bits)
        return _signed(cursor, bits.astype(kind.number) if kind.number.endswith("32") else bits.view(kind.number))

    def _names(self, cursor: Cursor, numbers: Ints, known: Mask) -> Any:
        order = sorted(self._symbols)
        places = np.minimum(np.searchsorted(order, numbers), len(order) - 1)
        cursor.good &= ~known | (np.array(order)[places] == numbers)
        indices: Any = pa.array(places, mask=~known)
        return pa.array([self._symbols[number] for number in order], pa.string()).take(indices)


def _is_next(cursor: Cursor, tag: bytes) -> Mask:
    bits = np.uint64(2 ** (8 * len(tag)) - 1)
    here: Mask = (cursor.words() & bits == np.uint64(int.from_bytes(tag, "little"))) & (cursor.at < cursor.ends)
    return here


def _micros(cursor: Cursor, there: Mask) -> Ints:
    """Return the moments of messages with seconds and nanoseconds, in microseconds."""
    parts = []
    for tag in (b"\x08", b"\x10"):
        inside = there & _is_next(cursor, tag)
        cursor.move(1, inside)
        parts.append(cursor.number(inside).view(np.int64))
    seconds, nanos = parts
    right = (seconds > MOMENT_MIN_US // 1_000_000) & (seconds < MOMENT_MAX_US // 1_000_000)
    right &= (nanos >= 0) & (nanos < 1_000_000_000)
    cursor.good &= right
    micros: Ints = np.where(right, seconds, 0) * 1_000_000 + np.where(right, nanos, 0) // 1_000
    return micros


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _signed(cursor: Cursor, numbers: Any) -> Any:
    """Return whole numbers as int64; those beyond it are left to the library."""
    if numbers.dtype == np.uint64:
        cursor.good &= numbers < np.uint64(2**63)
    return numbers.astype(np.int64) if numbers.dtype.kind in "iu" else numbers


def _type(field: Any) -> str:
    descriptor = type(field)
    return next(name for name in _TYPES if getattr(descriptor, name) == field.type)


def _message_name(field: Any) -> str:
    return "" if field.message_type is None else str(field.message_type.full_name)


def _varint(number: int) -> bytes:
    """Return a number as the wire has it.

    >>> _varint(1 << 3 | 2), _varint(300)
    (b'\\n', b'\\xac\\x02')
    """
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])
