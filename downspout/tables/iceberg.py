"""An Iceberg table, with pyiceberg: the commit that adds rows also records the number of entries exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from downspout.errors import ConfigError, MissingExtraError, SinkError
from downspout.tables.export import Overtaken, TableState, nullable, widened, with_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

SOURCE, ENTRIES = "downspout.source", "downspout.entries"


class IcebergTarget:
    """An Iceberg table of a catalogue.

    Args:
        catalog: as from :func:`open_catalog`.
        name: ``namespace.name``; a missing namespace is created.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._table: Table | None = None

    @property
    def title(self) -> str:
        """The table's name in messages."""
        return f"the Iceberg table {self._name}"

    def look(self, source: str) -> TableState:
        """Read the table's current state."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            self._table = self._catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._table = None
            return TableState()
        except OSError as error:
            raise SinkError(f"{self.title} cannot be read: {error}", cure="another --table, or a repair") from error
        properties = self._table.properties
        entries = int(properties[ENTRIES]) if properties.get(SOURCE) == source else None
        return TableState(True, entries, self._changes(source))

    def _changes(self, source: str) -> list[str]:
        found: list[str] = []
        assert self._table is not None
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            if summary is not None and summary.additional_properties.get(SOURCE) == source:
                break
            if summary is None or summary.operation.value != "replace":
                found.append(f"{summary.operation.value if summary else 'a change'} in snapshot {snapshot.snapshot_id}")
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.metadata.snapshot_by_id(parent)
        return found[::-1]

    def append(self, source: str, entries: int, rows: pa.RecordBatchReader) -> None:
        """Add rows and record the entries in one commit."""
        from pyiceberg.exceptions import CommitFailedException

        schema = _known(nullable(rows.schema))
        table = self._table or self._create(schema)
        # Without retries: pyiceberg would add our commit after that of another export with the same rows. The property
        # is set only in this process: it is not among the updates.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        noted = {SOURCE: source, ENTRIES: str(entries)}
        try:
            with table.transaction() as transaction:
                if self._table is not None and _grew(schema, table):
                    with transaction.update_schema() as update:
                        update.union_by_name(schema)
                transaction.append(with_schema(rows, schema), snapshot_properties=noted)
                transaction.set_properties(noted)
        except CommitFailedException as error:
            raise Overtaken(str(error)) from error

    def _create(self, schema: pa.Schema) -> Table:
        """Create the table without rows: of concurrent exports, the first snapshot decides which adds them."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

        namespace = self._name.rpartition(".")[0]
        try:
            self._catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            pass
        except Exception:  # a SQL catalogue checks, then inserts: of two at once, the database rejects one
            if not self._catalog.namespace_exists(namespace):
                raise
        try:
            return self._catalog.create_table(self._name, schema=schema)
        except TableAlreadyExistsError as error:
            raise Overtaken(str(error)) from error


def _grew(schema: pa.Schema, table: Table) -> bool:
    """Return whether the table lacks columns, or has narrower ones."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    known = schema_to_pyarrow(table.schema())
    return bool(set(schema.names) - set(known.names) or widened(known, schema))


def open_catalog(catalog: str | None, warehouse: str | Path) -> Catalog:
    """Return a catalogue.

    Args:
        catalog: the name of one in pyiceberg's configuration; the URL of a database, for a SQL catalogue; None: a
            SQLite file in the warehouse.
        warehouse: the folder for the tables of a SQL catalogue.

    Raises:
        MissingExtraError: pyiceberg is not installed.
        ConfigError: there is no such catalogue.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchPropertyException
    except ImportError as error:
        raise MissingExtraError(
            "an Iceberg table needs the package pyiceberg", cure="pip install 'downspout[iceberg]'"
        ) from error
    if catalog is None:
        folder = Path(warehouse).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        catalog = f"sqlite:///{folder / 'catalog.db'}"
    if ":" in catalog:
        return _sql_catalog(catalog, str(warehouse) if "://" in str(warehouse) else Path(warehouse).absolute().as_uri())
    try:
        return load_catalog(catalog)
    except (ValueError, NoSuchPropertyException) as error:
        raise ConfigError(
            f"--catalog {catalog} cannot be opened: {error}",
            cure="the name of a catalogue in .pyiceberg.yaml, or the URL of a database, as sqlite:////data/catalog.db",
        ) from error


def _sql_catalog(url: str, warehouse: str) -> Catalog:
    from pyiceberg.catalog import load_catalog
    from sqlalchemy.exc import SQLAlchemyError

    # If two exports start without a catalogue, both create its tables, and one fails; its second attempt finds them.
    for last in (False, True):
        try:
            return load_catalog("downspout", type="sql", uri=url, warehouse=warehouse)
        except SQLAlchemyError as error:
            if last:
                raise SinkError(
                    f"the catalogue of --catalog cannot be opened: {getattr(error, 'orig', None) or error}",
                    cure="the URL of a database that can be written to, as sqlite:////data/catalog.db",
                ) from error
    raise AssertionError("unreachable")


def _known(schema: pa.Schema) -> pa.Schema:
    """Convert the columns to types that Iceberg has: it has no 8- or 16-bit integers."""
    return pa.schema([field.with_type(_known_type(field.type)) for field in schema])


def _known_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_known_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_known_type(kind.key_type), _known_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_known_type(field.type)) for field in kind])
    return kind
