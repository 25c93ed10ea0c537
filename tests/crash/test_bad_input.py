"""Full disks, damaged logs, deleted files, foreign topologies, clocks that jump: a clear error, and nothing is lost."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import Layout
from tests.crash import words
from tests.crash.words import TOPIC
from tests.crash.world import HastyClock, Life, World
from tests.disks import SimulatedDisk
from tests.machine import Process, Step, Volume
from tests.sink.support import rows_of, write_rows

pytestmark = [pytest.mark.fake_only("lets a simulated disk fail at any step")]

FULL = {"make_folder", "write", "tear", "link"}
"""What needs room."""
EVERYTHING = {*FULL, "sync", "rename", "remove"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "disk").mkdir()
    made = World(tmp_path / "disk", words.Alone)
    yield made
    made.close()


def steps_of_a_run(root: Path) -> list[Step]:
    """Return the steps on the disk of a run that nothing disturbs."""
    root.mkdir()
    world, steps = World(root, words.Alone), list[Step]()
    world.before = lambda life, step: steps.append(step)
    world.run(world.start("p"))
    world.close()
    return [step for step in steps if step.operation in EVERYTHING]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "operations", "lasts"),
    [
        pytest.param(errno.ENOSPC, FULL, True, id="full until it is cured"),
        pytest.param(errno.EIO, EVERYTHING, False, id="broken once"),
        pytest.param(errno.ENOSPC, FULL, False, id="full once", marks=pytest.mark.sweep),
        pytest.param(errno.EIO, EVERYTHING, True, id="broken until it is cured", marks=pytest.mark.sweep),
        pytest.param(errno.EROFS, EVERYTHING, False, id="read-only once", marks=pytest.mark.sweep),
        pytest.param(errno.EROFS, EVERYTHING, True, id="read-only until it is cured", marks=pytest.mark.sweep),
    ],
)
def test_a_disk_that_fails_at_any_step(tmp_path: Path, code: int, operations: set[str], lasts: bool) -> None:
    """Whatever step fails, once or for good: an error with path and cure, no row twice; and cured, each row once.

    A disk that is full for a moment is waited for.
    """
    passes = code == errno.ENOSPC and not lasts
    count = sum(step.operation in operations for step in steps_of_a_run(tmp_path / "count"))
    assert count > 15
    told: list[tuple[int, Path, SinkError]] = []
    for bad in range(1, count + 1):
        root = tmp_path / f"bad-{bad}"
        root.mkdir()
        world, seen = World(root, words.Alone), Counter[str]()
        world.settings["parquet.outage_s_max"] = 20.0

        def before(life: Life, step: Step, bad: int = bad, seen: Counter[str] = seen) -> None:
            seen["steps"] += step.operation in operations
            if step.operation in operations and (seen["steps"] >= bad if lasts else seen["steps"] == bad):
                raise OSError(code, os.strerror(code), step.where)

        world.before = before
        try:
            world.run(world.start("first"))
        except SinkError as error:
            told.append((bad, world.directory, error))
        world.check_now(f"step {bad} failed")
        world.check_commits()
        world.before = lambda life, step: None
        assert world.live(world.start("cured"))
        world.check_settled()
        world.close()
        shutil.rmtree(root)
    assert not told if passes else len(told) > count / 2
    for bad, directory, error in told:
        assert str(directory) in str(error), f"step {bad}"
        assert os.strerror(code) in str(error), f"step {bad}"
        assert error.cure


DAMAGE: dict[str, Callable[[Path], object]] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "empty": lambda path: path.write_bytes(b""),
    "edited": lambda path: path.write_bytes(re.sub(rb'"created_ms":\d', b'"created_ms":9', path.read_bytes())),
    "deleted": lambda path: path.unlink(),
}


def entries(directory: Path) -> list[Path]:
    return sorted(Layout(directory).log.glob("*.json"))


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_log_stops_the_run_and_loses_nothing(
    tmp_path: Path, damage: Callable[[Path], object], which: int
) -> None:
    """A log entry that is torn, edited or gone ends a run with its path; restored, each row is there once."""
    world = World(tmp_path, words.Alone)
    world.run(world.start("before"))
    path = entries(world.directory)[which]
    whole = path.read_bytes()
    damage(path)
    world.produce(1, ["a b", "b"])
    with pytest.raises(SinkError) as caught:
        world.run(world.start("damaged"))
    assert str(path.parent) in str(caught.value)
    assert caught.value.cure
    path.write_bytes(whole)
    world.run(world.start("restored"))
    world.check_settled()
    world.close()


def test_a_log_damaged_under_a_running_sink_stops_it(tmp_path: Path) -> None:
    """A sink that finds another's entry torn acks nothing more, names the file, and goes on once it is restored."""
    first = write_rows(tmp_path, [("t", "id", 0, 1, "")], writer="first")
    write_rows(tmp_path, [("t", "id", 0, 2, "")], writer="second")
    path = entries(tmp_path)[-1]
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    with pytest.raises(SinkError, match=path.name):
        first.catch_up()
    path.write_bytes(whole)
    assert [entry.writer for entry in first.catch_up()] == ["second"]


