"""Slots whose workers fail to launch, detected from the supervisor's log and the processes."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.storm import show, stuck_slots
from tests.command import PYTHON

WAITING, RUNNING, EMPTY = "waiting-for-worker-start", "running", "empty"


def failed(port: int, worker: str = "7c1f") -> str:
    """Return what Storm's supervisor logs of a worker that did not come up, as of Storm 2.8.3."""
    said = f"Container topo:rows-1-17 worker:{worker} failed to launch in 45000 ms."
    return f"2026-11-29 12:43:12.851 WARN  Slot [SLOT_{port}] SLOT {port}: {said}\n"


def state(port: int, name: str, worker: str = "7c1f") -> str:
    what = f"{name} msInState: 1" + (f" topo:rows-1-17 worker:{worker}" if name != EMPTY else "")
    return f"2026-11-29 12:43:52.247 INFO  Slot [SLOT_{port}] STATE kill-and-relaunch msInState: 9 topo:x -> {what}\n"


def log_of(folder: Path, *lines: str) -> Path:
    log = folder / "supervisor.log"
    log.write_text("".join(lines), encoding="utf-8")
    return log


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.create_server(("", 0)) as listening:
        yield listening


def test_the_process_that_has_the_slots_port_is_named(tmp_path: Path, taken: socket.socket) -> None:
    """With what it is and what ends it, unless it is the worker that is being started.

    A worker that looks like it and does not listen is not in the way.
    """
    port = taken.getsockname()[1]
    words = [PYTHON, "-c", "import sys; sys.stdin.read()", "-Dstorm.id=rows-1-17", f"-Dworker.port={port}"]
    one = subprocess.Popen([*words, "-Dworker.id=old"], stdin=subprocess.PIPE, pass_fds=[taken.fileno()])
    other = subprocess.Popen([*words, "-Dworker.id=new"], stdin=subprocess.PIPE)
    try:
        taken.close()  # the one that has it is the child
        log = log_of(tmp_path, failed(port), failed(port), state(port, WAITING, "new"))
        (slot,) = stuck_slots(log)
        assert str(slot) == (
            f"slot {port}: its worker failed to launch 2 times in a row; process {one.pid} (a worker of rows-1-17) has "
            f"its port. Try: kill {one.pid}"
        )
        assert str(slot) in show(tmp_path)
        assert stuck_slots(log_of(tmp_path, failed(port), state(port, WAITING, "old"))) == []
    finally:
        for process in (one, other):
            process.communicate()
    (slot,) = stuck_slots(log_of(tmp_path, failed(port)))
    assert str(slot) == (
        f"slot {port}: its worker failed to launch once. Try: `downspout storm logs`, which has the worker's own log"
    )


def test_a_slot_whose_worker_runs_is_fine(tmp_path: Path) -> None:
    """What failed before a worker came up, or the slot became empty, is past; each slot for itself."""
    assert stuck_slots(log_of(tmp_path, failed(1), state(1, RUNNING))) == []
    assert stuck_slots(log_of(tmp_path, failed(1), state(1, EMPTY))) == []
    found = stuck_slots(log_of(tmp_path, failed(1), failed(2), state(1, RUNNING), failed(1), state(1, WAITING)))
    assert [(each.port, each.failures, each.holder) for each in found] == [(1, 1, None), (2, 1, None)]


def test_without_a_log_no_slot_is_stuck(tmp_path: Path) -> None:
    assert stuck_slots(tmp_path / "supervisor.log") == []
