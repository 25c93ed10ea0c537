"""The exactly-once writer for a table: one flush, one transaction, with an entry in a log beside the table.

A flush

1. begins a transaction and reads new log entries; rows that they cover are skipped;
2. adds the next entry to the log; if another writer was first, it begins again;
3. writes the rows;
4. commits. Only then may tuples be acked.

If the process is killed before the commit, nothing has happened, and the rows come again; if after it, their replays
are covered. If the connection is lost in the COMMIT, the next try finds the flush's *token* in the log, or not. It
cannot miss a commit in flight: to add an entry it waits for the end of the transaction that has taken the number.

**The log.** An entry has the identities of a flush's rows (``downspout/sink/identity.py``) and the token. Number and
sink are its key: of two writers that take the same number, one waits for the other's transaction to end and learns that
the number is taken. So all flushes of a sink have one order, as in the commit log of a directory. Sometimes the
transaction of a flush folds the log: one entry with the whole coverage replaces all before it. This happens when the
entries since the last fold are larger than the fold, so it costs no more than they did.

A writer checks that the log still matches its memory. A standby server that took over, or a restored copy, may lack the
last commits: rows covered only in memory would be acked, skipped and lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa

from downspout.errors import SinkError, StoreAwayError
from downspout.offsets.stores.database import (
    Database,
    DatabaseError,
    LostError,
    PassesError,
    Row,
    TableColumn,
    TakenError,
    ValueRefusedError,
    create_tables,
)
from downspout.sink.identity import Identities, KnownInputs, resolve
from downspout.sink.log_entry import Coverage, listed, steps, text
from downspout.sink.schema import ORIGIN_SCHEMA, Columns, failing
from downspout.sql.table import rows_of

TABLE = "downspout_log"
CREATE = (
    f"{TABLE} (sink TEXT NOT NULL, number BIGINT NOT NULL, token TEXT NOT NULL, entry TEXT NOT NULL, "
    "PRIMARY KEY (sink, number))"
)
FORMAT = 1
FOLD_BYTES = 256 * 1024
"""Fewer bytes of entries are not folded."""


@dataclass(frozen=True)
class SqlEntry:
    """One entry."""

    topology: str  # the topology's name
    component: str  # the sink's name in it
    coverage: Coverage  # the rows that came with it; of a fold, all rows
    inputs: Mapping[str, str]  # the step of each input
    known: Mapping[str, str] = field(default_factory=dict)  # of a fold: the steps of inputs that are no more
    is_fold: bool = False

    def to_text(self) -> str:
        """Return the entry as the log holds it."""
        return orjson.dumps(
            {
                "format": FORMAT, "topology": self.topology, "component": self.component, "fold": self.is_fold,
                "inputs": dict(self.inputs), "known": dict(self.known), "coverage": self.coverage.to_json(),
            }
        ).decode()  # fmt: skip

    @classmethod
    def from_text(cls, content: str) -> SqlEntry:
        """Return what :meth:`to_text` made. It is untrusted: anything out of form raises ValueError."""
        found = orjson.loads(content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("it is of another format")
        try:
            return cls(
                text(found["topology"]), text(found["component"]), Coverage.from_json(listed(found["coverage"])),
                steps(found["inputs"]), steps(found["known"]), found["fold"] is True,
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise ValueError(f"out of form ({error})") from None


class SqlLog:
    """The log of one sink; use it within a transaction."""

    def __init__(self, database: Database, sink: str) -> None:
        self._database, self._sink = database, sink
        mark = database.mark
        self._read = (
            f"SELECT number, token, CASE WHEN number > {mark} THEN entry ELSE '' END FROM {TABLE} "
            f"WHERE sink = {mark} AND number >= {mark} ORDER BY number"
        )
        self._insert = f"INSERT INTO {TABLE} (sink, number, token, entry) VALUES ({mark}, {mark}, {mark}, {mark})"
        self._delete = f"DELETE FROM {TABLE} WHERE sink = {mark} AND number < {mark}"
        self.coverage, self.inputs = Coverage(), KnownInputs()
        self.owner: tuple[str, str] | None = None  # topology and component
        self._number, self._token = -1, ""  # of the last entry that was read
        self._bytes = self._folded_bytes = 0

    def refresh(self, is_ours: Callable[[str], bool] = lambda token: False) -> bool:
        """Read new entries; return whether one has a token that is ours."""
        rows = self._database.run(self._read, (self._number, self._sink, self._number))
        expected = self._number + 1
        if self._number >= 0:
            if not rows or rows[0][0] != self._number:
                expected = -1  # It is gone. Others may have folded it; then a fold comes first, and holds all.
            elif rows[0][1] != self._token:
                raise self._gone(self._number)
            else:
                rows = rows[1:]
        found = False
        for number, token, content in rows:
            self._take(number, token, content, expected)
            expected = number + 1
            found = found or is_ours(token)
        if expected == -1:
            raise self._gone(self._number)
        return found

    def _take(self, number: int, token: str, content: str, expected: int) -> None:
        try:
            entry = SqlEntry.from_text(content)
        except ValueError as error:
            raise SinkError(
                f"{self._database.location}: entry {number} of {self._sink} in {TABLE} cannot be read: {error}",
                cure="restore the table from a backup; do not delete the entry: its rows would be written again",
            ) from None
        if number != expected and not entry.is_fold:
            raise self._gone(self._number if expected == -1 else expected)
        self._number, self._token = number, token
        self._bytes += len(content)
        if entry.is_fold:
            self.coverage, self.inputs = Coverage(), KnownInputs()
            self.inputs.take(entry.known)
            self._bytes, self._folded_bytes = 0, len(content)
        self.coverage.update(entry.coverage)
        self.inputs.take(entry.inputs)
        self.owner = entry.topology, entry.component

    def _gone(self, number: int) -> SinkError:
        return SinkError(
            f"{self._database.location}: entry {number} of {self._sink} in {TABLE} is gone, and its rows may be too: a "
            "backup was restored, a standby took over that lacked it, or somebody emptied the table",
            cure="start again, with offsets of the same moment: those in this database are; `downspout offsets seek` "
            "sets a consumer group back",
        )

    def append(self, token: str, topology: str, component: str, coverage: Coverage, inputs: Mapping[str, str]) -> None:
        """Add the next entry.

        Raises:
            TakenError: another writer was first; the transaction is unusable.
        """
        fold = self._bytes > max(FOLD_BYTES, self._folded_bytes)
        known: Mapping[str, str] = {}
        if fold:
            whole = Coverage()
            whole.update(self.coverage)
            whole.update(coverage)
            coverage, known = whole, self.inputs.steps
        entry = SqlEntry(topology, component, coverage, inputs, known, fold)
        number = self._number + 1
        self._database.run(self._insert, (self._sink, number, token, entry.to_text()))
        if fold:
            self._database.run(self._delete, (self._sink, number))


# --- The writer ---


T = TypeVar("T")


@dataclass(frozen=True)
class SqlFlush:
    """The result of a flush."""

    rows: int = 0  # written
    covered: int = 0  # left out, because they were in the table already


class RowsRefusedError(Exception):
    """Rows do not fit the table; no row of the flush was written. ``rows`` is place → reason."""

    def __init__(self, rows: Mapping[int, str]) -> None:
        super().__init__(f"{len(rows)} rows are refused")
        self.rows = rows


class SqlWriter:
    """Writes to a table that any number of writers share.

    Raises (from ``open`` and ``flush``):
        StoreAwayError: the database is away, full or locked. Another flush of the same rows may succeed.
        SinkError: the database cannot be used, or the table belongs to another sink.
    """

    def __init__(
        self,
        database: Database,
        table: str,
        *,
        keys: Sequence[str] = (),  # rows with equal keys replace each other
        topology: str,
        component: str,
        writer: str,  # this incarnation: unique for each start of a task
    ) -> None:
        self.database, self.table = database, table
        self.log = SqlLog(database, table.lower())
        self.steps: Mapping[str, str] = {}
        self._keys, self._topology, self._component, self._writer = keys, topology, component, writer
        self._inputs: Sequence[str] = ()
        self._input_names: Mapping[str, str] = {}
        self._flushes = 0
        self._token = ""  # of a flush with an unknown outcome
        self._with_origins: list[str] = []
        self._insert = ""

    # --- the start --------------------------------------------------------------------------------------

    def table_columns(self) -> list[TableColumn]:
        """Return the table's columns; empty: it does not exist."""
        return self._again(lambda: self.database.columns(self.table))

    @property
    def is_sqlite(self) -> bool:
        """Whether the declared column types are only hints, as in SQLite."""
        return self.database.location.startswith("sqlite:")

    def open(
        self,
        columns: Columns,  # to write
        found: Sequence[TableColumn],  # what the table has
        inputs: Sequence[str],  # the names of the sink's inputs that carry origins
        input_names: Mapping[str, str],  # what ``sql.input_names`` says of them
    ) -> None:
        """Create the log if it is missing, read it, and check that the table is ours and the statement can run."""
        self._inputs, self._input_names = inputs, input_names
        names = {column.name for column in found}
        self._columns = columns.columns
        self._with_origins = [name for name in ORIGIN_SCHEMA.names if name in names]
        self._insert = self._statement([*columns.names, *self._with_origins])
        self._again(self._open)

    def _open(self) -> None:
        create_tables(self.database, [CREATE])
        # Makes the plan and runs nothing: keys without an index, or rights that lack, are found before the first row.
        width = len(self._columns) + len(self._with_origins)
        self.database.run(f"EXPLAIN {self._insert}", [None] * width)
        self.database.begin()
        try:
            self._catch_up("")
        finally:
            self.database.rollback()

    def _statement(self, names: Sequence[str]) -> str:
        quote, mark = self.database.quote, self.database.mark
        table = ".".join(quote(part) for part in self.table.split("."))
        insert = f"INSERT INTO {table} ({', '.join(map(quote, names))}) VALUES ({', '.join([mark] * len(names))})"
        if not self._keys:
            return insert
        changes = [f"{quote(name)} = excluded.{quote(name)}" for name in names if name not in self._keys]
        then = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"{insert} ON CONFLICT ({', '.join(map(quote, self._keys))}) DO {then}"

    def _catch_up(self, token: str) -> bool:
        """Read the log; return whether it holds our token. The table must be ours."""
        done = self.log.refresh(lambda found: found == token)
        owner = self.log.owner
        if owner is not None and owner != (self._topology, self._component):
            topology, component = owner
            raise SinkError(
                f"table {self.table} of {self.database.location} belongs to {component} of topology {topology}, not to "
                f"{self._component} of {self._topology}: rows of two sinks may have the same identities",
                cure="another sql.table: one for each sink; or the sink's old name",
            )
        place = f"table {self.table} of {self.database.location}"
        has_rows = len(self.log.coverage) > 0
        self.steps = resolve(
            place, self._inputs, self._input_names, self.log.inputs, has_rows=has_rows, setting="sql.input_names"
        )
        return done

    # --- a flush ----------------------------------------------------------------------------------------

    def flush(self, identities: Identities, table: pa.Table) -> SqlFlush:
        """Write the rows that are not in the table yet; when this returns, they are durable.

        Args:
            identities: of the rows, in their order; may be of rows without origin.
            table: the rows.

        Raises:
            RowsRefusedError: the table permanently refuses some rows; nothing was written.
        """
        # One token for all tries: the outcome of an unanswered COMMIT is unknown until the next try.
        if not self._token:
            self._flushes += 1
            self._token = f"{self._writer}/{self._flushes}"
        try:
            flushed = self._again(lambda: self._flush(self._token, identities, table))
        except StoreAwayError:
            raise
        except BaseException:
            self._token = ""
            raise
        self._token = ""
        return flushed

    def _again(self, work: Callable[[], T]) -> T:
        """Do some work; if the connection is lost, retry once: the server may have closed an idle one."""
        for attempt in range(2):
            try:
                return work()
            except PassesError as error:
                if attempt or not isinstance(error, LostError):
                    raise StoreAwayError(error.message, cure=error.cure, state=error.state, why=error.why) from error
            except DatabaseError as error:
                raise self._error(error) from error
            finally:
                with suppress(DatabaseError):
                    self.database.rollback()
        raise AssertionError("the last try returns or raises")

    def _flush(self, token: str, identities: Identities, table: pa.Table) -> SqlFlush:
        while True:
            self.database.begin()
            is_done = self._catch_up(token)
            rows = identities.under(self.steps)
            wanted = rows.not_in(self.log.coverage)
            if is_done:  # an unanswered COMMIT succeeded
                return SqlFlush(len(identities))
            if not wanted.any():
                return SqlFlush(covered=len(identities))
            try:
                self.log.append(token, self._topology, self._component, rows.coverage(wanted), self.steps)
            except TakenError:
                # Another writer took the number. It may have written our rows: two tasks can hold the same records
                # after a rebalance. So check again.
                self.database.rollback()
                continue
            self.insert_rows(self._values(rows, table, wanted), np.flatnonzero(wanted).tolist())
            self.database.commit()
            return SqlFlush(int(wanted.sum()), int((~wanted).sum()))

    def _values(self, identities: Identities, table: pa.Table, wanted: Any) -> list[Row]:
        """Return the wanted rows as the driver takes them."""
        if self._with_origins:
            arrays = dict(zip(ORIGIN_SCHEMA.names, identities.columns(), strict=True))
            for name in self._with_origins:
                table = table.append_column(name, arrays[name])
        return rows_of(table if wanted.all() else table.filter(pa.array(wanted)))

    def insert_rows(self, rows: Sequence[Row], places: Sequence[int]) -> None:
        """Write rows; if the table refuses some, find out which.

        Raises:
            RowsRefusedError: with the places of the refused rows.
        """
        found = failing(
            lambda start, end: self._insert_some(rows[start:end]), len(rows), (ValueRefusedError, TakenError)
        )
        if refused := {places[row]: error.message for row, error in found}:
            raise RowsRefusedError(refused)

    def _insert_some(self, rows: Sequence[Row]) -> None:
        """Write all of these rows or none. Rows that fit stay: a row may be refused only because of an earlier one."""
        # Without a savepoint the whole transaction would be lost in PostgreSQL with the first row that is refused.
        self.database.run("SAVEPOINT rows_of_flush")
        try:
            self.database.run_many(self._insert, rows)
        except (ValueRefusedError, TakenError):
            self.database.run("ROLLBACK TO SAVEPOINT rows_of_flush")
            self.database.run("RELEASE SAVEPOINT rows_of_flush")
            raise
        self.database.run("RELEASE SAVEPOINT rows_of_flush")

    def _error(self, error: DatabaseError) -> SinkError:
        return SinkError(
            f"{error.message}; no row of this flush was acked",
            cure=error.cure or "correct that, then start again: the rows come again",
        )

    def close(self) -> None:
        """Release the connection."""
        self.database.close()
