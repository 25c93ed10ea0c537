"""Exporting a sink's directory to a Delta or Iceberg table that follows its commit log.

Each commit of the table carries how many entries of the log it has taken. So an export that was killed goes on where
the table stands, and of two exports that run at once one finds that the other was first. See
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
