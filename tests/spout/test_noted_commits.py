"""A spout notices that a sink's directory is older than its group's commits, even if no command has checked it."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.component import SINKS
from downspout.errors import SinkError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.sink import Disk, Layout, Run, note_run
from downspout.sink.notes import SeekStep, SinkNotes, note_skips
from downspout.sink.notes import rows_of as log_of
from downspout.spout import setup_of
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests.sink.support import write_rows
from tests.spout.spout_driver import GROUP, TOPIC, Driver

pytestmark = pytest.mark.fake_only("what is in the directory is the question; Kafka is a detail of it")
ZERO = TopicPartition(TOPIC, 0)


class Job:
    """A spout, and a sink of which a test says which records got rows."""

    def __init__(self, kafka: FakeKafka, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.kafka, self.out, self.copy, self._caplog = kafka, folder / "out", folder / "copy", caplog
        self.topic_id = kafka.topic_id(TOPIC)

    def write(self, offsets: Sequence[int]) -> None:
        write_rows(self.out, [(TOPIC, self.topic_id, 0, offset, "") for offset in offsets], writer=f"w{offsets[0]}")

    def run(self, *, waits: Sequence[int] = (), **settings: Any) -> list[str]:
        """Process all that is there but some, as a task on Storm does; return the warnings that this began with."""
        self._caplog.clear()
        with self._caplog.at_level(logging.WARNING, logger="tests.spout"):
            spout = Driver(self.kafka, **{"spout__sinks": [str(self.out)], **settings})
            spout.run()
        spout.ack([offset for offset in spout.offsets if offset not in waits])
        spout.commit()
        spout.spout.deactivate()
        spout.spout.close()
        return self.said("behind group")

    def said(self, words: str) -> list[str]:
        """Return the warnings of the last run that hold certain words."""
        return [each.getMessage() for each in self._caplog.records if words in each.getMessage()]

    def restore(self) -> None:
        shutil.rmtree(self.out)
        shutil.move(self.copy, self.out)

    def commit(self, offset: int, metadata: str = "") -> None:
        consumer = self.kafka.consumer(group=GROUP)
        consumer.commit({ZERO: OffsetAndMetadata(offset, metadata, -1)})
        consumer.close()


@pytest.fixture
def job(kafka: FakeKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Job:
    """A job that has processed ten records, of which nine had rows, and a copy of its directory."""
    made = Job(kafka, tmp_path, caplog)
    made.write(range(9))
    assert made.run() == []
    shutil.copytree(made.out, made.copy)
    return made


def more(job: Job, offsets: Sequence[int], rows: Sequence[int], waits: Sequence[int] = ()) -> None:
    for _ in offsets:
        job.kafka.produce(TOPIC, b"more", partition=0)
    if rows:
        job.write(rows)
    assert job.run(waits=waits) == []


def test_an_older_copy_is_said_to_be_behind(job: Job) -> None:
    """The warning names directory, records, and the command that reads them again; the next start says nothing new."""
    more(job, range(10, 15), [11, 12])
    job.restore()
    (warning,) = job.run()
    assert warning.startswith(f"{job.out} is behind group {GROUP}: ")
    assert f"has no rows of {TOPIC}[0]@10 to @14 (5 offsets). " in warning
    assert f"downspout run TOPOLOGY.py --set kafka.group={GROUP}.again --set kafka.start=EARLIEST" in warning
    assert f"`downspout audit {job.out}`" in warning
    assert job.run() == []


def test_records_without_rows_are_no_alarm(job: Job) -> None:
    """What is filtered or dead-lettered has no row, however much of it there is; the directory is as new as ever."""
    more(job, range(10, 30), [])
    assert job.run() == []


def test_a_crash_between_note_and_commit_is_no_alarm(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note is made before the commit, so a directory that was never restored is never behind."""
    job.kafka.produce(TOPIC, b"more", partition=0)
    order: list[str] = []
    note, commit = SinkNotes.note, type(job.kafka.consumer(group="x")).commit

    def noted(self: SinkNotes, *given: Any, **how: Any) -> None:
        order.append("note")
        note(self, *given, **how)

    def committed(self: Any, *given: Any) -> None:
        order.append("commit")
        commit(self, *given)

    monkeypatch.setattr(SinkNotes, "note", noted)
    monkeypatch.setattr(type(job.kafka.consumer(group="x")), "commit", committed)
    assert job.run() == []
    assert order
    assert order == ["note", "commit"] * (len(order) // 2)


def test_rows_that_are_there_all_the_same_are_no_alarm(job: Job) -> None:
    """A directory whose notes are older than its rows lacks nothing."""
    more(job, range(10, 12), [10, 11])
    job.restore()
    job.write([10, 11])
    assert job.run() == []


def test_what_others_have_committed_is_not_compared(job: Job) -> None:
    """Spark and Kafka's own tool commit without a word of their own; a group that was moved back is read again."""
    more(job, range(10, 12), [10])
    job.restore()
    job.commit(12)
    assert job.run() == []
    job.commit(3)
    assert job.run() == []


def test_a_commit_of_a_member_that_was_thrown_out_changes_no_note(job: Job) -> None:
    """It is refused by Kafka, and must not take back what the present owner has noted: that would be an alarm."""
    notes = SinkNotes(job.out, GROUP)
    notes.note({ZERO: OffsetAndMetadata(7, "", -1)})
    assert notes.read()[ZERO].offset == 10


def test_what_a_seek_has_skipped_is_no_alarm(job: Job) -> None:
    """A group that was moved forward with a note in the directory lacks nothing there; without the note it does."""
    for _ in range(10, 15):
        job.kafka.produce(TOPIC, b"more", partition=0)
    metadata = job.kafka.committed(GROUP)[ZERO].metadata
    shutil.copytree(job.out, job.copy.with_name("noted"))
    job.commit(15, metadata)
    (warning,) = job.run()
    assert f"{TOPIC}[0]@10 to @14" in warning
    shutil.rmtree(job.out)
    shutil.move(job.copy.with_name("noted"), job.out)
    note_skips(job.out, [SeekStep((TOPIC, job.topic_id, 0), [(10, 15)], [])], log_of(job.out), "w")
    assert job.run() == []


def test_a_group_that_was_moved_back_is_known_from_there(job: Job) -> None:
    """After a seek back the lower commit counts, so a copy from then is noticed as any other."""
    found = job.kafka.committed(GROUP)[ZERO]
    job.commit(3, found.metadata)
    notes = SinkNotes(job.out, GROUP)
    assert notes.read()[ZERO].offset == 10
    spout = Driver(job.kafka, spout__sinks=[str(job.out)])
    spout.run()
    assert notes.read()[ZERO].offset == 3


def test_a_directory_that_was_deleted_is_said_to_be_new(job: Job) -> None:
    """The group goes on at its commit, so the new directory lacks all rows before: said at the first start after."""
    shutil.rmtree(job.out)
    Layout(job.out).log.mkdir(parents=True)  # as the sink does when it opens
    (warning,) = job.run()
    assert f"{job.out} is behind group {GROUP}: it is new, and the group is done with {TOPIC}[0] up to @9. " in warning
    assert f"--set kafka.group={GROUP}.again --set kafka.start=EARLIEST" in warning
    job.kafka.produce(TOPIC, b"more", partition=0)
    job.run()
    assert job.run() == []


def test_what_is_done_beyond_the_commit_is_told_of_a_deleted_directory(
    kafka: FakeKafka, tmp_path: Path, caplog: Any
) -> None:
    """The first record waits for its retry, so the commit stays at 0; all others are done, and not read again."""
    job = Job(kafka, tmp_path, caplog)
    job.write(range(1, 10))
    assert job.run(waits=[0]) == []
    assert job.kafka.committed(GROUP)[ZERO].offset == 0
    shutil.rmtree(job.out)
    Layout(job.out).log.mkdir(parents=True)
    (warning,) = job.run()
    assert f"it is new, and the group is done with {TOPIC}[0] up to @9. " in warning


def test_what_is_done_beyond_the_commit_is_told_of_an_older_copy(job: Job) -> None:
    """The commit has moved by one record or not at all; what is beyond it in copy and rows is no part of the loss."""
    more(job, range(10, 12), [10, 11], waits=[10])
    shutil.rmtree(job.copy)
    shutil.copytree(job.out, job.copy)
    more(job, range(12, 16), [12, 14], waits=[10])
    assert job.kafka.committed(GROUP)[ZERO].offset == 10
    job.restore()
    (warning,) = job.run(waits=[10])
    assert f"it has no rows of {TOPIC}[0]@12 to @15 (4 offsets). " in warning
    assert job.run() == []


def test_commits_at_zero_that_are_gone_are_told_by_what_was_done_beyond(
    kafka: FakeKafka, tmp_path: Path, caplog: Any
) -> None:
    job = Job(kafka, tmp_path, caplog)
    job.write(range(1, 10))
    job.run(waits=[0])
    kafka.delete_groups([GROUP])
    job.run()
    (warning,) = job.said("has no commit")
    assert f"{TOPIC}[0]@9, but" in warning


def test_a_directory_whose_records_have_no_row_is_not_new(kafka: FakeKafka, tmp_path: Path, caplog: Any) -> None:
    """All was filtered or dead-lettered: there is a commit and no row, and the note tells it from a deleted one."""
    job = Job(kafka, tmp_path, caplog)
    Layout(job.out).log.mkdir(parents=True)
    assert job.run() == []
    assert job.kafka.committed(GROUP)[ZERO].offset == 10
    assert job.run() == []


def test_where_reading_does_not_go_on_at_the_commit_nothing_is_behind(job: Job) -> None:
    """With EARLIEST a new topology reads all again, and the same one goes on."""
    shutil.rmtree(job.out)
    Layout(job.out).log.mkdir(parents=True)
    assert job.run(start="EARLIEST", topology_id="orders-2") == []


def test_the_same_topology_goes_on_whatever_its_start(job: Job) -> None:
    """Its own commit counts with EARLIEST as well, so a deleted directory is told."""
    shutil.rmtree(job.out)
    Layout(job.out).log.mkdir(parents=True)
    assert len(job.run(start="EARLIEST")) == 1


def test_commits_that_are_gone_are_told_by_the_notes(job: Job) -> None:
    """They expired or were deleted: the group is not new. The command goes on where the group was."""
    job.kafka.delete_groups([GROUP])
    job.run()
    (warning,) = job.said("has no commit")
    assert f"group {GROUP} has no commit for {TOPIC}[0]@9, but {job.out} notes that it had committed" in warning
    command = shlex.split(warning.partition("for each partition: ")[2])
    assert command[:6] == ["downspout", "offsets", "seek", GROUP, "--topic", f"{TOPIC}:0"]
    assert command[6:8] == ["--to-offset", "10"]
    job.run()
    assert job.said("has no commit") == []


def test_nothing_is_noted_before_the_sink_has_begun(kafka: FakeKafka, tmp_path: Path) -> None:
    """A spout makes no directory: on a machine without the sink's it would be a wrong one."""
    spout = Driver(kafka, spout__sinks=[str(tmp_path / "out")])
    spout.run()
    spout.ack_all()
    spout.commit()
    assert spout.committed() == 10
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_says_no_stops_no_commit(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes are a help: without room for them the commits go on, and a line says so once."""

    def full(self: Disk, *_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "write", full)
    job.kafka.produce(TOPIC, b"more", partition=0)
    job.run()
    assert job.kafka.committed(GROUP)[ZERO].offset == 11
    (said,) = job.said("cannot note commits")
    assert "No space left" in said


def test_a_log_that_cannot_be_read_stops_no_start(job: Job) -> None:
    """Where there is no looking a line says why, and the spout does its work: the sink says what is wrong."""
    more(job, range(10, 12), [10])
    job.restore()
    next(Layout(job.out).log.glob("*0.json")).write_text("torn", encoding="utf-8")
    job.run()
    assert job.said("cannot compare the notes")
    with pytest.raises(SinkError):
        job.write([10])


def test_another_topologys_commits_are_no_sign_of_a_deleted_directory(job: Job) -> None:
    shutil.rmtree(job.out)
    Layout(job.out).log.mkdir(parents=True)
    assert job.run(topology_id="sums-1") == []
    assert job.said("topology orders has committed")


def test_the_cure_keeps_what_was_given_for_the_run(tmp_path: Path) -> None:
    """Without ``--set parquet.directory=…`` it would write to another directory; group and start are its own."""
    shared = {"parquet.directory": "out/a b", "parquet.partition_by": [], "kafka.group": "g", "kafka.start": "LATEST"}
    given = {
        "spout": {**shared, "kafka.emit": "chunk", "kafka.group": "h"},
        "first": shared,
        "second": {**shared, "parquet.ack_on": "x"},
    }
    Layout(tmp_path).log.mkdir(parents=True)
    note_run(tmp_path, Run("flow", "part.py", settings=given), Disk(), "w")
    words = shlex.split(SinkNotes(tmp_path, "g").cure())
    assert words[:3] == ["downspout", "run", "part.py"]
    assert [after for word, after in pairwise(words) if word == "--set"] == [
        "second:parquet.ack_on=x", "parquet.directory=out/a b", "parquet.partition_by=", "kafka.group=g.again",
        "kafka.start=EARLIEST",
    ]  # fmt: skip


class Flow(Topology):
    """Two sinks: one has its directory in the topology's file, one gets it with ``sparse -o``."""

    spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])
    first = ParquetBolt.spec(inputs=[spout], directory="/data/one", schema=["value:string"])
    second = ParquetBolt.spec(inputs=[spout], schema=["value:string"])


