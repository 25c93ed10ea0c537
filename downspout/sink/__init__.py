"""Rows become Parquet, exactly once: the bolt, the identities, the commit log, the writer, readers, compaction."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "columns.aggregate": "Aggregate Aggregation",
        "columns.encoding": "encode",
        "columns.schema": "Columns ORIGIN_SCHEMA",
        "columns.window": "Window",
        "compaction.compactor": "Compactor",
        "identity.coverage": "Coverage Stream",
        "identity.rows": "Identities IdentityBuilder",
        "log.commit_log": "CommitLog read_entries",
        "log.entry": "COMPACT DataFile Entry FENCE FLUSH REBUILD to_document",
        "log.history": "History",
        "readers.snapshot": "read_table take_snapshot",
        "readers.view": "View wherever",
        "recovery": "Recovery SWEEP_AFTER_S",
        "runs": "Run note_run",
        "staged": "BatchWriter OutdatedError StagingWriter",
        "storage.disk": "Disk",
        "storage.hashing": "hash_of",
        "storage.layout": "HIDDEN OURS Layout is_visible",
        "storage.object_store": "ObjectStore",
        "storage.places": "storage_of",
        "storage.port": "Storage",
        "writer": "Flushed SinkWriter",
    },
)
