"""The port to a database: statements in transactions, and errors classified by what to do about them.

The plain drivers are used, ``sqlite3`` and ``psycopg`` (docs/decisions/0010). :class:`Database` hides the differences
between the two databases; both get the same SQL, except for the placeholder of a value.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from downspout.errors import ConfigError
from downspout.outages import OUTAGES, State
from downspout.settings.secrets import HIDDEN, is_secret

Row = tuple[Any, ...]
ASK_S = 2
SCHEMES = ("sqlite", "postgresql", "postgres")


class DatabaseError(Exception):
    """The database refuses a statement; the text names the database and, if possible, what to do."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.message, self.cure = message, cure


class TakenError(DatabaseError):
    """A row with this key exists."""


class ValueRefusedError(DatabaseError):
    """A value does not fit: a constraint of the table, or a type."""


class PassesError(DatabaseError):
    """A later try may succeed: the disk is full, or a reason of the subclasses below.

    ``state`` is what is the matter with the database, after its name, and ``why`` its own words.
    """

    def __init__(self, location: str, state: str, why: str, cure: str) -> None:
        super().__init__(f"{location} {state} ({why})", cure)
        self.state, self.why = state, why


class LockedError(PassesError):
    """Another process has held a lock for longer than we wait."""


class LostError(PassesError):
    """The connection is lost, or cannot be made. A pending commit may have succeeded or not.

    Or the server has rolled the transaction back in favour of another. In both cases another try may succeed.
    """


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, as the database describes it."""

    name: str
    kind: str  # the type as the database writes it, in lower case
    required: bool  # NOT NULL
    filled: bool  # whether the database has a value where none is given: a default, an identity, it is generated
    is_key: bool  # whether it is part of the primary key


class Database(Protocol):
    """One connection, made at the first need and after a loss; used by one thread.

    Errors are of the kinds above. After one within a transaction, only ``rollback`` (to a savepoint, perhaps) works.
    """

    location: str  # for messages; without a password
    mark: str  # what stands for a value in a statement

    def quote(self, name: str) -> str:
        """Quote a name for a statement."""

    def begin(self) -> None:
        """Begin a transaction that will write."""

    def commit(self) -> None:
        """Commit. If it raises LostError, the transaction may be committed or not."""

    def rollback(self) -> None:
        """Undo the transaction, if one is open; a connection that is lost has done so. Raises nothing."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement; return what it returns."""

    def run_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each of several rows."""

    def waits_for(self) -> State | None:
        """Return what the running statement waits for; None: nothing, it is just slow.

        Another thread calls it. It takes :data:`ASK_S` at most.
        """

    def columns(self, table: str) -> list[TableColumn]:
        """Return the columns of a table, in order; empty if it does not exist."""

    def close(self) -> None:
        """Release the connection."""


@contextmanager
def told(database: Database, who: str) -> Iterator[None]:
    """Log that ``who`` waits, and for what, if the block's work with a database takes long or fails.

    A caller that cannot wait tries again later, and enters here at each try.
    """
    since = time.monotonic()
    try:
        with OUTAGES.asking(database.location, who, since=since, look=database.waits_for):
            yield
    except PassesError as error:
        OUTAGES.waiting(database.location, who, error.why, since, error.state)
        raise
    except BaseException:
        OUTAGES.over(database.location, who)
        raise
    OUTAGES.over(database.location, who)


@contextmanager
def transaction(database: Database) -> Iterator[None]:
    """Commit the block's statements, or roll them back."""
    database.begin()
    try:
        yield
        database.commit()
    except BaseException:
        with suppress(Exception):
            database.rollback()
        raise


def create_tables(database: Database, tables: Iterable[str]) -> None:
    """Make tables where they do not exist.

    Args:
        tables: the text after ``CREATE TABLE``: ``name (column type, …)``.
    """
    for table in tables:
        name = table.partition(" ")[0]
        if database.columns(name):
            continue
        try:
            database.run(f"CREATE TABLE IF NOT EXISTS {table}")
        except (TakenError, ValueRefusedError):
            # PostgreSQL looks first and creates then: of two that look together, one meets the other's table.
            if not database.columns(name):
                raise


def check_url(url: str, setting: str, password_setting: str) -> None:
    """Raise a ConfigError if a URL is not a database's, or contains a password.

    >>> check_url("sqlite:///flights.db", "sql.database", "sql.password")
    >>> check_url("postgresql://me:hush@db/flights", "sql.database", "sql.password")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: sql.database holds a password, which would be seen wherever settings are shown. Try: sql.password=env:NAME or file:PATH, and no password in the URL
    """  # noqa: E501
    try:
        parts = urlsplit(url)
        hidden = parts.password is not None or "password=" in parts.query.lower() or is_secret(setting, url)
    except ValueError as error:
        raise ConfigError(f"{setting} is not a database URL: {error}", cure="sqlite:///flights.db") from None
    if hidden:
        raise ConfigError(
            f"{setting} holds a password, which would be seen wherever settings are shown",
            cure=f"{password_setting}=env:NAME or file:PATH, and no password in the URL",
        )
    if not url.startswith(f"{parts.scheme}:/") or parts.scheme not in SCHEMES or not parts.path.strip("/"):
        given = HIDDEN if "@" in url and "://" not in url else url  # anything could be before that sign
        raise ConfigError(
            f"{setting} = {given!r} does not name a database",
            cure="sqlite:///flights.db (sqlite:////data/flights.db: an absolute path), or postgresql://user@host/name",
        )
