"""Protobuf documents: protoc, which grpcio-tools ships, compiles the registry's text, and Google's library reads."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.errors import MissingExtraError

if TYPE_CHECKING:
    from downspout.parse.schemas import Decode, Schema

_MAIN = "downspout_value.proto"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}


def protobuf_decoder(schema: Schema) -> Decode:
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
    files = descriptor_pb2.FileDescriptorSet.FromString(_compiled(schema))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    main = pool.FindFileByName(_MAIN)
    top = [main.message_types_by_name[message.name] for message in files.file[-1].message_type]
    classes: dict[tuple[int, ...], Any] = {}

    def decode(content: bytes) -> dict[str, Any]:
        place, at = _message_index(content)
        if (made := classes.get(place)) is None:
            made = classes[place] = message_factory.GetMessageClass(_message(top, place))
        try:
            message = made.FromString(content[at:])
        except DecodeError as error:
            raise ValueError(f"it is truncated, or of another message: {error}") from error
        return _document(message)

    return decode


def _missing() -> MissingExtraError:
    return MissingExtraError("Protobuf needs the package grpcio-tools", cure="pip install 'downspout[protobuf]'")


def _compiled(schema: Schema) -> bytes:
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
        made, known = Path(folder, "made.bin"), Path(grpc_tools.__file__).with_name("_proto")
        words = [f"-I{folder}", f"-I{known}", f"--descriptor_set_out={made}", "--include_imports", _MAIN]
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ValueError(f"protoc refuses it: {done.stderr.strip()[:500]}")
        return made.read_bytes()


def _message_index(content: bytes) -> tuple[tuple[int, ...], int]:
    """Return which message of the schema this is, as places from the outermost one inwards, and where it begins.

    >>> _message_index(bytes([0, 8])), _message_index(bytes([4, 2, 0, 8]))
    (((0,), 1), ((1, 0), 3))
    """
    count, at = _zigzag(content, 0)
    if not count:
        return (0,), at
    places = []
    for _ in range(count):
        place, at = _zigzag(content, at)
        places.append(place)
    return tuple(places), at


def _zigzag(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(content):
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
    raise ValueError("it is truncated")


def _message(top: list[Any], place: tuple[int, ...]) -> Any:
    try:
        found = top[place[0]]
        for inner in place[1:]:
            found = found.nested_types[inner]
    except IndexError:
        raise ValueError(f"the schema has no message at {list(place)}") from None
    return found


def _document(message: Any) -> dict[str, Any]:
    """Return a message's fields by their names; one that is not set is None, if the schema can tell."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            document[field.name] = None
            continue
        document[field.name] = _value(field, getattr(message, field.name))
    return document


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_values = field.message_type.fields_by_name["value"]
        read = _reader(of_values)
        return {key: read(item) for key, item in value.items()}
    read = _reader(field)
    return [read(item) for item in value] if field.is_repeated else read(value)


def _reader(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return _from_message
    if field.enum_type is not None:
        names: Mapping[int, Any] = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else number
    return lambda value: value


def _from_message(message: Any) -> Any:
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        return message.ToDatetime(tzinfo=UTC)
    if name in _WRAPPERS:
        return message.value
    return _document(message)
