"""The demo of windows, with few flights; the topology runs in this process, and dies before or after an entry."""

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

from demos import drill, to_windows
from demos.screen import Screen
from demos.to_windows import WindowsDemo
from downspout.cli import main
from downspout.sink import CommitLog
from downspout.testing import Killed
from tests.spout.spout_driver import Kafka

pytestmark = pytest.mark.fake_only("a process that dies at an entry of the log; `make windows-demo` has a broker")
FLIGHTS, KILLS = 600, 2


class RunUntilAnEntry:
    """Runs a topology in this process; each that is killed dies before or after it appends an entry."""

    def __init__(
        self, target: str, settings: Iterable[str], log: Path, written: Callable[[], int], screen: Screen, *_: object
    ) -> None:
        self.arguments = ["run", target, "--until", "end", "--quiet", *(f"--set={each}" for each in settings)]
        self.written, self.before = written, itertools.cycle([True, False])

    @contextmanager
    def process(self) -> Iterator[Any]:
        yield SimpleNamespace(pid=0, poll=lambda: None, kill=lambda: None, wait=lambda: None)

    def wait_for_records(self, process: Any, count: int) -> bool:
        """Run until so many flights are written, and die then; return False if it came to the end."""
        first, is_before, real, dead = self.written(), next(self.before), CommitLog.append, False

        def append(log: CommitLog, entry: Any) -> bool:
            nonlocal dead
            dead = dead or self.written() - first >= count
            if dead and is_before:
                raise Killed
            done = real(log, entry)
            if dead:
                raise Killed
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CommitLog, "append", append)
            try:
                assert main(self.arguments) == 0
            except Killed:
                return True
        return False

    def wait_for_the_end(self, process: Any) -> None:
        assert main(self.arguments) == 0


@pytest.fixture
def demo(bare_kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> WindowsDemo:
    monkeypatch.setattr(drill, "KilledRun", RunUntilAnEntry)
    monkeypatch.setattr(to_windows, "FLUSH_S", 0.1)
    monkeypatch.setattr(to_windows, "IDLE_S", 1.0)
    monkeypatch.setattr(to_windows, "FLUSHES", 30)
    monkeypatch.setattr("demos.shared.jars.resolve", lambda *given, **options: None)
    made = WindowsDemo(FLIGHTS, KILLS, Screen(Console(file=io.StringIO(), width=200)))
    made.kafka = SimpleNamespace(  # type: ignore[assignment]   # what the demo needs of a broker
        bootstrap=bare_kafka.bootstrap, start=lambda progress: None, stop=lambda: None
    )
    return made


def said(demo: WindowsDemo) -> str:
    file = demo.screen.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.slow
def test_final_windows_are_those_of_the_flights_and_stay_so(demo: WindowsDemo) -> None:
    """Killed twice, nothing that was final has changed, and DuckDB has the same windows."""
    assert demo.run() == 0, said(demo)
    assert f"✓ {KILLS} kills, " in said(demo)
    assert "; 0 changed" in said(demo)
    assert said(demo).count("equal DuckDB's over the flights") == 2


@pytest.mark.slow
def test_the_demo_finds_a_final_window_that_has_changed(demo: WindowsDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that cannot fail would show nothing."""
    real = to_windows.finished

    def spoilt(directory: Path, key: str) -> Any:
        found = real(directory, key)
        return {window: (*row[:-1], 10_000 + len(demo.looks)) for window, row in found.items()}

    monkeypatch.setattr(to_windows, "finished", spoilt)
    assert demo.run() == 1
    assert "differ from DuckDB's" in said(demo)
