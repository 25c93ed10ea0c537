"""Whether all that a spout's records reach takes chunks: what ``kafka.emit=auto`` goes by (decision 0008).

Chunks are faster, and mean the same to the user where everything that their records reach takes chunks. One bolt that
needs records would get them from a chunk that is acked as a whole: a slow one would have one message timeout for
thousands of records. There the spout emits records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from downspout.errors import DownspoutError
from downspout.protocols import takes_chunks


@dataclass(frozen=True)
class Part:
    """A component of a topology, as far as the choice depends on it."""

    name: str
    cls: type
    conf: Mapping[str, Any]
    sources: Collection[str]  # the components that it reads


def records_by_readers(parts: Mapping[str, Part], spout: str) -> str:
    """Return which component needs records of what a spout emits, at whatever distance; empty: none does."""
    seen, rest = {spout}, [spout]
    while rest:
        name = rest.pop()
        for reader in parts.values():
            if reader.name not in seen and name in reader.sources:
                if why := _why_records(reader):
                    return why
                seen.add(reader.name)
                rest.append(reader.name)
    return ""


def _why_records(reader: Part) -> str:
    """Return why one bolt needs records."""
    if not takes_chunks(reader.cls):
        return f"{reader.name} ({reader.cls.__name__}) takes records"
    if not has_types(reader.cls, reader.conf):
        return f"{reader.name} has no types, so it takes records"
    return ""


def has_types(cls: Any, conf: Mapping[str, Any]) -> bool:
    """Return whether a bolt that declares columns has some: a parser without types takes records."""
    columns_of = getattr(cls, "columns_of", None)
    try:
        return columns_of is None or columns_of(conf) is not None
    except DownspoutError:
        return False  # `check` says so elsewhere
