from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bolts.parquet import ParquetBolt
from bolts.split import SplitBolt
from downspout.cli import audit as command
from downspout.component import RUN
from downspout.engine import from_class
from downspout.run import runner
from downspout.sink import Disk, Layout, Run, note_run
from downspout.sink.notes import RUNS_MAX, read_runs, run_of
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout

pytestmark = pytest.mark.fake_only("the run is the command line's own, in real time; Kafka is a detail of it")

TOPOLOGY = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Picky(Bolt):
    outputs = ["origin", "value"]

    def initialize(self, conf, context):
        self.dropped = conf["picky.drops"]

    def process(self, tup):
        if tup.values.value == "bad":
            raise ValueError("no such word")
        if tup.values.value != self.dropped:
            self.emit([*tup.values])

class Words(Topology):
    config = {"picky.drops": "nothing"}
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    picky = Picky.spec(inputs=[spout])
    words = ParquetBolt.spec(inputs=[picky], directory="words", schema=["value:string"])
"""
GIVEN = ["picky.drops=dull", "kafka.group=readers", "kafka.retries_max=0", "words:parquet.directory=elsewhere",
         "kafka.dead_letter_topic=rejects", "kafka.client.sasl_plain_password=hush"]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    """A topology that was run with settings that are not in its file, on records of which it drops and rejects some."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.py").write_text(TOPOLOGY, encoding="utf-8")
    with FakeKafka("audit-noted") as kafka:
        kafka.create_topic("lines")
        for value in (b"good", b"dull", b"bad", b"good"):
            kafka.produce("lines", value, partition=0)
        runner.run("words.py", overrides=[*GIVEN, f"kafka.bootstrap={kafka.bootstrap}"], options={"run.until": "end"})
        yield kafka


def audit(*arguments: str) -> int:
    """Run the command; where Kafka is, it must know by itself."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["audit", *arguments])
    return int(parsed.handler(parsed))


def test_the_answer_knows_broker_and_dead_letters(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """However it was run; with the topology's file, which is named on purpose, it knows what the bolts drop, too."""
    assert audit("elsewhere") == 10
    assert capsys.readouterr().out.splitlines()[-1] == (
        "NOT exact: 1 missing (lines[0]@1); 2 offsets are in the files (those that yield no row by design count as "
        "missing; --topology words.py tells them apart: it runs the topology's bolts on them again)"
    )
    assert audit("elsewhere", "--topology", "words.py") == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "exact: 2 offsets are in the files, each exactly once; 1 filtered, 1 dead-lettered"
    )


def test_what_bounded_a_run_does_not_bound_its_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records without rows are explained where each of several partitions had its own end, as workers have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.py").write_text(TOPOLOGY, encoding="utf-8")
    with FakeKafka("audit-bounded") as kafka:
        kafka.create_topic("lines", 2)
        for word in ("good", "dull", "good"):
            kafka.produce("lines", word.encode(), partition=0)
        given = ["picky.drops=dull", "kafka.stop_offsets=lines[0]=3,lines[1]=0", f"kafka.bootstrap={kafka.bootstrap}"]
        runner.run("words.py", overrides=given, options={"run.until": "end"})
        assert audit("words", "--topology", "words.py") == 0


def test_a_copy_is_audited_like_the_directory(project: FakeKafka) -> None:
    """A directory that was moved with its log is still that of its sink, which the log names."""
    shutil.move(Path("elsewhere"), Path("archive"))
    assert audit("archive", "--topology", "words.py") == 0


def test_letters_of_earlier_runs_are_found(project: FakeKafka) -> None:
    """A later run with other settings does not hide the dead letters of those before it."""
    changed = [*GIVEN, f"kafka.bootstrap={project.bootstrap}", "kafka.dead_letter_topic=other"]
    runner.run("words.py", overrides=changed, options={"run.until": "end"})
    assert audit("elsewhere", "--topology", "words.py") == 0


def test_a_record_that_is_missing_stays_missing(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Notes explain what the bolts explain, and nothing else."""
    project.produce("lines", b"good", partition=0)
    assert audit("elsewhere", "--topology", "words.py") == 10
    assert "NOT exact: 1 missing (lines[0]@4)" in capsys.readouterr().out


def test_what_no_run_has_read_yet_is_missing_and_the_answer_says_so(
    project: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commits of the group tell a record that is still to come from one that was lost."""
    project.produce("lines", b"good", partition=0)
    assert audit("elsewhere") == 10
    assert (
        "2 missing (lines[0]@1, @4); 2 offsets are in the files (1 of those missing are beyond the commits of "
        "group readers, so they may be still to process: --group readers leaves them out) (those that yield no row"
    ) in capsys.readouterr().out
    assert audit("elsewhere", "--from", "4") == 10
    last = capsys.readouterr().out.splitlines()[-1]
    assert "(they are beyond the commits of group readers, so they may be still to process: --group readers" in last
    assert "--topology" not in last


def test_no_secret_is_noted(project: FakeKafka) -> None:
    """What a directory remembers of its runs holds no password, and what it needs."""
    content = (Layout(Path("elsewhere")).runs).read_text(encoding="utf-8")
    assert "hush" not in content
    (run,) = read_runs(Path("elsewhere"))
    assert (run.topology, run.file, run.cls, run.topics) == ("words", "words.py", "Words", ["lines"])
    assert (run.dead_letter_topics, run.settings["picky"]["picky.drops"]) == (["rejects"], "dull")


def test_equal_runs_are_noted_once_and_the_latest_first(tmp_path: Path) -> None:
    """The file stays small however often a topology starts."""
    for number in [*range(RUNS_MAX + 5), 9, 9]:
        note_run(tmp_path, Run(f"t{number}"), Disk(), "w")
    names = [run.topology for run in read_runs(tmp_path)]
    assert names == ["t9", "t14", "t13", "t12", "t11", "t10", "t8", "t7", "t6", "t5"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format":1,"runs":[1]}'])
def test_a_torn_note_is_no_note(tmp_path: Path, content: str) -> None:
    """Notes help, and what cannot be read hinders nothing: the next run writes them anew."""
    Layout(tmp_path).runs.parent.mkdir(parents=True)
    Layout(tmp_path).runs.write_text(content, encoding="utf-8")
    assert read_runs(tmp_path) == []
    note_run(tmp_path, Run("t"), Disk(), "w")
    assert read_runs(tmp_path) == [Run("t")]


def test_storm_hands_the_topology_over_and_the_sink_adds_what_it_is_given() -> None:
    """On Storm a spec sees its spouts; the name, and what ``sparse -o`` gave, are in the sink's configuration."""
    import streamparse

    class Stormy(streamparse.Topology):
        spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"], client={"sasl_plain_password": "hush"})
        split = SplitBolt.spec(inputs=[spout])
        words = ParquetBolt.spec(inputs=[split], directory="out", schema=["word:string"])

    conf: dict[str, Any] = json.loads(next(s for s in Stormy.specs if s.name == "words").common.json_conf)
    assert "hush" not in json.dumps(conf[RUN])
    run = run_of({**conf, "topology.name": "stormy", "kafka.group": "g"})
    assert run is not None
    assert (run.topology, run.cls, run.topics, run.dead_letter_topics) == (
        "stormy", "Stormy", ["lines"], ["g.dead-letters"],
    )  # fmt: skip
    assert from_class(Stormy, "stormy").file == run.file == "tests/audit/test_audit_noted.py"
