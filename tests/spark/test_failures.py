"""Failures of Spark queries: messages in a sentence, and retries; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from downspout.errors import BrokerError, DownspoutError, SparkError
from downspout.spark import PassingError, explain, failures, retried
from downspout.spark.session import with_tries
from downspout.testing import VirtualClock

FRAMES = "\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)\n"
RUNNER = "\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset(P.scala:1)\n"
LATE, DIED = failures.LATE, failures.DIED


class Spark(PySparkRuntimeError):
    """An error of Spark's, as PySpark shows it: what it says, and what it keeps of Java's frames."""

    def __init__(self, said: str, frames: str = "") -> None:
        super().__init__(said)
        self._said, self._stackTrace = said, frames

    def __str__(self) -> str:
        return self._said


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_jvm", None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Spark("Job aborted\nSparkException: Python worker failed to connect back.\n\tat x"), LATE),
        (Spark("Job aborted\nSparkException: Python worker exited unexpectedly (crashed)\n\tat x"), DIED),
        (Spark("Python daemon failed to launch worker with code 1"), DIED),
        (Spark("EOFException occurred while reading the port number from pyspark.daemon's stdout."), DIED),
        (Spark("terminated with exception: ", f"x\nCaused by: java.io.EOFException\n{FRAMES}{RUNNER}"), DIED),
        (Spark("terminated", f"x\nCaused by: java.net.SocketException: Broken pipe\n{FRAMES}{RUNNER}"), DIED),
    ],
)
def test_python_processes_that_are_late_or_dead_pass(error: Exception, expected: str) -> None:
    """Workers, their daemon and the process that plans a query's batches: each has its words, or only Java's frames."""
    assert failures.passes(error) == expected
    told = explain(error)
    assert isinstance(told, PassingError)
    assert (told.message, told.exit_code) == (expected, 9)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Spark("… downspout.errors.BrokerError: no topic x. Try: create it\n\tat org"), BrokerError, "no topic x"),
        (Spark(": org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down\n\tat x"),
         SparkError, "Spark ended the query: Job 3 cancelled because SparkContext was shut down"),
        (Spark("terminated: ", f"java.io.EOFException\n{FRAMES}\tat org.apache.spark.Other.x(O.scala:1)\n"),
         SparkError, "Spark ended the query: Spark gave no reason"),
        (Spark("PythonException: Traceback (most recent call last):\n KeyError: 1"), None, ""),
        (KeyError("a mistake of ours"), None, ""),
    ],
)  # fmt: skip
def test_an_error_of_sparks_is_a_sentence_and_a_mistake_in_a_program_is_not(
    error: Exception, kind: type[DownspoutError] | None, said: str
) -> None:
    """Ours is found in Spark's pages, Spark's own ends with a code; where Python raised, its traceback is wanted."""
    told = explain(error)
    assert type(told) is (kind or type(None))
    assert told is None or told.message == said


@pytest.mark.parametrize(("code", "how"), [(-9, "was ended by SIGKILL"), (1, "ended"), (None, "ended")])
def test_a_jvm_that_has_ended_is_named(monkeypatch: pytest.MonkeyPatch, code: int | None, how: str) -> None:
    """Whatever Py4J says of it: the JVM is asked, and its process, where it is ours."""

    def refuse() -> None:
        raise ConnectionRefusedError

    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=SimpleNamespace(nanoTime=refuse))))
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=SimpleNamespace(poll=lambda: code)))
    said = rf"^Spark's JVM {how}\. Try: run it again: it goes on where it ended"
    with pytest.raises(SparkError, match=said) as caught, failures.explained():
        raise Py4JNetworkError("Answer from Java side is empty")
    assert caught.value.exit_code == 9


@pytest.mark.parametrize(
    ("failing", "lasting_s", "error", "calls"),
    [
        (3, 1.0, Spark("Python worker failed to connect back"), 4),
        (11, 1.0, Spark("Python worker failed to connect back"), 11),
        (30, 400.0, Spark("Python worker exited unexpectedly"), 31),  # a long job's, now and then
        (1, 1.0, Spark("no such column"), 1),
    ],
)
def test_a_job_of_ones_own_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failing: int, lasting_s: float, error: Exception, calls: int
) -> None:
    """What passes is tried again, each time with a line and after a longer pause, up to ten times in a row."""
    clock, done, said = VirtualClock(), list[int](), list[str]()
    monkeypatch.setattr(failures, "SYSTEM_CLOCK", clock)

    def work() -> str:
        done.append(1)
        clock.advance(lasting_s)
        if len(done) <= failing:
            raise error
        return "done"

    if calls > failing:
        assert retried(work, said.append) == "done"
    else:
        with pytest.raises(PassingError if failing > 1 else Spark):
            retried(work, said.append)
    assert len(done) == calls
    assert len(said) == min(failing, calls - 1)
    assert said[:1] == [f"{failures.passes(error)}; trying again in 2 s"] * (calls > 1)


def test_a_local_session_tries_a_task_four_times() -> None:
    """Whoever names its threads: one try is Spark's own rule for one machine, and no setting changes it."""
    tried: Any = [with_tries(master) for master in ("local[3]", "local[*]", "local[3,1]", "local-cluster[2,1,1024]")]
    assert tried == ["local[3, 4]", "local[*, 4]", "local[3,1]", "local-cluster[2,1,1024]"]
