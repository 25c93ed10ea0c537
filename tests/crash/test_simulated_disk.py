"""The simulated disk: its state after a power cut, and that dead processes change nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from downspout.testing import Killed
from tests.disks import SimulatedDisk
from tests.machine import LOSSES, Process, Step, Volume

SEEDS = range(60)


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


@pytest.fixture
def disk(volume: Volume) -> SimulatedDisk:
    return SimulatedDisk(volume, Process("p"))


def there(volume: Volume) -> dict[str, bytes]:
    root = volume.root
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def outcomes(volume: Volume, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    found = []
    for seed in SEEDS:
        left = there(volume.fork(tmp_path_factory.mktemp("fork"), "some", volume.clock, seed))
        if left not in found:
            found.append(left)
    return found


def test_what_was_not_synced_is_gone(volume: Volume, disk: SimulatedDisk) -> None:
    """Content needs a sync of the file, a name one of its folder, and a folder one of the folder above."""
    root = volume.root
    disk.make_folder(root / "in" / "side")
    for name in ("both", "content", "name"):
        disk.write(root / "in" / name, b"text")
    disk.write(root / "in" / "side" / "lost", b"text")
    disk.sync(root / "in" / "both")
    disk.sync(root / "in" / "side" / "lost")
    disk.sync(root)
    disk.sync(root / "in")
    disk.sync(root / "in" / "side")
    disk.write(root / "in" / "late", b"text")
    disk.sync(root / "in" / "late")
    assert volume.files(durable=True)["in/both"] == b"text"
    volume.power_cut()
    assert there(volume) == {"in/both": b"text", "in/content": b"", "in/name": b"", "in/side/lost": b"text"}


def test_a_folder_that_is_not_durable_takes_all_with_it(volume: Volume, disk: SimulatedDisk) -> None:
    """What is synced inside a folder whose own name is not durable does not outlive a power cut."""
    disk.make_folder(volume.root / "in")
    disk.write(volume.root / "in" / "a", b"text")
    disk.sync(volume.root / "in" / "a")
    disk.sync(volume.root / "in")
    volume.power_cut()
    assert list(volume.root.iterdir()) == []


@pytest.mark.parametrize("synced", ["", "old", "new"])
def test_a_rename_is_all_or_nothing(
    volume: Volume, disk: SimulatedDisk, tmp_path_factory: pytest.TempPathFactory, synced: str
) -> None:
    """A moved file is in one of two places after a power cut; once either folder is synced, in the new one."""
    root = volume.root
    for folder in ("old", "new"):
        disk.make_folder(root / folder)
    disk.write(root / "old" / "a", b"text")
    for path in (root / "old" / "a", root / "old", root / "new", root):
        disk.sync(path)
    disk.rename(root / "old" / "a", root / "new" / "a")
    if synced:
        disk.sync(root / synced)
    found = outcomes(volume, tmp_path_factory)
    moved, not_moved = {"new/a": b"text"}, {"old/a": b"text"}
    assert found == [moved] if synced else sorted(map(str, found)) == sorted(map(str, [moved, not_moved]))
    volume.power_cut()
    assert there(volume) == (moved if synced else not_moved)


def test_chance_leaves_any_part(volume: Volume, disk: SimulatedDisk, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of two files that were not synced each may survive without the other, whole, torn, or padded with zeros."""
    for name in ("a", "b"):
        disk.write(volume.root / name, b"text")
    found = outcomes(volume, tmp_path_factory)
    assert {frozenset(left) for left in found} == {frozenset(names) for names in ("", "a", "b", "ab")}
    contents = {content for left in found for content in left.values()}
    assert {b"", b"text"} < contents
    assert any(content.endswith(b"\0") for content in contents)


def test_a_link_is_a_second_name_of_one_file(volume: Volume, disk: SimulatedDisk) -> None:
    """A link is exclusive, keeps the file when the first name goes, and needs no sync of the content of its own."""
    root = volume.root
    disk.make_folder(root / "in")
    disk.sync(root)
    disk.write(root / "a", b"text")
    disk.link(root / "a", root / "in" / "b")
    with pytest.raises(FileExistsError):
        disk.link(root / "a", root / "in" / "b")
    disk.sync(root / "a")
    disk.sync(root / "in")
    disk.remove(root / "a")
    volume.power_cut()
    assert there(volume) == {"in/b": b"text"}


