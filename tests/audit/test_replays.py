"""A dead letter's way back: replayed, processed, in the files once, and explained by the audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from downspout.audit import AuditReport
from downspout.audit.audit import audit
from downspout.dead_letters import plan_replay, read_dead_letters
from downspout.engine.load import load
from downspout.testing import FakeKafka, run_topology
from tests.sink.support import rows_of

pytestmark = pytest.mark.fake_only(
    "runs a topology in virtual time; tests/broker/test_audit_broker.py has one in real time"
)

TOPOLOGY = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

BROKEN = {"b", "d"}

class Check(Bolt):
    outputs = ["origin", "word"]

    def process(self, tup):
        if tup.values.value in BROKEN:
            raise KeyError(tup.values.value)
        if tup.values.value != "silent":
            self.emit([tup.values.origin, tup.values.value])

class Words(Topology):
    spout = KafkaSpout.spec(topics=["words"], fields=["origin", "value"])
    check = Check.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[check], directory="out", schema=["word:string"])
"""
LETTERS = "g.dead-letters"


class Project:
    """A topology that fails for two of four words, and its repair."""

    SETTINGS: ClassVar[dict[str, Any]] = {"kafka.group": "g", "kafka.retries_max": 1}

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka

    def run(self, broken: str, **settings: Any) -> None:
        """Run it to the end of the log; it fails for the words that are given."""
        Path("words.py").write_text(TOPOLOGY.replace('{"b", "d"}', repr(set(broken))), encoding="utf-8")
        run_topology(load("words.py"), config={"kafka.bootstrap": self.kafka.bootstrap, **self.SETTINGS, **settings})

    def replay(self) -> None:
        plan_replay(self.kafka, LETTERS, read_dead_letters(self.kafka, LETTERS), write=True)

    def audit(self, *, with_topology: bool = False) -> AuditReport:
        from downspout.audit import make_replay
        from downspout.testing import run_on_records

        run_again = make_replay("words.py", Path("out"), run_on_records) if with_topology else None
        return audit("out", cluster=self.kafka, dead_letters=LETTERS, replay=run_again)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    with FakeKafka("replays") as kafka:
        kafka.create_topic("words")
        for word in "abcd":
            kafka.produce("words", word.encode(), partition=0)
        made = Project(kafka)
        made.run("bd")
        yield made


def words() -> list[tuple[int, str]]:
    return sorted((row["_offset"], row["word"]) for row in rows_of(Path("out")))


@pytest.mark.parametrize("with_topology", [False, True])
def test_a_repaired_record_is_in_the_files_once(project: Project, with_topology: bool) -> None:
    """The row has the first record's identity however often it is replayed; the audit says what the new offsets are."""
    assert words() == [(0, "a"), (2, "c")]
    for _ in range(2):
        project.replay()
        project.run("")
    assert words() == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    report = project.audit(with_topology=with_topology)
    assert (report.exit_code, report.partitions[0].offsets) == (0, {"replayed": [(4, 8)]})
    assert "4 replayed" in report.verdict
    assert any("@4 of words[0]@1, @5 of words[0]@3" in note for note in report.notes)


def test_a_replay_that_fails_again_is_a_dead_letter(project: Project) -> None:
    """Its own offset is dead-lettered, and replayed after the repair it stands for the first record."""
    project.replay()
    project.run("d")
    assert project.audit().partitions[0].offsets == {"dead_lettered": [(3, 4), (5, 6)], "replayed": [(4, 5)]}
    project.replay()
    project.run("")
    assert words() == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert project.audit().exit_code == 0


def test_replays_can_be_taken_for_new_records(project: Project) -> None:
    """With kafka.honour_replays=no each replay has its own origin and its own row."""
    project.replay()
    project.run("", **{"kafka.honour_replays": False})
    assert words() == [(0, "a"), (2, "c"), (4, "b"), (5, "d")]
    assert project.audit().exit_code == 0


def test_a_replay_without_any_row_is_missing(project: Project) -> None:
    """A claim alone explains nothing: the record it names must have its row."""
    project.replay()
    Path("words.py").write_text(TOPOLOGY.replace('{"b", "d"}', "set()"), encoding="utf-8")
    for with_topology in (False, True):
        report = project.audit(with_topology=with_topology)
        assert (report.exit_code, report.partitions[0].offsets["missing"]) == (10, [(4, 6)])


REJECTING = """
from streamparse import Topology
from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout

class Words(Topology):
    spout = KafkaSpout.spec(topics=["words"], fields=["origin", "value"])
    parse = JsonParseBolt.spec(inputs=[spout], fields=["word"], types={"word": "string"})
    letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
    sink = ParquetBolt.spec(inputs=[parse], directory="out", schema=["word:string"])
"""


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_a_replay_that_a_bolt_rejects_again_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emit: str
) -> None:
    """The letter names the record that the replay stands for: a second one explains the replay, and no further one."""
    monkeypatch.chdir(tmp_path)
    Path("words.py").write_text(REJECTING, encoding="utf-8")
    with FakeKafka("rejects") as kafka:
        kafka.create_topic("words")
        for value in (b'{"word": "a"}', b"no JSON", b'{"word": "c"}'):
            kafka.produce("words", value, partition=0)
        config = {**Project.SETTINGS, "kafka.bootstrap": kafka.bootstrap, "kafka.emit": emit}
        project = Project(kafka)
        run_topology(load("words.py"), config=config)
        project.replay()
        run_topology(load("words.py"), config=config)
        report = project.audit()
        assert (report.exit_code, report.partitions[0].offsets) == (0, {"dead_lettered": [(1, 2), (3, 4)]})
        project.replay()
        report = project.audit()
        assert (report.exit_code, report.partitions[0].offsets["missing"]) == (10, [(4, 5)])
