"""The single-node Storm itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import MissingExtraError, StormError
from downspout.storm import HOST, Daemons, StormNode, groups, node_files
from downspout.storm.node import NodeStatus
from downspout.storm.node_files import Ports
from downspout.system import FileLock, ProcessIdentity, jars, java
from downspout.wire import KRYO_CLASSES
from tests.storm.support import BUSY_S_MAX, Place
from tests.waiting import eventually


@pytest.mark.sweep
@pytest.mark.storm
@pytest.mark.slow
def test_a_node_survives_the_death_of_a_part_at_the_next_start(tmp_path: Path) -> None:
    """After `kill -9` of nimbus the node is broken, a start ends what is left of it, a stop leaves nothing."""
    node = StormNode(tmp_path / "storm")
    node.start()
    before = status_of(node)
    assert before.state == "running"
    assert before.daemons is not None
    for path in (node.directory, *node.directory.iterdir(), *(node.directory / "logs").iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(StormError, match="already running"):
        StormNode(tmp_path / "storm").start()
    os.kill(before.daemons.processes["nimbus"].pid, signal.SIGKILL)
    eventually(lambda: node.status().state == "broken")  # a process dies in steps
    after = status_of(node.start())
    assert after.state == "running"
    assert after.nimbus == before.nimbus
    assert not groups.members(before.daemons.processes["supervisor"].pid)
    assert node.stop()
    assert node.status().state == "stopped"
    assert after.daemons is not None
    assert not any(groups.members(daemon.pid) for daemon in after.daemons.processes.values())
    assert not node.stop()


def status_of(node: StormNode) -> NodeStatus:
    """Return the status of a node; one whose nimbus has no time to answer for two seconds, `silent`, is asked again."""
    return eventually(lambda: found if (found := node.status()).state != "silent" else None, BUSY_S_MAX, every_s=0.5)


@pytest.mark.storm
def test_status_names_what_runs(storm: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """`downspout storm status` names version, nimbus and processes; a second start says that it runs already."""
    folder = str(storm.home / "storm")
    said = eventually(  # until then nimbus may be silent, having no time for us
        lambda: capsys.readouterr().out if main(["storm", "status", "--dir", folder]) == 0 else "", BUSY_S_MAX
    )
    assert f"Storm {jars.STORM_VERSION} is running" in said
    assert main(["storm", "start", "--dir", folder]) == 0
    assert "already running" in capsys.readouterr().out


@contextmanager
def paused(pid: int, seconds: float) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    goes_on = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    goes_on.start()
    try:
        yield
    finally:
        goes_on.join()


@pytest.mark.storm
def test_a_nimbus_that_is_slow_to_answer_is_left_alone(storm: Place) -> None:
    """A start waits for a nimbus that runs and says nothing for seconds, and so does who wants its address."""
    before = node_files.read_daemons(storm.node.directory)
    assert before is not None
    nimbus = status_of(storm.node).alive["nimbus"]
    # It speaks to ZooKeeper every 7 s, and after 20 s of silence is not registered there any more.
    with paused(nimbus, 4.0), pytest.raises(StormError, match="already running"):
        StormNode(storm.node.directory).start()
    with paused(nimbus, 4.0):
        assert storm.node.address[0] == HOST
    assert node_files.read_daemons(storm.node.directory) == before


@pytest.fixture
def no_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The jars without a download; nothing is started with them."""
    monkeypatch.setattr(jars, "resolve", lambda name, tell: [tmp_path / "x.jar"])


def test_a_port_in_use_is_named(tmp_path: Path, no_jars: None) -> None:
    """A demanded port that another process has is an error that names it, and leaves nothing started."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StormError, match=f"Port {port} of {HOST} is in use"):
            StormNode(tmp_path / "storm", port, detached=True).start()
    assert StormNode(tmp_path / "storm").status().state == "stopped"


def test_an_old_java_is_refused_before_anything_is_written(
    tmp_path: Path, no_jars: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Java 8 alone there is an error that names it, and no directory."""
    monkeypatch.setattr(java, "bundled_home", lambda: None)
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="1.8.0_392"\n', encoding="utf-8")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtraError, match="version 8"):
        StormNode(tmp_path / "storm").start()
    assert not (tmp_path / "storm").exists()


@pytest.fixture
def without_nimbus(tmp_path: Path) -> Iterator[Path]:
    """The directory of a node whose nimbus has ended; two processes that only sleep are its other daemons."""
    others = [subprocess.Popen(["sh", "-c", "sleep 600; :"], start_new_session=True) for _ in range(2)]
    alive = {name: ProcessIdentity.of(each.pid) for name, each in zip(OTHERS, others, strict=True)}
    node_files.write(tmp_path, Ports.choose())
    node_files.write(tmp_path, Daemons("2.8.3", {**alive, "nimbus": ProcessIdentity(others[0].pid, "another/1")}))
    yield tmp_path
    for each in others:
        os.killpg(each.pid, signal.SIGKILL)
        each.wait()


OTHERS = ("zookeeper", "supervisor")


