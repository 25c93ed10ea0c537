"""PostgreSQL, by psycopg 3."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from downspout.errors import MissingExtraError
from downspout.formatting import lasting
from downspout.offsets.stores.database import (
    ASK_S,
    DatabaseError,
    LockedError,
    LostError,
    PassesError,
    Row,
    TableColumn,
    TakenError,
    ValueRefusedError,
)
from downspout.outages import CURES, FULL, LOCKED, SILENT, State

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
NAME = "downspout"  # Of our sessions, as the server lists them
IDLE_S = 30
"""How long one of our sessions may stand still within a transaction. Then its process is frozen, or its machine gone,
and others wait for what it holds; its rows come again."""
BOUNDS = (
    "SET lock_timeout = {wait_ms}", "SET synchronous_commit = on",
    "SET default_transaction_isolation = 'read committed'",
    "SET idle_in_transaction_session_timeout = '{idle_s}s'",
    "SET tcp_keepalives_idle = 10", "SET tcp_keepalives_interval = 5", "SET tcp_keepalives_count = 3",
)  # fmt: skip
"""What the server is told of a session. With another isolation, or commits that are answered before they are on the
disk, it may look at an old state, or lose a flush. By its own defaults it keeps the locks of a machine that is gone for
two hours, and those of a frozen process for ever."""
HOLDERS = """
SELECT pid, application_name, state, extract(epoch FROM now() - xact_start), left(query, 60) FROM pg_stat_activity
WHERE {which} ORDER BY xact_start LIMIT 3
"""
BLOCKING = HOLDERS.format(which="pid = ANY (pg_blocking_pids(%s))")
WRITERS = HOLDERS.format(which="datname = current_database() AND pid <> ALL (%s) AND backend_xid IS NOT NULL")
FROZEN = """
SELECT pid, extract(epoch FROM now() - state_change), pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = %s AND backend_xid IS NOT NULL
  AND state = 'active' AND wait_event = 'ClientRead' AND state_change < now() - make_interval(secs => %s)
"""
"""A session of ours that stopped in the middle of sending rows. To the server it is at work, and so no limit of before
version 17 ends it."""
log = logging.getLogger("downspout.sql")


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
        """Return a name in double quotes; a percent sign would be taken for a placeholder."""
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
        """Run a statement for each row; the driver sends them in a batch."""
        driver = self._driver()
        try:
            with self._connected().cursor() as cursor:
                cursor.executemany(statement.encode(), rows)
                # Without a plain statement after it, PostgreSQL 15 takes a session for busy after rows that were sent
                # in one go, and would let it hold its locks for ever.
                cursor.execute(b"SELECT 1")
        except (driver.Error, ValueError, OverflowError) as error:
            raise self._error(error) from error

    def columns(self, table: str) -> list[TableColumn]:
        """Return the writable columns of a table; its name may have a schema in front, with a dot."""
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
            connection = driver.connect(
                self.location,
                autocommit=True,  # transactions begin and end with statements of ours
                connect_timeout=CONNECT_S,
                application_name=NAME,
                # Without the last one a server that vanishes in a statement is waited for a quarter of an hour.
                keepalives_idle=10, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=30_000,
                **password,
            )  # fmt: skip
            bounds = "; ".join(BOUNDS).format(wait_ms=max(1, int(self._wait_s * 1000)), idle_s=IDLE_S)
            connection.execute(bounds.encode())
            self._connection = connection
        assert self._connection is not None
        return self._connection

    def _error(self, error: Exception) -> DatabaseError:
        driver = self._driver()
        state: str = getattr(error, "sqlstate", None) or ""
        said = " ".join(str(error).split())
        what = f"{self.location}: {said}"
        lost = self._connection is None or self._connection.closed
        # Where no connection is made, the driver knows no code, only the server's text.
        if state.startswith(("28", "3D")) or (lost and any(text in what for text in REFUSALS)):
            return DatabaseError(
                what, "user and database of the URL; the password by reference, as env:NAME or file:PATH"
            )
        # 08: connection; 57P: the server is shut down or crashes; 53300: too many connections; 25006: a standby
        if lost or state.startswith(("08", "57P")) or state in ("53300", "25006"):
            self.close()
            return LostError(self.location, SILENT, said, "check that the server runs and can be reached")
        if state == "55P03":
            self._end_frozen()
            holders = ""
            with suppress(driver.Error):
                holders = self._holders(WRITERS)
            return LockedError(self.location, LOCKED, holders or "by whom is not known", CURES[LOCKED])
        if state == "53100":
            return PassesError(self.location, FULL, said, "free the server's disk")
        if state.startswith("40"):  # a deadlock, or a serialization failure: undone, as if the connection were lost
            return LostError(self.location, LOCKED, said, "transactions that lock the same rows in one order")
        if state == "23505":
            return TakenError(what, "sql.keys, if later rows are to take the place of earlier ones")
        if state.startswith(REFUSED) or isinstance(error, driver.DataError | ValueError | OverflowError):
            return ValueRefusedError(what)
        if state == "42501":
            return DatabaseError(what, "grant this user the permission; or let the owner create the tables once")
        return DatabaseError(what)

    def waits_for(self) -> State | None:
        """Return which sessions hold the lock that our statement waits for, or that the server does not answer."""
        if self._connection is None:  # it is being made
            return SILENT, ""
        try:
            found = self._holders(BLOCKING)
        except self._driver().Error as error:
            return SILENT, " ".join(str(error).split())
        return (LOCKED, found) if found else None

    def _holders(self, query: str) -> str:
        """Describe the sessions that a query finds."""
        mine = 0 if self._connection is None else self._connection.info.backend_pid
        with self._beside() as connection:
            found = connection.execute(
                query.encode(), (mine if query is BLOCKING else [mine, connection.info.backend_pid],)
            ).fetchall()
        return ", ".join(
            f"process {pid} ({name or 'unnamed'}, {state} for {lasting(float(age or 0))}: {query})"
            for pid, name, state, age, query in found
        )

    def _beside(self) -> psycopg.Connection[Row]:
        """Return another connection, which never waits for locks."""
        password = {} if self._password is None else {"password": self._password}
        made: psycopg.Connection[Row] = self._driver().connect(
            self.location, autocommit=True, connect_timeout=ASK_S, tcp_user_timeout=ASK_S * 1000, **password
        )
        return made

    def _end_frozen(self) -> None:
        """End the sessions of frozen processes that the server cannot tell from busy ones."""
        with suppress(self._driver().Error), self._beside() as connection:
            for pid, idle_s, _ in connection.execute(FROZEN.encode(), (NAME, IDLE_S)).fetchall():
                log.warning(
                    "%s: session %d stopped sending rows for %s while others waited for its locks: ended it",
                    self.location, pid, lasting(float(idle_s)),
                )  # fmt: skip
