"""Storm-style spouts and bolts in pure Python: Kafka in, exactly-once Parquet out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from downspout.kafka.schemes import register_scheme
from downspout.spout.offset_store import OffsetStore, StoreContext, register_store

if TYPE_CHECKING:
    from downspout.run.call import RunReport


def run(
    topology: Any,
    *,
    until: Literal["end"] | None = None,
    for_s: float | None = None,
    records: int | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> RunReport:
    """Run a topology in this process; return what came of it. See :func:`downspout.run.call.run`."""
    from downspout.run import call

    return call.run(topology, until=until, for_s=for_s, records=records, settings=settings, quiet=quiet)


def _embedded() -> tuple[str, dict[str, str]]:
    from downspout.broker.embedded import find_access

    return find_access()


register_scheme("embedded", _embedded)


def _database(location: str, context: StoreContext) -> OffsetStore:
    from downspout.offsets.stores.sql import open_sql_store

    return open_sql_store(location, context)


def _zookeeper(location: str, context: StoreContext) -> OffsetStore:
    from downspout.offsets.stores.zookeeper import open_zookeeper_store

    return open_zookeeper_store(location, context)


def _directory(location: str, context: StoreContext) -> OffsetStore:
    from downspout.sink.offset_store import open_directory_store

    return open_directory_store(location, context)


register_store("parquet", _directory)
register_store("zookeeper", _zookeeper)
for _scheme in ("sqlite", "postgresql", "postgres"):
    register_store(_scheme, _database)
