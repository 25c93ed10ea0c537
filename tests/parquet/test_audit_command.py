from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.cli import audit as command
from downspout.errors import ConfigError, SinkError, TopologyError
from downspout.local.load import load
from downspout.parquet.audit import Window
from downspout.parquet.compaction import Compactor
from downspout.testing.fake_kafka import FakeKafka
from downspout.testing.harness import run_topology

pytestmark = pytest.mark.fake_only(
    "runs a topology in virtual time; tests/broker/test_audit_broker.py has one in real time"
)

TOPOLOGY = """
from streamparse import Topology
from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from bolts.split import SplitBolt
from spouts.kafka import KafkaSpout

class Words(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    split = SplitBolt.spec(inputs=[spout])
    words = ParquetBolt.spec(inputs=[split], directory="words", schema=["word:string"])
    counts = AggregateBolt.spec(
        inputs=[split], directory="counts", schema=["word:string"], keys=["word"], aggregates=["count"]
    )
"""
LINES = [b"to be", b"", b"or not", None, b"to be", b"\xff\xfe not utf-8"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    """A topology that was run, with all that can happen to a line: words, no words, a tombstone, a dead letter."""
    monkeypatch.chdir(tmp_path)
    Path("words_topology.py").write_text(TOPOLOGY, encoding="utf-8")
    with FakeKafka("audit-cli") as kafka:
        kafka.create_topic("lines")
        for line in LINES:
            kafka.produce("lines", line, partition=0)
        settings = {"kafka.bootstrap": kafka.bootstrap, "kafka.group": "g", "kafka.retries_max": 1}
        run_topology(load("words_topology.py"), config=settings)
        yield kafka


def run(kafka: FakeKafka, *arguments: str) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["audit", *arguments, "--bootstrap", kafka.bootstrap])
    return int(parsed.handler(parsed))


WITH_TOPOLOGY = ("--topology", "words_topology.py")
LETTERS = ("--dead-letters", "g.dead-letters")


