"""Copies of a sink's directory, as a user makes them: the rows, and the log beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

from downspout.sink import home_beside

__all__ = ["copy_sink", "delete_sink", "move_sink"]


def copy_sink(source: Path, target: Path) -> Path:
    """Copy a directory and its log; return the copy."""
    if home_beside(source).is_dir():
        shutil.copytree(home_beside(source), home_beside(target))
    return Path(shutil.copytree(source, target))


def move_sink(source: Path, target: Path) -> None:
    """Move a directory and its log."""
    copy_sink(source, target)
    delete_sink(source)


def delete_sink(directory: Path) -> None:
    """Delete a directory and its log."""
    shutil.rmtree(directory)
    shutil.rmtree(home_beside(directory), ignore_errors=True)
