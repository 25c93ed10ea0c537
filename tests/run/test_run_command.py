"""`downspout run` as a process: streamparse's own project, signals, exit codes, output."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import streamparse
from rich.console import Console

from downspout.cli import main
from downspout.cli.run import seconds
from downspout.clock import SYSTEM_CLOCK
from downspout.engine import Bounds, Engine, from_class
from downspout.errors import ConfigError
from downspout.kafka import TopicPartition
from downspout.run import live_view as live
from downspout.run.table_view import TableView
from downspout.testing import FakeKafka, VirtualClock
from tests.spout.reasons import OTHERS_NEED_IT

ROOT = Path(__file__).parents[2]
# Only the commands of this room, so that these tests need no other.
MAIN = "import sys; from downspout.cli import main; sys.exit(main())"


@pytest.fixture
def project(tmp_path):
    shutil.copytree(Path(streamparse.__file__).parent / "bootstrap" / "project", tmp_path / "qs")
    return tmp_path / "qs"


def start(project, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Return exit code, stdout and stderr; never leave the process behind."""
    try:
        out, err = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, out, err


@pytest.mark.slow
def test_streamparses_quickstart_runs_unmodified(project):
    """The pinned package's own wordcount runs for its time, every word counted by one of two tasks."""
    code, out, err = finish(start(project, "run", "topologies/wordcount.py", "--for", "1s", "--json", "-"))
    assert code == 0, err
    summary = json.loads(out)
    spout, bolt = summary["components"]["word_spout"], summary["components"]["count_bolt"]
    assert summary["reason"] == "for"
    assert spout["emitted"] == bolt["executed"] == bolt["emitted"] > 1000
    assert "wordcount stopped after" in err


TELLING = """
from streamparse import Bolt, Spout, Topology

class Ones(Spout):
    outputs = ["n"]
    def next_tuple(self):
        self.emit([1], tup_id="1")

class Tells(Bolt):
    told = False
    def process(self, tup):
        if not self.told:
            print("running", flush=True)
        self.told = True

class Made(Topology):
    ones = Ones.spec()
    tells = Tells.spec(inputs=[ones])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_drains_and_says_so(project, number, code):
    """Ctrl-C and SIGTERM end the run after a clean drain, with the shell's exit codes."""
    (project / "topologies" / "telling.py").write_text(TELLING)
    process = start(project, "run", "topologies/telling.py", "--json", "out.json")
    try:
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
    finally:
        found, _, err = finish(process)
    assert found == code, err
    assert f"stopped by {number.name} after a clean drain" in err
    summary = json.loads((project / "out.json").read_text())
    assert summary["drained"]
    assert summary["components"]["ones"]["emitted"] == summary["components"]["tells"]["executed"] > 0


STUCK = """
import time
from streamparse import Bolt, Spout, Topology
from downspout.engine.loop import Engine

class Ones(Spout):
    outputs = ["n"]
    def next_tuple(self):
        self.emit([1], tup_id="1")

stop = Engine.stop

def told(self):
    stop(self)
    print("asked", flush=True)

Engine.stop = told

class Stuck(Bolt):
    def process(self, tup):
        print("stuck", flush=True)
        time.sleep(600)

class Made(Topology):
    ones = Ones.spec()
    stuck = Stuck.spec(inputs=[ones])
"""


@pytest.mark.slow
def test_a_second_signal_stops_even_a_bolt_that_hangs(project):
    """Ctrl-C twice ends the run inside a bolt's endless call, and says what was left in flight."""
    (project / "topologies" / "stuck.py").write_text(STUCK)
    process = start(project, "run", "topologies/stuck.py")
    try:
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"  # two signals at once are one
        process.send_signal(signal.SIGINT)
    finally:
        code, _, err = finish(process)
    assert code == 130, err
    assert "a second signal stopped it at once" in err
    assert re.search(r"stopped by SIGINT with \S+ tuples in flight, to be processed again at the next start", err), err


GONE = """
import signal
from streamparse import Bolt, Topology
from downspout.kafka.clusters import cluster_for
from spouts.kafka import KafkaSpout

class Last(Bolt):
    def process(self, tup):
        if tup.values.value == "9":
            cluster_for("fake://gone").broker_down()
            if SIGNAL:
                signal.raise_signal(SIGNAL)

class Made(Topology):
    reader = KafkaSpout.spec(topics=["orders"], fields=["value"], group="readers", bootstrap="fake://gone")
    last = Last.spec(inputs=[reader])
"""


@pytest.mark.fake_only(OTHERS_NEED_IT)
@pytest.mark.parametrize(("number", "closing"), [(signal.SIGTERM, "stopped by SIGTERM; "), (0, "")])
def test_a_last_commit_that_failed_is_told(tmp_path, capsys, monkeypatch, number, closing):
    """The broker is gone at the end: exit code 4, and the closing line says how much will be processed again."""
    (tmp_path / "gone.py").write_text(f"SIGNAL = {int(number)}\n{GONE}")
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    with FakeKafka("gone", clock=SYSTEM_CLOCK) as kafka:
        for value in range(10):
            kafka.produce("orders", str(value).encode())
        options = () if number else ("--records", "10")
        assert main(["run", str(tmp_path / "gone.py"), "--json", str(tmp_path / "out.json"), *options]) == 4
        err = capsys.readouterr().err
        assert "after a clean drain" not in err
        assert (
            f"downspout: {closing}the last commit failed: 10 records of reader are not committed "
            "and will be processed again at the next start"
        ) in err
        assert json.loads((tmp_path / "out.json").read_text())["uncommitted"] == {"reader": 10}
        kafka.broker_up()
        assert kafka.committed("readers")[TopicPartition("orders", 0)].offset == 0


