"""Columns: what is declared, how values become Arrow arrays, and how rows become Parquet files."""
