"""Avro documents, by fastavro.

fastavro is given each schema inside of a record with one field, which has the same bytes: so a schema may be a union or
the name of another one, which fastavro would not find. Logical types are read as Avro's specification has it: one that
is unknown or makes no sense is ignored. Of those that fastavro reads in its own way, some get another reader here, by
the way that fastavro documents for logical types of one's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError, MissingExtraError
from downspout.parse.avro_bounds import bounds_of
from downspout.parse.avro_columns import AvroColumns
from downspout.parse.schemas import Decoder, Schema

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
    """Return what reads Avro records of a schema, as the reader's schema where there is one.

    Raises:
        ValueError: the schema is not right.
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
        raise ValueError(f"it is no Avro schema: {error}") from error
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
            raise ValueError(f"{len(content) - source.tell()} bytes stand behind its end")
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
    """Return a schema as fastavro takes it, inside of a record; add the named types in it to ``named``."""
    outer = {"type": "record", "name": _VALUE, "fields": [{"name": _VALUE, "type": readable(schema)}]}
    return fastavro.parse_schema(outer, named_schemas=named)


def readable(schema: Any) -> Any:
    """Return a schema whose logical types are those that are read, by the names of their readers.

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
    """Return whether precision and scale make sense, and the bytes of a fixed type suffice."""
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
        raise ValueError(f"{number} is no time of a day in {unit}")
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
        text = given if given.lstrip().startswith(("{", "[", '"')) else Path(given).read_text(encoding="utf-8")
        return _parsed(fastavro, json.loads(text), {})
    except OSError as error:
        raise ConfigError(
            f"parse.reader_schema: {given} cannot be read: {error.strerror}", cure="the path of an .avsc file, or JSON"
        ) from error
    except Exception as error:  # fastavro raises whatever the text makes it trip over
        raise ConfigError(f"parse.reader_schema is no Avro schema: {error}", cure="correct it") from error


def _reason(error: Exception) -> str:
    import fastavro

    if isinstance(error, fastavro.read.SchemaResolutionError):
        return f"it cannot be read as parse.reader_schema: {error}"
    if isinstance(error, (EOFError, IndexError)):
        return "it is truncated"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
