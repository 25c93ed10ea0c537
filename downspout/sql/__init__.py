"""Rows into tables of a database, exactly once: rows, and the offsets that they stand for, in one transaction."""
