"""Disks that stop before any operation, and one that forgets what was not synced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from downspout.testing import WatchedDisk
from tests.machine import Process, Volume


class SteppedDisk(WatchedDisk):
    """Each change is a step of a process; not given: of one that calls ``before`` with the step's number."""

    def __init__(self, before: Callable[[int], Any] = lambda number: None, process: Process | None = None) -> None:
        self.process = process or Process("p", lambda _, step: before(step.number))

    @property
    def steps(self) -> int:
        return self.process.steps

    def _change(self, operation: str, path: Path, change: Callable[[], None], source: Path | None = None) -> None:
        self.process.step(operation, path)
        change()


class SimulatedDisk(SteppedDisk):
    """A volume as one process has it. Looks are steps too, and the middle of a write is one.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> root = Path(folder.name)
    >>> volume = Volume(root)
    >>> disk = SimulatedDisk(volume, Process("first"))
    >>> disk.write(root / "a", b"text")
    >>> disk.sync(root / "a")
    >>> volume.power_cut("discard")
    >>> list(root.iterdir())  # its content was synced, its name was not
    []
    >>> disk.remove(root / "a")
    Traceback (most recent call last):
        ...
    downspout.testing.simulation.fault_proxy.Killed: first is dead
    >>> folder.cleanup()
    """

    def __init__(self, volume: Volume, process: Process) -> None:
        super().__init__(process=process)
        self.volume = volume
        volume.join(process)

    def _change(self, operation: str, path: Path, change: Callable[[], None], source: Path | None = None) -> None:
        if not path.is_relative_to(self.volume.root):
            return  # what is above is there, and counts as durable
        self.process.step(operation, path)
        if operation != "sync":
            change()
        self.volume.changed(operation, path, source)

    def _look(self, operation: str, path: Path) -> None:
        self.process.step(operation, path, changes=False)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole; there is a step in the middle of it, where the process may die, or the disk be full."""
        self.process.step("write", path)
        self._put(path, content[: len(content) // 2])
        try:
            self.process.step("tear", path)
        except OSError:
            path.unlink()
            self.volume.changed("remove", path)
            raise
        self._put(path, content)

    def _put(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self.volume.wrote(path, content)

    def modified(self, path: Path) -> float:
        """Return when a file was written, by the volume's clock."""
        self._look("modified", path)
        try:
            return getattr(self.volume.node(path), "modified", 0.0)
        except FileNotFoundError:
            return 0.0


def visible(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the data files that a plain reader of a directory sees, of those that :meth:`Volume.files` returns.

    >>> sorted(visible({"out/a.parquet": b"", "out/k=1/b.parquet": b"", "out/_downspout/staging/c.parquet": b""}))
    ['out/a.parquet', 'out/k=1/b.parquet']
    """
    return {
        path: content
        for path, content in files.items()
        if path.endswith(".parquet") and not any(part[0] in "._" for part in path.split("/"))
    }
