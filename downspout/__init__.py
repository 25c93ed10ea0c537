"""Storm-style spouts and bolts in pure Python: Kafka in, exactly-once Parquet out."""

from downspout.batches.stores import (
    BatchStore,
    BatchStoreContext,
    StateContext,
    StateStore,
    register_batch_store,
    register_state_store,
)
from downspout.kafka.schemes import register_scheme
from downspout.spout.offset_store import OffsetStore, StoreContext, register_store


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


def _database_batches(location: str, context: BatchStoreContext) -> BatchStore:
    from downspout.batches.backends.sql_metadata import open_sql_metadata

    return open_sql_metadata(location, context)


def _zookeeper_batches(location: str, context: BatchStoreContext) -> BatchStore:
    from downspout.batches.backends.zookeeper import open_zookeeper_metadata

    return open_zookeeper_metadata(location, context)


def _database_state(location: str, context: StateContext) -> StateStore:
    from downspout.batches.backends.sql_state import open_sql_state

    return open_sql_state(location, context)


register_store("parquet", _directory)
register_store("zookeeper", _zookeeper)
register_batch_store("zookeeper", _zookeeper_batches)
for _scheme in ("sqlite", "postgresql", "postgres"):
    register_store(_scheme, _database)
    register_batch_store(_scheme, _database_batches)
    register_state_store(_scheme, _database_state)
