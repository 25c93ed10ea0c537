"""Storm-style spouts and bolts in pure Python: Kafka in, exactly-once Parquet out."""

from __future__ import annotations

from downspout import checkout, registry

TYPE_CHECKING = False  # not typing's: this module imports almost nothing, like the registry
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, Literal

    from downspout.batches.stores import BatchStore, BatchStoreContext, StateContext, StateStore
    from downspout.engine.graph import Graph
    from downspout.engine.settings import Settings
    from downspout.run.call import RunReport
    from downspout.spout.ports import CommitNotes, OffsetStore, StoreContext


def run(
    topology: Any,
    *,
    until: Literal["end"] | None = None,
    for_s: float | None = None,
    records: int | None = None,
    settings: Mapping[str, Any] | None = None,
    metrics_port: int | None = None,
    quiet: bool = False,
) -> RunReport:
    """Run a topology in this process; return its report. See :func:`downspout.run.call.run`."""
    from downspout.run import call

    return call.run(
        topology, until=until, for_s=for_s, records=records, settings=settings, metrics_port=metrics_port, quiet=quiet
    )


def _beside(graph: Graph, settings: Settings) -> Any:
    from downspout.export.beside import beside

    return beside(graph, settings)


def _embedded() -> tuple[str, dict[str, str]]:
    from downspout.broker.embedded import find_access

    return find_access()


def _database(location: str, context: StoreContext) -> OffsetStore:
    from downspout.offsets.stores.sql import open_sql_store

    return open_sql_store(location, context)


def _zookeeper(location: str, context: StoreContext) -> OffsetStore:
    from downspout.offsets.stores.zookeeper_store import open_zookeeper_store

    return open_zookeeper_store(location, context)


def _directory(location: str, context: StoreContext) -> OffsetStore:
    from downspout.sink.notes import open_directory_store

    return open_directory_store(location, context)


def _notes(directory: Path, group: str) -> CommitNotes:
    from downspout.sink.notes import SinkNotes

    return SinkNotes(directory, group)


def _database_batches(location: str, context: BatchStoreContext) -> BatchStore:
    from downspout.batches.sql_metadata import open_sql_metadata

    return open_sql_metadata(location, context)


def _zookeeper_batches(location: str, context: BatchStoreContext) -> BatchStore:
    from downspout.batches.zookeeper_metadata import open_zookeeper_metadata

    return open_zookeeper_metadata(location, context)


def _database_state(location: str, context: StateContext) -> StateStore:
    from downspout.batches.sql_state import open_sql_state

    return open_sql_state(location, context)


_DATABASES = ("sqlite", "postgresql", "postgres")
registry.beside.append(_beside)
registry.schemes["embedded"] = _embedded
registry.stores |= {"parquet": _directory, "zookeeper": _zookeeper}
registry.stores |= dict.fromkeys(_DATABASES, _database)
registry.notes.append(_notes)
registry.batch_stores |= {"zookeeper": _zookeeper_batches} | dict.fromkeys(_DATABASES, _database_batches)
registry.state_stores |= dict.fromkeys(_DATABASES, _database_state)
checkout.install(__path__[0])
