"""A connection that is lost, in the COMMIT above all: what became of it is asked, not guessed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from demos.postgres import PostgresServer
from downspout.errors import SinkError
from downspout.offsets import LostError
from tests.sql.databases import CREATE, FIELDS, TestDatabase, make, postgres_database, process, tup


@pytest.fixture
def served(postgres: PostgresServer) -> TestDatabase:
    """A new database of the server, with the table."""
    database = postgres_database(postgres)
    database.execute(CREATE)
    return database


def committed_unheard(bolt: Any, again: Callable[[], None]) -> None:
    """The server commits, and its answer is lost."""
    again()
    bolt.writer.database.close()


def never_arrived(bolt: Any, again: Callable[[], None]) -> None:
    """The connection is lost before the server hears of the COMMIT."""
    bolt.writer.database.close()


def on_its_way(bolt: Any, again: Callable[[], None]) -> None:
    """The connection is lost to us, and the server commits only after we have asked."""
    database = bolt.writer.database
    old, database._connection = database._connection, None
    asked = threading.Event()
    real = database.begin

    def begin() -> None:
        real()
        asked.set()
        database.begin = real

    def commit_late() -> None:
        asked.wait(30)
        # Whoever asks has begun; it may have looked into the log already, and cannot get past it before this.
        old.execute("COMMIT")
        old.close()

    database.begin = begin
    thread = threading.Thread(target=commit_late)
    thread.start()
    bolt.threads = [thread]


@pytest.mark.parametrize("how", [committed_unheard, never_arrived, on_its_way])
@pytest.mark.parametrize("with_origin", [True, False])
def test_a_commit_without_an_answer_is_asked_about(
    served: TestDatabase, how: Callable[[Any, Any], None], with_origin: bool
) -> None:
    """Whether the server has committed or not, each row is there once, also those that no origin tells apart."""
    bolt = make(served, fields=FIELDS if with_origin else FIELDS[1:])
    real = bolt.writer.database.commit
    calls: list[int] = []

    def commit() -> None:
        calls.append(1)
        if len(calls) == 1:
            how(bolt, real)
            raise LostError("the connection is lost")
        real()

    bolt.writer.database.commit = commit
    first, second = tup(0), tup(1, "b")
    if not with_origin:
        first, second = (one._replace(values=one.values[1:]) for one in (first, second))
    process(bolt, first, second)
    for thread in getattr(bolt, "threads", ()):
        thread.join(30)
    assert [word for word, *_ in served.words()] == ["a", "b"]
    assert bolt.acked == ["0", "1"]
    assert len(calls) == (2 if how is never_arrived else 1)


def test_a_backend_that_is_ended_in_the_middle_is_reached_again(served: TestDatabase) -> None:
    """A server that ends our connection between two flushes, or within one, costs nothing but the time."""
    bolt = make(served)
    process(bolt, tup(0))
    assert served.server is not None

    def end_ours() -> None:
        served.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'downspout' "
            "AND datname = current_database()"
        )

    end_ours()
    process(bolt, tup(1, "b"))
    real = bolt.writer.database.run_many
    endings: list[int] = []

    def run_many(*given: Any) -> None:
        real(*given)
        if not endings:
            endings.append(1)
            end_ours()

    bolt.writer.database.run_many = run_many
    process(bolt, tup(2, "c"))
    assert [word for word, *_ in served.words()] == ["a", "b", "c"]
    assert bolt.acked == ["0", "1", "2"]


def test_a_server_that_stays_away_is_an_error(served: TestDatabase) -> None:
    """After the time that is allowed the flush fails, says which server, and has acked nothing."""
    bolt = make(served, sql__reconnect_s=1.0)

    def lost() -> None:
        raise LostError(f"{served.url}: it is gone", "start it")

    bolt.writer.database.begin = lost
    bolt.process(tup(0))
    with pytest.raises(SinkError, match=r"it is gone; nothing of this flush was acked.*start it"):
        bolt.drain()
    assert bolt.acked == []


def test_what_another_holds_is_waited_for_and_named(served: TestDatabase) -> None:
    """A lock that lasts is an error that names the process which holds it, and what that does."""
    bolt = make(served, sql__lock_wait_s=0.2)
    with served.connected() as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO words VALUES ('x', 1, NULL)")
        other.execute("LOCK TABLE words IN ACCESS EXCLUSIVE MODE")
        bolt.process(tup(0))
        with pytest.raises(SinkError, match=rf"is locked, and was for 0.2 s: process {other.info.backend_pid} \("):
            bolt.drain()
        other.execute("ROLLBACK")
    assert bolt.acked == []
    process(bolt, tup(0))
    assert [word for word, *_ in served.words()] == ["a"]
