"""Protobuf documents: protoc, which grpcio-tools ships, compiles the registry's text, and Google's library reads."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any

from downspout.errors import MissingExtraError
from downspout.parse.protobuf_columns import TIMESTAMP, WRAPPERS, ProtobufColumns
from downspout.parse.schemas import Decoder, Schema

_FIRST = (0,)
_MAIN = "downspout_value.proto"
_KNOWN = Path(__file__).with_name("proto")
"""Files that Confluent's registry lets schemas import without naming a subject."""
COMPILE_S_MAX = 60.0
INDEX_MAX = 64  # Messages inside one another


def protobuf_decoder(schema: Schema) -> Decoder:
    """Return what reads messages of a schema.

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
            raise ValueError(f"it is truncated, or of another message: {error}") from error
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
            path = Path(folder, name)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"it imports {name}, which is no name of a schema")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        made = Path(folder, "made.bin")
        # What a schema brings itself comes first.
        known = [Path(folder), Path(grpc_tools.__file__).with_name("_proto"), _KNOWN, *_google()]
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


def _google() -> list[Path]:
    """Return where ``google/type/date.proto`` and its like are, if they are installed."""
    found = importlib.util.find_spec("google.type")
    return [Path(place).parents[1] for place in (found.submodule_search_locations or ())] if found else []


def _message_index(content: bytes) -> tuple[tuple[int, ...], int]:
    """Return which message of the schema this is, as places from the outermost one inwards, and where it begins.

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
