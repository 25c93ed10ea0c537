"""The meaning of PostgreSQL's errors by code, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from downspout.offsets import DatabaseError, LostError
from downspout.offsets.stores.database import TakenError, ValueRefusedError
from downspout.offsets.stores.postgres import PostgresDatabase
from downspout.testing import VirtualClock
from tests.sql.databases import CREATE, TestDatabase, make, process, tup

ERRORS = psycopg.errors


def kind(error: Exception) -> DatabaseError:
    database: Any = PostgresDatabase("postgresql://me@db/x", None, 1.0)
    database._connection = SimpleNamespace(closed=False, close=lambda: None)
    found: DatabaseError = database._error(error)
    return found


@pytest.mark.parametrize(
    "error",
    [
        ERRORS.NumericValueOutOfRange("smallint out of range"),
        ERRORS.CheckViolation("violates check constraint"),
        ERRORS.ProgramLimitExceeded("index row size 2800 exceeds btree version 4 maximum 2704 for index"),
        ERRORS.RaiseException("a trigger does not want it"),
        ERRORS.WithCheckOptionViolation("new row violates check option for view"),
        psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
    ],
)
def test_what_is_the_matter_with_a_row_refuses_the_row(error: Exception) -> None:
    """One record must not stop all others: it fails, and is dead-lettered in the end."""
    assert isinstance(kind(error), ValueRefusedError)


def test_a_key_that_is_there_is_told_apart() -> None:
    assert isinstance(kind(ERRORS.UniqueViolation("duplicate key")), TakenError)


@pytest.mark.parametrize("error", [ERRORS.StatementTooComplex("x"), ERRORS.UndefinedTable("x")])
def test_what_is_the_matter_with_the_server_refuses_no_row(error: Exception) -> None:
    assert type(kind(error)) is DatabaseError


@pytest.mark.parametrize("error", [ERRORS.DeadlockDetected("deadlock"), ERRORS.SerializationFailure("again")])
def test_a_transaction_that_was_undone_for_another_is_made_again(sqlite: TestDatabase, error: Exception) -> None:
    """A deadlock with somebody's own statements costs a try, and not the run."""
    found = kind(error)
    assert isinstance(found, LostError)
    sqlite.execute(CREATE)
    bolt = make(sqlite)
    database, undone = bolt.writer.database, [found]
    real = database.run_many

    def run_many(*given: Any) -> None:
        real(*given)
        if undone:
            raise undone.pop()

    database.run_many = run_many
    process(bolt, tup(0), tup(1, "b"))
    assert isinstance(bolt.clock, VirtualClock)
    assert ([word for word, *_ in sqlite.words()], bolt.acked) == (["a", "b"], ["0", "1"])


def test_a_server_that_vanishes_in_a_statement_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent and is not confirmed has a limit; keepalives alone do not count while something is under way."""
    given: dict[str, Any] = {}

    def connect(location: str, **options: Any) -> Any:
        given.update(options)
        raise psycopg.OperationalError("connection timeout expired")

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(LostError):
        PostgresDatabase("postgresql://me@db/x", None, 1.0).run("SELECT 1")
    assert 0 < given["tcp_user_timeout"] <= 60_000
    assert given["connect_timeout"] > 0
