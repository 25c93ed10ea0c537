"""The demo of batches, with few records; the topologies run in this process, and die in a COMMIT or after one."""

from __future__ import annotations

import io
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from demos import batch_engines, to_batches
from demos.screen import Screen
from demos.to_batches import BatchDemo
from tests.spout.spout_driver import Kafka
from tests.topologies.test_demo_sql import RunHere

pytestmark = pytest.mark.fake_only("a process that dies in a COMMIT; `make batch-demo` itself has a broker")
FLIGHTS, KILLS = 400, 2
LINES = ["to be or not to be", "that is the question", "", "to be"] * 20


@pytest.fixture
def demo(bare_kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> BatchDemo:
    monkeypatch.setattr(batch_engines, "KilledRun", RunHere)
    monkeypatch.setattr(to_batches, "project_lines", lambda: LINES)
    monkeypatch.setattr(to_batches, "REPEATS", 1)
    monkeypatch.setattr(to_batches, "HITS_SHARE", 0.0)  # deaths in and after any COMMIT are also some between batches
    monkeypatch.setattr(batch_engines, "QUICK_S_MAX", 0.0)  # the process is dead when the demo waits for a batch
    monkeypatch.setattr("demos.shared.jars.resolve", lambda *given, **options: None)
    made = BatchDemo(FLIGHTS, KILLS, Screen(Console(file=io.StringIO(), width=200)), engines=["local"])
    made.kafka = SimpleNamespace(  # type: ignore[assignment]   # what the demo needs of a broker
        bootstrap=bare_kafka.bootstrap, start=lambda progress: None, stop=lambda: None
    )
    return made


def said(demo: BatchDemo) -> str:
    file = demo.screen.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_demo_finds_all_right(demo: BatchDemo) -> None:
    """Killed twice each, words and flights are exact in both kinds of batches, and stand beside the plain count."""
    assert demo.run() == 0, said(demo)
    for kind in ("opaque", "transactional"):
        assert f"✓ local {kind}, words: {KILLS} kills, " in said(demo)
    # What the last life says of itself, in its --json
    assert re.search(r"\[0\]: committed [1-9][\d,]* of [\d,]+, lag 0; [\d,]+ records in [\d,]+ fetch", said(demo))
    assert "8 keys of 80 records equal a plain count" in said(demo)
    assert f"keys of {FLIGHTS} records equal a plain count" in said(demo)
    assert " ".join(said(demo).split()).count("to 60 60 60") == 1


@pytest.mark.sweep
def test_the_demo_finds_a_count_that_is_wrong(demo: BatchDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that cannot fail would show nothing."""
    real = RunHere.wait_for_the_end

    def spoilt(self: RunHere, process: Any) -> None:
        real(self, process)
        path = next(each for each in self.arguments if "state.store" in each).partition("sqlite:///")[2]
        with closing(sqlite3.connect(Path(path))) as connection, connection:
            connection.execute("UPDATE downspout_state SET value = '[9,99,1]' WHERE key = '[\"to\"]'")

    monkeypatch.setattr(RunHere, "wait_for_the_end", spoilt)
    assert demo.run() == 1
    assert "✗ " in said(demo)
    assert "differ from a plain count in 1 keys" in said(demo)
