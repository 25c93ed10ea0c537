"""Files that are written whole or not at all, reach the disk, and are their owner's alone."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

UMASK = 0o077  # For processes whose files are meant to be like that too


def own(directory: Path, names: Collection[str]) -> None:
    """Make a directory its owner's alone, with all that it has of ours: folders 0700, files 0600.

    Other things in it are left as they are. So is the directory then: it may be a project's, where ours is beside it.

    ``names`` are those of what is ours in it.

    Raises:
        OSError: it cannot be made, or belongs to another user.
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
    """Take the rights of all others away; a link is left alone, and so is what is gone by now."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & UMASK:
            path.chmod(stat.S_IMODE(mode) & ~UMASK)
    except FileNotFoundError:
        return


def write(path: Path, data: str | bytes) -> None:
    """Write a file for its owner alone, also where it was there before."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data if isinstance(data, bytes) else data.encode())


def replace_json(path: Path, what: Mapping[str, Any], mode: int = 0o666) -> None:
    """Replace a JSON file: a reader sees the whole of the old one or of the new one."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)  # of a process that had our id
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        json.dump(what, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def sync_folder(folder: Path) -> None:
    """Force a folder, or a file, to the disk: only after its folder's a file's new name survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
