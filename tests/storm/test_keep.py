"""Who starts a daemon again, and when no more; the daemon is a small shell script."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from downspout.storm import Daemons, groups, keep, node_files
from downspout.system import Process
from tests.waiting import eventually

LIVES = 'echo "$$" >> lives; test "$(wc -l < lives)" -ge {lives} && rm -f daemons.json; exit {code}'


def script(lives: int, code: int) -> list[str]:
    """Return a daemon that ends with this code; in its last life nobody wants it any more."""
    return ["/bin/sh", "-c", LIVES.format(lives=lives, code=code)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a node that has started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keep, "PAUSE_S", 0.0)
    node_files.write(tmp_path, Daemons("2.8.3", complete=True))
    return tmp_path


def command_of(folder: Path, daemon: list[str]) -> list[str]:
    """Return the command line of a keeper."""
    return [
        sys.executable,
        "-P",
        "-m",
        "downspout.storm.keep",
        "nimbus",
        str(folder / "daemons.json"),
        str(os.getpid()),
        "0",
        *daemon,
    ]


def lives(folder: Path) -> int:
    """Return how often the daemon was started."""
    return len((folder / "lives").read_text(encoding="utf-8").splitlines())


def test_a_daemon_is_started_again_and_that_is_told(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A daemon of a started node runs again after each end, whatever its exit code; a line says so."""
    assert keep.keep("nimbus", folder / "daemons.json", os.getppid(), 0, script(3, 0)) == 1
    assert lives(folder) == 3
    assert capfd.readouterr().out.count("nimbus ended with exit code 0 and is started again") == 2


def test_a_start_that_fails_is_not_tried_again(folder: Path) -> None:
    """Before the node has started, and after it was stopped, a daemon's end is its keeper's, with its exit code."""
    node_files.write(folder, Daemons("2.8.3"))
    assert keep.keep("nimbus", folder / "daemons.json", os.getppid(), 0, script(9, 13)) == 13
    assert lives(folder) == 1
    (folder / "daemons.json").unlink()
    assert keep.keep("nimbus", folder / "daemons.json", os.getppid(), 0, ["/bin/sh", "-c", "kill -9 $$"]) == 137


def test_who_started_the_node_need_not_live_to_hear_of_it(folder: Path) -> None:
    """A daemon whose node was started by a process that was killed meanwhile is kept like any other."""
    node_files.write(folder, Daemons("2.8.3"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    count = keep.ENDS_MAX + 1
    assert keep.keep("nimbus", folder / "daemons.json", ended.pid, 0, script(99, 13)) == 13
    assert lives(folder) == count


def test_a_daemon_ends_with_its_keeper(folder: Path) -> None:
    """After `kill -9` of a keeper its daemon does not run on, kept by nobody."""
    keeper = subprocess.Popen(command_of(folder, ["/bin/sh", "-c", "sleep 600; :"]), start_new_session=True)
    try:
        (daemon,) = eventually(lambda: groups.children(keeper.pid))
        keeper.kill()
        keeper.wait()
        eventually(lambda: not daemon.is_alive)
    finally:
        for member in groups.members(keeper.pid):
            member.signal(signal.SIGKILL)


def test_a_daemon_that_ends_over_and_over_is_given_up(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A daemon that ends more than ten times within five minutes is left alone; the line names exit code and number."""
    assert keep.keep("supervisor", folder / "daemons.json", os.getppid(), 0, script(99, 20)) == 20
    assert lives(folder) == keep.ENDS_MAX + 1
    said = "supervisor ended with exit code 20, for the 11th time within 5 minutes, and is not started again"
    assert said in capfd.readouterr().out


NIMBUS = """\
import os, socketserver, sys
from pathlib import Path
asked, answers = 0, [bytes.fromhex(each) for each in sys.argv[3:]]
class Calls(socketserver.BaseRequestHandler):
    def handle(self):
        global asked
        assert self.request.recv(99) == bytes.fromhex("00000016 80010001 00000009 6765744c6561646572 00000000 00")
        self.request.sendall(answers[asked % len(answers)])
        asked += 1
        if asked == int(sys.argv[2]):
            os._exit(7)
with Path("lives").open("a") as lives:
    lives.write("one\\n")
if len(Path("lives").read_text().splitlines()) > 1:
    Path("daemons.json").unlink()
    sys.exit(9)
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", int(sys.argv[1])), Calls).serve_forever()
"""
"""A nimbus that gives its answers in turn, ends after so many questions; in its second life at once, with its node."""

REPLY = "80010002 00000009 6765744c6561646572 00000000"
NO_LEADER = f"00000016 {REPLY} 00"
LEADER = f"00000021 {REPLY} 0c0000 0b0001 00000001 78 00 00"
REFUSAL = "00000016 80010003 00000009 6765744c6561646572 00000000 00"


def nimbus(questions: int, *answers: str) -> tuple[int, list[str]]:
    """Return the port and the command line of a nimbus that answers so many questions in this way."""
    with socket.socket() as free:
        free.bind((node_files.HOST, 0))
        port = free.getsockname()[1]
    return port, [sys.executable, "-c", NIMBUS, str(port), str(questions), *answers]


def test_a_nimbus_that_knows_no_leader_is_started_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A nimbus that says five times in a row that nobody leads is ended, and started again."""
    monkeypatch.setattr(keep, "ASK_S", 0.2)
    assert keep.keep("nimbus", folder / "daemons.json", os.getppid(), *nimbus(-1, NO_LEADER)) == 9
    said = capfd.readouterr().out
    assert (
        "[keep] nimbus answers and knows of no leader: it has lost its session with ZooKeeper, and is stopped" in said
    )
    assert "[keep] nimbus was ended by signal 15 and is started again" in said


@pytest.mark.parametrize(
    "answers",
    [[LEADER], [*[NO_LEADER] * 4, LEADER], [*[NO_LEADER] * 4, REFUSAL], [""]],
    ids=["a leader", "an election now and then", "an error", "no answer"],
)
def test_any_other_nimbus_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A nimbus that knows a leader now and then, fails at the question or says nothing is not ended."""
    monkeypatch.setattr(keep, "ASK_S", 0.2)
    assert keep.keep("nimbus", folder / "daemons.json", os.getppid(), *nimbus(14, *answers)) == 9
    said = capfd.readouterr().out
    assert "[keep] nimbus ended with exit code 7 and is started again" in said
    assert "knows of no leader" not in said


def test_ends_far_apart_count_for_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that ends now and then is started again for ever."""
    monkeypatch.setattr(keep, "WINDOW_S", 0.0)
    keep.keep("supervisor", folder / "daemons.json", os.getppid(), 0, script(40, 20))
    assert lives(folder) == 40


def test_to_end_the_group_is_to_end_keeper_and_daemon(folder: Path) -> None:
    """A daemon whose group is ended is not started again, even if it ends before its keeper does."""
    daemon = ["/bin/sh", "-c", 'echo "$$" >> lives; exec sleep 600']
    keeper = subprocess.Popen(command_of(folder, daemon), start_new_session=True)
    try:
        started = Process.of(keeper.pid)
        eventually(lambda: groups.children(keeper.pid))[0].signal(signal.SIGTERM)
        assert groups.end(started, 60.0)
        assert keeper.wait() == -signal.SIGTERM
        assert not groups.members(keeper.pid)
    finally:
        groups.end(Process.of(keeper.pid), 0.0)