PICKY = """
import signal
from streamparse import Bolt, Topology
from spouts.kafka import KafkaSpout

class Picky(Bolt):
    auto_ack = False
    def process(self, tup):
        if tup.values.value in ("3", "5"):
            self.fail(tup)
        else:
            self.ack(tup)
        if tup.values.value == "9":
            signal.raise_signal(signal.SIGTERM)

class Made(Topology):
    reader = KafkaSpout.spec(topics=["orders"], fields=["value"], group="readers", bootstrap="fake://picky",
                             retry_delay_ms=60_000, retry_delay_ms_max=60_000)
    picky = Picky.spec(inputs=[reader])
"""


@pytest.mark.fake_only("the closing line of a command, which asks no broker")
def test_failed_records_that_wait_for_their_retry_are_told_at_the_end(tmp_path, capsys, monkeypatch):
    """A drain is clean of what is in flight; what failed and is not done is named, with what becomes of it."""
    (tmp_path / "picky.py").write_text(PICKY)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    with FakeKafka("picky", clock=SYSTEM_CLOCK) as kafka:
        for value in range(10):
            kafka.produce("orders", str(value).encode())
        assert main(["run", str(tmp_path / "picky.py"), "--json", str(tmp_path / "out.json")]) == 143
        said = "stopped by SIGTERM after a clean drain; 2 failed records will be tried again at the next start"
        assert said in capsys.readouterr().err
        assert json.loads((tmp_path / "out.json").read_text())["reports"]["reader"]["retry_later"] == 2
        assert kafka.committed("readers")[TopicPartition("orders", 0)].offset == 3


BAD = {
    "no such file": (("run", "topologies/wordcuont.py"), 2, "Try: 'topologies/wordcount.py'"),
    "no end": (("run", "topologies/wordcount.py", "--until", "end"), 2, "word_spout (WordSpout) has no end"),
    "bad duration": (("run", "topologies/wordcount.py", "--for", "soon"), 2, "--for soon is not a duration"),
    "unknown setting": (("run", "topologies/wordcount.py", "--set", "run.sede=1"), 2, "unknown setting run.sede"),
    "no number": (("run", "topologies/wordcount.py", "--records", "0"), 2, "run.records = 0 (command line) is below 1"),
    "check": (("check", "topologies/wordcoun.py"), 2, "does not exist"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code", "message"), BAD.values(), ids=BAD)
def test_what_cannot_run_is_one_line(project, arguments, code, message):
    """A mistake of the user's is one line on stderr without a traceback, with an exit code of its kind."""
    found, _, err = finish(start(project, *arguments))
    assert found == code
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_check_lists_components_and_values(project):
    """check prints who reads what, and counts what it found."""
    code, out, err = finish(start(project, "check", "topologies/wordcount.py", "--set", "run.seed=3"))
    assert code == 0, err
    assert "  run.seed = 3  (command line)" in out
    assert "reads word_spout:default by fields(word)" in out
    assert "wordcount: 0 errors, 0 warnings" in out


def test_durations():
    """Durations take the usual units, and nothing else."""
    assert [seconds(text) for text in ("2", "2s", "250ms", "1.5m", "2 min", "1h")] == [2, 2, 0.25, 90, 120, 3600]
    with pytest.raises(ConfigError, match=re.escape("--trigger -1s is not a duration")):
        seconds("-1s", "--trigger")


class Numbers(streamparse.Spout):
    outputs = ("n",)

    def next_tuple(self):
        self.emit([1], tup_id=1)

    def report(self):
        return {"lag": 1200}


class End(streamparse.Bolt):
    pass


class Made(streamparse.Topology):
    numbers = Numbers.spec()
    end = End.spec(inputs=[numbers])


End.process = lambda self, tup: None


def viewed(view):
    """Run ten virtual seconds under a view and return the result."""
    graph = from_class(Made, "made")
    confs = {name: {} for name in graph.components}
    engine = Engine(graph, confs, bounds=Bounds(for_s=10), clock=VirtualClock(), view=view, round_s=0.05)
    try:
        return engine.run()
    finally:
        view.close()


def test_without_a_terminal_there_is_a_line_now_and_then():
    """Every five seconds one plain line says time, rate, in flight, lag and the time that is left."""
    out = io.StringIO()
    viewed(live.LinesView(out))
    (line, *more) = out.getvalue().splitlines()
    assert len(more) <= 1
    assert "5 s" in line
    assert "/s)" in line
    assert "lag 1,200" in line
    assert "5 s left" in line
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_there_is_a_table():
    """The table has a row per component with its counters."""
    out = io.StringIO()
    viewed(TableView(Console(file=out, force_terminal=True, width=120)))
    assert "numbers" in out.getvalue()
    assert "queue" in out.getvalue()


def test_the_summary_says_why_and_how_much():
    """At the end stand the reason, the trees and each component's counters and own figures."""
    result = viewed(live.LinesView(io.StringIO()))
    text = live.summary("made", result)
    assert text.startswith("made stopped after 10.")
    assert "s: its time was up." in text
    assert f"{result.completed:,} tuple trees complete" in text
    assert "lag 1,200" in text
