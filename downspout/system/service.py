"""Services on this machine with a directory each: a broker, a cluster of brokers, a Storm.

The directory keeps the service's data between starts. It is locked, its files are private, and unless the service is
detached, a watchdog ends it when our process ends, even by ``kill -9``.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import ClassVar, Self

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import DownspoutError
from downspout.system import files, process
from downspout.system.files import RETRY_S, FileLock
from downspout.system.loopback import HOST

POLL_S = 0.05
LINE_MAX = 300  # Log lines may be very long


class LocalService(ABC):
    """The processes of one directory; as a context manager, it starts and stops them.

    Args:
        directory: created if missing.
    """

    NAME: ClassVar[str]  # In messages
    ERROR: ClassVar[type[DownspoutError]]

    def __init__(self, directory: str | Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory = Path(directory).absolute()
        self._clock = clock
        self._watchdog: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start the service unless it runs, and wait until it answers."""

    @abstractmethod
    def stop(self) -> object:
        """Stop the service in order."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _in_use(self) -> DownspoutError:
        """Return the error for a directory that another process has locked."""

    def _take(self, names: Collection[str], timeout_s: float = RETRY_S) -> FileLock:
        """Lock the directory, and make the entries with these names private."""
        lock = FileLock(self.directory / "lock", 0o600)
        try:
            files.own(self.directory, names)
            if lock.acquire(timeout_s):
                return lock
        except OSError as error:
            raise self._unwritable(error) from error
        raise self._in_use()

    def _unwritable(self, error: OSError) -> DownspoutError:
        return self.ERROR(
            f"{self.NAME} cannot use its directory {self.directory}: {error.strerror or error}",
            cure="a directory that you own and that has free space (`--dir`, or DOWNSPOUT_HOME)",
        )

    def _died(self, who: str, what: str, *logs: str) -> DownspoutError:
        """Return the error for a failed process, with the end of its logs."""
        return self.ERROR(
            f"{who} {what}; the end of its log:\n{self._end_of(*logs)}\n",
            cure=f"read {self.directory}/logs/{' and '.join(logs)}",
        )

    def _end_of(self, *logs: str, count: int = 12) -> str:
        """Return the last lines of each log, without stack frames, which would crowd out the messages."""
        lines: list[str] = []
        for name in logs:
            try:
                text = (self.directory / "logs" / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            said = [line for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "\t... "))]
            lines += [line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} …" for line in said[-count:]]
        return "\n".join(lines)

    def _port_in_use(self, port: int) -> DownspoutError:
        return self.ERROR(
            f"Port {port} of {HOST} is in use by another process",
            cure="another port, or none to have a free one chosen",
        )

    def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Poll a condition; return whether it became true in time."""
        deadline = self._clock.monotonic() + seconds
        while not is_so():
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(POLL_S)
        return True

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            process.stop_watchdog(self._watchdog)
            self._watchdog = None