class Dry(Topology):
    spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])


def test_a_spout_on_storm_knows_where_the_sinks_write() -> None:
    """The specs of a topology tell it, and Storm hands it on; a store of offsets needs no notes."""
    conf = json.loads(Flow.thrift_spouts["spout"].common.json_conf)
    shared = {
        "parquet.directory": "/data/two",
        "topology.name": "flow",
        "kafka.topics": ["t"],
        "kafka.bootstrap": "b:1",
    }
    found = setup_of({**shared, **conf}, {}).sinks
    assert found == (Path("/data/one"), Path("/data/two"))
    assert setup_of({**shared, **conf, "parquet.directory": "s3://bucket/x"}, {}).sinks == (Path("/data/one"),)
    assert setup_of({**shared, **conf, "kafka.offset_store": "parquet:////data/one"}, {}).sinks == ()
    assert SINKS not in json.loads(Dry.thrift_spouts["spout"].common.json_conf)


@pytest.mark.parametrize("way", ["async", "combined"])
def test_a_commit_that_is_not_waited_for_is_noted_as_well(job: Job, way: str) -> None:
    """Before it is sent, and its answer is heard as without notes: an older copy is behind however commits are sent."""
    spout = Driver(job.kafka, spout__sinks=[str(job.out)], commit=way)
    job.kafka.produce(TOPIC, b"more", partition=0)
    spout.run()
    spout.commit()
    job.kafka.produce(TOPIC, b"more", partition=0)
    spout.run()
    spout.ack_all()
    spout.commit()
    spout.run()
    assert (spout.figure("committed"), spout.figure("commits_failed")) == (12, 0)
    assert SinkNotes(job.out, GROUP).read()[ZERO].offset == 12
    spout.spout.deactivate()
    spout.spout.close()
    job.restore()
    assert len(job.run()) == 1
