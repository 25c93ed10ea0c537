"""ParquetBolt: writes rows into a Parquet directory, each exactly once.

The files are ordinary: PySpark, DuckDB and pandas read the directory as it is. ``downspout/sink/writer.py`` and
docs/decisions/0006 say why a replayed row is not written twice.
"""

from __future__ import annotations

import pyarrow as pa

from downspout.sink.identity import Identities, Mask
from downspout.sink.schema import ORIGIN_SCHEMA
from downspout.sink.sink_bolt import SinkBolt
from downspout.sink.writer import Build


def with_origins(table: pa.Table, identities: Identities) -> pa.Table:
    """Return the rows with their origin columns added; null in rows without an origin."""
    for field, column in zip(ORIGIN_SCHEMA, identities.columns(), strict=True):
        table = table.append_column(field, column)
    return table


class ParquetBolt(SinkBolt):
    """Writes the columns of ``parquet.schema``, which it takes by name from the fields of its inputs.

    >>> spec = ParquetBolt.spec(directory="out", schema={"carrier": "string", "month": "int8"}, partition_by=["month"])
    >>> spec.component_cls.__name__
    'ParquetBolt'
    """

    def builder(self, table: pa.Table) -> Build:
        """Return the function that filters the rows; nearly always all of them are wanted."""

        def build(mask: Mask, identities: Identities) -> pa.Table:
            rows = with_origins(table, identities) if self.has_origins else table
            return rows if mask.all() else rows.filter(pa.array(mask))

        return build
