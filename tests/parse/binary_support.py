"""Shared code for tests of columnar decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from downspout.parse import Documents, Paths, Schema, parser
from downspout.parse.columns import Parsed
from downspout.parse.registry_client import RegistryParser
from downspout.sink import Columns


class OneSchema:
    """A registry that knows one schema, by any number."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def schema(self, number: int) -> Schema:
        return self._schema


def parsed(
    documents: Documents, paths: Sequence[str], columns: Sequence[str], values: list[bytes], at_once: bool
) -> Parsed:
    """Return what the parser makes of values: at once, or each by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "ROWS_MIN", 1 if at_once else 1_000_000)
        return RegistryParser(documents, Paths(paths), Columns.parse(columns)).parse(pa.array(values, pa.binary()))


def hold_same(documents: Documents, paths: Sequence[str], columns: Sequence[str], values: list[bytes]) -> None:
    """Hold that both ways come to the same, NaNs and the signs of zeros included."""
    one, other = (parsed(documents, paths, columns, values, at_once) for at_once in (True, False))
    assert one.rows.tolist() == other.rows.tolist()
    assert one.rejected == other.rejected
    assert one.batch.schema == other.batch.schema
    assert repr(one.batch.to_pylist()) == repr(other.batch.to_pylist())


def no_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail in which a record is read by itself."""
    monkeypatch.setattr(RegistryParser, "read", lambda self, value: pytest.fail(f"{value!r} was read by itself"))


def broken(draw: Any, values: list[bytes]) -> list[bytes]:
    """Return values of which some are cut, longer, or have a byte changed."""
    for place in draw(st.sets(st.integers(0, len(values) - 1), max_size=3)):
        value = bytearray(values[place])
        match draw(st.sampled_from(["cut", "longer", "changed"])):
            case "cut":
                del value[draw(st.integers(0, len(value))) :]
            case "longer":
                value += draw(st.binary(min_size=1, max_size=12))
            case "changed" if len(value) > 5:
                value[draw(st.integers(5, len(value) - 1))] = draw(st.integers(0, 255))
        values[place] = bytes(value)
    return values
