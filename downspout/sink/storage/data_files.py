"""Data files on their way: staged, brought into sight, replaced.

All steps that a sink, a recovery and a compaction take with data files are here, made of the operations of a
:class:`~downspout.sink.storage.port.Storage`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from downspout.sink.storage.layout import OURS, Layout, logged, up_to
from downspout.sink.storage.port import Storage


def stage(disk: Storage, layout: Layout, files: Iterable[tuple[str, bytes]]) -> None:
    """Write data files, given by their paths in the log, where no reader looks, and force them to the disk."""
    folders: set[Path] = set()
    for name, content in files:
        path = layout.staged(name)
        disk.make_folder(path.parent)
        disk.write(path, content)
        # All of it is durable before this returns, because next comes the entry. If a power cut left the entry and took
        # a file, the log would say that its rows are there, and replays of them would be dropped: they would be lost.
        disk.sync(path)
        folders.update(up_to(path.parent, layout.home))
    # A file is found again after a power cut only if its name is durable too, and that is part of the folder. A folder
    # that is there already may have been made a moment ago by a writer that has not synced it: so all, every time.
    for folder in sorted(folders):
        disk.sync(folder)


def below(disk: Storage, place: Path) -> set[str]:
    """Return the files in one of a directory's places, by their paths in the log."""
    return {logged(path.relative_to(place).as_posix()) for path in disk.files_below(place, without=OURS)}


def discard(disk: Storage, layout: Layout, paths: Iterable[str]) -> None:
    """Delete staged files. Only after a look at the log: one that an entry names is the only copy of its rows."""
    for path in paths:
        disk.remove(layout.staged(path))


def move(disk: Storage, layout: Layout, paths: Iterable[str], source: Path, target: Path) -> list[str]:
    """Move data files from one of a directory's places to another, durably.

    Returns:
        Those that were not there: others have moved them, and maybe further than we would.
    """
    wanted = list(paths)
    make_folders(disk, layout, wanted, target)
    return rename(disk, layout, wanted, source, target)


def make_folders(disk: Storage, layout: Layout, paths: Iterable[str], target: Path) -> None:
    """Make the folders of data files in one of a directory's places."""
    folders = sorted({(target / path).parent for path in paths})
    for folder in folders:
        disk.make_folder(folder)
    # A folder is durable before anything is moved into it: a power cut could otherwise leave the renaming without the
    # folder. That it is there says nothing: who made it may have been stopped before it was synced.
    for above in sorted({above for folder in folders for above in up_to(folder, layout.top(target))[1:]}):
        disk.sync(above)


def rename(disk: Storage, layout: Layout, paths: Iterable[str], source: Path, target: Path) -> list[str]:
    """Move data files as :func:`move` does, to folders that are made and durable."""
    absent: list[str] = []
    changed: set[Path] = set()
    for path in paths:
        place = layout.at(target, path)
        try:
            disk.rename(layout.at(source, path), place)
        except FileNotFoundError:
            absent.append(path)
        else:
            changed.add(place.parent)
    # One folder of the two is enough: on the file systems in use a rename is all or nothing, and durable after a sync
    # of either folder. Killed before it, nothing is lost: the log names the file, and the next opening moves it.
    for folder in sorted(changed):
        disk.sync(folder)
    return absent
