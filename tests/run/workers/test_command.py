"""`downspout run --workers` without a broker: refusals, and the display of the whole run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from downspout.cli import main
from downspout.engine import Bounds, Counts, RunResult, WorkerResult
from downspout.run import RunMetrics
from downspout.run import live_view as live
from downspout.run.table_view import TableView

TOPOLOGY = """
from streamparse import Bolt, Spout, Topology

class Ones(Spout):
    outputs = ["n"]
    def next_tuple(self):
        self.emit([1], tup_id="1")

class Takes(Bolt):
    def process(self, tup):
        pass

class Made(Topology):
    ones = Ones.spec()
    takes = Takes.spec(inputs=[ones])
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.py").write_text(TOPOLOGY)
    return "made.py"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--workers", "2"], "ones (Ones) is not a KafkaSpout, so each worker would emit all of its tuples"),
        (["--set", "run.workers=2"], "ones (Ones) is not a KafkaSpout"),
        (["--workers", "2", "--member", "1"], "run.member is for a process that you start yourself"),
        (["--workers", "0"], "run.workers"),
    ],
)
def test_what_cannot_be_is_refused(
    target: str, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message with the reason and exit code 2, before any worker starts."""
    assert main(["run", target, *options]) == 2
    assert capsys.readouterr().err.count(says) == 1


def test_one_worker_is_no_worker(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--workers 1 runs the topology in this process, whatever its spouts are."""
    assert main(["run", target, "--workers", "1", "--records", "5", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["reason"], result["workers"]) == ("records", [])


def figures() -> RunMetrics:
    """Return a run of two workers, one of which has been killed."""
    workers = [
        WorkerResult(1, "running", 4711, 0, 900, 8, 50.0),
        WorkerResult(2, "restarting", None, 3, 100, deaths=["was killed by signal 9 (SIGKILL)"] * 3),
    ]
    result = RunResult(
        reason="running", drained=False, duration_s=10.0, components={"spout": Counts(2, 1_008)}, completed=1_000,
        failed=0, timeouts=0, in_flight=8, latency_p50_ms=1.0, latency_p99_ms=2.0, reports={"spout": {"lag": 50}},
        spouts=["spout"], workers=workers,
    )  # fmt: skip
    return RunMetrics("made", result, {"spout": (0, 8)}, Bounds(until="end"), stopping=False)


def test_the_views_show_the_workers() -> None:
    """A line tells how many are alive; the table has a row for each, with its state, restarts and share."""
    out = io.StringIO()
    view = live.LinesView(out)
    for now in (0.0, 6.0):
        view.look(now, figures)
    assert "1,000 done" in out.getvalue()
    assert "lag 50" in out.getvalue()
    assert "1 of 2 workers alive, 3 restarts" in out.getvalue()
    out = io.StringIO()
    table = TableView(Console(file=out, force_terminal=True, width=120))
    table.look(0.0, figures)
    table.close()
    for shown in ("spout", "1,008", "4711", "restarting", "900"):
        assert shown in out.getvalue()
    killed = next(line for line in out.getvalue().splitlines() if "restarting" in line)
    assert [cell.strip() for cell in killed.split("│")][-2] == "–", "nobody knows its lag"


def test_no_lag_is_shown_before_a_worker_knows_one() -> None:
    """A worker that has not joined the group yet does not make the run look as if nothing were left."""
    joining = figures()
    joining.result.reports = {"spout": {"records": 0.0}}
    out = io.StringIO()
    view = live.LinesView(out)
    for now in (0.0, 6.0):
        view.look(now, lambda: joining)
    assert "1,000 done" in out.getvalue()
    assert "lag" not in out.getvalue()
    assert " left" not in out.getvalue()


def test_the_summary_names_each_worker() -> None:
    """At the end stands what each worker did, how often it was started again, and why."""
    lines = live.summary("made", figures().result).splitlines()
    assert lines[-2:] == [
        "  worker 1: 900 tuple trees complete; running",
        "  worker 2: 100 tuple trees complete; restarting; 3 restarts (was killed by signal 9 (SIGKILL))",
    ]
