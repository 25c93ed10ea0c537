"""Runs a topology in a separate process that is killed while it writes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demos.screen import Screen
from downspout.errors import ComponentError
from downspout.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_S = 0.02
START_S_MAX = 150.0


@dataclass
class KilledRun:
    """A run that is restarted until it reaches the end."""

    target: str
    settings: Iterable[str]  # ``key=value``
    log: Path
    written: Callable[[], int]  # returns the amount written so far
    screen: Screen
    environment: Mapping[str, str] | None = None  # None: this process's
    how: Sequence[str] = ("run",)  # the command
    options: Sequence[str] = ()  # more of its options

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the process; kill it at the end of the context if it still runs."""
        command = [sys.executable, "-m", "downspout", *self.how, self.target, "--until", "end", "--quiet"]
        command += self.options
        command += [f"--set={setting}" for setting in self.settings]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def wait_for_records(self, process: subprocess.Popen[bytes], count: int) -> bool:
        """Wait until the run has written this many records; return False if it has ended."""
        first = self.written()
        return self.wait_for(process, lambda: self.written() - first >= count)

    def wait_for(self, process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds; return False if the run ends first."""
        until = time.monotonic() + START_S_MAX
        while not condition():
            if process.poll() is not None:
                self.check(process)
                return False
            if time.monotonic() > until:
                raise ComponentError(
                    f"nothing is written, or committed, after {START_S_MAX:g} s", cure=f"read {self.log}"
                )
            time.sleep(LOOK_S)
        return True

    def wait_for_the_end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the run has reached the end of the flights."""
        with self.screen.busy("running to the end"):
            process.wait()
        self.check(process)

    def check(self, process: subprocess.Popen[bytes]) -> None:
        """Raise if the run failed."""
        if process.returncode != 0:
            lines = self.log.read_text(encoding="utf-8").splitlines()[-20:]
            raise ComponentError("\n".join(["downspout run failed:", *lines]), cure="read the lines above")


def kill_again_and_again(
    run: KilledRun,
    kills: int,
    size: Callable[[], int],
    after: Callable[[int], None],
    pause_s: Callable[[], float] = lambda: 0.0,
) -> int:
    """Kill a run repeatedly while it writes, then let it finish; return the number of kills.

    There are fewer kills if it finishes earlier.

    Args:
        run: the run.
        kills: number of kills.
        size: amount to write before the next kill.
        after: called after each kill, with the number of the process.
        pause_s: delay of the kill, so that it hits any point between or during commits.
    """
    for done in range(kills):
        with run.process() as process:
            if not run.wait_for_records(process, size()):
                return done
            time.sleep(pause_s())
            if process.poll() is not None:
                return done
            process.kill()
            process.wait()
            after(process.pid)
    with run.process() as process:
        run.wait_for_the_end(process)
    return kills


def count_of(kills: int, wanted: int, when: str = "") -> str:
    """Describe the number of kills.

    >>> count_of(5, 5), count_of(3, 5)
    ('5 kills', '3 kills of 5: after that all was written')
    """
    return f"{counted(kills, 'kill')}{when}" + ("" if kills == wanted else f" of {wanted}: after that all was written")
