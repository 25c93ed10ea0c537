"""JSON and CSV become rows, record by record and in columns, with the same outcome."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "chunk_bolt": "ChunkBolt",
        "json": "parse_object",
        "paths": "Paths",
        "registry": "Documents",
        "rejects": "REJECT_FIELDS",
        "schemas": "Schema",
    },
)
