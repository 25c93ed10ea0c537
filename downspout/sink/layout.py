"""The layout of a sink's directory, and the steps that data files take in it: stage, publish, replace, discard.

::

    flights/                                   the sink's directory
      month=7/part-<writer>-<n>.parquet        committed rows, which every reader sees
      _downspout/                              ours; readers of a directory skip it
        log/<n>.json                           the commit log: which files count
        checkpoints/<n>.json                   the log's state after n entries, to shorten an opening
        runs.json                              the settings of the runs that wrote here, for audits
        skips.json                             the offsets that a group skipped on purpose, for audits
        staging/month=7/part-….hidden          files of flushes that are not published yet, and unlinked entries
        replaced/month=7/part-….hidden         files that were compacted away, or precede a rebuild
    _flights.snapshots/<id>/month=7/part-….parquet
                                               hard links beside the directory, kept for a reader

A directory is moved, copied, restored and deleted as a whole, and renames stay on one file system.

In DuckDB and Polars, ``**/*.parquet`` also matches files in hidden folders, so staged and replaced files have another
suffix. Files of snapshots end in ``.parquet`` for all readers, and therefore lie outside the directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from downspout.errors import SinkError
from downspout.sink.storage import Storage

OURS = "_downspout"  # What is ours in a sink's directory: a folder
_SUFFIX, HIDDEN = ".parquet", ".hidden"
"""How data files end in sight, and elsewhere. The second is no longer: each name that is possible here is so there."""


@dataclass(frozen=True)
class Layout:
    """Where the files of one sink's directory are."""

    directory: Path  # what ``parquet.directory`` says

    @property
    def home(self) -> Path:
        """The folder of the log and of everything else that readers must not see."""
        return self.directory / OURS

    @property
    def log(self) -> Path:
        """The commit log's folder."""
        return self.home / "log"

    @property
    def checkpoints(self) -> Path:
        """The folder of the log's checkpoints."""
        return self.home / "checkpoints"

    @property
    def runs(self) -> Path:
        """The file with the settings of runs."""
        return self.home / "runs.json"

    @property
    def skips(self) -> Path:
        """The file with the offsets that were skipped on purpose."""
        return self.home / "skips.json"

    @property
    def staging(self) -> Path:
        """The folder of data files before their commit."""
        return self.home / "staging"

    @property
    def replaced(self) -> Path:
        """The folder of data files that no longer count."""
        return self.home / "replaced"

    @property
    def snapshots(self) -> Path:
        """The folder of readers' snapshots: outside the directory, since globs would count their rows.

        >>> Layout(Path("output/flights")).snapshots.as_posix()
        'output/_flights.snapshots'
        """
        # By a path that ends with the directory's name: a link may lead to another file system.
        is_named = self.directory.name not in ("", "..") and not self.directory.is_symlink()
        real = self.directory if is_named else Path(os.path.realpath(self.directory))
        return real.parent / f"_{real.name}.snapshots"

    @property
    def places(self) -> tuple[Path, Path, Path]:
        """The folders that a data file passes, in this order."""
        return self.staging, self.directory, self.replaced

    def at(self, place: Path, path: str) -> Path:
        """Return where a file, by its path in the log, is in one of the :attr:`places`; an entry keeps its name."""
        is_hidden = place != self.directory and path.endswith(_SUFFIX)
        return place / (f"{path.removesuffix(_SUFFIX)}{HIDDEN}" if is_hidden else path)

    def staged(self, path: str) -> Path:
        """Return the path of a data file before its commit."""
        return self.at(self.staging, path)

    def way(self, path: str) -> list[Path]:
        """Return the paths that a data file passes, in order: a search in this order finds a moving file."""
        return [self.at(place, path) for place in self.places]

    def holds(self, disk: Storage, place: Path, path: str) -> bool:
        """Return whether a data file is in one of the :attr:`places`."""
        return disk.exists(self.at(place, path))

    def top(self, place: Path) -> Path:
        """Return the folder below which one of the :attr:`places` is made durable when files are moved there."""
        return self.directory if place == self.directory else self.home


_DATA = re.compile(r"part-(.+)-\d+\.parquet", re.DOTALL)
"""Names that writers give. Spark's end with a codec: ``part-00000-…-c000.snappy.parquet``."""
_TEMPORARY = re.compile(r"\.(.+)-\d+\.tmp", re.DOTALL)


def data_name(writer: str, sequence: int) -> str:
    """Return the name of a data file; with the writer's unique name in it, it is never given twice."""
    return f"part-{writer}-{sequence}.parquet"


def temporary_name(writer: str, number: int) -> str:
    """Return the name of a log entry before it is linked."""
    return f".{writer}-{number}.tmp"


