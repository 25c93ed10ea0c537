"""Compaction: many small files become few large ones, with the same rows."""
