"""The commit log of a directory: one totally ordered list of entries, each created exactly once.

Entry *n* is the file ``_downspout/log/<n, 20 digits>.json``. It is written under another name, forced to disk, and then
linked to its own name, which fails if somebody was first. So there is one order that all writers see, without any
lock. An entry names the data files of one flush and the rows that are in them. A row is in the directory if and only if
an entry covers it.

What the log does not know: Parquet, tuples, Kafka.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from downspout.errors import SinkError
from downspout.parquet.coverage import Coverage
from downspout.parquet.disk import Disk
from downspout.parquet.inputs import KnownInputs

__all__ = ["LOG_FOLDER", "STAGING_FOLDER", "CommitLog", "DataFile", "Entry", "read_entries"]

LOG_FOLDER = Path("_downspout") / "log"
STAGING_FOLDER = Path("_downspout") / "staging"
"""Both begin with an underscore: Spark, pandas and DuckDB's globs for ``*.parquet`` in Hive folders leave them be."""

FORMAT = 2
"""2: with the steps of the inputs. An older version must not write to such a directory: it knows no steps."""
READABLE = (1, 2)
_NAME = re.compile(r"[0-9]{20}\.json")
_CURE = "restore it from a backup; a log that was changed by hand cannot be trusted"


@dataclass(frozen=True)
class DataFile:
    """One file of a flush.

    Attributes:
        path: below the directory, with ``/``.
        rows: how many it holds.
        bytes: its size.
    """

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Entry:
    """One flush.

    Attributes:
        number: its place in the order, from 0.
        writer: the writer incarnation; unique for each time a task starts.
        topology: the topology's name: two topologies must not share a directory.
        schema: the columns as ``name:type``; the same in all entries.
        created_ms: wall clock, ms since the epoch; for people only.
        files: what became visible with it.
        coverage: the rows that are in those files.
        component: the sink's name in the topology: two sinks must not share a directory, for their rows may have
            the same identities. All tasks of a sink have one name.
        inputs: the step of each of the sink's inputs (see ``downspout/parquet/inputs.py``); empty in format 1.
    """

    number: int
    writer: str
    topology: str
    schema: tuple[str, ...]
    created_ms: int
    files: tuple[DataFile, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    component: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows became visible with it."""
        return sum(file.rows for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the entry as its file holds it: one JSON object, its checksum last."""
        document = {
            "format": FORMAT,
            "number": self.number,
            "writer": self.writer,
            "topology": self.topology,
            "component": self.component,
            "schema": list(self.schema),
            "inputs": dict(self.inputs),
            "created_ms": self.created_ms,
            "files": [[file.path, file.rows, file.bytes] for file in self.files],
            "coverage": self.coverage.to_json(),
        }
        document["checksum"] = _checksum(document)
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def from_bytes(cls, content: bytes) -> Entry:
        """Return the entry that a file holds.

        Raises:
            ValueError: it is torn or was edited; the message says what is wrong.
        """
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error})") from None
        if not isinstance(document, dict):
            raise ValueError("no JSON object")
        checksum = document.pop("checksum", None)
        if checksum != _checksum(document):
            raise ValueError("the checksum is not that of the content")
        if (found := document.get("format")) not in READABLE:
            raise ValueError(f"its format is {found!r}; this version reads {' and '.join(map(str, READABLE))}")
        try:
            return cls(
                _whole(document["number"]), _text(document["writer"]), _text(document["topology"]),
                tuple(map(_text, document["schema"])), _whole(document["created_ms"]),
                tuple(_data_file(*file) for file in document["files"]), Coverage.from_json(document["coverage"]),
                _text(document["component"]), _steps(document["inputs"]) if found > 1 else {},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"out of form ({error})") from None


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{str(value)[:200]!r} is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:200]!r} is no text")
    return value


def _steps(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:200]!r} are no inputs")
    return {name: _text(step) for name, step in value.items()}


def _data_file(path: Any, rows: Any, size: Any) -> DataFile:
    """Return a file of an entry. Recovery renames what an entry names, so a path must stay below the directory."""
    parts = PurePosixPath(_text(path)).parts
    if not parts or parts[0] == "/" or ".." in parts or "\0" in path:
        raise ValueError(f"{path[:200]!r} is not below the directory")
    return DataFile(path, _whole(rows), _whole(size))


