"""The matrix can fail: sinks with one mistake each, and every mistake is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bolts.parquet import ParquetBolt
from downspout.sink import OURS, Recovery, SinkWriter
from spouts.kafka import KafkaSpout
from tests.crash.matrix import RECOVERIES, Matrix
from tests.crash.world import HOME, OUT, Violation
from tests.sampling import sample

pytestmark = [
    pytest.mark.fake_only("stops a process between any two steps, in a simulated world"),
    pytest.mark.slow,
]

Change = Callable[[Any], None]
LOST = "would take (it )?away|missing|not durable"


def forgets_to_sync(what: Callable[[str], bool]) -> Change:
    """Leave out the syncs of some paths (below the root)."""

    def change(sink: Any) -> None:
        disk, sync = sink.disk, sink.disk.sync

        def selective(path: Path) -> None:
            if not path.is_relative_to(disk.volume.root) or not what(path.relative_to(disk.volume.root).as_posix()):
                sync(path)

        disk.sync = selective

    return change


def writer(**methods: Any) -> Change:
    mutant = type("Mutant", (SinkWriter,), methods)
    return lambda sink: setattr(sink, "writer_class", mutant)


def acks_first(sink: Any) -> None:
    real = sink._without_conflicts

    def ack_and_go_on(batch: Any) -> Any:
        for tuple_id in batch.ids:
            sink.ack(tuple_id)
        return real(batch)

    sink._without_conflicts = ack_and_go_on


def appends(self: Any, staged: Any, coverage: Any) -> bool:
    return bool(self.log.append(self.entry(files=tuple(staged), coverage=coverage, inputs=self.steps)))


def reveals_first(self: Any, staged: Any, coverage: Any, latest: Any) -> bool:
    """Bring files into sight before they are in the log."""
    self._reveal(staged)
    return appends(self, staged, coverage)


def keeps_its_rows(self: Any, staged: Any, coverage: Any, latest: Any) -> bool:
    """After a conflict take the next number with the same rows."""
    while not appends(self, staged, coverage):
        self.log.refresh()
    return True


def replaces_entries(sink: Any) -> None:
    disk, link = sink.disk, sink.disk.link

    def replace(source: Path, target: Path) -> None:
        disk.remove(target)
        link(source, target)

    disk.link = replace


def syncs_only_new_folders(self: Any) -> None:
    for folder in (self.directory / OURS, self.log.folder):
        new = [place for place in [folder, *folder.parents] if not place.exists()]
        self.disk.make_folder(folder)
        for place in new:
            self.disk.sync(place.parent)


def opens_without(method: str) -> Callable[[Any], None]:
    def open_(self: Any) -> None:
        with mock.patch.object(Recovery, method):
            SinkWriter.open(self)

    return open_


def trusts_the_log(self: Any, *args: Any, **kwargs: Any) -> None:
    """Act on entries that their writers have not synced yet."""
    SinkWriter.__init__(self, *args, **kwargs)
    self.log.sync = lambda: None


def commits_what_was_read(spout: Any) -> None:
    real = spout.initialize
    spout.initialize = lambda conf, context: real({**conf, "kafka.guarantee": "AT_MOST_ONCE"}, context)


@dataclass(frozen=True)
class Mutant:
    """A mistake: where it is made, in which scenario it shows, and how."""

    change: Change
    scenario: str
    shows: str
    recoveries: tuple[str, ...] = RECOVERIES
    component: type = ParquetBolt


def below(folder: str, suffix: str = "") -> Callable[[str], bool]:
    """Return whether a path is in a folder and ends so."""
    return lambda path: path.startswith(folder) and path.endswith(suffix)


MUTANTS = {
    "staged files are not synced": Mutant(forgets_to_sync(below(f"{HOME}/staging", ".hidden")), "recovery", LOST),
    "entries are not synced": Mutant(forgets_to_sync(below(f"{HOME}/staging", ".tmp")), "stream", "torn"),
    "the log's folder is not synced": Mutant(forgets_to_sync(below(f"{HOME}/log")), "stream", LOST),
    "staging folders are not synced": Mutant(
        forgets_to_sync(lambda path: below(f"{HOME}/staging")(path) and "." not in path.rpartition("/")[2]),
        "recovery",
        LOST,
        ("same",),
    ),
    "the directory is not synced": Mutant(forgets_to_sync(lambda path: path == OUT), "stream", LOST),
    "nothing above the directory is synced": Mutant(forgets_to_sync(lambda path: path == "."), "stream", LOST),
    "folders that are there count as durable": Mutant(
        writer(_make_directory=syncs_only_new_folders), "stream", LOST, ("same",)
    ),
    "acks before the flush": Mutant(acks_first, "stream", "is acked, and a power cut"),
    "files come into sight before their entry": Mutant(
        writer(_append=reveals_first), "stream", "more than once|any entry|no commit log", ("same",)
    ),
    "rows are not compared again after a conflict": Mutant(
        writer(_append=keeps_its_rows), "conflict", "more than once", ("wakes",)
    ),
    "entries are replaced": Mutant(replaces_entries, "conflict", LOST + "|more than once|any entry", ("wakes",)),
    "nothing is rolled forward": Mutant(writer(open=opens_without("repair")), "recovery", "missing|in the end"),
    "entries of others count as durable": Mutant(
        writer(__init__=trusts_the_log), "stream", LOST + "|not named by any entry", ("wakes",)
    ),
    "acks chunks before the flush": Mutant(acks_first, "chunks", "is acked, and a power cut"),
    "rows of chunks are not compared again after a conflict": Mutant(
        writer(_append=keeps_its_rows), "chunks in conflict", "more than once", ("wakes",)
    ),
    "offsets are committed when read": Mutant(commits_what_was_read, "stream", LOST, component=KafkaSpout),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", sample(list(MUTANTS), 3, "mutants of the sink"))
def test_a_mistake_is_noticed(name: str) -> None:
    """A sink that does one thing wrong breaks a promise somewhere in the matrix."""
    mutant = MUTANTS[name]

    def change(instance: Any) -> None:
        if isinstance(instance, mutant.component):
            mutant.change(instance)

    with pytest.raises(Violation, match=mutant.shows):
        Matrix(mutant.scenario, change, stop=True, recoveries=mutant.recoveries).run()
