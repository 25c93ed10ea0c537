"""Where the files of a sink are, and what their names say.

::

    flights/                                 the sink's directory: committed rows, and nothing else with any content
      month=7/part-<writer>-<n>.parquet      what every reader sees
      _downspout/1                           an empty file, the mark: the directory's log is number 1
    _flights.downspout/1/                    beside the directory
      log/<n>.json                           the commit log: what is true
      checkpoints/<n>.json                   its state after n entries, so that an opening need not read them all
      runs.json                              the settings of the runs that wrote here, for audits
      skips.json                             the offsets that a group has skipped on purpose, for audits
      staging/month=7/part-….hidden          files of flushes that are not in sight yet, and entries before their link
      replaced/month=7/part-….hidden         files that were compacted away, or are from before a rebuild
      snapshots/<id>/month=7/part-….parquet  hard links: what a reader has asked to stay as it is

DuckDB's and Polars' ``**/*.parquet`` descend into every folder, hidden or not. So staged and replaced files, whose rows
they would count, end in something else; by earlier versions they were called as they are in sight, and they are found
under both names. The log lies beside the directory because Polars' ``scan_parquet(directory)`` refuses one that has a
file of another kind anywhere below, unless that file is empty.

The number ties the two together. Somebody deletes the directory to begin anew, and leaves the log: the mark is gone
with the directory, so the next writer takes the next number. Somebody restores an old copy of the directory: its mark
names its log.

The log is inside the directory, in ``_downspout/log/`` and so on, where an earlier version put it there; where the
directory is a mount point or the folder above it cannot be written to, since files are renamed between the two; and
where a user has made the folder ``_downspout/log/`` first. Then it moves with the directory. Snapshots are beside the
directory all the same, in ``_flights.downspout/snapshots/``, or there are none: their files are for all readers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from downspout.settings.object_path import ObjectPath
from downspout.sink.storage.places import storage_of
from downspout.sink.storage.port import Storage

OURS = "_downspout"  # What is ours in a sink's directory: a folder, with the mark or with the log itself
_FIRST_ENTRY = f"log/{0:020d}.json"
_SUFFIX, HIDDEN = ".parquet", ".hidden"
"""How data files end in sight, and elsewhere. The second is no longer: each name that is possible here is so there."""


@dataclass(frozen=True)
class Layout:
    """Where the files of one sink's directory are."""

    directory: Path  # what ``parquet.directory`` says
    home: Path  # the folder that has the log and all else that no reader should see
    mark: Path  # what is in the directory as long as it is the one that the log describes

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
        """Where data files are before they count."""
        return self.home / "staging"

    @property
    def replaced(self) -> Path:
        """Where data files are that count no more."""
        return self.home / "replaced"

    @property
    def snapshots(self) -> Path:
        """Where readers' snapshots are: never in the directory, for globs would count their rows."""
        return (home_beside(self.directory) if self.is_inside else self.home) / "snapshots"

    @property
    def places(self) -> tuple[Path, Path, Path]:
        """The folders that a data file passes, in this order."""
        return self.staging, self.directory, self.replaced

    @property
    def is_inside(self) -> bool:
        """Whether the log is in the directory."""
        return self.mark == self.log

    def names(self, place: Path, path: str) -> tuple[Path, ...]:
        """Return what a data file, by its path in the log, may be called in one of the :attr:`places`."""
        if place == self.directory:
            return (place / path,)
        # The first is what it is called there now. Earlier versions left it the name that it has in sight.
        return place / f"{path.removesuffix(_SUFFIX)}{HIDDEN}", place / path

    def staged(self, path: str) -> Path:
        """Return where a data file is before it counts."""
        return self.names(self.staging, path)[0]

    def way(self, path: str) -> tuple[Path, ...]:
        """Return where a data file may be, in the order of its way: who looks in this order meets it as it moves."""
        replaced_now, replaced_before = self.names(self.replaced, path)
        return *self.names(self.staging, path), self.directory / path, replaced_before, replaced_now

    def holds(self, disk: Storage, place: Path, path: str) -> bool:
        """Return whether a data file is in one of the :attr:`places`."""
        return any(disk.exists(name) for name in self.names(place, path))

    def top(self, place: Path) -> Path:
        """Return the folder below which one of the :attr:`places` is made durable when files are moved there."""
        return self.directory if place == self.directory else self.home