def test_a_visible_file_that_was_deleted_stops_the_next_start(tmp_path: Path) -> None:
    """A data file that is gone is named by the next start, and its rows by the audit; restored, all is well."""
    (tmp_path / "disk").mkdir()
    world = World(tmp_path / "disk", words.Alone)
    world.run(world.start("before"))
    path = next(world.directory.glob("word=*/*.parquet"))
    shutil.copy(path, tmp_path / "kept")
    path.unlink()
    world.produce(0, ["a"])
    with pytest.raises(SinkError) as caught:
        world.run(world.start("after"))
    assert str(path) in str(caught.value)
    assert caught.value.cure
    report = audit(world.directory, cluster=world.kafka, topics=[TOPIC])
    assert report.exit_code == 10
    shutil.move(tmp_path / "kept", path)
    world.run(world.start("restored"))
    world.check_settled()
    world.close()


@pytest.mark.parametrize("operation", ["exists", "rename"])
def test_a_staged_file_that_was_deleted_is_named(world: World, operation: str) -> None:
    deleted: list[Path] = []

    def before(life: Life, step: Step) -> None:
        is_it = step.operation == operation and step.where.endswith((".parquet", ".hidden"))
        staged = sorted(Layout(world.directory).staging.rglob("*.hidden"))
        if is_it and staged and not deleted:
            deleted.append(staged[0])
            staged[0].rename(world.root.parent / "kept")
            world.volume.changed("remove", staged[0])

    world.before = before
    with pytest.raises(SinkError) as caught:
        world.run(world.start("first"))
    world.before = lambda life, step: None
    assert str(deleted[0]) in str(caught.value) or deleted[0].stem in str(caught.value)
    assert caught.value.cure
    world.check_now("after the error")
    if operation == "rename":
        with pytest.raises(SinkError, match=deleted[0].stem):
            world.run(world.start("again"))
        disk = SimulatedDisk(world.volume, Process("restores"))
        disk.write(deleted[0], (world.root.parent / "kept").read_bytes())
        disk.sync(deleted[0])
        disk.sync(deleted[0].parent)
    world.run(world.start("cured"))
    world.check_settled()


def test_a_file_deleted_under_a_running_sink_is_found_at_the_next_start(tmp_path: Path) -> None:
    first = write_rows(tmp_path, [("t", "id", 0, 1, "")], writer="first")
    (path,) = tmp_path.glob("*.parquet")
    path.unlink()
    assert first.catch_up() == []
    with pytest.raises(SinkError, match=path.name) as caught:
        write_rows(tmp_path, [("t", "id", 0, 2, "")], writer="second")
    assert caught.value.cure
    assert audit(tmp_path).exit_code == 10


def test_two_topologies_that_start_together_on_an_empty_directory(world: World) -> None:
    """Of two topologies of different name the first to write has the directory; the other writes nothing and stops."""
    started: list[Life] = []

    def before(life: Life, step: Step) -> None:
        if step.operation == "link" and not started:
            started.append(world.start("other"))
            world.run(started[0], name="other", group="others")

    world.before = before
    with pytest.raises(SinkError, match="belongs to topology other, not to crash") as caught:
        world.run(world.start("first"))
    assert str(world.directory) in str(caught.value)
    assert caught.value.cure
    assert world.seen() == world.wanted  # the other's rows, each once
    assert all(found.offset == 0 for found in world.kafka.committed(words.GROUP).values())


class BackwardClock(HastyClock):
    """Its wall clock jumps back a day each time that somebody looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def wall(self) -> float:
        """Return a time that is earlier than the one before."""
        self.looks += 1
        return super().wall() - 86_400.0 * self.looks


def test_a_clock_that_jumps_back(tmp_path: Path) -> None:
    """Entries may be younger than those before them: nothing is swept too early, and each row is there once."""
    world = World(tmp_path, words.Rows, clock=BackwardClock())
    slept: list[Life] = []

    def before(life: Life, step: Step) -> None:
        if step.operation == "link" and not slept:
            slept.append(life)
            for consumer in life.kafka.consumers:
                consumer.freeze()
            world.run(world.start("other"), member=2)

    world.before = before
    world.run(world.start("first"))
    assert slept
    assert isinstance(world.clock, BackwardClock)
    assert world.clock.looks > 5
    world.check_settled()
    world.run(world.start("last"))
    world.check_settled()
    world.close()


def test_a_volume_takes_what_is_there(tmp_path: Path) -> None:
    """A directory that was written by a real disk goes on in a simulated one."""
    write_rows(tmp_path / "out", [("t", "id", 0, 1, "")], writer="real")
    volume = Volume(tmp_path)
    disk = SimulatedDisk(volume, Process("p"))
    write_rows(tmp_path / "out", [("t", "id", 0, 1, ""), ("t", "id", 0, 2, "")], writer="simulated", disk=disk)
    assert sorted(row["n"] for row in rows_of(tmp_path / "out")) == [1, 2]
    volume.power_cut()
    assert sorted(row["n"] for row in rows_of(tmp_path / "out")) == [1, 2]
