"""Exporting a sink's directory to a Delta or Iceberg table that follows its commit log.

Each commit of the table records the number of log entries exported. So an export continues after a kill where the table
ends, and of two concurrent exports, one detects that the other was first. See
``docs/decisions/0007-readers-and-stores.md``.

To change what an export commits: export.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "export": "Export",
        "iceberg": "open_catalog",
    },
)
