"""Rows become Parquet, exactly once: the bolt, the identities, the commit log, the writer, readers, compaction."""
