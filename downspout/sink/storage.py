"""The storage port, and its implementation on a local disk.

The sink's promise rests on four properties of its storage. :class:`Disk` and
:class:`~downspout.sink.object_store.ObjectStore` have them; ``tests/sink/test_storage_contract.py`` checks both:

* ``write`` writes the whole file or none, and the file is durable once ``sync`` returns (in an object store: at once).
* ``put_if_absent`` succeeds for exactly one of many writers, and each learns whether it was the one, even if the answer
  was lost.
* Every later ``read``, ``exists`` and listing sees a completed write.
* Several processes may run the same ``rename`` at once, or repeat it after a stop halfway.

All file operations of the sink go through a storage, so a test can stop the world before any step, let a step fail as
on a full disk, or forget unsynced files. On disk, ``pyarrow.fs`` writes, moves and removes; ``fsync`` and exclusive
creation, which it lacks, are here.

The log records a hash of each data file, CRC-32C, which kafka-python needs anyway: 0.08 CPU-seconds per gigabyte, a
thousandth of a flush. It detects accidents (a flipped bit, a torn or misplaced file), not forgery: whoever can write to
the directory can also write an entry with a new hash (docs/decisions/0006).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from crc32c import crc32c
from pyarrow import fs

from downspout.errors import SinkError, StoreAwayError
from downspout.outages import CURES, FULL, OVER_QUOTA, SILENT

PASSES = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: OVER_QUOTA,
    errno.ETIMEDOUT: SILENT,
}
"""What is no fault of settings or rights, and is over some time, by the number of the error."""


def refused(error: OSError, place: str, what: str, cure: str) -> SinkError:
    """Return the error for a failed operation; its class shows whether it may work later.

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
    """The storage of sinks' files. Errors are OSErrors, as Python raises them for a local file."""

    is_remote: bool
    """Whether it is reached by requests. Then a ``rename`` is a copy and a removal, a file may be in both places for a
    while, and a request whose answer was lost may still arrive after its sender has given up."""

    def named(self, directory: Path) -> str:
        """Return a directory, and the endpoint of its store, for a message."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it."""

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole."""

    def sync(self, path: Path) -> None:
        """Make a file or a folder survive a power cut."""

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
        """Write a file durably, replacing any existing one; readers see the old or the new one, whole."""


_FILES = fs.LocalFileSystem()


class Disk:
    """The local file system. Each method but the last two is one step: it happened, or it did not.

    It is a :class:`~downspout.sink.storage.Storage`, and so is an object store (``object_store.py``).
    """

    is_remote = False

    def named(self, directory: Path) -> str:
        """Return the directory."""
        return f"the disk of {directory}"

    # --- steps that change something ---

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole; a file that could not be written whole is removed."""
        try:
            with _FILES.open_output_stream(os.fspath(path)) as stream:
                stream.write(content)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _named(error, path) from None

    def sync(self, path: Path) -> None:
        """Force a file or a folder to the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, exclusively. Raises FileExistsError: the name is taken: somebody was first."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name. Raises FileNotFoundError: it is not there: somebody else has renamed it."""
        try:
            _FILES.move(os.fspath(source), os.fspath(target))
        except OSError as error:
            raise _named(error, source) from None

    def remove(self, path: Path) -> None:
        """Remove a file that may be gone already."""
        path.unlink(missing_ok=True)

    # --- looking ---

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return path.read_bytes()

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder."""
        return path.exists()

    def names(self, folder: Path, at_least: str = "") -> list[str]:
        """Return what is in a folder, which may not exist; all of it, whatever ``at_least`` says."""
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []

    def has_names(self, folder: Path) -> bool:
        """Return whether there is anything in a folder, which may not exist."""
        return bool(self.names(folder))

    def files_below(self, folder: Path, without: str = "") -> Iterator[Path]:
        """Yield all files below a folder that may not exist; folders may come and go meanwhile."""
        for place, folders, names in os.walk(folder):
            if without in folders and place == os.fspath(folder):
                folders.remove(without)
            for name in names:
                yield Path(place, name)

    def modified(self, path: Path) -> float:
        """Return when a file was written, in seconds since the epoch; 0.0 for one that is gone."""
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def changed(self, path: Path) -> float:
        """Return when a file was last written, linked or given its name, in seconds since the epoch."""
        try:
            # 0.0 for one that is gone. Not :meth:`modified`: a file keeps the age of its content when it is renamed.
            return path.stat().st_ctime
        except FileNotFoundError:
            return 0.0

    # --- made of them ---

    def put_if_absent(self, path: Path, content: bytes, temporary: Path) -> bool:
        """Create a file durably and whole, unless there is one of that name; return whether there was none.

        The race: two writers link the same name; the file system lets one succeed. On NFS a link may be made and its
        answer lost; the client retries and learns that the name is taken, says link(2). So the existing file is
        compared with ours: equal bytes mean that it is ours, if the content is unique to this writer. If the temporary
        file is gone, another process has swept it and fenced this writer, as the log says.

        Raises:
            OSError: the disk fails. If the last step failed, the file may exist.
        """
        for folder in dict.fromkeys((path.parent, temporary.parent)):
            self.make_folder(folder)
        try:
            self.write(temporary, content)
            try:
                # The content first: were the name durable before it, a power cut would leave an empty or torn file
                # under a name that nobody may write again.
                self.sync(temporary)
                # Not rename, which replaces what is there, and not open(O_EXCL), which shows a half-written file.
                self.link(temporary, path)
            except FileNotFoundError:
                return False
            except FileExistsError:
                if self.read(path) != content:
                    return False
            # The name. Killed before this, the file is there and is ours, though we never learn of it. After a power
            # cut it may be gone; nobody relied on it, since readers sync what they have read before they act on it.
            self.sync(path.parent)
        finally:
            self.remove(temporary)
        return True

    def replace(self, path: Path, content: bytes, temporary: Path) -> None:
        """Write a file durably, replacing any existing one; readers see the old or the new one, whole."""
        self.make_folder(temporary.parent)
        self.write(temporary, content)
        self.sync(temporary)
        self.rename(temporary, path)
        self.sync(path.parent)


def _named(error: OSError, path: Path) -> OSError:
    """Return the error as Python would have raised it: of the class of its number, and with the file's name."""
    if error.errno is None:
        return error
    return OSError(error.errno, os.strerror(error.errno), os.fspath(path))


ALGORITHM = "crc32c"
BLOCK_BYTES = 1 << 20


def hash_of(content: bytes) -> str:
    """Return the hash of a file's content, with the name of the algorithm before it.

    >>> hash_of(b"123456789")
    'crc32c:e3069283'
    """
    return f"{ALGORITHM}:{crc32c(content):08x}"


def hash_of_file(path: Path) -> str:
    """Return the hash of a file, read block by block. Raises OSError: it is not there, or cannot be read."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            value = crc32c(block, value)
    return f"{ALGORITHM}:{value:08x}"
