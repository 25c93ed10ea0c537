"""A machine: processes that die for good at a step that a test chooses, and the volume that they write to.

A :class:`Volume` is a folder whose files any tool can read. Beside it stands a model of what a power cut would leave.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.testing import Killed

Loss = Literal["discard", "keep", "some"]
LOSSES: tuple[Loss, ...] = ("discard", "keep", "some")
"""What a crash leaves of what was not synced: nothing; all of it (the process was killed and the machine went on);
any part of it, by chance."""


@dataclass(frozen=True)
class Step:
    """One thing that a process is about to do to the world."""

    number: int  # of the process, from 1
    operation: str  # ``write``, ``sync``, ``link`` …; ``tear`` is in the middle of a write
    where: str  # the path, or what stands for one
    changes: bool = True  # whether it changes the world; it may also be a look at it


class Process:
    """One life of a program. Once it has died, nothing that it does has any effect."""

    def __init__(self, name: str, before: Callable[[Process, Step], None] | None = None) -> None:
        self.name = name  # for messages
        self.steps = 0  # how many steps it has begun
        self.dead = False  # whether it has died
        # called ahead of each step; raises Killed to end the process there, any other error to let the step fail, and
        # returns to let it happen
        self._before = before

    def step(self, operation: str, where: object = "", *, changes: bool = True) -> None:
        """Say what comes next. Raises Killed: the process has died, now or before."""
        self.check()
        self.steps += 1
        if self._before is not None:
            try:
                self._before(self, Step(self.steps, operation, str(where), changes))
            except Killed:
                self.dead = True
                raise
            self.check()  # it may have died in its sleep

    def check(self) -> None:
        if self.dead:
            raise Killed(f"{self.name} is dead")


@dataclass(eq=False)
class _File:
    """A file under whichever names. ``durable`` is what a power cut leaves; None: it was never synced."""

    content: bytes
    modified: float
    durable: bytes | None = None


@dataclass(eq=False)
class _Folder:
    """A folder: what its names stand for, and what they stood for when it was synced last."""

    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = _File | _Folder


@dataclass(eq=False)
class _Rename:
    """A rename that is not durable yet: ``node`` is to go from one name to another."""

    node: _Node
    source: tuple[_Folder, str]
    target: tuple[_Folder, str]


class Volume:
    """What processes of one machine have in common: the files as all of them see them, and as a power cut leaves them.

    It models little more than the least that POSIX promises:

    * The content of a file is durable after ``sync`` of the file. Without it, a power cut leaves what was synced
      before; nothing; or any beginning of it, followed by zeros or not.
    * A name (of a new file or folder, a link, a removed name) is durable after ``sync`` of the folder that it is in.
      Each name stands for itself: of two that were not synced a cut may leave the second without the first, and the
      folder of a name does not come back with it.
    * A rename is all or nothing, and durable after ``sync`` of either folder. POSIX does not say so, but file systems
      that people use do, and without it no file could ever be moved safely between folders.
    * A process that dies alone loses nothing that it wrote; it may die in the middle of a write.
    * ``link`` is exclusive, ``rename`` replaces, and of two names of one file does nothing: POSIX.

    Not modelled: disks that lie about ``fsync`` or fail in it, bits that rot, a sector that is lost with its
    neighbours, a network file system whose clients see different states, quotas, rights.

    Args:
        seed: of the chances of the loss ``some``.

    Attributes:
        version: another one after each change.
    """

    def __init__(self, root: Path, clock: Clock = SYSTEM_CLOCK, seed: int = 0) -> None:
        # an existing folder. What is in it counts as durable, and from now on only a SimulatedDisk writes to it.
        self.root = root
        self.clock = clock  # gives files their time
        self.version = 0
        self._random = random.Random(seed)
        self._top = self._scan(root)
        self._renames: list[_Rename] = []
        self._processes: list[Process] = []

    def _scan(self, folder: Path) -> _Folder:
        nodes: dict[str, _Node] = {}
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                nodes[path.name] = self._scan(path)
            else:
                content = path.read_bytes()
                nodes[path.name] = _File(content, self.clock.wall(), content)
        return _Folder(nodes, dict(nodes))

    def files(self, *, durable: bool = False) -> dict[str, bytes]:
        """Return the files below the root by their paths: as programs see them, or what is durable of them."""
        return dict(_files_in(self._top, durable))

    def fork(self, root: Path, loss: Loss, clock: Clock, seed: int = 0) -> Volume:
        """Return a volume as this one would be after a crash now, in another folder; here nothing happens.

        Where the loss is ``keep``, what was not synced is not durable there either.
        """
        made = Volume(root, clock, seed)
        if loss == "keep":
            made._top, made._renames = copy.deepcopy((self._top, self._renames))
        else:
            made._top = self._cut(loss, made._random)
        _write_out(made._top, root, {})
        return made

    def state(self) -> Hashable:
        """Return a value that is the same for volumes in the same state."""
        seen: dict[int, int] = {}
        tree = _state(self._top, seen)
        renames = [(seen.get(id(one.source[0])), one.source[1], seen.get(id(one.target[0]))) for one in self._renames]
        return tree, tuple(renames)

    def power_cut(self, loss: Loss = "discard") -> None:
        """End all processes, and leave on the disk what survives. All of that is durable then."""
        for process in self._processes:
            process.dead = True
        self._processes.clear()
        self.version += 1
        if loss == "keep":
            _settle(self._top)
            self._renames.clear()
            return
        self._top = self._cut(loss, self._random)
        self._renames.clear()
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _write_out(self._top, self.root, {})

    def _cut(self, loss: Loss, chance: random.Random) -> _Folder:
        picked: dict[tuple[int, str], bool] = {}
        for rename in self._renames:
            happened = chance.random() < 0.5
            picked |= {(id(folder), name): happened for folder, name in (rename.source, rename.target)}
        return _left(self._top, loss, chance, picked, {})

    # --- what disks do ------------------------------------------------------------------------------------

    def join(self, process: Process) -> None:
        self._processes.append(process)

    def node(self, path: Path) -> _Node:
        found: _Node = self._top
        for part in path.relative_to(self.root).parts:
            if not isinstance(found, _Folder) or part not in found.names:
                raise FileNotFoundError(2, os.strerror(2), str(path))
            found = found.names[part]
        return found

    def folder(self, path: Path) -> _Folder:
        found = self.node(path)
        if not isinstance(found, _Folder):
            raise NotADirectoryError(20, os.strerror(20), str(path))
        return found

    def changed(self, operation: str, path: Path, source: Path | None = None) -> None:
        """Take note of an operation of a disk that happened; of a write, :meth:`wrote`."""
        self.version += 1
        if operation in ("link", "rename"):
            assert source is not None
            getattr(self, f"_{operation}")(source, path)
        else:
            getattr(self, f"_{operation}")(path)

    def wrote(self, path: Path, content: bytes) -> None:
        self.version += 1
        names = self.folder(path.parent).names
        file = names.setdefault(path.name, _File(b"", 0.0))
        assert isinstance(file, _File)
        file.content, file.modified = content, self.clock.wall()

    def _make_folder(self, path: Path) -> None:
        found = self._top
        for part in path.relative_to(self.root).parts:
            child = found.names.setdefault(part, _Folder())
            assert isinstance(child, _Folder)
            found = child

    def _sync(self, path: Path) -> None:
        node = self.node(path)
        if isinstance(node, _File):
            node.durable = node.content
            return
        node.durable = dict(node.names)
        for rename in [one for one in self._renames if node in (one.source[0], one.target[0])]:
            self._renames.remove(rename)
            (source, old), (target, new) = rename.source, rename.target
            if source.durable.get(old) is rename.node and source.names.get(old) is not rename.node:
                del source.durable[old]
            if target.names.get(new) is rename.node:
                target.durable[new] = rename.node

    def _link(self, source: Path, target: Path) -> None:
        self.folder(target.parent).names[target.name] = self.node(source)

    def _rename(self, source: Path, target: Path) -> None:
        node, old, new = self.node(source), self.folder(source.parent), self.folder(target.parent)
        if new.names.get(target.name) is node:
            return  # two names of one file: rename(2) leaves both
        new.names[target.name] = node
        del old.names[source.name]
        start = old, source.name
        for before in [one for one in self._renames if one.node is node and one.target == start]:
            self._renames.remove(before)  # two in a row are one
            start = before.source
        self._renames.append(_Rename(node, start, (new, target.name)))

    def _remove(self, path: Path) -> None:
        try:
            self.folder(path.parent).names.pop(path.name, None)
        except (FileNotFoundError, NotADirectoryError):
            return


def _left(
    folder: _Folder, loss: Loss, chance: random.Random, picked: Mapping[tuple[int, str], bool], seen: dict[int, _Node]
) -> _Folder:
    """Return what a cut leaves of a folder; a file with two names stays one file."""
    names = folder.durable
    if loss == "some":
        names = {}
        for name in folder.durable | folder.names:
            new, old = folder.names.get(name), folder.durable.get(name)
            happened = picked.get((id(folder), name))
            node = new if new is old or (chance.random() < 0.5 if happened is None else happened) else old
            if node is not None:
                names[name] = node
    left: dict[str, _Node] = {}
    for name, node in names.items():
        if id(node) not in seen:
            survives: _Node
            if isinstance(node, _Folder):
                survives = _left(node, loss, chance, picked, seen)
            else:
                survives = _survivor(node, loss, chance)
            seen[id(node)] = survives
        left[name] = seen[id(node)]
    return _Folder(left, dict(left))


def _survivor(file: _File, loss: Loss, chance: random.Random) -> _File:
    content = before = file.durable or b""
    if loss == "some" and file.content != file.durable:
        whole = file.content
        torn = whole[: chance.randrange(len(whole) + 1)]
        content = chance.choice((whole, before, torn, torn.ljust(len(whole), b"\0")))
    return _File(content, file.modified, content)


def _settle(folder: _Folder) -> None:
    folder.durable = dict(folder.names)
    for node in folder.names.values():
        if isinstance(node, _Folder):
            _settle(node)
        else:
            node.durable = node.content


def _files_in(folder: _Folder, durable: bool, above: str = "") -> Iterator[tuple[str, bytes]]:
    for name, node in (folder.durable if durable else folder.names).items():
        if isinstance(node, _Folder):
            yield from _files_in(node, durable, f"{above}{name}/")
        else:
            yield above + name, (node.durable or b"") if durable else node.content


def _state(node: _Node, seen: dict[int, int]) -> Hashable:
    if id(node) in seen:  # the second name of a file, or a name that is durable and in use
        return seen[id(node)]
    seen[id(node)] = len(seen)
    if isinstance(node, _File):
        return node.content, node.durable
    names = tuple((name, _state(node.names[name], seen)) for name in sorted(node.names))
    return names, tuple((name, _state(node.durable[name], seen)) for name in sorted(node.durable))


def _write_out(folder: _Folder, target: Path, written: dict[int, Path]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, node in folder.names.items():
        path = target / name
        if isinstance(node, _Folder):
            _write_out(node, path, written)
        elif (twin := written.get(id(node))) is not None:
            os.link(twin, path)
        else:
            path.write_bytes(node.content)
            written[id(node)] = path
