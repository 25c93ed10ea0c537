"""The commit log of a directory: one totally ordered list of entries, each created exactly once.

Entry *n* is the file ``_downspout/log/<n, 20 digits>.json``. It is written under another name, forced to disk, and then linked to its
own name, which fails if somebody was first. So there is one order that all writers see, without any lock. An entry
names the data files of one flush and the rows that are in them. A row is in the directory if and only if an entry covers it.

What the log does not know: Parquet, tuples, Kafka.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.errors import SinkError
from downspout.parquet.coverage import Coverage
from downspout.parquet.disk import Disk

__all__ = ["CommitLog", "DataFile", "Entry", "LOG_FOLDER", "STAGING_FOLDER"]

LOG_FOLDER = Path("_downspout") / "log"
STAGING_FOLDER = Path("_downspout") / "staging"
"""Both begin with an underscore: Spark, pandas and DuckDB's globs for ``*.parquet`` in Hive folders leave them alone."""


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
    """

    number: int
    writer: str
    topology: str
    schema: tuple[str, ...]
    created_ms: int
    files: tuple[DataFile, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def rows(self) -> int:
        """How many rows became visible with it."""
        return sum(file.rows for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the entry as its file holds it: one JSON object, its checksum last."""
        document = {
            "format": 1,
            "number": self.number,
            "writer": self.writer,
            "topology": self.topology,
            "schema": list(self.schema),
            "created_ms": self.created_ms,
            "files": [[file.path, file.rows, file.bytes] for file in self.files],
            "coverage": self.coverage.to_json(),
        }
        document["checksum"] = _checksum(document)
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

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
        try:
            files = tuple(DataFile(str(path), int(rows), int(size)) for path, rows, size in document["files"])
            return cls(
                int(document["number"]), str(document["writer"]), str(document["topology"]),
                tuple(map(str, document["schema"])), int(document["created_ms"]),
                files, Coverage.from_json(document["coverage"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"out of form ({error})") from None


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
        length: how many entries were read; the number of the next one.
    """

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.directory = directory
        self.folder = directory / LOG_FOLDER
        self.disk = disk or Disk()
        self.coverage = Coverage()
        self.length = 0
        self.rows = 0
        self.topology: str | None = None
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
            self.coverage.update(entry.coverage)
            self.length += 1
            self.rows += entry.rows
            self.topology = entry.topology
            self.schema = entry.schema
        return new

    def check_complete(self) -> None:
        """Raise a SinkError if entries are missing between those that are there. Lists the folder; for audits and opening."""
        names = sorted(path.name for path in self.folder.glob("*.json")) if self.folder.exists() else []
        if len(names) != self.length:
            missing = self.path(self.length)
            raise SinkError(
                f"{missing} is missing, though later entries are there: rows would be written twice",
                cure="restore it from a backup; without it the directory's history is unknown",
            )

    def _read(self, number: int) -> Entry | None:
        path = self.path(number)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SinkError(f"{path} cannot be read: {error.strerror}") from None
        cure = "restore it from a backup; a log that was changed by hand cannot be trusted"
        try:
            entry = Entry.from_bytes(content)
        except ValueError as error:
            raise SinkError(f"{path} is damaged: {error}", cure=cure) from None
        if entry.number != number:
            raise SinkError(f"{path} holds entry {entry.number}", cure=cure)
        return entry

    def append(self, entry: Entry) -> bool:
        """Create the entry; False where its number is taken by now: refresh and try the next.

        When this returns True the entry is on disk. The race: two writers link the same number; the file system lets one
        through; the other sees FileExistsError, reads what the winner wrote and adapts.
        """
        if entry.number != self.length:
            raise ValueError(f"entry {entry.number} after {self.length} entries")
        self.disk.make_folder(self.folder)
        temporary = self.folder / f".{entry.writer}-{entry.number}.tmp"
        try:
            self.disk.write(temporary, entry.to_bytes())
            self.disk.sync(temporary)
            try:
                self.disk.link(temporary, self.path(entry.number))
            except FileExistsError:
                return False
            self.disk.sync(self.folder)
        finally:
            self.disk.remove(temporary)
        self.coverage.update(entry.coverage)
        self.length += 1
        self.rows += entry.rows
        self.topology = entry.topology
        self.schema = entry.schema
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
