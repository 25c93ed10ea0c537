"""Rows become Parquet, exactly once: the bolt, the identities, the commit log, the writer, readers, compaction."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "columns.aggregate": "Aggregate Aggregation",
        "columns.window": "Window",
        "compact": "Compactor",
        "convert": "encode",
        "coverage": "Coverage Stream",
        "identity": "Identities IdentityBuilder",
        "layout": "HIDDEN is_visible Layout OURS",
        "log.commit_log": "CommitLog read_entries",
        "log.entry": "COMPACT DataFile Entry FENCE FLUSH REBUILD to_document",
        "log.history": "History",
        "notes": "note_run Run",
        "object_store": "ObjectStore storage_of",
        "readers.snapshot": "read_table take_snapshot",
        "readers.view": "View wherever",
        "recovery": "Recovery SWEEP_AFTER_S",
        "schema": "Columns ORIGIN_SCHEMA",
        "storage": "Disk hash_of Storage",
        "writer": "BatchWriter Flushed OutdatedError SinkWriter StagingWriter",
    },
)
