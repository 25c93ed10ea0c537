from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from downspout.engine.load import load
from downspout.errors import ComponentError, TopologyError
from downspout.system import birth
from downspout.testing import FakeKafka, run_topology
from tests.audit.command_support import LETTERS, WITH_TOPOLOGY, run

pytestmark = [
    pytest.mark.slow,  # each starts a process
    pytest.mark.fake_only("runs a topology in virtual time; tests/broker/test_audit_broker.py has one in real time"),
]

KILLING = """
import os
import signal
from streamparse import Topology
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Careful(Bolt):
    outputs = ["origin", "word"]

    def process(self, tup):
        if tup.values.value != "die":
            self.emit([tup.values.origin, tup.values.value])
        elif "SPARED" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)

class Killing(Topology):
    spout = KafkaSpout.spec(topics=["killing"], fields=["origin", "value"])
    careful = Careful.spec(inputs=[spout])
    words = ParquetBolt.spec(inputs=[careful], directory="alive", schema=["word:string"])
"""


@pytest.mark.sweep
def test_a_record_that_kills_the_process_is_named(
    project: FakeKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bolt that dies on a record as it is run again ends no audit: the record is missing, and the signal named."""
    Path("killing_topology.py").write_text(KILLING, encoding="utf-8")
    project.create_topic("killing")
    for number in range(40):
        project.produce("killing", b"die" if number == 29 else b"%d" % number, partition=0)
    monkeypatch.setenv("SPARED", "1")
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "k", "kafka.start": "EARLIEST"}
    run_topology(load("killing_topology.py"), config=settings)
    monkeypatch.delenv("SPARED")
    code = run(project, "alive", "--topology", "killing_topology.py", "--set", "kafka.group=k")
    told = capsys.readouterr().out
    assert code == 10
    assert "1 missing (killing[0]@29)" in told
    assert "killing[0]@29 kills the process that runs it (SIGKILL)" in told


LOUD = """class Loud(SplitBolt):
    def process(self, tup):
        print("seen")
        super().process(tup)

class Words"""


def test_what_bolts_print_is_no_part_of_the_report(project: FakeKafka, capfd: pytest.CaptureFixture[str]) -> None:
    """A bolt that prints as it is run again leaves the JSON alone."""
    text = Path("words_topology.py").read_text(encoding="utf-8").replace("SplitBolt.spec", "Loud.spec")
    Path("words_topology.py").write_text(text.replace("class Words", LOUD), encoding="utf-8")
    run(project, "words", *WITH_TOPOLOGY, *LETTERS, "--json")
    told = capfd.readouterr()
    assert json.loads(told.out)["exit_code"] == 0
    assert "seen" in told.err


@pytest.mark.sweep
def test_many_records_that_kill_end_the_audit(project: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that would start processes for hours is given up, and names some of the records."""
    monkeypatch.setattr("downspout.audit.replays.KILLERS_MAX", 1)
    Path("killing_topology.py").write_text(KILLING, encoding="utf-8")
    project.create_topic("killing")
    for number in range(4):
        project.produce("killing", b"die" if number % 2 else b"%d" % number, partition=0)
    monkeypatch.setenv("SPARED", "1")
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "k", "kafka.start": "EARLIEST"}
    run_topology(load("killing_topology.py"), config=settings)
    monkeypatch.delenv("SPARED")
    with pytest.raises(TopologyError, match=r"2 records end .*: killing\[0\]@1 \(SIGKILL\), killing\[0\]@3"):
        run(project, "alive", "--topology", "killing_topology.py", "--set", "kafka.group=k")


HANGING = """class Hanging(SplitBolt):
    def process(self, tup):
        import os, pathlib, time
        pathlib.Path("part").write_text(str(os.getpid()))
        pathlib.Path("part").rename("hangs")
        time.sleep(3600)

class Words"""
APART = """
from pathlib import Path
from downspout.audit.replays import ReplayApart
from downspout.dead_letters.claims import PlainRecord
from downspout.testing.harness import run_on_records
if __name__ == "__main__":
    ReplayApart("words_topology.py", Path("words"), run_on_records)([PlainRecord("lines", 0, 0, 0, None, b"a b", [])])
"""


def test_a_bolt_that_hangs_does_not_outlive_the_audit(project: FakeKafka) -> None:
    """When the audit is killed in the middle of a bolt, the process that runs the bolt ends as well."""
    text = Path("words_topology.py").read_text(encoding="utf-8").replace("SplitBolt.spec", "Hanging.spec")
    Path("words_topology.py").write_text(text.replace("class Words", HANGING), encoding="utf-8")
    Path("apart.py").write_text(APART, encoding="utf-8")
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "apart.py"], env={**os.environ, "PYTHONPATH": root})
    try:
        wait_for(lambda: Path("hangs").exists())
        pid = int(Path("hangs").read_text(encoding="utf-8"))
        assert birth(pid) is not None
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: birth(pid) is None)


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


UNABLE = """class Unable(SplitBolt):
    def initialize(self, conf, context):
        raise RuntimeError("no service")

class Words"""


@pytest.mark.sweep
def test_a_bolt_that_fails_to_start_is_an_error_of_its_own(project: FakeKafka) -> None:
    """What a bolt raises as it starts is told as in a run, and not as the end of a process."""
    text = Path("words_topology.py").read_text(encoding="utf-8").replace("SplitBolt.spec", "Unable.spec")
    Path("words_topology.py").write_text(text.replace("class Words", UNABLE), encoding="utf-8")
    with pytest.raises(ComponentError, match="no service"):
        run(project, "words", *WITH_TOPOLOGY)


def test_a_process_that_ends_as_it_loads_the_topology_is_an_error(project: FakeKafka) -> None:
    text = Path("words_topology.py").read_text(encoding="utf-8")
    guard = "import multiprocessing, os\nif multiprocessing.parent_process():\n    os._exit(3)\n"
    Path("words_topology.py").write_text(guard + text, encoding="utf-8")
    with pytest.raises(TopologyError, match=r"dies at once, even without records \(exit code 3\)"):
        run(project, "words", *WITH_TOPOLOGY)
