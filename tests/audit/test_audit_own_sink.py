"""A sink of a user's own, that of the how-to: the audit reads its rows back, and so does a comparison."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from downspout.audit import AuditReport, make_replay
from downspout.audit.audit import audit
from downspout.cli import main
from downspout.compare import Sink
from downspout.engine.load import load
from downspout.errors import SinkError
from downspout.settings import parse_scope
from downspout.testing import FakeKafka, run_on_records, run_topology
from tests.command import ROOT

pytestmark = pytest.mark.fake_only(
    "runs a topology in virtual time; tests/docs/test_write_a_sink.py has one in real time"
)

PAGE = ROOT / "docs" / "how-to" / "write-a-sink.md"
OUT = Path("output/orders")


class Project:
    """The sink of the page, run on four records, of which one is no JSON."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.settings = {"kafka.bootstrap": kafka.bootstrap, "kafka.group": "g", "kafka.retries_max": 1}
        run_topology(load("orders.py"), config=self.settings)

    def audit(self) -> AuditReport:
        replay = make_replay("orders.py", OUT, run_on_records)
        return audit(OUT, cluster=self.kafka, dead_letters="g.dead-letters", replay=replay, read_back=replay.read_back)

    def edit(self, changed: list[str]) -> None:
        """Put these lines in the place of the rows of the only file."""
        (file,) = OUT.glob("*.jsonl")
        head, *_ = file.read_text(encoding="utf-8").splitlines()
        file.write_text("\n".join([head, *changed]) + "\n", encoding="utf-8")

    @property
    def lines(self) -> list[str]:
        (file,) = OUT.glob("*.jsonl")
        return file.read_text(encoding="utf-8").splitlines()[1:]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, program in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        Path(name).write_text(program, encoding="utf-8")
    with FakeKafka("own-sink") as kafka:
        kafka.create_topic("orders")
        for value in [b'{"id": 1, "item": "a"}', b'{"id": 2, "item": "b"}', b"hm", b'{"id": 3, "item": null}']:
            kafka.produce("orders", value, partition=0)
        yield Project(kafka)
    sys.modules.pop("jsonlines", None)


def test_its_rows_are_audited(project: Project) -> None:
    """Each record has its row or its dead letter; no note speaks of a log, which such a sink does not have."""
    report = project.audit()
    assert (report.exit_code, report.partitions[0].present) == (0, 3)
    assert report.partitions[0].offsets == {"dead_lettered": [(2, 3)]}
    assert not any("commit log" in note for note in report.notes)


def test_a_row_that_is_gone_is_missing(project: Project) -> None:
    project.edit(project.lines[1:])
    assert project.audit().partitions[0].offsets == {"missing": [(0, 1)], "dead_lettered": [(2, 3)]}


def test_a_row_that_is_there_twice_is_a_duplicate(project: Project) -> None:
    project.edit([*project.lines, project.lines[2]])
    assert project.audit().partitions[0].offsets == {"duplicate": [(3, 4)], "dead_lettered": [(2, 3)]}


def test_a_row_of_no_record_is_extra(project: Project) -> None:
    row = {**json.loads(project.lines[0]), "_offset": 70}
    project.edit([*project.lines, json.dumps(row)])
    assert project.audit().partitions[0].offsets == {"extra": [(70, 71)], "dead_lettered": [(2, 3)]}


def test_an_origin_of_another_type_is_refused(project: Project) -> None:
    project.edit([json.dumps({**json.loads(line), "_offset": "five"}) for line in project.lines])
    with pytest.raises(SinkError, match="its column _offset is string"):
        project.audit()


def test_the_command_asks_the_topology(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--set={key}={value}" for key, value in project.settings.items() if key == "kafka.group"]
    command = ["audit", str(OUT), "--topology", "orders.py", "--bootstrap", project.kafka.bootstrap, *given]
    assert main(command) == 0
    assert "exact: 3 offsets are in the files, each exactly once; 1 dead-lettered" in capsys.readouterr().out
    project.edit(project.lines[1:])
    assert main(command) == 10


def test_a_comparison_reads_its_declared_columns(project: Project) -> None:
    component = load("orders.py").components["lines"]
    sink = Sink.of(component, parse_scope(component.config, "parquet"))
    table = sink.read(OUT)
    assert (table.schema.names, table.schema.types) == (["id", "item"], [pa.int64(), pa.string()])
    assert sorted(table.to_pylist(), key=lambda row: row["id"])[2] == {"id": 3, "item": None}
    project.edit([])
    assert sink.read(OUT).num_rows == 0
