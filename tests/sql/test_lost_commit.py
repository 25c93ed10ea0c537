"""A connection that is lost, in the COMMIT above all: what became of it is asked, not guessed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from bolts.sql import SqlBolt
from demos.postgres import PASSWORD, PostgresServer, find_programs, postgres_server
from downspout.errors import SinkError
from downspout.kafka import TopicPartition
from downspout.offsets import LostError
from downspout.offsets.stores import postgres
from downspout.spout import OffsetStoreError, StoreContext, StoredOffset, open_store
from tests.sql.databases import CREATE, FIELDS, TestDatabase, make, postgres_database, process, tup, wait
from tests.waiting import eventually


@pytest.fixture
def served(postgres: PostgresServer) -> TestDatabase:
    database = postgres_database(postgres)
    database.execute(CREATE)
    return database


@pytest.fixture
def own_server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    programs = find_programs()
    assert programs is not None  # the other one runs
    with postgres_server(programs) as server:
        yield server


def committed_unheard(bolt: Any, again: Callable[[], None]) -> None:
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


class Hasty(SqlBolt):
    """Waits for a lock only briefly."""

    lock_wait_s = 0.05


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
            raise LostError(served.url, "has not answered", "the connection is lost", "")
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
    """Where an end is wanted it comes after that time, says which server, and has acked nothing."""
    bolt = make(served, sql__outage_s_max=60.0)

    def lost() -> None:
        raise LostError(served.url, "has not answered", "it is gone", "start it")

    bolt.writer.database.begin = lost
    bolt.process(tup(0))
    with pytest.raises(SinkError, match=rf"{served.url} has not answered \(it is gone\), for 6\d s. Try: start it"):
        wait(bolt, 600)
    assert (bolt.acked, bolt.failed) == ([], {})


def test_a_server_that_was_stopped_is_waited_for(own_server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """A server that is away for minutes, and begins again, costs nothing but the time; a start waits for it too."""
    served = postgres_database(own_server)
    served.execute(CREATE)
    bolt = make(served)
    process(bolt, tup(0))
    own_server.stop()
    process(bolt, tup(1, "b"))
    wait(bolt, 300)
    assert (bolt.acked, bolt.failed, bolt.is_waiting()) == (["0"], {}, True)
    assert 5 <= len(caplog.messages) <= 6
    assert all(f"{served.url} has not answered since" in each for each in caplog.messages)
    sleep = bolt.clock.sleep

    def and_begins(seconds: float) -> None:
        if own_server.process is None:
            own_server.start()
        sleep(seconds)

    bolt.clock.sleep = and_begins
    other = make(served, name="sink", task_id=4, clock=bolt.clock)
    wait(bolt, 10)
    process(other, tup(2, "c"))
    assert bolt.acked == ["0", "1"]
    assert [word for word, *_ in served.words()] == ["a", "b", "c"]


def test_what_another_holds_is_waited_for_and_named(served: TestDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """A lock that lasts is waited for; a line says which session holds it, for how long, and what it did."""
    bolt = make(served, cls=Hasty)
    with served.connected() as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO words VALUES ('x', 1, NULL)")
        other.execute("LOCK TABLE words IN ACCESS EXCLUSIVE MODE")
        bolt.process(tup(0))
        wait(bolt, 20)
        (line,) = caplog.messages
        assert f"{served.url} has been locked since" in line
        assert re.search(rf"process {other.info.backend_pid} \(unnamed, idle in transaction for \d s: LOCK", line)
        other.execute("ROLLBACK")
    assert (bolt.acked, bolt.failed) == ([], {})
    wait(bolt, 10)
    assert [word for word, *_ in served.words()] == ["a"]


# --- one of us that is frozen ---


INSERT = "INSERT INTO words VALUES (%s, 1, NULL)"


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "IDLE_S", 1)


def frozen_between_statements(database: Any, meanwhile: Callable[[], object]) -> None:
    """It has written its rows, and stands still before the commit."""
    database.run_many(INSERT, [("lost",)] * 100)
    meanwhile()


def frozen_while_it_sends(database: Any, meanwhile: Callable[[], object]) -> None:
    """It stands still between two of its rows, so that its session looks busy."""

    def rows() -> Iterator[tuple[str]]:
        yield from [("lost",)] * 5_000  # more than are gathered before they are sent
        meanwhile()
        yield ("lost",)

    database.run_many(INSERT, rows())


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("freeze", [frozen_between_statements, frozen_while_it_sends])
def test_a_writer_that_is_frozen_in_its_transaction_stops_nobody(
    served: TestDatabase, freeze: Callable[[Any, Callable[[], object]], None]
) -> None:
    """Its session is ended, so that the others go on; when it wakes up, its rows are written, once."""
    frozen, healthy = make(served), make(served, task_id=4, cls=Hasty)
    process(frozen, tup(0))
    wait(healthy, 0)
    real = frozen.writer.insert_rows

    def stand_still(rows: Any, places: Any) -> None:
        frozen.writer.insert_rows = real
        healthy.process(tup(2, "c"))
        freeze(frozen.writer.database, lambda: eventually(lambda: wait(healthy, 5) or healthy.acked, every_s=0.1))
        real(rows, places)

    frozen.writer.insert_rows = stand_still
    process(frozen, tup(1, "b"))
    wait(frozen, 5)
    assert healthy.acked == ["2"]
    assert frozen.acked == ["0", "1"]
    assert [word for word, *_ in served.words()] == ["a", "b", "c"]


def test_the_server_looks_whether_our_machine_is_there(served: TestDatabase) -> None:
    """A machine that is gone keeps its locks for half a minute, and not for two hours."""
    bolt = make(served)
    shown = [bolt.writer.database.run(f"SHOW tcp_keepalives_{name}")[0][0] for name in ("idle", "interval", "count")]
    assert shown == ["10", "5", "3"]


def test_a_statement_that_waits_says_for_whom(served: TestDatabase) -> None:
    """While a statement waits, another thread learns which session keeps it, if any does."""
    bolt = make(served)
    database = bolt.writer.database
    assert database.waits_for() is None
    with served.connected() as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE words IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=process, args=(bolt, tup(0)))
        thread.start()
        state, why = eventually(database.waits_for)
        assert state == "has been locked"
        assert why.startswith(f"process {other.info.backend_pid} (unnamed, idle in transaction")
        other.execute("ROLLBACK")
        thread.join(30)
    assert bolt.acked == ["0"]


def test_offsets_that_another_session_holds_are_waited_for_and_told(
    served: TestDatabase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset store has the same bounds and the same lines; its error says that it passes."""
    monkeypatch.setattr("downspout.outages.SOON_S", 0.0)
    monkeypatch.setattr("downspout.offsets.stores.sql.WAIT_S", 0.1)
    offsets = {TopicPartition("lines", 0): StoredOffset(7, "", 1)}
    with (
        closing(open_store(served.url, StoreContext("lines", password=PASSWORD))) as store,
        served.connected() as other,
    ):
        store.claim(offsets)
        other.execute("BEGIN")
        other.execute("SELECT * FROM downspout_offsets FOR UPDATE")
        with pytest.raises(OffsetStoreError) as caught:
            store.store(offsets)
        assert caught.value.passes
        (line,) = caplog.messages
        assert re.search(rf"{served.url} has been locked since .*process {other.info.backend_pid} \(unnamed", line)
        assert line.endswith("; group lines waits for it and goes on when it can be used again")
        other.execute("ROLLBACK")
        store.store(offsets)
    assert "can be used again" in caplog.messages[-1]