def test_a_killed_process_loses_nothing(volume: Volume, disk: SimulatedDisk) -> None:
    """Where a process dies and the machine goes on, all that it wrote is there."""
    disk.write(volume.root / "a", b"text")
    volume.power_cut("keep")
    assert there(volume) == {"a": b"text"}


def test_the_dead_change_nothing(volume: Volume) -> None:
    """After its death no operation of a process has any effect, in a ``finally`` or behind an ``except OSError``."""
    volume_before: dict[str, bytes] = {}

    def before(process: Process, step: Step) -> None:
        if step.operation == "sync":
            volume_before.update(there(volume))
            raise Killed

    disk = SimulatedDisk(volume, Process("dies", before))
    root = volume.root

    def work() -> None:
        try:
            disk.write(root / "a", b"text")
            try:
                disk.sync(root / "a")
            except OSError:
                disk.remove(root / "a")
        finally:
            for clean_up in (
                lambda: disk.remove(root / "a"),
                lambda: disk.write(root / "b", b""),
                lambda: disk.make_folder(root / "c"),
                lambda: disk.link(root / "a", root / "d"),
                lambda: disk.rename(root / "a", root / "e"),
                lambda: disk.sync(root),
                lambda: disk.read(root / "a"),
                lambda: disk.put_if_absent(root / "f", b"", root / "g"),
            ):
                with pytest.raises(Killed):
                    clean_up()

    with pytest.raises(Killed):
        work()
    assert there(volume) == volume_before == {"a": b"text"}
    assert list(root.iterdir()) == [root / "a"]
    assert volume.files(durable=True) == {}


def test_a_process_may_die_in_the_middle_of_a_write(volume: Volume) -> None:
    """A process that is killed while it writes leaves the first half; one whose disk is full leaves nothing."""
    errors: list[BaseException] = [OSError(28, "No space left on device"), Killed()]

    def before(process: Process, step: Step) -> None:
        if step.operation == "tear":
            raise errors.pop(0)

    disk = SimulatedDisk(volume, Process("p", before))
    with pytest.raises(OSError, match="No space"):
        disk.write(volume.root / "a", b"text")
    assert there(volume) == volume.files() == {}
    with pytest.raises(Killed):
        disk.write(volume.root / "a", b"text")
    assert there(volume) == volume.files() == {"a": b"te"}


def test_a_power_cut_ends_all_processes(volume: Volume) -> None:
    """Whoever slept when the power went does not wake up."""
    sleeper = SimulatedDisk(volume, Process("sleeps", lambda process, step: volume.power_cut()))
    other = SimulatedDisk(volume, Process("other"))
    with pytest.raises(Killed):
        sleeper.write(volume.root / "a", b"text")
    with pytest.raises(Killed):
        other.exists(volume.root)
    assert there(volume) == {}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_fork_is_the_same_as_a_crash(volume: Volume, tmp_path_factory: pytest.TempPathFactory, loss: str) -> None:
    """A fork is in the state that a crash would leave, and what is done in the one is not seen in the other."""
    disk = SimulatedDisk(volume, Process("p"))
    disk.write(volume.root / "a", b"text")
    disk.sync(volume.root)
    with contextlib.suppress(FileNotFoundError):
        disk.rename(volume.root / "a", volume.root / "b")
    fork = volume.fork(tmp_path_factory.mktemp("fork"), loss, volume.clock, 5)  # type: ignore[arg-type]
    before = there(volume)
    SimulatedDisk(fork, Process("q")).write(fork.root / "c", b"")
    assert there(volume) == volume.files() == before
    assert there(fork) == fork.files()
    if loss == "keep":
        assert fork.files(durable=True) == volume.files(durable=True)
    else:
        assert fork.files(durable=True).keys() == fork.files().keys() - {"c"}