def incarnation_of(name: str) -> str | None:
    """Return the writer of a file; None if no writer made it.

    >>> incarnation_of("month=7/part-flights-3-0a1b-12.parquet"), incarnation_of(".flights-3-0a1b-5.tmp")
    ('flights-3-0a1b', 'flights-3-0a1b')
    >>> incarnation_of("part-00000-0a1b-c000.snappy.parquet") is None
    True
    """
    last = PurePosixPath(name).name
    found = _DATA.fullmatch(last) or _TEMPORARY.fullmatch(last)
    return found[1] if found else None


def logged(path: str) -> str:
    """Return the path in the log of a file that is staged or replaced, by its path there.

    >>> logged("month=7/part-w-1.hidden"), logged(".w-1.tmp")
    ('month=7/part-w-1.parquet', '.w-1.tmp')
    """
    return f"{path.removesuffix(HIDDEN)}{_SUFFIX}" if path.endswith(HIDDEN) else path


def is_data(path: str) -> bool:
    """Return whether readers of the directory see a file, by its path below the directory.

    As in Spark, ``_x=1`` is not hidden, because it is a Hive folder.

    >>> [is_data(path) for path in ("a.parquet", "_x=1/a.parquet", "_hidden/a.parquet", ".a.parquet", "a.csv")]
    [True, True, False, False, False]
    """
    parts = PurePosixPath(path).parts
    return path.endswith(".parquet") and not any(
        part[0] == "." or (part[0] == "_" and (place == len(parts) - 1 or "=" not in part))
        for place, part in enumerate(parts)
    )


def is_visible(path: str) -> bool:
    """Return whether some reader treats a file as a data file of the directory, by its path below it.

    Readers list a directory and go by the first character of names, never by how a name ends: pyarrow, pandas and Spark
    read ``a.parquet.bak``, and fail on ``notes.txt``. Spark alone reads ``_x=1/a.parquet``. DuckDB's globs see less.

    >>> [is_visible(path) for path in ("a.parquet.bak", "_x=1/a.PARQUET", "notes.txt", "_log/a.parquet", ".a.parquet")]
    [True, True, True, False, False]
    """
    parts = PurePosixPath(path).parts
    return bool(parts) and not any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in parts)


def is_read(path: str) -> bool:
    """Return whether any reader treats a file as one of the directory's, by its path below it.

    Beside those that :func:`is_visible` tells of, DuckDB's and Polars' ``**/*.parquet`` read whatever ends so.

    >>> [is_read(path) for path in ("a.parquet.bak", "_temporary/a.parquet", ".a.parquet", "_log/a.json")]
    [True, True, True, False]
    """
    return is_visible(path) or path.endswith(".parquet")


def up_to(folder: Path, top: Path) -> list[Path]:
    """Return a folder and those above it, up to and with ``top``."""
    places = [folder]
    while places[-1] != top:
        places.append(places[-1].parent)
    return places


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
    """Delete staged files. Check the log first: a file that an entry names is the only copy of its rows."""
    for path in paths:
        disk.remove(layout.staged(path))


def move(disk: Storage, layout: Layout, paths: Iterable[str], source: Path, target: Path) -> list[str]:
    """Move data files from one of a directory's places to another, durably.

    Returns:
        Those that were missing: others have moved them, perhaps further than we would.
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


def probe(disk: Storage, layout: Layout, writer: str) -> None:
    """Run the steps of a flush with an empty file; its leftovers are swept like any staged file.

    Args:
        writer: the file's writer, so that it is swept with that writer's files.

    Raises:
        SinkError: the store lets two writers create one object.
        OSError: the storage fails.
    """
    staged, target = (layout.staging / temporary_name(writer, number) for number in (0, 1))
    disk.make_folder(staged.parent)
    if disk.is_remote:
        _create_twice(disk, layout, staged)
    else:
        disk.write(staged, b"")
    try:
        disk.rename(staged, target)
    except FileNotFoundError:
        return  # we were paused, and a sweeper has taken it for a dead writer's
    except OSError:
        disk.remove(staged)
        raise
    disk.remove(target)


def _create_twice(disk: Storage, layout: Layout, staged: Path) -> None:
    """Create one object twice: a store without conditional writes accepts the second one, and so would lose entries."""
    disk.put_if_absent(staged, b"", staged)
    if disk.put_if_absent(staged, b"second", staged) or disk.read(staged):
        disk.remove(staged)
        raise SinkError(
            f"{layout.directory}: the store replaces an object although it was told to create one (If-None-Match: *): "
            "two writers would overwrite each other's log entries",
            cure="a store with conditional writes (Amazon S3, MinIO, R2, Ceph since Squid, Google, Azure)",
        )
    disk.has_names(layout.home)
