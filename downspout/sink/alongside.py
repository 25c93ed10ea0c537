"""Compaction while a topology runs, in a process that the sink's first task starts from time to time.

It is a process because a compaction needs memory and CPU time, and the sink's task must go on. It may end at any moment
and run beside others (``compact.py``), so nothing waits for it, and it stops with the sink's process. Merged files stay
merged, and the next compaction continues: soon after a sink's start, so that a sink that restarts often compacts too,
and soon after an error.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from downspout.clock import Clock
from downspout.ledger.retry_schedule import Backoff
from downspout.settings.secrets import STORAGE_OPTIONS
from downspout.settings.table import SETTINGS

logger = logging.getLogger("downspout.sink")

NICE = 10
STOP_S_MAX = 10.0
SOON_S = 5.0  # From a sink's start to its first compaction; to the next try after an error, doubled with each in a row


class Alongside:
    """Compacts a directory periodically.

    Args:
        directory: the sink's.
        every_s: seconds from the start of one to the start of the next; less up to the first, and after an error.
        clock: the time source.
        storage_options: how an object store is reached.
    """

    def __init__(self, directory: Path, every_s: float, clock: Clock, storage_options: Sequence[str] = ()) -> None:
        self._directory, self._every_s, self._clock = directory, every_s, clock
        self._options = ",".join(storage_options)
        self._due = clock.monotonic() + min(every_s, SOON_S)
        self._failures = 0  # in a row
        self._backoff = Backoff(int(SOON_S * 1000), int(every_s * 1000))
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    def look(self) -> None:
        """Start a compaction if one is due, and log how the last one ended."""
        if self._process is not None and self._process.poll() is not None:
            self._tell(self._process.returncode)
        now = self._clock.monotonic()
        if now >= self._due and self._process is None:
            self._due = now + self._every_s
            self._start()

    def _start(self) -> None:
        environment: Mapping[str, str] = os.environ
        if self._options:
            environment = {**os.environ, SETTINGS[STORAGE_OPTIONS].env: self._options}
        command = [sys.executable, "-m", "downspout", "compact", str(self._directory)]
        self._said = TemporaryFile()  # noqa: SIM115 - it is closed when the process has ended
        try:
            # A session of its own: Ctrl-C in a terminal is for the run, which ends this process when it ends itself.
            self._process = subprocess.Popen(
                ["nice", "-n", str(NICE), *command], stdin=subprocess.DEVNULL, stdout=self._said,
                stderr=subprocess.STDOUT, start_new_session=True, env=environment,
            )  # fmt: skip
        except OSError as error:
            logger.warning("%s: no compaction could be started: %s", self._directory, error)
            self._said.close()
        else:
            atexit.register(self.stop)

    def _tell(self, code: int) -> None:
        assert self._said is not None  # as long as there is a process
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        self._forget()
        self._failures = self._failures + 1 if code else 0
        if code:
            wait_s = self._backoff.delay(self._failures) / 1000
            self._due = self._clock.monotonic() + wait_s
            said = "; ".join(lines[-3:]) or "it said nothing"
            logger.warning("compaction ended with %d: %s. It restarts in %g s", code, said, wait_s)
        elif lines:
            logger.info("%s", lines[-1])

    def _forget(self) -> None:
        atexit.unregister(self.stop)
        if self._said is not None:
            self._said.close()
        self._process = self._said = None

    def stop(self) -> None:
        """End the running compaction; its uncommitted files are swept later."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._forget()
