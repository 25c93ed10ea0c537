"""The file operations that the sink's promise rests on, one by one.

All writing of the sink goes through a :class:`Disk`, so that a test can stop the world before any of them, or let one
fail as a full disk does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class Disk:
    """The local file system. Each method is one step: it happened, or it did not."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole; a file that could not be written whole is removed."""
        try:
            path.write_bytes(content)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def sync(self, path: Path) -> None:
        """Force a file or a folder to the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, exclusively.

        Raises:
            FileExistsError: the name is taken: somebody was first.
        """
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file that may be gone already."""
        path.unlink(missing_ok=True)

    def files_below(self, folder: Path) -> Iterator[Path]:
        """Yield all files below a folder that may not exist."""
        return (path for path in folder.rglob("*") if path.is_file())
