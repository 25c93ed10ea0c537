"""PostgreSQL, by psycopg 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from downspout.errors import MissingExtraError
from downspout.offsets.stores.database import (
    DatabaseError,
    LockedError,
    LostError,
    Row,
    TableColumn,
    TakenError,
    ValueRefusedError,
)

if TYPE_CHECKING:
    import psycopg

CONNECT_S = 4
COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.atthasdef OR a.attidentity <> '',
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey))
FROM pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attgenerated = '' AND a.attidentity <> 'a'
ORDER BY a.attnum
"""
REFUSALS = ("does not exist", "authentication failed", "no password supplied", "no pg_hba.conf entry")
REFUSED = ("22", "23", "44", "54000", "P0001")
"""What is the matter with a row, by the beginning of the code: its data, a constraint, the check of a view, a text too
long for an index, a trigger that raises."""
WRITERS = """
SELECT pid, application_name, state, left(query, 60) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL ORDER BY xact_start LIMIT 3
"""


class PostgresDatabase:
    """A server. See :class:`~downspout.offsets.stores.database.Database`."""

    mark = "%s"

    def __init__(self, url: str, password: str | None, wait_s: float) -> None:
        self.location = url
        self._password, self._wait_s = password, wait_s
        self._connection: psycopg.Connection[Row] | None = None
        self._driver()

    def _driver(self) -> Any:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtraError(
                f"{self.location}: PostgreSQL's driver psycopg is not installed ({error})",
                cure="pip install 'downspout[postgres]'",
            ) from None
        return psycopg

    def quote(self, name: str) -> str:
        """Return a name in double quotes; a percent sign would be taken for a mark."""
        return '"' + name.replace('"', '""').replace("%", "%%") + '"'

    def begin(self) -> None:
        """Begin a transaction."""
        self.run("BEGIN")

    def commit(self) -> None:
        """Commit."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """Undo the open transaction."""
        connection = self._connection
        idle = self._driver().pq.TransactionStatus.IDLE
        if connection is not None and not connection.closed and connection.info.transaction_status != idle:
            with suppress(DatabaseError):
                self.run("ROLLBACK")

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement."""
        driver = self._driver()
        try:
            cursor = self._connected().execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []
        except (driver.Error, ValueError, OverflowError) as error:
            raise self._error(error) from error

    def run_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row; the driver sends them in one go."""
        driver = self._driver()
        try:
            with self._connected().cursor() as cursor:
                cursor.executemany(statement.encode(), rows)
        except (driver.Error, ValueError, OverflowError) as error:
            raise self._error(error) from error

    def columns(self, table: str) -> list[TableColumn]:
        """Return the columns of a table that take values; its name may have a schema before it, with a dot."""
        name = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
        return [TableColumn(*row) for row in self.run(COLUMNS, (name,))]

    def close(self) -> None:
        """Close the connection; an open transaction is undone by the server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is None or self._connection.closed:
            driver = self._driver()
            password = {} if self._password is None else {"password": self._password}
            wait_ms = max(1, int(self._wait_s * 1000))
            connection = driver.connect(
                self.location,
                autocommit=True,  # transactions begin and end with statements of ours
                connect_timeout=CONNECT_S,
                application_name="downspout",
                # Without the last one a server that vanishes in a statement is waited for a quarter of an hour.
                keepalives_idle=10, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=30_000,
                **password,
            )  # fmt: skip
            # Above it a commit may be answered before it is on the disk, or the server may look at an old state.
            connection.execute(f"SET lock_timeout = {wait_ms}")
            connection.execute("SET synchronous_commit = on")
            connection.execute("SET default_transaction_isolation = 'read committed'")
            self._connection = connection
        assert self._connection is not None
        return self._connection

    def _error(self, error: Exception) -> DatabaseError:
        driver = self._driver()
        state: str = getattr(error, "sqlstate", None) or ""
        what = f"{self.location}: {' '.join(str(error).split())}"
        lost = self._connection is None or self._connection.closed
        # Where no connection is made, the driver knows no code, only the server's text.
        if state.startswith(("28", "3D")) or (lost and any(text in what for text in REFUSALS)):
            return DatabaseError(
                what, "user and database of the URL; the password by reference, as env:NAME or file:PATH"
            )
        # 08: connection; 57P: the server is shut down or crashes; 53300: too many connections; 25006: a standby
        if lost or state.startswith(("08", "57P")) or state in ("53300", "25006"):
            self.close()
            return LostError(what, "see that the server runs and can be reached")
        if state == "55P03":
            return LockedError(
                f"{self.location} is locked, and was for {self._wait_s:g} s: {self._writers()}",
                "let that transaction end; or a higher lock_wait_s, of sql or state",
            )
        if state.startswith("40"):  # a deadlock, or a serialization failure: undone, as if the connection were lost
            return LostError(what, "transactions that lock the same rows in one order")
        if state == "23505":
            return TakenError(what, "sql.keys, if later rows are to take the place of earlier ones")
        if state.startswith(REFUSED) or isinstance(error, driver.DataError | ValueError | OverflowError):
            return ValueRefusedError(what)
        if state == "42501":
            return DatabaseError(what, "grant this user the right; or let the owner make the tables once")
        return DatabaseError(what)

    def _writers(self) -> str:
        """Say who has a transaction open that has written, in words."""
        with suppress(Exception), self._driver().connect(
            self.location, autocommit=True, connect_timeout=CONNECT_S,
            **({} if self._password is None else {"password": self._password}),
        ) as connection:  # fmt: skip
            mine = 0 if self._connection is None else self._connection.info.backend_pid
            found = [row for row in connection.execute(WRITERS).fetchall() if row[0] != mine]
            if found:
                return ", ".join(
                    f"process {pid} ({name or 'unnamed'}, {state}: {query})" for pid, name, state, query in found
                )
        return "which process holds it is not known here"
