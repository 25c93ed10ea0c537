"""A lock between processes that dies with its holder.

``flock`` on an open file: the kernel releases it when the last process that has the file open ends, however it ends,
so there are no stale locks to clear up. The file itself stays, and means nothing.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from downspout.clock import SYSTEM_CLOCK, Clock

RETRY_S = 0.1  # Also how long :meth:`FileLock.acquire` waits at least: :func:`is_held` shares the lock for a moment


def is_held(path: Path) -> bool:
    """Return whether another process holds the lock on a file now; not where the file is missing or unreadable.

    >>> is_held(Path("/no/such/lock"))
    False
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two calls at the same time do not see each other
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


class FileLock:
    """An exclusive lock on a file, held from :meth:`acquire` to :meth:`release`.

    A child that is given :meth:`fileno` (``pass_fds``) goes on holding it after we have released our side with
    :meth:`hand_over`.

    The file is made where it is missing, with the rights ``mode``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = FileLock(Path(folder) / "lock"), FileLock(Path(folder) / "lock")
    ...     first.acquire(), second.acquire(), first.release(), second.acquire(), second.release()
    (True, False, None, True, None)
    """

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self.path = path
        self._mode = mode
        self._file: int | None = None

    def acquire(self, timeout_s: float = RETRY_S, clock: Clock = SYSTEM_CLOCK) -> bool:
        """Take the lock, waiting at most ``timeout_s`` for it; return whether that succeeded.

        Raises:
            OSError: the file cannot be opened.
        """
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)
        deadline = clock.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if clock.monotonic() >= deadline:
                    os.close(file)
                    return False
                clock.sleep(RETRY_S)
            except BaseException:
                os.close(file)
                raise
            else:
                self._file = file
                return True

    def fileno(self) -> int:
        """Return the open file that carries the lock."""
        if self._file is None:
            raise ValueError(f"{self.path} is not locked by us")
        return self._file

    def hand_over(self) -> None:
        """Close our side without unlocking: children that have the file open hold the lock from now on."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def release(self) -> None:
        """Release the lock, also if a child has the file open."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.hand_over()

    def __enter__(self) -> FileLock:
        if not self.acquire():
            raise BlockingIOError(f"{self.path} is locked by another process")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
