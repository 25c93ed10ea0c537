"""Chunks: many records as the columns of one Arrow RecordBatch."""
