"""NoteReader: the notes of processes, and a spout's use of them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from downspout.ledger import CommitMetadata, Isolation
from downspout.settings import parse_scope
from downspout.spout import STRANGERS_MAX, SpoutMetrics, UncleanStarts
from downspout.system import process_notes
from downspout.system.process_notes import ComponentDeath, NoteReader, NoteWriter, folder_of

TP = TopicPartition("orders", 3)
HOLD = """
import sys
from downspout.system.process_notes import NoteWriter
note = NoteWriter("t-1", int(sys.argv[1]))
exec(sys.argv[2])
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def process(task: int, doing: str) -> subprocess.Popen[bytes]:
    """Start a process that keeps the note of a task, and wait until it is written."""
    words = [sys.executable, "-c", HOLD, str(task), doing]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"holds\n"
    return started


def end(started: subprocess.Popen[bytes]) -> None:
    started.send_signal(signal.SIGKILL)
    started.communicate()


@pytest.mark.slow
def test_who_is_killed_leaves_what_it_held() -> None:
    """A note tells of a process that is not there any more, and of none that lives or was at rest."""
    busy = process(4, "note.begin('orders', 3, 17, 17)")
    resting = process(5, "note.begin('orders', 3, 18, 18); note.idle()")
    assert NoteReader("t-1").deaths() == []
    end(busy)
    end(resting)
    [death] = NoteReader("t-1").deaths()
    assert (death.task, death.topic, death.partition, death.first, death.last) == (4, "orders", 3, 17, 17)
    assert NoteReader("t-1").tasks() == {4, 5}
    NoteWriter("t-1", 5)
    NoteWriter("t-1", 4)
    assert NoteReader("t-1").deaths() == [death], "who comes after it leaves the note for the spout"
    assert len(list(folder_of("t-1").iterdir())) == 3
    NoteReader.forget(death)
    assert NoteReader("t-1").deaths() == []
    assert NoteReader("t-2").deaths() == [] == list(NoteReader("t-2").tasks())


def test_a_folder_that_others_can_write_tells_nothing() -> None:
    NoteWriter("t-1", 4)
    folder_of("t-1").chmod(0o777)
    assert NoteReader("t-1").tasks() == set()
    with pytest.raises(PermissionError, match="open to other users"):
        NoteWriter("t-1", 5)


def deaths_are(monkeypatch: pytest.MonkeyPatch, *deaths: ComponentDeath, tasks: set[int]) -> None:
    left = list(deaths)
    monkeypatch.setattr(NoteReader, "deaths", lambda self: list(left))
    monkeypatch.setattr(NoteReader, "tasks", lambda self: tasks)
    monkeypatch.setattr(NoteReader, "forget", staticmethod(left.remove))


def look_back(isolation: Isolation, base: int = 10) -> tuple[Isolation, CommitMetadata]:
    """Start, with the tasks 4 and 5, from a commit that tells this isolation."""
    settings = parse_scope({"kafka.topics": ["orders"]}, "kafka")
    starts = UncleanStarts(settings, "t-1", {4, 5}, SpoutMetrics(), logging.getLogger("test"))
    return starts.look_back(TP, base, 500, CommitMetadata("t-1", 1, isolation=isolation), ours=False)


ALONE = Isolation(5, 1, 20, 100, alone=10)


def died(offset: int, topic: str = "orders", partition: int = 3, last: int | None = None) -> ComponentDeath:
    return ComponentDeath(Path("x"), 4, topic, partition, offset, offset if last is None else last)


def test_a_death_with_the_record_in_its_hands_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the note is used up. A chunk that the record is in counts too, and so does what tells of no record."""
    deaths_are(monkeypatch, died(10), tasks={4, 5})
    assert look_back(ALONE)[1].failures == {10: 1}
    assert look_back(ALONE)[1].failures == {}
    deaths_are(monkeypatch, died(8, last=12), tasks={4, 5})
    assert look_back(ALONE)[1].failures == {10: 1}
    deaths_are(monkeypatch, died(0, topic="", partition=0), tasks={4, 5})
    assert look_back(ALONE)[1].failures == {10: 1}


@pytest.mark.parametrize("others", [[], [died(11)], [died(10, partition=2)], [died(10, topic="else")]])
def test_a_death_that_is_not_the_records_counts_nothing(
    monkeypatch: pytest.MonkeyPatch, others: list[ComponentDeath]
) -> None:
    """A worker, the spout or another component was killed while a record was out alone: twenty times, and no more."""
    for _ in range(20):
        deaths_are(monkeypatch, *others, tasks={4, 5})
        isolation, told = look_back(ALONE)
        assert told.failures == {}
        assert told.isolation.alone is None
        assert isolation.starts == 6


def test_a_record_that_kills_what_keeps_no_note_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's JVM for one: where so many died in a row while it was out alone, the record counts as failed."""
    deaths_are(monkeypatch, tasks={4, 5})
    assert look_back(Isolation(STRANGERS_MAX - 1, 1, 20, 100, alone=10))[1].failures == {}
    assert look_back(Isolation(STRANGERS_MAX, 1, 20, 100, alone=10))[1].failures == {10: 1}


def test_where_nobody_keeps_a_note_the_commit_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other machines, in components that are not ours, or in a folder that is not ours alone."""
    deaths_are(monkeypatch, tasks=set())
    assert look_back(ALONE)[1].failures == {10: 1}


def test_where_a_task_keeps_no_note_those_that_do_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them ended together: the worker was killed, and it is no attempt. Some live on: it may be that task's."""
    for outlived, failures in ((False, {}), (True, {10: 1})):
        deaths_are(monkeypatch, tasks={4})
        monkeypatch.setattr(NoteReader, "outlived", lambda self, said=outlived: said)
        assert look_back(ALONE)[1].failures == failures
    assert look_back(Isolation(STRANGERS_MAX, 1, 20, 100, alone=10))[1].failures == {10: 1}


@pytest.mark.slow
def test_who_is_older_than_our_worker_outlived_its_predecessor() -> None:
    """A process of another worker that was not started anew is seen, one that was started with us is not."""
    ask = "from downspout.system.process_notes import NoteReader; print(NoteReader('t-1').outlived(), flush=True)"
    worker = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}], check=True)"
    assert not NoteReader("t-1").outlived(), "there is none"
    other = process(5, "note.idle()")
    said = [subprocess.check_output([sys.executable, "-c", each], text=True).strip() for each in (ask, worker)]
    assert said == ["False", "True"], "of a child of this process, and of one whose parent is younger than the other"
    end(other)
    assert subprocess.check_output([sys.executable, "-c", worker], text=True).strip() == "False"


def test_who_died_with_a_record_makes_it_a_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first death; not below the commit, and of a chunk nothing is known of one record."""
    deaths_are(monkeypatch, died(40), died(30), tasks={4, 5})
    assert look_back(Isolation())[0].died_with == 30
    deaths_are(monkeypatch, died(9), died(12, last=19), tasks={4, 5})
    assert look_back(Isolation())[0] == Isolation(1)


def test_a_note_is_of_a_fixed_size() -> None:
    """A long topic's name, and of any characters, fits."""
    note = NoteWriter("t-1", 4)
    note.begin("ö" * 249, 3, 2**62, 2**62)
    note.begin_unknown()
    [path] = folder_of("t-1").iterdir()
    assert path.stat().st_size == process_notes.SIZE
    assert path.name == f"4-{os.getpid()}.held"