def test_a_broken_node_tells_what_is_gone(without_nimbus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status of a node that has lost its nimbus names nimbus, and lists the processes that live and no others."""
    daemons = node_files.read_daemons(without_nimbus)
    assert daemons is not None
    pids = {name: daemons.processes[name].pid for name in OTHERS}
    assert main(["storm", "status", "--dir", str(without_nimbus)]) == 1
    said = capsys.readouterr().out
    assert "is broken: nimbus ended (still running: " in said
    assert "nimbus " not in said.partition("still running")[2].partition("\n")[0]
    assert "`downspout storm start`, which replaces it; topologies must be submitted again" in said
    assert main(["storm", "status", "--json", "--dir", str(without_nimbus)]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["state"], facts["gone"], facts["processes"]) == ("broken", ["nimbus"], pids)
    (without_nimbus / "logs").mkdir()
    (without_nimbus / "logs" / "nimbus.log").write_text("the disk is full\n\tat x.y\n", encoding="utf-8")
    said = r"(?s)broken: nimbus ended .*end of the log of nimbus:\nthe disk is full.*topologies must be submitted again"
    with pytest.raises(StormError, match=said):
        _ = StormNode(without_nimbus).address


def test_a_node_whose_workers_alone_live_is_no_stopped_one(tmp_path: Path) -> None:
    """Where all daemons were killed and a worker runs on, the node is broken, and a stop ends the worker."""
    script = "sleep 600 > /dev/null & echo; wait"
    leader = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    leader.stdout.readline()
    node_files.write(tmp_path, Daemons("2.8.3", {"supervisor": ProcessIdentity.of(leader.pid)}))
    leader.kill()
    leader.communicate()
    try:
        assert StormNode(tmp_path).status().state == "broken"
    finally:
        assert StormNode(tmp_path).stop()
    assert StormNode(tmp_path).status().state == "stopped"


def test_a_start_says_that_it_replaces_a_broken_node(
    without_nimbus: Path, no_jars: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StormNode, "start", lambda node: node)
    main(["storm", "start", "--dir", str(without_nimbus)])
    assert "broken: nimbus ended. Replacing it; its topologies are lost" in capsys.readouterr().out


@pytest.mark.slow
def test_two_do_not_start_one_node(tmp_path: Path, no_jars: None) -> None:
    """Who holds the lock starts or stops it alone; the other is told so, and sees that it is busy."""
    folder = tmp_path / "storm"
    folder.mkdir()
    lock = FileLock(folder / "lock")
    assert lock.acquire()
    assert StormNode(folder).status().state == "busy"
    with pytest.raises(StormError, match="Another process is starting or stopping"):
        StormNode(folder, detached=True).start()
    lock.release()


def test_a_lock_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    """A directory that somebody else owns, by its lock, is an error with a cure."""
    (tmp_path / "lock").mkdir()
    with pytest.raises(StormError, match=r"cannot use its directory .* a directory that you own"):
        StormNode(tmp_path).stop()


def test_ports_stay_the_same_while_they_are_free() -> None:
    """The ports of the last time are chosen again, except those that somebody has taken meanwhile."""
    former = Ports.choose()
    assert Ports.choose(former) == former
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, former.zookeeper))
        other.listen()
        again = Ports.choose(former)
    assert again.zookeeper != former.zookeeper
    assert (again.nimbus, again.supervisor, again.slots) == (former.nimbus, former.supervisor, former.slots)


def test_a_process_of_another_birth_is_left_alone(tmp_path: Path) -> None:
    """A process id that now belongs to a stranger is neither taken for a daemon nor ended."""
    node_files.write(tmp_path, Daemons("2.8.3", {"nimbus": ProcessIdentity(os.getpid(), "another/1")}))
    assert StormNode(tmp_path).status().state == "stopped"
    assert not StormNode(tmp_path).stop()
    assert not groups.end(ProcessIdentity(os.getppid(), "another/1"), 0.0)


def test_a_kill_leaves_the_group_of_another_process_alone(tmp_path: Path) -> None:
    """A process that got the id of a dead daemon within the same boot is not killed, nor is its group."""
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        boot = ProcessIdentity.of(stranger.pid).birth.partition("/")[0]
        node_files.write(tmp_path, Daemons("2.8.3", {"nimbus": ProcessIdentity(stranger.pid, f"{boot}/1")}))
        assert not StormNode(tmp_path).kill()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_worker_that_dies_in_its_start_is_missed_soon() -> None:
    """The larger of the supervisor's two time-outs counts; nimbus leaves the worker to it for longer than that."""
    values = json.loads(node_files.storm_yaml(Path("/x"), Ports(2, 3, 4, (5,))))
    start, beat = values["supervisor.worker.start.timeout.secs"], values["supervisor.worker.timeout.secs"]
    assert max(start, beat) < 60
    assert min(values["nimbus.task.timeout.secs"], values["nimbus.task.launch.secs"]) > max(start, beat)


def test_a_node_knows_the_classes_of_values() -> None:
    """Our node registers what travels between workers, for topologies without our spout, which brings it along."""
    values = json.loads(node_files.storm_yaml(Path("/x"), Ports(2, 3, 4, (5,))))
    assert values["topology.kryo.register"] == list(KRYO_CLASSES)
