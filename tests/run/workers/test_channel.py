"""Messages between supervisor and worker."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from downspout import errors
from downspout.engine import Counts, RunResult, TaskResult, WorkerResult
from downspout.run import WorkerJob, WorkerMessage, WorkerReport
from downspout.run import worker_process as channel
from downspout.run.worker_process import Uplink, messages, read_job, send_job


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, its = socket.socketpair()
    yield ours, its
    ours.close()
    its.close()


def report(completed: int = 7, metrics: int = 0) -> WorkerReport:
    result = RunResult(
        reason="signal", drained=True, duration_s=1.5, components={"spout": Counts(1, 2, 3, 4, 5, 6, 7, 0.5)},
        completed=completed, failed=1, timeouts=1, in_flight=2, latency_p50_ms=1.0, latency_p99_ms=None,
        errors=["3 × no"], reports={"spout": {"lag": 2.0}}, metrics={"spout[task 1]": {"text": "x" * metrics}},
        signal=15, spouts=["spout"], uncommitted={"spout": 3}, workers=[WorkerResult(1, "end", None, 1, deaths=["d"])],
        tasks=[TaskResult("spout", 1, {"lag": 2.0})], stacks={"spout": "Traceback"},
        dead_letters={"spout": {"topic": "dead", "by_error": {"KeyError": 2}, "last": [{"offset": 7}]}},
    )  # fmt: skip
    return WorkerReport(result, {"spout": (0, 2)}, {-116: 1.5}, stopping=True, is_last=True)


def test_a_report_arrives_as_it_was_sent(ends: tuple[socket.socket, socket.socket]) -> None:
    """Nothing of a worker's figures is lost or changed on the way, and nor is its error."""
    ours, its = ends
    uplink = Uplink(its)
    uplink.report(report(1))
    uplink.finish(report(2), errors.SinkError("the disk is full", cure="room"))
    its.close()
    first, second, third = messages(ours)
    assert (first, second) == (WorkerMessage(report(1)), WorkerMessage(report(2)))
    assert isinstance(third.error, errors.SinkError)
    assert (str(third.error), third.error.exit_code) == ("the disk is full. Try: room", 7)


def test_a_job_arrives_as_it_was_sent(ends: tuple[socket.socket, socket.socket]) -> None:
    """A worker does what the supervisor was told to, however long that is; one that comes too late hears of it."""
    ours, its = ends
    job = WorkerJob("t.py", None, [f"kafka.stop_offsets={list(range(50_000))}"], {"run.member": 2}, {"records": None})
    sender = threading.Thread(target=send_job, args=(ours, job))
    sender.start()
    assert read_job(its) == job
    sender.join()
    ours.close()
    assert read_job(its) is None


def test_half_a_line_is_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    """A worker that was killed while it said something has said what came before."""
    ours, its = ends
    Uplink(its).report(report(1))
    its.sendall(b'{"result": {"reas')
    its.close()
    assert list(messages(ours)) == [WorkerMessage(report(1))]


def test_a_supervisor_that_reads_nothing_holds_no_worker_up(ends: tuple[socket.socket, socket.socket]) -> None:
    """Figures that do not fit into the socket are left out, not waited for; the last words come, in whole lines."""
    ours, its = ends
    uplink = Uplink(its)
    for number in range(100):
        uplink.report(report(number, metrics=50_000))
    heard: list[WorkerMessage] = []
    reader = threading.Thread(target=lambda: heard.extend(messages(ours)))
    reader.start()
    uplink.finish(report(1_000))
    its.close()
    reader.join()
    seen = [message.report.result.completed for message in heard if message.report is not None]
    assert seen[0] == 0
    assert seen[-1] == 1_000
    assert len(seen) < 100


def test_a_supervisor_that_is_gone_is_no_error(ends: tuple[socket.socket, socket.socket]) -> None:
    """Who reports to nobody goes on: that the supervisor is gone is seen elsewhere."""
    ours, its = ends
    ours.close()
    uplink = Uplink(its)
    uplink.report(report())
    uplink.finish(report())
    send_job(its, WorkerJob("t.py", None, [], {}))


@pytest.mark.parametrize(
    "cls",
    [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.DownspoutError)],
    ids=lambda cls: cls.__name__,
)
def test_errors_keep_their_class(cls: type[errors.DownspoutError]) -> None:
    """The supervisor raises what the worker raised, with its exit code; a class of elsewhere comes as its base."""

    class Elsewhere(cls):  # type: ignore[valid-type]
        pass

    for error in (cls("no", cure="yes"), Elsewhere("no", cure="yes")):
        found = channel.error_from(json.loads(json.dumps(channel.described(error))))
        assert type(found) is cls
        assert (str(found), found.exit_code) == ("no. Try: yes", error.exit_code)


def test_a_line_without_an_end_is_handed_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar writes over its line for days: it is shown meanwhile, and no more than a part is in memory."""
    monkeypatch.setattr(channel, "LINE_BYTES_MAX", 10)
    said: list[str] = []
    channel.WorkerProcess._forward(io.BytesIO(b"short\n" + b"\r50 % done" * 3 + b"\nafter\n"), said.append)
    assert said == ["short", "\r50 % done", "\r50 % done", "\r50 % done", "", "after"]
