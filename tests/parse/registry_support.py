"""Shared code for tests of the registries' formats."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"], "default": None}],
}
FLIGHT_TEXT = json.dumps(FLIGHT)


def framed(number: int, content: bytes) -> bytes:
    """Return a value as producers with a registry write it."""
    return b"\0" + number.to_bytes(4, "big") + content


def avro(number: int, document: Any, schema: Any = FLIGHT) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), document)
    return framed(number, out.getvalue())


def flights(number: int, delays: Sequence[int | None]) -> list[bytes]:
    return [avro(number, {"carrier": "UA", "delay": delay}) for delay in delays]
