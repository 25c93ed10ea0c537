"""SqlBolt: rows into a table of SQLite or PostgreSQL, each exactly once.

::

    store = SqlBolt.spec(inputs=[delays], database="sqlite:///flights.db", table="flights", keys=["flight_id"])

It takes the table's columns by name from the fields of its inputs. Rows are inserted or, with ``keys``, replace earlier
ones. Their offsets are written in the same transaction, and tuples are acked after it; rows that the table already
holds are acked and skipped. ``downspout/sql/`` has the logic, and ``docs/how-to/write-to-sql.md`` lists the guarantees.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, Unpack

import numpy as np
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.component import input_fields
from downspout.errors import ConfigError, RecordError, SinkError
from downspout.formatting import counted
from downspout.offsets.stores.sql import open_database
from downspout.outages import State
from downspout.settings.folders import of_project_url
from downspout.settings.options import SqlOptions
from downspout.settings.secrets import with_secrets
from downspout.sink.identity import check_names
from downspout.sink.row_sink import Batch, FlushResult, RowSink
from downspout.sql.sql_writer import RowsRefusedError, SqlWriter
from downspout.sql.table import DATABASE, PASSWORD, check, check_complete, columns_of, create_statement

logger = logging.getLogger("downspout.sql")


class SqlBolt(RowSink):
    """Writes rows into a table.

    >>> spec = SqlBolt.spec(database="sqlite:///flights.db", table="flights", keys=["flight_id"])
    >>> spec.component_cls.__name__
    'SqlBolt'
    """

    settings_scopes: ClassVar[tuple[str, ...]] = ("sql",)
    lock_wait_s: ClassVar[float] = 10.0
    """How long one try of a flush waits for a lock that another process holds."""
    stateful: ClassVar[bool] = False
    """On Spark, whatever the grouping: the bolt holds nothing past the end of a batch."""

    @classmethod
    def spec(  # type: ignore[override]  # the base takes any settings, so that subclasses can declare theirs
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | dict[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[SqlOptions],
    ) -> ShellBoltSpec:
        """Put the sink into a topology; the arguments are those of :meth:`RowSink.spec`.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range, or the schema is malformed.
        """
        return super().spec(name, inputs, par, config, **settings)

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Any]:
        """Check the settings; return no streams, since the bolt emits nothing."""
        check(config)
        return []

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings, open the database, and find the table's columns in the inputs.

        Raises:
            ConfigError, TopologyError: a setting makes no sense, or an input lacks a field.
            SinkError: the database cannot be used, or there is no such table.
            MissingExtraError: the database's driver is not installed.
        """
        conf = with_secrets(storm_conf)
        self.read_settings(conf)
        check(conf)
        settings = self.settings
        database = open_database(
            of_project_url(settings["database"], DATABASE, storm_conf),
            DATABASE,
            password=settings["password"],
            password_setting=PASSWORD,
            wait_s=self.lock_wait_s,
        )
        # The writer learns its columns when it is opened: they come from the database, and they decide which inputs
        # carry origins.
        self.writer = SqlWriter(
            database,
            settings["table"],
            keys=settings["keys"],
            topology=str(storm_conf.get("topology.name", "")),
            component=str(self.component_name),
            writer=f"{self.component_name}-{self.task_id}-{uuid.uuid4().hex[:12]}",
        )
        self._open(context)

    def _open(self, context: Mapping[str, Any]) -> None:
        settings, writer = self.settings, self.writer
        table = settings["table"]
        found = self.patiently(writer.table_columns)
        if not found:
            declared = settings["schema"] or ["column:string"]
            raise SinkError(
                f"{self.component_name}: {writer.database.location} has no table {table}",
                cure=f"{create_statement(table, declared)}{'' if settings['schema'] else ', with your columns'}",
            )
        names = [column.name for column in found]
        for key in settings["keys"]:
            if key not in names:
                raise ConfigError(f"sql.keys: table {table} has no column {key}", cure=f"one of {', '.join(names)}")
        fields = [set(given) for given in input_fields(context).values()]
        columns = columns_of(
            table, found, settings["schema"],
            given={*settings["keys"], *(set.intersection(*fields) if fields else ())}, sqlite=writer.is_sqlite,
        )  # fmt: skip
        check_complete(table, found, columns)
        with_origins = self.begin(columns, context)
        input_names = check_names(settings["input_names"], with_origins, "sql.input_names")
        self.patiently(lambda: writer.open(columns, found, with_origins, input_names))

    @property
    def service(self) -> str:
        """The database."""
        return self.writer.database.location

    def look(self) -> State | None:
        """Return who holds the lock that a statement waits for, or that the server does not answer."""
        return self.writer.database.waits_for()

    @property
    def steps(self) -> Mapping[str, str]:
        """The tag of each input in the table's log."""
        return self.writer.steps

    def _by_input(self, tuples: Sequence[Any]) -> Sequence[tuple[tuple[str, str], Sequence[Any]]]:
        """Return the tuples of each input; with keys, in order of arrival, since the later row wins."""
        if not self.settings["keys"]:
            return super()._by_input(tuples)
        return [(source, list(run)) for source, run in groupby(tuples, lambda tup: (tup[1], tup[2]))]

    def process_chunk(self, tup: Any) -> None:
        """Hold the rows of a chunk; with keys, after the tuples that came before it."""
        if self.settings["keys"]:
            self._convert()
        super().process_chunk(tup)

    def write(self, batch: Batch) -> tuple[Batch, FlushResult]:
        """Write the rows that are not in the table yet; fail tuples with rows that the database refuses."""
        while True:
            try:
                return batch, self.writer.flush(batch.identities, batch.table)
            except RowsRefusedError as error:
                batch = self._unwritten[0] = self._without(batch, error.rows)

    def _without(self, batch: Batch, refused: Mapping[int, str]) -> Batch:
        """Fail the tuples of refused rows; return the rows of the others.

        The spout retries a failed chunk in halves, until the row is alone.
        """
        reasons: dict[Any, str] = {}
        for row, reason in refused.items():
            place = f"{batch.identities.place(row)}: " if self.has_origins else ""
            reasons.setdefault(batch.ids[row], f"{place}{self.component_name}: {reason}")
        self._figures["rejected"] += len(refused)
        for tuple_id, reason in reasons.items():
            self.fail_because(tuple_id, RecordError(reason))
        return batch.only(np.array([one not in reasons for one in batch.ids], dtype=bool))

    def warn_that_nothing_was_written(self, batch: Batch) -> None:
        """Warn that the table already held all rows of a flush, and say how to process records again."""
        table = self.settings["table"]
        logger.warning(
            "%s: all %s of a flush (from %s) are in table %s already, and none was written. After a restart, or a "
            "replay of dead letters, that is expected. To process records again: empty the table, DELETE FROM "
            "downspout_log WHERE sink = '%s', another kafka.group and kafka.start=EARLIEST",
            self.component_name, counted(len(batch.ids), "row"), batch.identities.place(0), table, table.lower(),
        )  # fmt: skip

    def close(self) -> None:
        """Release the connection."""
        if hasattr(self, "writer"):
            self.writer.close()
