"""SQLite, by Python's own driver: one file, one writer at a time.

A transaction that writes begins with BEGIN IMMEDIATE, so it waits for the lock before it reads anything, and two
writers never have to undo each other's work.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.offsets.stores.database import (
    DatabaseError,
    LockedError,
    PassesError,
    Row,
    TableColumn,
    TakenError,
    ValueRefusedError,
)
from downspout.outages import CURES, FULL, LOCKED, State
from downspout.settings import folders
from downspout.settings.folders import local_path

NETWORK = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)
"""File systems on which a lock may not be seen by other machines: SQLite's own page on corruption names them first."""
PREFIX = "sqlite:///"
UNIQUE = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID)


class SqliteDatabase:
    """A file. See :class:`~downspout.offsets.stores.database.Database`."""

    mark = "?"

    def __init__(self, url: str, setting: str, wait_s: float) -> None:
        self.location = url
        self.path = path_of(url, setting)
        self._setting, self._wait_s = setting, wait_s
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # that is open, by device and number

    def quote(self, name: str) -> str:
        """Return a name in double quotes."""
        return '"' + name.replace('"', '""') + '"'

    def begin(self) -> None:
        """Begin a transaction, and take the write lock."""
        # Who moves another file there, or removes it, leaves us one that nobody sees any more.
        if self._connection is not None and _file_at(self.path) != self._file:
            self.close()
            raise DatabaseError(
                f"{self.location}: {self.path} was removed, or replaced by another file, while it was open",
                "start again; stop all writers of a database before you replace its file",
            )
        self.run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit; if readers hold the file for too long, raise LockedError, with nothing committed."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """Undo the open transaction."""
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement."""
        try:
            return self._connected().execute(statement, values).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise self._error(error) from error

    def run_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row."""
        try:
            self._connected().executemany(statement, rows)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise self._error(error) from error

    def waits_for(self) -> State | None:
        """Return which process holds the file."""
        return (LOCKED, found) if (found := holders(self.path)) else None

    def columns(self, table: str) -> list[TableColumn]:
        """Return the columns of a table, without hidden and generated ones; this creates no file."""
        if self._connection is None and self.path.parent.is_dir() and not self.path.exists():
            return []
        found = self.run('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table,))
        keys = sum(1 for *_, key in found if key)
        # A table whose only key is one INTEGER: that is the row's number, which SQLite gives.
        return [
            TableColumn(
                name, kind.lower(), bool(required), default is not None or _is_row_number(kind, key, keys), key > 0
            )
            for name, kind, required, default, key in found
        ]

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        path = self.path
        refuse_network(path, self.location)
        if not path.parent.is_dir():
            raise DatabaseError(f"{self.location}: the folder {path.parent} does not exist", f"mkdir -p {path.parent}")
        is_new = not path.exists() or not path.stat().st_size
        # No file names begin with ":memory:" or "file:" here: the path is absolute.
        connection = sqlite3.connect(path, timeout=self._wait_s, isolation_level=None, check_same_thread=False)
        try:
            if is_new:
                # Readers and the writer do not wait for each other then. Of a file that is there, the mode stays.
                connection.execute("PRAGMA journal_mode = WAL").close()
            connection.execute("PRAGMA synchronous = FULL").close()
            connection.execute("PRAGMA foreign_keys = ON").close()
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # reads: is it a database at all?
        except sqlite3.Error:
            connection.close()
            raise
        self._file = _file_at(path)
        return connection

    def _error(self, error: Exception) -> DatabaseError:
        code: int = getattr(error, "sqlite_errorcode", 0) or 0
        what = f"{self.location}: {error}"
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            holder = holders(self.path) or "which process holds it is not known here"
            return LockedError(self.location, LOCKED, holder, CURES[LOCKED])
        if code in UNIQUE:
            return TakenError(what, "sql.keys, if later rows are to take the place of earlier ones")
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError | UnicodeError) or (
            code & 0xFF in (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH)
        ):
            return ValueRefusedError(what)
        if code & 0xFF == sqlite3.SQLITE_NOTADB:
            return DatabaseError(what, f"another {self._setting}: {self.path} is not a SQLite database")
        if code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return DatabaseError(f"{what} ({self.path})", "a file and a folder that this user may write")
        if code & 0xFF == sqlite3.SQLITE_FULL:
            return PassesError(self.location, FULL, str(error), CURES[FULL])
        return DatabaseError(what)


def _file_at(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def _is_row_number(kind: str, key: int, keys: int) -> bool:
    return keys == 1 and key > 0 and kind.lower() == "integer"


def path_of(url: str, setting: str) -> Path:
    """Return the file that a URL names; a relative one is in the project's folder (see :func:`absolute`).

    >>> path_of("sqlite:////data/flights.db", "sql.database").as_posix()
    '/data/flights.db'
    """
    if not url.startswith(PREFIX) or "?" in url:
        raise ConfigError(
            f"{setting} = {url!r} does not name a file", cure="sqlite:///flights.db, or sqlite:////data/x.db"
        )
    path = Path(local_path(url.removeprefix(PREFIX), f"{setting} = {url!r}"))
    return path if path.is_absolute() else folders.project() / path


def refuse_network(path: Path, location: str, mounts: str | None = None) -> None:
    """Raise if Linux reports that a file is on a network file system.

    >>> mounts = "36 35 98:0 / / rw - ext4 /dev/root rw\\n40 36 0:3 / /srv/data rw shared:1 - nfs4 box:/export rw"
    >>> refuse_network(Path("/home/me/flights.db"), "sqlite:////home/me/flights.db", mounts)
    >>> refuse_network(Path("/srv/data/flights.db"), "sqlite:////srv/data/flights.db", mounts)
    Traceback (most recent call last):
        ...
    downspout.offsets.stores.database.DatabaseError: sqlite:////srv/data/flights.db is on a network file system (nfs4 at /srv/data), where SQLite's locks do not hold
    """  # noqa: E501
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:  # not Linux
            return
    place = path if path.is_absolute() else path.absolute()
    place = place.resolve()
    best, kind = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest:
            continue
        where = _unescaped(fields.split(" ")[4])
        if (place.is_relative_to(where)) and len(where) >= len(best):
            best, kind = where, rest.split(" ")[0]
    if kind in NETWORK:
        raise DatabaseError(
            f"{location} is on a network file system ({kind} at {best}), where SQLite's locks do not hold",
            "a local disk; or PostgreSQL, where several machines write",
        )


def _unescaped(text: str) -> str:
    """Return a path of mountinfo, in which blanks are written in octal."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def holders(path: Path) -> str:
    """Name the processes that hold a lock on a database's files, if Linux shows them; empty: unknown."""
    found = sorted(set(_lock_owners(path)))
    return ", ".join(f"process {pid}{_command(pid)} holds it" for pid in found)


def _lock_owners(path: Path) -> Iterator[int]:
    files = {}
    for suffix in ("", "-shm"):
        try:
            stat = os.stat(f"{path}{suffix}")
        except OSError:
            continue
        files[stat.st_ino] = suffix
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:  # 1: POSIX  ADVISORY  WRITE 4711 fe:00:123 120 120
        fields = line.split()
        if "->" in fields or len(fields) < 7:
            continue  # one that waits
        kind, pid, inode = fields[3], fields[4], fields[5].rpartition(":")[2]
        is_write = kind == "WRITE"
        if is_write and pid.isdigit() and int(inode) in files and int(pid) > 0:
            yield int(pid)


def _command(pid: int) -> str:
    """Return the command line of a process, in brackets."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = " ".join(word.decode(errors="replace") for word in words if word)
    return f" ({text[:80]})" if text else ""