def _checksum(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


class CommitLog:
    """A directory's log, as far as this process has read it.

    Args:
        directory: the sink's directory; it need not exist.
        disk: the file operations.

    Attributes:
        coverage: all rows that are in the directory.
        inputs: the inputs that rows came through, and their steps.
        length: how many entries were read; the number of the next one.
    """

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.directory = directory
        self.folder = directory / LOG_FOLDER
        self.disk = disk or Disk()
        self.coverage = Coverage()
        self.inputs = KnownInputs()
        self.length = 0
        self.rows = 0
        self.topology: str | None = None
        self.component: str | None = None
        self.schema: tuple[str, ...] | None = None

    def path(self, number: int) -> Path:
        """Return where entry ``number`` is."""
        return self.folder / f"{number:020d}.json"

    def refresh(self) -> list[Entry]:
        """Read the entries that were added since; O(new entries).

        Raises:
            SinkError: an entry is torn, was edited, or is not the one its name says.
        """
        new: list[Entry] = []
        while (entry := self._read(self.length)) is not None:
            new.append(entry)
            self._take(entry)
        return new

    def _take(self, entry: Entry) -> None:
        self.coverage.update(entry.coverage)
        self.inputs.take(entry.inputs)
        self.length += 1
        self.rows += entry.rows
        self.topology = entry.topology
        self.component = entry.component
        self.schema = entry.schema

    def check_complete(self) -> None:
        """Raise a SinkError if an entry is missing below one that is there. Lists the folder; for audits and opening.

        Other writers may append meanwhile, and a listing may show n + 1 without n. But n was linked first: so a number
        that was not listed is missing only if its file is not there now.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise SinkError(f"{self.folder} cannot be read: {error.strerror}", cure="correct the permissions") from None
        listed = {int(name[:20]) for name in names if _NAME.fullmatch(name)}
        for number in range(max(self.length, max(listed, default=-1) + 1)):
            if number not in listed and not self.path(number).exists():
                raise SinkError(
                    f"{self.path(number)} is missing, though there were later entries: rows would be written twice",
                    cure="restore it from a backup; without it the directory's history is unknown",
                )

    def _read(self, number: int) -> Entry | None:
        path = self.path(number)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SinkError(f"{path} cannot be read: {error.strerror}", cure="correct the permissions") from None
        try:
            entry = Entry.from_bytes(content)
        except ValueError as error:
            raise SinkError(f"{path} is damaged: {error}", cure=_CURE) from None
        if entry.number != number:
            raise SinkError(f"{path} holds entry {entry.number}", cure=_CURE)
        return entry

    def append(self, entry: Entry) -> bool:
        """Create the entry; False where its number is taken by now: refresh and try the next.

        When this returns True the entry is on disk. The race: two writers link the same number; the file system lets
        one through; the other sees FileExistsError, reads what the winner wrote and adapts. On NFS a link may be made
        and its answer lost; the client asks again and is told that the name is taken, says link(2). So the entry that
        is there is compared with ours: the same bytes, with our writer's unique name in them, are ours.

        Raises:
            ValueError: the entry could not be read back. Linked, it would block the directory for ever.
            OSError: the disk says no. Where the last step failed, the entry may be there: :meth:`refresh` tells.
        """
        if entry.number != self.length:
            raise ValueError(f"entry {entry.number} after {self.length} entries")
        content = entry.to_bytes()
        Entry.from_bytes(content)
        self.disk.make_folder(self.folder)
        temporary = self.folder / f".{entry.writer}-{entry.number}.tmp"
        try:
            self.disk.write(temporary, content)
            self.disk.sync(temporary)
            try:
                self.disk.link(temporary, self.path(entry.number))
            except FileExistsError:
                if self.path(entry.number).read_bytes() != content:
                    return False
            self.disk.sync(self.folder)
        finally:
            self.disk.remove(temporary)
        self._take(entry)
        return True


def read_entries(directory: str | os.PathLike[str]) -> Sequence[Entry]:
    """Return all entries of a directory's log, in order; none where there is no log.

    Raises:
        SinkError: the log is damaged or has holes.
    """
    log = CommitLog(Path(directory))
    entries = log.refresh()
    log.check_complete()
    return entries
