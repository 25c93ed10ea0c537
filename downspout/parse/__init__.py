"""Parsing JSON and CSV into rows, record by record or in columns, with the same result.

To change how JSON is parsed in columns: json.py
To change how Avro and Protobuf are parsed in columns: binary_columns.py
To change which values fit a type: ../sink/column_types.py
To change how schemas are fetched: registry_client.py
To change when a record is rejected: chunk_bolt.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "chunk_bolt": "ChunkBolt REJECT_FIELDS",
        "json": "Paths parse_object",
        "registry_client": "Documents",
        "binary_columns": "Schema",
    },
)
