"""The processes: `downspout run --member N`, started, stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from downspout.system import process

ROOT = Path(__file__).parents[2]
ENDS_S_MAX = 60.0
EMITS = ("auto", "record", "chunk", "mixed")
"""Emit modes: the same in all processes (auto: the topology's, here chunks), or mixed: each process alternates between
the modes from life to life, and processes with neighbouring numbers have different modes."""
GOOD_ENDS = (-signal.SIGKILL, 128 + signal.SIGTERM, 0)


class Process:
    """One life of a member."""

    def __init__(self, number: int, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.number = number
        self.log = log
        self.started = time.monotonic()
        self.expected_to_end = False
        self.is_stopped = False
        with log.open("ab") as out:
            # Its own session, so that Ctrl-C reaches only us; we end it.
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._watchdog = process.start_watchdog(self.pid, process.birth(self.pid) or "")

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal."""
        if self.exit_code is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it by kill -9, and wait until it is gone."""
        self.expected_to_end = True
        self.send(signal.SIGKILL)
        self._process.wait()
        process.stop_watchdog(self._watchdog)

    def stop(self) -> None:
        """Freeze it."""
        self.send(signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        """Undo :meth:`stop`."""
        self.send(signal.SIGCONT)
        self.is_stopped = False

    def ask_to_end(self) -> None:
        """Ask it to drain and leave the group."""
        self.expected_to_end = True
        self.send(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it has ended; kill it at the timeout."""
        try:
            code = self._process.wait(ENDS_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -signal.SIGKILL
        process.stop_watchdog(self._watchdog)
        return code


class Members:
    """The processes of a group, by their member numbers.

    Args:
        folder: for logs and state; the output directory is in it.
        topology: what they run.
        settings: ``--set`` options.
        environment: what their environment has besides ours.
        emit: one of :data:`EMITS`.
    """

    def __init__(
        self,
        folder: Path,
        topology: str,
        settings: Mapping[str, object],
        environment: Mapping[str, str],
        emit: str = "record",
    ) -> None:
        self._folder = folder
        self._topology = topology
        self._settings = dict(settings)
        self._emit = emit
        self._lives: Counter[int] = Counter()
        self.lives: Counter[str] = Counter()
        """Number of processes started in each mode."""
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DOWNSPOUT_HOME": str(folder / "home"),
            **environment,
        }
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self.alive: dict[int, Process] = {}
        self.fallen: list[str] = []
        """Processes that ended unasked, with their last log lines."""

    def log(self, number: int) -> Path:
        """Return the log of a member."""
        return self._folder / "logs" / f"member-{number}.log"

    def start(self, number: int) -> Process:
        """Start a member whose previous process has been reaped."""
        assert number not in self.alive
        command = [sys.executable, "-m", "downspout", "run", self._topology, "--member", str(number)]
        for key, value in {**self._settings, "kafka.emit": self.mode(number)}.items():
            command += ["--set", f"{key}={value}"]
        self.alive[number] = Process(number, command, self.environment, self.log(number))
        return self.alive[number]

    def mode(self, number: int) -> str:
        """Return the emit mode of a member's next process."""
        self._lives[number] += 1
        mode = ("record", "chunk")[(number + self._lives[number]) % 2] if self._emit == "mixed" else self._emit
        self.lives[mode] += 1
        return mode

    def reap(self) -> list[int]:
        """Forget ended processes; return the numbers of those that ended unasked."""
        ended = [member for member in self.alive.values() if member.exit_code is not None]
        fallen = []
        for member in ended:
            code = member.wait()
            del self.alive[member.number]
            if not member.expected_to_end or code not in GOOD_ENDS:
                self.fallen.append(f"member {member.number} ended with {code}: {last_words(member.log)}")
            if not member.expected_to_end:
                fallen.append(member.number)
        return fallen

    def end(self) -> list[int]:
        """End all in order; return their exit codes."""
        members = list(self.alive.values())
        for member in members:
            member.go_on()
            member.ask_to_end()
        codes = [member.wait() for member in members]
        self.reap()
        return codes

    def kill(self) -> None:
        """Kill all."""
        for member in self.alive.values():
            member.kill()
        self.alive.clear()


def last_words(log: Path, count: int = 3) -> str:
    """Return the end of a log in one line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-count:])


def said(log: Path, what: str) -> list[str]:
    """Return the lines of a log that hold a text."""
    if not log.exists():
        return []
    return [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if what in line]
