"""A schema as a registry has it, and what is made of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from downspout.parse.binary_columns import BinaryColumns

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
    """What reads documents of one schema."""

    decode: Decode
    columns: BinaryColumns | None = None  # many at once; None: they are read one by one
