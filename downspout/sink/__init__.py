"""Writing rows to Parquet exactly once: the bolt, row identities, the commit log, the writer, readers, compaction.

To change which rows a flush drops: identity.py
To change how a flush is staged, logged and published: writer.py
To change what a log entry holds: log_entry.py
To change when a flush happens: row_sink.py
To change what happens after a crash, and which directories are refused: recovery.py
To change when a directory is compacted while a topology runs: sink_bolt.py
To change how files reach a disk: storage.py
To change how files reach an object store, and when a request is resent: object_store.py
To change the layout of a directory: layout.py
To change how Hive folders are named: schema.py
To change which columns may differ between runs: schema.py
To change which column types exist, and how values are converted: column_types.py
To change which files are compacted together: compact.py
To change which windows are final: aggregation.py
To change which notes a seek or a run writes, and how offsets are kept in a directory: notes.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "aggregation": "Aggregate Aggregation Window",
        "compact": "Compactor",
        "column_types": "encode",
        "identity": "Identities IdentityBuilder",
        "layout": "HIDDEN is_visible Layout OURS",
        "log": "CommitLog DirectoryState read_entries",
        "log_entry": "COMPACT Coverage DataFile Entry FENCE FLUSH REBUILD Stream to_document",
        "notes": "note_run Run",
        "object_store": "ObjectStore storage_of",
        "snapshot": "read_table take_snapshot View wherever",
        "recovery": "Recovery SWEEP_AFTER_S",
        "schema": "Columns ORIGIN_SCHEMA",
        "storage": "Disk hash_of Storage",
        "writer": "BatchWriter Flushed OutdatedError SinkWriter StagingWriter",
    },
)
