"""Storm-style spouts and bolts in pure Python: Kafka in, exactly-once Parquet out."""

from __future__ import annotations

from downspout import registry

TYPE_CHECKING = False  # as in the registry: nothing is imported here
if TYPE_CHECKING:
    from pathlib import Path

    from downspout.spout.group.noted_commits import CommitNotes
    from downspout.spout.offset_store import OffsetStore, StoreContext


def _embedded() -> tuple[str, dict[str, str]]:
    from downspout.broker.embedded import find_access

    return find_access()


def _database(location: str, context: StoreContext) -> OffsetStore:
    from downspout.offsets.stores.sql import open_sql_store

    return open_sql_store(location, context)


def _zookeeper(location: str, context: StoreContext) -> OffsetStore:
    from downspout.offsets.stores.zookeeper import open_zookeeper_store

    return open_zookeeper_store(location, context)


def _directory(location: str, context: StoreContext) -> OffsetStore:
    from downspout.sink.offset_store import open_directory_store

    return open_directory_store(location, context)


def _notes(directory: Path, group: str) -> CommitNotes:
    from downspout.sink.commit_notes import SinkNotes

    return SinkNotes(directory, group)


registry.schemes["embedded"] = _embedded
registry.stores |= {"parquet": _directory, "zookeeper": _zookeeper}
registry.stores |= dict.fromkeys(("sqlite", "postgresql", "postgres"), _database)
registry.notes.append(_notes)