@pytest.mark.parametrize("directory", ["words", "counts"])
def test_every_record_is_explained(project: FakeKafka, directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the topology and the dead letters each record without a row has its reason, for rows and for aggregates."""
    assert run(project, directory, *WITH_TOPOLOGY, *LETTERS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["partition", "offsets", "rows", "present", "filtered", "dead-lettered"]
    assert lines[2].split() == ["lines[0]", "0–6", "6", "3", "2", "1"]
    assert lines[-1].startswith("exact: 3 offsets are ")
    assert lines[-1].endswith("each exactly once; 2 filtered, 1 dead-lettered")


@pytest.mark.parametrize("directory", ["words", "counts"])
def test_compaction_changes_nothing_that_is_found(
    project: FakeKafka, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compacted between runs, and run again from the start by another group, rows and aggregates are there once."""
    for number, group in enumerate(("g", "g", "again")):
        if group == "g":
            project.produce("lines", b"and so on", partition=0)
        settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": group, "kafka.retries_max": 1}
        run_topology(load("words_topology.py"), config=settings)
        done = Compactor(Path(directory)).run()
        assert (done.made, done.files_after) == (int(number < 2), 1)
    letters = ("--dead-letters", "again.dead-letters")
    capsys.readouterr()
    assert run(project, directory, *WITH_TOPOLOGY, *letters) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("exact: 5 offsets are ")


def test_without_them_it_is_missing(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the topology a record without a row is missing, whatever the reason."""
    assert run(project, "words") == 10
    assert "NOT exact: 3 missing (lines[0]@1, @3, …)" in capsys.readouterr().out
    assert run(project, "words", "--to", "1") == 0
    assert run(project, "words", "--from", "0:4", "--to", "0:5") == 0


FIRST_WORDS = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from bolts.split import SplitBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class FirstWordBolt(Bolt):
    outputs = ["origin", "word"]

    def process(self, tup):
        if tup.values.origin.path.endswith(".0"):
            self.emit([*tup.values])

class FirstWords(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    split = SplitBolt.spec(inputs=[spout])
    first = FirstWordBolt.spec(inputs=[split])
    words = ParquetBolt.spec(inputs=[first], directory="first", schema=["word:string"])
"""


def test_each_word_is_looked_for(project: FakeKafka) -> None:
    """With the topology a record is complete only with all of its rows; files and Kafka alone cannot tell."""
    Path("first_words.py").write_text(FIRST_WORDS, encoding="utf-8")
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "first", "kafka.retries_max": 1}
    run_topology(load("first_words.py"), config=settings)
    assert run(project, "first", "--to", "1") == 0
    assert run(project, "first", *LETTERS, "--topology", "first_words.py") == 0
    assert run(project, "first", *LETTERS, *WITH_TOPOLOGY, "--set", "words:parquet.directory=first") == 10


def test_json_says_the_same(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """The report as JSON holds the exit code, the verdict and the offsets of each kind."""
    assert run(project, "words", "--json") == 10
    report = json.loads(capsys.readouterr().out)
    assert (report["exit_code"], report["problems"]) == (10, ["missing"])
    assert report["partitions"][0]["offsets"]["missing"] == [[1, 2], [3, 4], [5, 6]]
    assert report["files"]["visible"] == 1


def test_files_alone(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Files can be compared with their log without Kafka, and the verdict says that Kafka was not asked."""
    project.broker_down()
    assert run(project, "words", "--files-only") == 0
    assert "(Kafka was not asked)" in capsys.readouterr().out


def test_a_topology_that_does_not_write_there(project: FakeKafka) -> None:
    """A topology none of whose sinks writes to the directory is an error that names where they write."""
    Path("elsewhere").mkdir()
    with pytest.raises(TopologyError, match=r"no sink writes to elsewhere \(words to words, counts to counts\)"):
        run(project, "elsewhere", *WITH_TOPOLOGY)
    moved = ("--set", "words:parquet.directory=elsewhere")
    assert run(project, "elsewhere", *WITH_TOPOLOGY, *moved, "--topic", "lines", "--to", "0") == 0


def test_bad_arguments(project: FakeKafka) -> None:
    """Offsets that are none, and a directory that is none, are errors that say what to give."""
    for text in ("x", "1:", "-3", "a:1", ""):
        if text:
            with pytest.raises(ConfigError, match="is no offset"):
                command.parse_windows(text, None)
    with pytest.raises(SinkError, match="does not exist"):
        run(project, "nowhere")


def test_windows_by_partition() -> None:
    """Bounds for one partition go before those for all."""
    windows = command.parse_windows("5,1:7", "2:9")
    assert windows == {None: Window(5, None), 1: Window(7, None), 2: Window(5, 9)}


FAILING = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Picky(Bolt):
    outputs = ["origin", "value"]

    def process(self, tup):
        if tup.values.value in ("to be", "or not"):
            raise ValueError("no such word")

class Twice(Bolt):
    outputs = ["origin", "value"]

    def process(self, tup):
        self.emit([tup.values.origin, tup.values.value])
        self.emit([tup.values.origin, tup.values.value])

class Failing(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    picky = Picky.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[picky], directory="rows", schema=["value:string"])

class Doubling(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    twice = Twice.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[twice], directory="rows", schema=["value:string"])
"""


def test_a_record_on_which_a_bolt_raises_is_not_filtered(
    project: FakeKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A record that fails in the replay is missing, with the reason, and no traceback is logged."""
    Path("failing.py").write_text(FAILING, encoding="utf-8")
    Path("rows").mkdir()
    only = ("--topology", "failing.py", "--class", "Failing", "--topic", "lines", "--to", "5")
    assert run(project, "rows", *only) == 10
    out = capsys.readouterr().out
    assert "NOT exact: 3 missing (lines[0]@0, @2, …)" in out
    assert "fails in picky: ValueError: no such word" in out
    assert not caplog.records


def test_the_topologys_own_dead_letters_are_found(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --dead-letters the topic of the topology's group is read where it exists."""
    assert run(project, "words", *WITH_TOPOLOGY, "--set", "kafka.group=g") == 0
    assert "2 filtered, 1 dead-lettered" in capsys.readouterr().out
    assert run(project, "words", *WITH_TOPOLOGY, "--set", "kafka.group=other") == 10
    assert "fails in " in capsys.readouterr().out


def test_two_rows_with_one_identity_are_told(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that the sink takes for replays of each other are a finding that names origin.child."""
    Path("failing.py").write_text(FAILING, encoding="utf-8")
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "d", "kafka.retries_max": 0}
    run_topology(load("failing.py", "Doubling"), config=settings)
    assert run(project, "rows", "--topology", "failing.py", "--class", "Doubling", "--to", "3") != 0
    assert "two rows with one identity: a bolt must use origin.child" in capsys.readouterr().out


def test_the_verdict_names_the_option_that_tells_more(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the topology a verdict with missing offsets says how to tell filtered records from them."""
    assert run(project, "words") == 10
    assert "add --topology FILE)" in capsys.readouterr().out
    run(project, "words", *WITH_TOPOLOGY)
    assert "add --topology FILE" not in capsys.readouterr().out
