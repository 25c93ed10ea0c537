"""A disk that forgets what nobody synced, and processes that die for good: for tests of crashes.

A :class:`Volume` is a folder whose files can be read with any tool. Beside it stands a model of what a power cut would
leave. Programs write through a :class:`SimulatedDisk`, one for each :class:`Process`; a test stops a process before
any of its steps, or lets another one go ahead there.

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
downspout.testing.simulated_process.Crashed: first is dead
>>> folder.cleanup()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from downspout.sink.storage.disk import Disk
from downspout.testing.simulated_process import Crashed, Process, Step
from downspout.testing.simulated_volume import LOSSES, Loss, Volume

__all__ = ["LOSSES", "Crashed", "Loss", "Process", "SimulatedDisk", "Step", "Volume", "visible"]


class SimulatedDisk(Disk):
    """The disk as one process has it; give it to a sink's writer, or to a sink as its attribute ``disk``."""

    def __init__(self, volume: Volume, process: Process) -> None:
        self.volume = volume
        self.process = process  # whose steps these are
        volume.join(process)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it."""
        self.process.step("make_folder", folder)
        super().make_folder(folder)
        self.volume.made_folder(folder)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole; there is a step in the middle of it, where the process may die, or the disk be full."""
        self.process.step("write", path)
        path.write_bytes(content[: len(content) // 2])
        self.volume.wrote(path, content[: len(content) // 2])
        try:
            self.process.step("tear", path)
        except OSError:
            path.unlink()
            self.volume.removed(path)
            raise
        path.write_bytes(content)
        self.volume.wrote(path, content)

    def sync(self, path: Path) -> None:
        """Let a file's content, or a folder's names, outlive a power cut."""
        if path.is_relative_to(self.volume.root):  # what is above counts as durable
            self.process.step("sync", path)
            self.volume.synced(path)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, exclusively."""
        self.process.step("link", target)
        super().link(source, target)
        self.volume.linked(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self.process.step("rename", target)
        super().rename(source, target)
        self.volume.renamed(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file that may be gone already."""
        self.process.step("remove", path)
        super().remove(path)
        self.volume.removed(path)

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        self.process.step("read", path, changes=False)
        return super().read(path)

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder."""
        self.process.step("exists", path, changes=False)
        return super().exists(path)

    def names(self, folder: Path, at_least: str = "") -> list[str]:
        """Return what is in a folder, which may not exist."""
        self.process.step("names", folder, changes=False)
        return super().names(folder, at_least)

    def files_below(self, folder: Path, without: str = "") -> Iterator[Path]:
        """Yield all files below a folder that may not exist, as they are now."""
        self.process.step("files_below", folder, changes=False)
        return iter(list(super().files_below(folder, without)))

    def modified(self, path: Path) -> float:
        """Return when a file was written, by the volume's clock."""
        self.process.step("modified", path, changes=False)
        try:
            node = self.volume.node(path)
        except FileNotFoundError:
            return 0.0
        return getattr(node, "modified", 0.0)


def visible(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the data files that a plain reader of a directory sees, of those that :meth:`Volume.files` returns.

    >>> sorted(visible({"out/a.parquet": b"", "out/k=1/b.parquet": b"", "_out.downspout/1/staging/c.parquet": b""}))
    ['out/a.parquet', 'out/k=1/b.parquet']
    """
    return {
        path: content
        for path, content in files.items()
        if path.endswith(".parquet") and not any(part[0] in "._" for part in path.split("/"))
    }
