"""The storage port: what a sink's promise asks of the place where its files are.

Two places fulfil it: :class:`~downspout.sink.storage.disk.Disk` and
:class:`~downspout.sink.storage.object_store.ObjectStore`. ``tests/sink/test_storage_contract.py`` holds both to it:

* ``write`` is whole or not there, and durable once ``sync`` has answered (of an object store: at once).
* ``put_if_absent`` lets exactly one of many writers through, and each can tell whether it was that one, also where the
  answer was lost.
* What was written is seen by every later ``read``, ``exists`` and listing.
* ``rename`` may be done by several processes at once, and again after a stop in its middle.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from downspout.errors import SinkError, StoreAwayError
from downspout.outages import CURES, FULL, OVER_QUOTA, SILENT

PASSES = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: OVER_QUOTA,
    errno.ETIMEDOUT: SILENT,
}
"""What is no fault of settings or rights, and is over some time, by the number of the error."""


def refused(error: OSError, place: str, what: str, cure: str) -> SinkError:
    """Return the error for a place where something cannot be done; one that says so if it may work later.

    >>> refused(OSError(errno.EACCES, "no"), "out", "out cannot be read", "correct the permissions").message
    'out cannot be read'
    >>> refused(OSError(errno.ENOSPC, "No space left on device"), "out", "out cannot be read", "").message
    'out has been full (No space left on device)'
    """
    if error.errno not in PASSES:
        return SinkError(what, cure=cure)
    state, why = PASSES[error.errno], error.strerror or ""
    return StoreAwayError(f"{place} {state} ({why})", cure=CURES[state], state=state, why=why)


class Storage(Protocol):
    """Where the files of sinks are. Errors are OSErrors, as Python raises them for a local file."""

    is_remote: bool
    """Whether it is reached by requests. Then a ``rename`` is a copy and a removal, a file may be in both places for a
    while, and a request whose answer was lost may still arrive after its sender has given up."""

    def named(self, directory: Path) -> str:
        """Return a directory for a message, and where it is reached."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it."""

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole."""

    def sync(self, path: Path) -> None:
        """Make a file or a folder outlive a power cut."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, exclusively."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name. Raises FileNotFoundError: it is not there: another process has renamed it."""

    def remove(self, path: Path) -> None:
        """Remove a file that may be gone already."""

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder."""

    def names(self, folder: Path, at_least: str = "") -> list[str]:
        """Return what is in a folder, which may not exist; those below ``at_least`` may be left out."""

    def has_names(self, folder: Path) -> bool:
        """Return whether there is anything in a folder, which may not exist."""

    def files_below(self, folder: Path, without: str = "") -> Iterator[Path]:
        """Yield all files below a folder that may not exist, but not those of its folder ``without``."""

    def modified(self, path: Path) -> float:
        """Return when a file was written, in seconds since the epoch; 0.0 for one that is gone."""

    def changed(self, path: Path) -> float:
        """Return when a file was last written or given its name, in seconds since the epoch; 0.0 if it is gone."""

    def put_if_absent(self, path: Path, content: bytes, temporary: Path) -> bool:
        """Create a file durably and whole, unless there is one of that name; return whether it is ours."""

    def replace(self, path: Path, content: bytes, temporary: Path) -> None:
        """Put a file durably in the place of one that may be there; readers see the one or the other, whole."""
