"""The demo into SQLite, with few flights; the topology runs in this process, and dies in a COMMIT or after one."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from demos import drill, to_sql
from demos.screen import Screen
from demos.to_sql import SqlDemo
from downspout.cli import main
from downspout.offsets import SqliteDatabase
from downspout.testing import Killed
from tests.spout.spout_driver import Kafka

pytestmark = pytest.mark.fake_only("a process that dies in a COMMIT; `make sql-demo` itself has a broker")
FLIGHTS, KILLS = 600, 2


class RunHere:
    """Runs a topology in this process; each that is killed dies in another way."""

    def __init__(
        self, target: str, settings: Iterable[str], log: Path, written: Callable[[], int], screen: Screen, *_: object,
        options: Iterable[str] = (),
    ) -> None:  # fmt: skip
        given = *options, *(f"--set={each}" for each in settings)
        self.arguments = ["run", target, "--until", "end", "--quiet", *given]
        self.written, self.before_commit = written, itertools.cycle([True, False])

    @contextmanager
    def process(self) -> Iterator[Any]:
        yield SimpleNamespace(pid=0, poll=lambda: None, kill=lambda: None, wait=lambda: None)

    def wait_for_records(self, process: Any, count: int) -> bool:
        """Run until so many rows are written, and die then; return False if it came to the end."""
        first, is_early, dead = self.written(), next(self.before_commit), False
        real = {name: getattr(SqliteDatabase, name) for name in ("commit", "run", "run_many")}

        def commit(database: Any) -> None:
            nonlocal dead
            if is_early and self.written() - first >= count:
                dead = True
                database.close()  # the system closes the files of the dead, and nothing was committed
                raise Killed
            real["commit"](database)
            if not is_early and self.written() - first >= count:
                dead = True
                raise Killed

        def step(name: str) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                if dead:
                    raise Killed
                return real[name](*given)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name, stepped in {"commit": commit, "run": step("run"), "run_many": step("run_many")}.items():
                patch.setattr(SqliteDatabase, name, stepped)
            try:
                assert main(self.arguments) == 0
            except Killed:
                return True
        return False

    def wait_for_the_end(self, process: Any) -> None:
        assert main(self.arguments) == 0


@pytest.fixture
def demo(bare_kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> SqlDemo:
    monkeypatch.setattr(drill, "KilledRun", RunHere)
    monkeypatch.setattr(to_sql, "find_programs", lambda: None)
    monkeypatch.setattr("demos.shared.jars.resolve", lambda *given, **options: None)
    made = SqlDemo(FLIGHTS, KILLS, Screen(Console(file=io.StringIO(), width=200)))
    made.kafka = SimpleNamespace(  # type: ignore[assignment]   # what the demo needs of a broker
        bootstrap=bare_kafka.bootstrap, start=lambda progress: None, stop=lambda: None
    )
    return made


def said(demo: SqlDemo) -> str:
    file = demo.screen.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_demo_finds_all_right(demo: SqlDemo) -> None:
    """Killed twice, rows, sums and offsets are exact, and PostgreSQL is left out with a word."""
    assert demo.run() == 0, said(demo)
    assert f"✓ {KILLS} kills, " in said(demo)
    assert f"✓ {FLIGHTS} rows of {FLIGHTS} records are in SQLite, for {FLIGHTS} flights" in said(demo)
    assert "✗" not in said(demo)
    assert "PostgreSQL is not installed" in said(demo)


def test_the_demo_finds_a_row_that_is_wrong(demo: SqlDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that cannot fail would show nothing."""
    real = RunHere.wait_for_the_end

    def spoilt(self: RunHere, process: Any) -> None:
        real(self, process)
        with SqliteDatabase(f"sqlite:///{(demo.folder / 'flights.db').absolute()}", "sql.database", 1.0)._open() as it:
            it.execute("DELETE FROM flights WHERE rowid = 7")

    monkeypatch.setattr(RunHere, "wait_for_the_end", spoilt)
    assert demo.run() == 1
    assert "✗ 599 rows of 599 records" in said(demo)
    assert "✗ counts and sums" in said(demo)
