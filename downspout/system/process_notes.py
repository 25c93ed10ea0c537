"""Notes that outlive a process, and name the record that it was working on when it died.

What a process has written into a file that is mapped into its memory stays, whatever ends the process, and costs no
system call. So each component on Storm's pipe keeps a note: the record that it began with last, until it is idle. A
spout that finds an unclean start (``downspout.spout.partition``) reads the notes of processes that have ended.

The notes of a topology are in a folder that only its owner can open, under the temporary directory. Processes on other
machines, and components that are not ours, have none: the reader must expect tasks without a note. A death that took
all processes with notes along was that of the worker; one that some of them outlived was not.
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
"""What it works on (nothing, a record, something unknown); partition, first and last offset."""
_STATE_AT = _HEAD.size
IDLE, HOLDS, UNKNOWN = range(3)
_NAME = re.compile(r"(\d+)-(\d+)\.held")


@dataclass(frozen=True)
class ComponentDeath:
    """What a process was working on when it died: a record or a chunk; without a topic, something unknown."""

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
    """Make a folder that only we can open, or close one that is ours; one that another user has made is left alone.

    Whoever may write to the temporary directory may have put a link there, so nothing is done through a path before
    what it leads to is known: the folder itself is opened, and asked.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # raises where it is a link
    try:
        found = os.fstat(number)
        if found.st_uid == os.getuid() and found.st_mode & 0o077:
            os.fchmod(number, 0o700)
    finally:
        os.close(number)


def _is_safe(folder: Path) -> bool:
    """Return whether a folder and the one that holds all of ours are ours, and closed to others."""
    with suppress(OSError):
        for each in (folder.parent.parent, folder.parent, folder):
            found = each.lstat()
            if found.st_uid != os.getuid() or found.st_mode & 0o077 or each.is_symlink():
                return False
        return True
    return False


class NoteWriter:
    """Keeps the note of one task in this process.

    Raises:
        OSError: no file can be made, or the folder is not ours alone.
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
        """Note with which record, or range of records, the process begins now."""
        if topic != self._topic:
            self._map[_STATE_AT] = IDLE
            self._write_topic(topic)
        _STATE.pack_into(self._map, _STATE_AT, HOLDS, partition, first, last)

    def begin_unknown(self) -> None:
        """Note that the process begins with something that names no record."""
        self._map[_STATE_AT] = UNKNOWN

    def begin_tick(self) -> None:
        """Note that the process begins with a tick; what it was working on, it still is."""
        if self._map[_STATE_AT] == IDLE:
            self.begin_unknown()

    def idle(self) -> None:
        """Note that the process has nothing to do."""
        self._map[_STATE_AT] = IDLE


class NoteReader:
    """Reads the notes of a topology."""

    def __init__(self, topology_id: str) -> None:
        self._folder = folder_of(topology_id)

    def tasks(self) -> set[int]:
        """Return the tasks that have, or had, a process on this machine that kept a note."""
        return {task for _, task, _ in _notes(self._folder)} if _is_safe(self._folder) else set()

    def deaths(self) -> list[ComponentDeath]:
        """Return what processes were working on that have ended and were not idle."""
        if not _is_safe(self._folder):
            return []
        return [death for path, task, pid in _notes(self._folder) if (death := _death(path, task, pid)) is not None]

    def outlived(self) -> bool:
        """Return whether a process that keeps a note is older than this one's parent, which is Storm's worker."""
        # Such a process has outlived the death that this one was started after. Where ages cannot be compared, it may
        # have.
        worker = birth(os.getppid())
        found = [birth(pid) for _, _, pid in _notes(self._folder)] if _is_safe(self._folder) else []
        return any(_is_older(born, worker) for born in found if born is not None)

    @staticmethod
    def forget(death: ComponentDeath) -> None:
        """Remove a note: it has been counted."""
        death.path.unlink(missing_ok=True)


def _notes(folder: Path) -> Iterator[tuple[Path, int, int]]:
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if found := _NAME.fullmatch(path.name):
                yield path, int(found[1]), int(found[2])


def _death(path: Path, task: int, pid: int) -> ComponentDeath | None:
    """Return what a note says of a process that has ended; None where it lives, or was idle."""
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
    """Return whether a process began earlier than another; also where that is unknown, as off Linux."""
    boot, _, ticks = born.partition("/")
    other_boot, _, other_ticks = (than or "").partition("/")
    if boot != other_boot or not (ticks.isdecimal() and other_ticks.isdecimal()):
        return True
    return int(ticks) < int(other_ticks)


def _forget_idle(folder: Path, task: int) -> None:
    """Remove the notes of former processes of a task that were idle; the spout reads the others."""
    for path, other, pid in list(_notes(folder)):
        if other == task and _death(path, other, pid) is None and birth(pid) is None:
            path.unlink(missing_ok=True)
