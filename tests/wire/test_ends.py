"""How a component ends: processes, their signals, and what they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import streamparse

from downspout.wire import EXIT_S_MAX, MultilangComponent
from tests.wire.storm_pipe import Storm, handshake

SUPERVISORS_PATIENCE_S = 3.0
"""Storm's supervisor.worker.shutdown.sleep.secs: SIGKILL comes so long after SIGTERM."""


class Stubborn(MultilangComponent, streamparse.Spout):
    outputs: ClassVar = ["n"]

    def before_exit(self) -> None:
        sys.stderr.write("hanging\n")
        sys.stderr.flush()
        time.sleep(3600)

    def next_tuple(self) -> None:
        pass


class Chatty(MultilangComponent, streamparse.Spout):
    """Prints, and lets others print, in between its tuples."""

    outputs: ClassVar = ["n"]

    def next_tuple(self) -> None:
        print("printed by Python")
        os.write(1, b"written to stdout by a library\n")
        subprocess.run([sys.executable, "-c", "import sys; print('by a program', repr(sys.stdin.read()))"], check=True)
        self.emit([1])


class Leaving(MultilangComponent, streamparse.TicklessBatchingBolt):
    secs_between_batches = 0.05

    def process_batch(self, key: Any, tups: Any) -> None:
        sys.exit("boom")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Start components of this file; they are killed at the end of the test if they still run."""
    storms: list[Storm] = []

    def start(name: str) -> Storm:
        hello = handshake(tmp_path, {"pystorm.log.level": "info"}, {"stream->outputfields": {"default": ["n"]}})
        storms.append(Storm(f"tests.wire.test_ends.{name}", hello))
        return storms[-1]

    yield start
    for storm in storms:
        if storm.process.poll() is None:
            storm.process.kill()
        storm.process.communicate()


@pytest.mark.slow
def test_the_last_work_is_bounded(started: Any) -> None:
    """A component whose last work hangs is gone before the supervisor loses its patience: a bound, not a hope."""
    assert EXIT_S_MAX < SUPERVISORS_PATIENCE_S
    storm = started("Stubborn")
    storm.ask("activate")
    storm.process.send_signal(signal.SIGTERM)
    assert storm.process.wait(120) == 2
    assert b"hanging" in storm.process.stderr.read()  # Storm takes no message by then


@pytest.mark.slow
def test_a_second_sigterm_ends_at_once(started: Any) -> None:
    """Whoever asks twice does not wait for the last work."""
    storm = started("Stubborn")
    storm.ask("activate")
    storm.process.send_signal(signal.SIGTERM)
    assert storm.process.stderr.readline() == b"hanging\n"
    storm.process.send_signal(signal.SIGTERM)
    assert storm.process.wait(120) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_what_is_printed_never_comes_between_messages(started: Any) -> None:
    """What is printed, and what libraries and programs write, is logged in Storm; no other reads Storm's commands."""
    storm = started("Chatty")
    storm.ask("activate")
    storm.send({"command": "next", "id": ""})
    missing = {"sync", "printed by Python", "written to stdout by a library", "by a program ''"}

    def is_all(message: Any) -> bool:
        said = f"{message.get('command')} {message.get('msg')}"
        missing.difference_update([each for each in missing if each in said])
        return not missing

    heard = storm.until(is_all)
    assert [message["tuple"] for message in heard if message.get("command") == "emit"] == [[1]]
    assert storm.ask("next")


@pytest.mark.slow
def test_an_exit_in_the_timers_thread_fails_the_batch(started: Any) -> None:
    """sys.exit on a TicklessBatchingBolt's thread: its traceback reaches Storm, the batch fails, exit code 1."""
    storm = started("Leaving")
    storm.send({"id": "7", "comp": "spout", "stream": "default", "task": 1, "tuple": [1]})
    heard = storm.until(lambda message: message.get("command") == "fail")
    assert heard[-1]["id"] == "7"
    error = next(message["msg"] for message in heard if message.get("command") == "error")
    assert "SystemExit: boom" in error
    assert "in process_batch" in error
    assert storm.process.wait(120) == 1
