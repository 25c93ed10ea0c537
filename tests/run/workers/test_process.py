"""A worker as a real process, without a broker: its messages, and that it always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from downspout.engine import Bounds
from downspout.errors import ComponentError, TopologyError
from downspout.run import WorkerJob, WorkerMessage
from downspout.run.worker_process import WorkerProcess
from downspout.system import birth

WAIT_S = 240.0
TOPOLOGY = """
import os, subprocess, sys, time
from streamparse import Bolt, Spout, Topology

# Who hangs says when it has heard the first signal.
def tell():
    from downspout.engine.loop import Engine
    stop = Engine.stop
    def told(self):
        stop(self)
        sys.stderr.write("asked to end\\n")  # one write: it is not torn by other lines
    Engine.stop = told

class Ones(Spout):
    outputs = ["n"]
    def next_tuple(self):
        time.sleep(0.001)
        self.emit([1], tup_id="1")

class Second(Bolt):
    def initialize(self, conf, context):
        how = {how!r}
        if how == "wrong":
            raise ValueError("it raised")
        if how == "exit":
            os._exit(77)
        if how == "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            print("child", child.pid, file=sys.stderr, flush=True)
        self.hangs = how == "hang"
        if self.hangs:
            tell()
    def process(self, tup):
        if self.hangs:
            print("hangs", file=sys.stderr, flush=True)
            time.sleep(600)

class Made(Topology):
    ones = Ones.spec()
    second = Second.spec(inputs=[ones])
"""

Start = Callable[..., WorkerProcess]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def start(tmp_path: Path, said: list[str]) -> Iterator[Start]:
    """Give a function that starts a worker, whose bolt does as it is told; none is left behind."""
    started: list[WorkerProcess] = []

    def one(how: str = "", drain_s: float = 5.0, **bounds: float) -> WorkerProcess:
        path = tmp_path / "made.py"
        path.write_text(TOPOLOGY.format(how=how))
        job = WorkerJob(str(path), None, [], {"run.member": 2}, asdict(Bounds(drain_s=drain_s, **bounds)))
        started.append(WorkerProcess(2, job, say=said.append))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.close()


def wait(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def hear(process: WorkerProcess, until: Callable[[list[WorkerMessage]], object]) -> list[WorkerMessage]:
    heard: list[WorkerMessage] = []

    def enough() -> object:
        heard.extend(process.take())
        return until(heard)

    wait(enough)
    return heard


def ended(process: WorkerProcess) -> list[WorkerMessage]:
    heard = hear(process, lambda _: process.poll() is not None)
    return heard + process.take()


@pytest.mark.slow
def test_a_worker_reports_and_drains_when_it_is_asked(start: Start) -> None:
    """Figures come while it runs; asked to end it drains, and its last report is the whole."""
    process = start()
    heard = hear(process, lambda heard: any(m.report and m.report.result.completed for m in heard))
    assert heard[0].report is not None
    assert not heard[0].report.is_last
    process.ask_to_end()
    last = ended(process)[-1].report
    assert last is not None
    assert (last.is_last, last.result.reason, last.result.drained) == (True, "signal", True)
    assert process.poll() == 128 + signal.SIGTERM
    assert last.result.components["ones"].emitted == last.result.components["second"].executed > 0
    assert sum(last.latencies.values()) > 0


@pytest.mark.slow
def test_bounds_are_those_of_the_job(start: Start) -> None:
    """A worker stops by itself where the supervisor says, whatever else the settings hold."""
    process = start(records=50)
    last = ended(process)[-1].report
    assert last is not None
    assert (process.poll(), last.result.reason, last.result.completed >= 50) == (0, "records", True)


@pytest.mark.slow
def test_an_error_is_told_and_not_printed(start: Start, said: list[str]) -> None:
    """The supervisor gets the error, class and cure; printing it is left to that one."""
    process = start("wrong")
    error = ended(process)[-1].error
    assert isinstance(error, ComponentError)
    assert "it raised" in error.message
    assert process.poll() == ComponentError.exit_code
    assert not any(line.startswith("downspout:") for line in said)


@pytest.mark.slow
def test_a_topology_that_is_gone_is_an_error_too(start: Start, tmp_path: Path) -> None:
    """What fails before the run begins is told as well."""
    job = WorkerJob(str(tmp_path / "no.py"), None, [], {}, asdict(Bounds()))
    process = WorkerProcess(1, job, options=["--quiet"], say=lambda _: None)
    try:
        error = ended(process)[-1].error
    finally:
        process.kill()
        process.close()
    assert isinstance(error, TopologyError)
    assert process.poll() == TopologyError.exit_code


@pytest.mark.slow
def test_a_worker_that_vanishes_has_said_nothing_more(start: Start) -> None:
    """os._exit in a component is an exit code, and no word on the channel."""
    process = start("exit")
    assert [message for message in ended(process) if message.error or (message.report and message.report.is_last)] == []
    assert process.poll() == 77


@pytest.mark.slow
def test_a_worker_without_a_supervisor_ends_by_itself(start: Start) -> None:
    """Its end of the channel closes when the supervisor is killed: it drains and exits as if it were asked to."""
    process = start()
    hear(process, lambda heard: heard)
    process._channel.shutdown(2)
    wait(lambda: process.poll() is not None)
    assert process.poll() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_an_orphan_that_hangs_ends_too(start: Start, said: list[str]) -> None:
    """Nobody is left who could stop it: once its drain's time is over the call is interrupted, and it ends in order."""
    process = start("hang", drain_s=0.0)
    wait(lambda: "hangs" in said)
    process._channel.shutdown(2)
    wait(lambda: process.poll() is not None)
    assert process.poll() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_what_a_worker_has_started_keeps_no_channel_open(start: Start, said: list[str]) -> None:
    """A child of a bolt that outlives its worker holds nobody up, and is ended with the worker by a kill."""
    process = start("child")
    wait(lambda: any(line.startswith("child") for line in said))
    child = int(next(line for line in said if line.startswith("child")).split()[1])
    hear(process, lambda heard: heard)
    assert birth(child)
    assert os.getpgid(child) == process.pid != os.getpgid(0)
    process.kill()
    wait(lambda: birth(child) is None)
    assert process.poll() == -signal.SIGKILL


@pytest.mark.slow
def test_a_worker_that_hangs_can_be_stopped(start: Start, said: list[str]) -> None:
    """Asked twice, it leaves even a bolt's endless call, and says what was in flight."""
    process = start("hang", drain_s=10 * WAIT_S)  # on a busy machine it may be long until it is asked again
    wait(lambda: "hangs" in said)
    process.ask_to_end()
    wait(lambda: any("asked to end" in line for line in said))  # two signals at once are one
    process.ask_to_end()
    last = ended(process)[-1].report
    assert last is not None
    assert (last.result.reason, last.result.drained) == ("aborted", False)
    assert last.result.in_flight > 0


@pytest.mark.slow
def test_a_worker_is_called_as_a_user_would_call_it(start: Start) -> None:
    """Who looks at the list of processes sees which member of which topology it is, and no setting, so no secret."""
    process = start()
    hear(process, lambda heard: heard)
    asked = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(process.pid)], capture_output=True, text=True, check=True
    )
    words = asked.stdout.split()
    assert words[1:4] == ["-m", "downspout", "run"]
    assert words[4].endswith("made.py")
    assert words[5:8] == ["--member", "2", "--channel"]
    assert len(words) == 9