def layout_of(directory: Path, disk: Storage | None = None) -> Layout:
    """Return where the files of a directory are; where it has no log yet, where they would be.

    Raises:
        OSError: there is no looking into it.

    The race: another writer begins at the same time. It makes the mark before its first entry. So we look for an entry
    first and for the mark after it: whoever sees the entry sees the mark, and all others come to the same number.
    """
    disk = disk or storage_of(directory)
    beside = home_beside(directory)
    last = _highest(_names(disk, beside))
    if last and disk.exists(beside / str(last) / _FIRST_ENTRY):
        last += 1
    ours = _names(disk, directory / OURS)
    if "log" in ours:
        return _inside(directory)
    number = _highest(ours) or last or 1
    return Layout(directory, beside / str(number), directory / OURS / str(number))


def new_layout(directory: Path, disk: Storage) -> Layout:
    """Return where the files of a directory are to be, which exists. A file system may have no room beside it."""
    found = layout_of(directory, disk)
    if found.is_inside or disk.exists(found.mark) or disk.exists(found.home):
        return found
    if isinstance(directory, ObjectPath):
        return found
    here = _real(directory)
    has_room_beside = not os.path.ismount(here) and os.access(here.parent, os.W_OK)
    return found if has_room_beside else _inside(directory)


def next_layout(layout: Layout) -> Layout:
    """Return where the files of a directory are with its next log, that is beside it as this one is."""
    number = str(int(layout.home.name) + 1)
    return replace(layout, home=layout.home.with_name(number), mark=layout.mark.with_name(number))


def _inside(directory: Path) -> Layout:
    return Layout(directory, directory / OURS, directory / OURS / "log")


def _real(directory: Path) -> Path:
    """Return a directory by a path that ends with its name; a link may lead to another file system."""
    is_named = directory.name not in ("", "..") and not directory.is_symlink()
    return directory if is_named else Path(os.path.realpath(directory))


def home_beside(directory: Path) -> Path:
    """Return the folder that has the logs of a directory.

    >>> home_beside(Path("output/flights")).as_posix()
    'output/_flights.downspout'
    """
    real = _real(directory)
    return real.parent / f"_{real.name}.downspout"


def former_home(directory: Path, disk: Storage) -> Path | None:
    """Return the latest log of that name, though the directory has no mark of it; None where there is none."""
    beside = home_beside(directory)
    homes = (beside / str(number) for number in range(_highest(_names(disk, beside)), 0, -1))
    return next((home for home in homes if disk.exists(home / _FIRST_ENTRY)), None)


def _names(disk: Storage, folder: Path) -> list[str]:
    try:
        return disk.names(folder)
    except NotADirectoryError:
        return []


def _highest(names: Iterable[str]) -> int:
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


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
    """Return the writer whose file it is; None for a file that is no writer's.

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

    >>> logged("month=7/part-w-1.hidden"), logged("part-w-1.parquet"), logged(".w-1.tmp")
    ('month=7/part-w-1.parquet', 'part-w-1.parquet', '.w-1.tmp')
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
    """Return whether some reader of the directory takes a file for one of its data files, by its path below it.

    Readers list a directory and go by the first character of names, never by how a name ends: pyarrow, pandas and Spark
    read ``a.parquet.bak``, and fail on ``notes.txt``. Spark alone reads ``_x=1/a.parquet``. DuckDB's globs see less.

    >>> [is_visible(path) for path in ("a.parquet.bak", "_x=1/a.PARQUET", "notes.txt", "_log/a.parquet", ".a.parquet")]
    [True, True, True, False, False]
    """
    parts = PurePosixPath(path).parts
    return bool(parts) and not any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in parts)


def is_read(path: str) -> bool:
    """Return whether any reader takes a file for one of the directory's, by its path below it.

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
