"""Atomic, durable and private files; and file locks.

A :class:`FileLock` is ``flock`` on an open file: the kernel releases it when the last process that has the file open
ends, so no stale lock remains. The file itself stays, and has no meaning.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from downspout.clock import SYSTEM_CLOCK, Clock

UMASK = 0o077  # Also the umask of processes with private files


def own(directory: Path, names: Collection[str]) -> None:
    """Make a directory, and our entries in it (``names``), private: folders 0700, files 0600.

    If it has other entries, they and the directory keep their modes: it may be a project's folder.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = [entry for entry in directory.iterdir() if entry.suffix != ".tmp"]
    if all(entry.name in names for entry in entries):
        _narrow(directory)
    for entry in entries:
        if entry.name in names:
            _narrow(entry)
            for base, folders, files in os.walk(entry):
                for name in (*folders, *files):
                    _narrow(Path(base, name))


def _narrow(path: Path) -> None:
    """Remove the permissions of group and others; ignores links and missing files."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & UMASK:
            path.chmod(stat.S_IMODE(mode) & ~UMASK)
    except FileNotFoundError:
        return


def write(path: Path, data: str | bytes) -> None:
    """Write a private file; an existing one becomes private."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data if isinstance(data, bytes) else data.encode())


def replace_json(path: Path, what: Mapping[str, Any], mode: int = 0o666) -> None:
    """Replace a JSON file atomically."""
    _json_draft(path, what, mode).replace(path)


def create_json(path: Path, what: Mapping[str, Any], mode: int = 0o666) -> bool:
    """Create a JSON file, which readers see whole; return False if it exists."""
    draft = _json_draft(path, what, mode)
    try:
        os.link(draft, path)
    except FileExistsError:
        draft.unlink()
        return False
    except OSError:  # a file system without hard links
        draft.replace(path)
    else:
        draft.unlink()
    return True


def _json_draft(path: Path, what: Mapping[str, Any], mode: int) -> Path:
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)  # of an earlier process with our id
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        json.dump(what, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    return draft


def sync_folder(folder: Path) -> None:
    """Sync a folder (or a file) to disk; a rename survives a power failure only after its folder's sync."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


RETRY_S = 0.1  # Also the default wait of :meth:`FileLock.acquire`, since :func:`is_held` takes the lock briefly


def is_held(path: Path) -> bool:
    """Return whether the lock on a file is held; False if the file is missing or unreadable.

    >>> is_held(Path("/no/such/lock"))
    False
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that concurrent calls do not conflict
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


class FileLock:
    """An exclusive lock on a file, held from :meth:`acquire` to :meth:`release`.

    A child that inherits :meth:`fileno` (``pass_fds``) keeps the lock after :meth:`hand_over`. A missing file is
    created with ``mode``.

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
        """Take the lock, waiting at most ``timeout_s``; return whether that succeeded.

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
        """Close our descriptor without unlocking: children that have the file open keep the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def release(self) -> None:
        """Release the lock, even if a child has the file open."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.hand_over()

    def __enter__(self) -> FileLock:
        if not self.acquire():
            raise BlockingIOError(f"{self.path} is locked by another process")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
