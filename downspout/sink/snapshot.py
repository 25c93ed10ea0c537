"""The readers for users: ``from downspout.sink.snapshot import read_table, snapshot``."""

from downspout.sink.readers.snapshot import read_table, snapshot

__all__ = ["read_table", "snapshot"]
