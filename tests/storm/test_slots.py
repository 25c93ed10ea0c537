"""Slots whose workers fail to launch, told from the supervisor's log and the processes of this machine."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.storm import show, stuck_slots
from tests.command import PYTHON

LAUNCH = "2026-11-29 12:00:0{n}.000 {level}  Slot [SLOT_{port}] {what}\n"
FAILED = "SLOT {port}: Container 7c1f-rows-1-17 failed to launch in 45000 ms."
RUNNING = "STATE waiting-for-worker-start msInState: 4004 topo:rows-1-17 worker:7c1f -> STATE RUNNING msInState: 0"


def log_of(folder: Path, *events: tuple[int, str]) -> Path:
    """Write a supervisor's log with what happened to slots, one after the other."""
    log = folder / "supervisor.log"
    lines = [
        LAUNCH.format(n=n % 10, level="WARN" if what is FAILED else "INFO", port=port, what=what.format(port=port))
        for n, (port, what) in enumerate(events)
    ]
    log.write_text("".join(lines), encoding="utf-8")
    return log


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A socket that listens at a port."""
    with socket.create_server(("", 0)) as listening:
        yield listening


def test_the_worker_that_has_the_slots_port_is_named(tmp_path: Path, taken: socket.socket) -> None:
    """A worker from before, which the supervisor no longer knows, is named with what ends it; its writer is not it."""
    port = taken.getsockname()[1]
    worker = ["-Dworker.id=1", f"-Dworker.port={port}", "-x", "org.apache.storm.daemon.worker.Worker", "rows-1-17", "s"]
    waits = [PYTHON, "-c", "import sys; sys.stdin.read()"]
    words = [*waits, "org.apache.storm.LogWriter", *worker], [*waits, *worker]
    started = [subprocess.Popen(each, stdin=subprocess.PIPE, pass_fds=[taken.fileno()]) for each in words]
    try:
        log = log_of(tmp_path, (port, FAILED), (port, FAILED))
        (slot,) = stuck_slots(log)
        assert str(slot) == (
            f"slot {port}: its worker failed to launch 2 times in a row; process {started[1].pid}, a worker from "
            f"before, has its port. Try: kill {started[1].pid}"
        )
        assert str(slot) in show(tmp_path)
    finally:
        for process in started:
            process.communicate()


def test_a_slot_whose_worker_runs_is_fine(tmp_path: Path, taken: socket.socket) -> None:
    """What failed before a worker came up is past; another slot's worker says nothing of this one."""
    port, free = taken.getsockname()[1], 1
    assert stuck_slots(log_of(tmp_path, (port, FAILED), (port, RUNNING))) == []
    found = stuck_slots(log_of(tmp_path, (port, FAILED), (free, FAILED), (port, RUNNING), (port, FAILED)))
    assert [(each.port, each.failures, each.holder) for each in found] == [(free, 1, None), (port, 1, None)]
    assert "another process has its port" in str(found[1])


def test_without_a_log_no_slot_is_stuck(tmp_path: Path) -> None:
    """A node that never ran has none."""
    assert stuck_slots(tmp_path / "supervisor.log") == []
