"""The audit of a whole topology with a sink whose two inputs carry the same origins."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from downspout.audit import audit as audit_module
from downspout.cli import audit as command
from downspout.engine.load import load
from downspout.errors import SinkError
from downspout.testing import FakeKafka, Lose, run_topology
from tests.sink.support import rows_of

pytestmark = pytest.mark.fake_only(
    "runs a topology in virtual time; tests/broker/test_audit_broker.py has one in real time"
)

TOPOLOGY = """
from streamparse import Topology
from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from bolts.split import SplitBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Whole(Bolt):
    outputs = ["origin", "word"]

    def process(self, tup):
        if tup.values.value != FORGOTTEN:
            self.emit([tup.values.origin, tup.values.value])

FORGOTTEN = None

class One(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    whole = Whole.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[whole], directory="rows", schema=["word:string"])
    counts = AggregateBolt.spec(inputs=[whole], directory="counts", schema=["word:string"], keys=["word"],
                                aggregates=["count"])

class Two(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    whole = Whole.spec(inputs=[spout])
    again = Whole.spec(inputs=[spout])
    split = SplitBolt.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[whole, again, split], directory="rows", schema=["word:string"])
    counts = AggregateBolt.spec(inputs=[whole, again, split], directory="counts", schema=["word:string"],
                                keys=["word"], aggregates=["count"])
"""
LINES = [b"to be", b"or not", b"hm", b"to be"]
FILE = "lines_topology.py"


class Project:
    """The topology above in a folder of its own, and a Kafka."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka

    def write(self, forgotten: str | None = None) -> None:
        Path(FILE).write_text(TOPOLOGY.replace("FORGOTTEN = None", f"FORGOTTEN = {forgotten!r}"), encoding="utf-8")

    def run(self, name: str, *faults: Lose, group: str = "g") -> None:
        """Run one of the topologies to the end, under one name."""
        settings = {"kafka.bootstrap": self.kafka.bootstrap, "kafka.group": group}
        run_topology(replace(load(FILE, name), name="lines"), config=settings, faults=faults)

    def audit(self, directory: str, name: str) -> int:
        parser = argparse.ArgumentParser()
        command.add_parser(parser.add_subparsers())
        given = ["--topology", FILE, "--class", name, "--bootstrap", self.kafka.bootstrap, "--set", "kafka.group=g"]
        parsed = parser.parse_args(["audit", directory, *given])
        return int(parsed.handler(parsed))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit_module, "REPLAY_SAMPLE", 1)
    with FakeKafka("audit-inputs") as kafka:
        kafka.create_topic("lines")
        for line in LINES:
            kafka.produce("lines", line, partition=0)
        made = Project(kafka)
        made.write()
        yield made


ALL = sorted(
    [(offset, path, line.decode()) for offset, line in enumerate(LINES) for path in ("@again", "@whole")]
    + [
        (offset, f"split.{index}/@split", word)
        for offset, line in enumerate(LINES)
        for index, word in enumerate(line.decode().split())
    ]
)


def rows() -> list[tuple[int, str, str]]:
    return sorted((row["_offset"], row["_path"], row["word"]) for row in rows_of(Path("rows")))


def counts() -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows_of(Path("counts")):
        found[row["word"]] = found.get(row["word"], 0) + row["count"]
    return found


COUNTS = {"to be": 4, "or not": 2, "hm": 3, "to": 2, "be": 2, "or": 1, "not": 1}


def test_each_input_has_its_row_and_the_audit_is_exact(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of three bolts that read one spout meet in a sink, with replays; rows and counts are exact."""
    project.run("Two", Lose("rows", 2), Lose("counts", 5), Lose("rows", 9))
    assert rows() == ALL
    assert counts() == COUNTS
    for directory in ("rows", "counts"):
        assert project.audit(directory, "Two") == 0
        assert "exact: 4 offsets are" in capsys.readouterr().out
    project.run("Two", group="again")
    assert (rows(), counts()) == (ALL, COUNTS)


@pytest.mark.parametrize("directory", ["rows", "counts"])
def test_a_missing_row_of_one_input_is_found(
    project: Project, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project.run("One")
    assert project.audit(directory, "One") == 0
    capsys.readouterr()
    assert project.audit(directory, "Two") == 10
    assert "4 missing (lines[0]@0–3)" in capsys.readouterr().out
    project.write(forgotten="or not")
    project.run("Two", group="second")
    project.write()
    assert project.audit(directory, "Two") == 10
    assert "1 missing (lines[0]@1)" in capsys.readouterr().out
    project.run("Two", group="third")
    assert project.audit(directory, "Two") == 0
    assert [path for offset, path, _ in rows() if offset == 2] == ["", "@again", "split.0/@split"]


def test_rows_of_another_input_are_not_taken_for_ours(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Audited with a topology that has an input less, the other rows are extra."""
    project.run("Two")
    assert project.audit("rows", "One") == 13
    assert "4 extra (lines[0]@0–3)" in capsys.readouterr().out


def test_the_audit_asks_as_the_sink_does(project: Project) -> None:
    """Where it cannot be told whose the rows are, neither sink nor audit guesses."""
    project.run("Two")
    Path(FILE).write_text(TOPOLOGY.replace("again", "more"), encoding="utf-8")
    with pytest.raises(SinkError, match="reads more and no longer again"):
        project.audit("rows", "Two")
    with pytest.raises(SinkError, match="reads more and no longer again"):
        project.run("Two")
    Path(FILE).write_text(
        TOPOLOGY.replace("again", "more").replace(
            "whole, more, split]", 'whole, more, split], input_names={"more": "again"}'
        ),
        encoding="utf-8",
    )
    project.run("Two", group="renamed")
    assert (rows(), project.audit("rows", "Two")) == (ALL, 0)
