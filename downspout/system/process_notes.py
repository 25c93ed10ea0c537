"""Notes that survive a process, and name the record that it was processing when it died.

Writes to a memory-mapped file survive any death of the process, and need no system call. So each component on Storm's
pipe keeps a note of the record that it started last, until it is idle. A spout that detects an unclean start
(``downspout.spout.partition``) reads the notes of dead processes.

The notes of a topology are in a private folder under the temporary directory. Processes on other machines and foreign
components have none, so the reader must expect tasks without a note. If all processes with notes died together, it was
the worker that died; if some survived, it was not.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from downspout.system.process import birth

SIZE = 512
BIRTH_MAX = 128
_HEAD = struct.Struct(f"<{BIRTH_MAX}sH250s")  # Birth of the process; length of the topic's name, and the name
_STATE = struct.Struct("<Bqqq")
"""State (idle, a record, unknown); partition; first and last offset."""
_STATE_AT = _HEAD.size
IDLE, HOLDS, UNKNOWN = range(3)
_NAME = re.compile(r"(\d+)-(\d+)\.held")


@dataclass(frozen=True)
class ComponentDeath:
    """The record or chunk that a process was processing when it died; without a topic, it is unknown."""

    path: Path
    task: int
    topic: str
    partition: int
    first: int
    last: int


def folder_of(topology_id: str) -> Path:
    """Return the folder of a topology's notes, which may not exist."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", topology_id)
    return Path(tempfile.gettempdir()) / f"downspout-{os.getuid()}" / "held" / name


def _make_ours(folder: Path) -> None:
    """Create a private folder, or make an existing one private if it is ours.

    Anyone who may write to the temporary directory may have put a link there. So the folder is opened without following
    links, and checked and changed through its descriptor, not its path.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # raises if it is a link
    try:
        found = os.fstat(number)
        if found.st_uid == os.getuid() and found.st_mode & 0o077:
            os.fchmod(number, 0o700)
    finally:
        os.close(number)


def _is_safe(folder: Path) -> bool:
    """Return whether a folder and its two parents are ours and private."""
    with suppress(OSError):
        for each in (folder.parent.parent, folder.parent, folder):
            found = each.lstat()
            if found.st_uid != os.getuid() or found.st_mode & 0o077 or each.is_symlink():
                return False
        return True
    return False


class NoteWriter:
    """Writes the note of one task in this process.

    Raises:
        OSError: no file can be created, or the folder is not private.
    """

    def __init__(self, topology_id: str, task: int) -> None:
        folder = folder_of(topology_id)
        for each in (folder.parent.parent, folder.parent):
            _make_ours(each)
        folder.mkdir(exist_ok=True, mode=0o700)
        if not _is_safe(folder):
            raise PermissionError(f"{folder} is open to other users")
        _forget_idle(folder, task)
        path = folder / f"{task}-{os.getpid()}.held"
        path.unlink(missing_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(number, SIZE)
            self._map = mmap.mmap(number, SIZE)
        finally:
            os.close(number)
        self._topic: str | None = None
        self._birth = (birth(os.getpid()) or "").encode()
        self._write_topic("")

    def _write_topic(self, topic: str) -> None:
        self._topic = topic
        name = topic.encode()[:250]
        _HEAD.pack_into(self._map, 0, self._birth, len(name), name)

    def begin(self, topic: str, partition: int, first: int, last: int) -> None:
        """Note the record, or range of records, that the process starts."""
        if topic != self._topic:
            self._map[_STATE_AT] = IDLE
            self._write_topic(topic)
        _STATE.pack_into(self._map, _STATE_AT, HOLDS, partition, first, last)

    def begin_unknown(self) -> None:
        """Note that the process starts something that names no record."""
        self._map[_STATE_AT] = UNKNOWN

    def begin_tick(self) -> None:
        """Note that the process starts a tick; a record that it still holds stays noted."""
        if self._map[_STATE_AT] == IDLE:
            self.begin_unknown()

    def idle(self) -> None:
        """Note that the process is idle."""
        self._map[_STATE_AT] = IDLE


class NoteReader:
    """Reads the notes of a topology."""

    def __init__(self, topology_id: str) -> None:
        self._folder = folder_of(topology_id)

    def tasks(self) -> set[int]:
        """Return the tasks with notes on this machine, of live or dead processes."""
        return {task for _, task, _ in _notes(self._folder)} if _is_safe(self._folder) else set()

    def deaths(self) -> list[ComponentDeath]:
        """Return the records of processes that died while not idle."""
        if not _is_safe(self._folder):
            return []
        return [death for path, task, pid in _notes(self._folder) if (death := _death(path, task, pid)) is not None]

    def outlived(self) -> bool:
        """Return whether a live process with a note is older than this one's parent, Storm's worker."""
        # Then it has survived the death before this process's start. If ages are unknown, it may have.
        worker = birth(os.getppid())
        found = [birth(pid) for _, _, pid in _notes(self._folder)] if _is_safe(self._folder) else []
        return any(_is_older(born, worker) for born in found if born is not None)

    @staticmethod
    def forget(death: ComponentDeath) -> None:
        """Remove a note that has been counted."""
        death.path.unlink(missing_ok=True)


def _notes(folder: Path) -> Iterator[tuple[Path, int, int]]:
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if found := _NAME.fullmatch(path.name):
                yield path, int(found[1]), int(found[2])


def _death(path: Path, task: int, pid: int) -> ComponentDeath | None:
    """Return the death that a note reports; None if its process is alive or was idle."""
    try:
        data = path.read_bytes()
        born, length, name = _HEAD.unpack_from(data)
        state, partition, first, last = _STATE.unpack_from(data, _STATE_AT)
    except (OSError, struct.error):
        return None
    if state == IDLE or birth(pid) == born.rstrip(b"\0").decode(errors="replace"):
        return None
    topic = name[:length].decode(errors="replace") if state == HOLDS else ""
    return ComponentDeath(path, task, topic, partition, first, last)


def _is_older(born: str, than: str | None) -> bool:
    """Return whether a process started before another; True if unknown, as on systems other than Linux."""
    boot, _, ticks = born.partition("/")
    other_boot, _, other_ticks = (than or "").partition("/")
    if boot != other_boot or not (ticks.isdecimal() and other_ticks.isdecimal()):
        return True
    return int(ticks) < int(other_ticks)


def _forget_idle(folder: Path, task: int) -> None:
    """Remove the notes of a task's dead processes that were idle; the spout reads the others."""
    for path, other, pid in list(_notes(folder)):
        if other == task and _death(path, other, pid) is None and birth(pid) is None:
            path.unlink(missing_ok=True)
