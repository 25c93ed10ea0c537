"""The file operations that the sink's promise rests on, one by one.

All that the sink does to files goes through a :class:`Disk`, so that a test can stop the world before any step, let one
fail as a full disk does, or forget what was not synced. Files are written, moved and removed through ``pyarrow.fs``.
What ``pyarrow.fs`` cannot do stands beside it: force to the disk, and give a name exclusively.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pyarrow import fs

_FILES = fs.LocalFileSystem()


class Disk:
    """The local file system. Each method but the two last is one step: it happened, or it did not.

    It is a :class:`~downspout.sink.storage.port.Storage`, and so is an object store (``object_store.py``).
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

        The race: two writers link the same name; the file system lets one through. On NFS a link may be made and its
        answer lost; the client asks again and is told that the name is taken, says link(2). So what is there is
        compared with ours: the same bytes, if they hold something that nobody else would write, are ours. Where the
        temporary file is gone, somebody has swept it, and with it our right to write: the log says so.

        Raises:
            OSError: the disk says no. Where the last step failed, the file may be there.
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
        """Put a file durably in the place of one that may be there; readers see the one or the other, whole."""
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
