"""Avro documents, by fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import time
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

from downspout.errors import ConfigError, MissingExtraError
from downspout.parse.avro_columns import AvroColumns
from downspout.parse.schemas import Decoder, Schema

_ODD = ('"uuid"', '"time-millis"', '"time-micros"')
"""Logical types that no column has: their values become texts."""


def avro_decoder(schema: Schema, reader_schema: str | None) -> Decoder:
    """Return what reads Avro records of a schema, as the reader's schema where there is one.

    Raises:
        ValueError: the schema is not right, or its documents are no records.
        MissingExtraError: fastavro is not installed.
    """
    fastavro = _library()
    try:
        writer, named = _parsed(fastavro, schema)
    except Exception as error:  # fastavro raises whatever the text makes it trip over
        raise ValueError(f"it is no Avro schema: {error}") from error
    reader = None if reader_schema is None else read_schema(reader_schema)
    read = fastavro.schemaless_reader
    finish: Callable[[Any], Any] = _plain if any(name in schema.text for name in _ODD) else lambda document: document

    def decode(content: bytes) -> dict[str, Any]:
        source = BytesIO(content)
        try:
            document = read(source, writer, reader)
        except Exception as error:  # of bytes that are not what the schema says, fastavro raises all sorts of errors
            raise ValueError(_reason(error)) from error
        if source.tell() < len(content):
            raise ValueError(f"{len(content) - source.tell()} bytes stand behind its end")
        if type(document) is not dict:
            raise ValueError("an Avro record is needed")
        made: dict[str, Any] = finish(document)
        return made

    return Decoder(decode, _in_columns(fastavro, writer, named) if reader is None else None)


def _library() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtraError("Avro needs the package fastavro", cure="pip install 'downspout[avro]'") from error
    return fastavro


def _parsed(fastavro: Any, schema: Schema) -> tuple[Any, dict[str, Any]]:
    """Return a schema as fastavro takes it, and the named types in it."""
    named: dict[str, Any] = {}
    for _, imported in schema.references:
        fastavro.parse_schema(json.loads(imported), named_schemas=named)
    return fastavro.parse_schema(json.loads(schema.text), named_schemas=named), named


def _in_columns(fastavro: Any, parsed: Any, named: dict[str, Any]) -> AvroColumns | None:
    try:
        return AvroColumns(parsed, named, fastavro.read.LOGICAL_READERS, _plain)
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
        return fastavro.parse_schema(json.loads(text))
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


def _plain(value: Any) -> Any:
    """Return a value without what no column takes."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if isinstance(value, time) else value
