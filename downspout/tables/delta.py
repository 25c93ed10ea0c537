"""A Delta table, with delta-rs: the commit that adds rows has a ``txn`` action with the number of entries exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from downspout.errors import MissingExtraError, SinkError
from downspout.tables.export import Overtaken, TableState, nullable, widened, with_schema

SOURCE = "downspout.source"
HARMLESS = {
    "OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "REORG", "CREATE TABLE",
    "COMPUTE STATS", "ADD FEATURE",
}  # fmt: skip
"""Operations in Delta's history that change no rows."""


class DeltaTarget:
    """A Delta table in a folder or an object store.

    Args:
        uri: its folder or URL.
        partition_by: columns whose values become folders in a new table.

    Raises:
        MissingExtraError: deltalake is not installed.
    """

    def __init__(self, uri: str | Path, partition_by: list[str] | None = None) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise MissingExtraError(
                "a Delta table needs the package deltalake", cure="pip install 'downspout[delta]'"
            ) from error
        self._lib = deltalake
        self._uri = str(uri)
        self._partition_by = partition_by or []
        self._table: Any = None

    @property
    def title(self) -> str:
        """The table's name in messages."""
        return f"the Delta table {self._uri}"

    def look(self, source: str) -> TableState:
        """Read the table's current state."""
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            self._table = self._lib.DeltaTable(self._uri)
        except TableNotFoundError:
            self._table = None
            return TableState()
        except (DeltaError, OSError) as error:
            raise SinkError(f"{self.title} cannot be read: {error}", cure="another --to, or a repair of it") from error
        return TableState(True, self._table.transaction_version(source), self._changes(source))

    def _changes(self, source: str) -> list[str]:
        if self._table.history(1)[0].get(SOURCE) == source:  # usually, so the whole history is not needed
            return []
        found: list[str] = []
        for commit in self._table.history():  # the latest first
            if commit.get(SOURCE) == source:
                break
            if (what := commit.get("operation", "a commit without a name")) not in HARMLESS:
                found.append(f"{what} in version {commit['version']}")
        return found[::-1]

    def append(self, source: str, entries: int, rows: pa.RecordBatchReader) -> None:
        """Add rows and record the entries in one commit."""
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError

        # Without retries: delta-rs would add our commit after that of another export with the same rows.
        properties = self._lib.CommitProperties(
            custom_metadata={SOURCE: source},
            max_commit_retries=0,
            app_transactions=[self._lib.Transaction(app_id=source, version=entries)],
        )
        is_new = self._table is None
        self._check_types(rows.schema)
        try:
            self._lib.write_deltalake(
                self._uri if is_new else self._table,
                with_schema(rows, nullable(rows.schema)),
                mode="error" if is_new else "append",
                schema_mode=None if is_new else "merge",
                partition_by=self._partition_by or None if is_new else None,
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise Overtaken(str(error)) from error
        except (DeltaError, DeltaProtocolError) as error:
            if is_new and self._is_there():
                raise Overtaken(str(error)) from error
            raise SinkError(f"{self.title} cannot be written: {error}", cure="another --to, or a repair") from error

    def _check_types(self, schema: pa.Schema) -> None:
        """Raise a SinkError if a column has been widened: delta-rs would cast its values to the narrow type."""
        if self._table is None:
            return
        known = pa.schema(self._table.schema().to_arrow())
        if grown := widened(known, schema):
            field = grown[0]
            raise SinkError(
                f"{self.title} has {field.name} as {known.field(field.name).type}; it is {field.type} now, and a "
                "Delta table's columns do not widen",
                cure="another --to, to write all rows again",
            )

    def _is_there(self) -> bool:
        return bool(self._lib.DeltaTable.is_deltatable(self._uri))
