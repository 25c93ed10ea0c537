"""A run that a signal ends, and its JVM with it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from downspout.engine import from_class
from downspout.errors import MissingExtraError, SinkError, SparkError
from downspout.spark import Query
from downspout.spark.session import is_not_py4js
from downspout.spark.topology import driver
from tests.spark.topology_case import Plain


class GoneError(Exception):
    """What Py4J raises where the JVM has ended."""


class Running:
    """A query of Spark's whose JVM dies of a signal; ``also`` is what happens meanwhile."""

    lastProgress = None

    def __init__(self, also: Callable[[], None]) -> None:
        self._also = also

    def awaitTermination(self, timeout: float) -> bool:
        self._also()
        raise GoneError

    def stop(self) -> None:
        raise GoneError


def waiting_query(received: list[int], **batches: Any) -> Query:
    """Return a query that has been started, and that hears of these signals."""
    query = object.__new__(Query)
    known = SimpleNamespace(
        **{"stopping": False, "busy": False, "error": None, "totals": SimpleNamespace(batches=0), **batches}
    )
    vars(query).update(_values={"run.for_s": None}, _batches=known, _received=received, _report=print, _started=0.0)
    query._signals = SimpleNamespace(doing=None, watched=False)
    query._begins_again = lambda running, error: False
    return query


@pytest.mark.parametrize(("signals", "reason"), [(1, "signal"), (2, "aborted")])
def test_a_jvm_that_died_of_the_same_signal_is_no_error(signals: int, reason: str) -> None:
    """The run ends by its signal, whatever Spark raises once that has come; without one it is an error."""
    received: list[int] = []
    query = waiting_query(received)
    running: Any = Running(lambda: received.extend([signal.SIGTERM] * signals))
    assert query._wait(running) == reason
    with pytest.raises(GoneError):
        waiting_query([])._wait(Running(lambda: None))


def test_a_batch_that_was_not_finished_is_not_said_to_be() -> None:
    """Where the JVM took the batch along, the run was stopped at once."""
    query = waiting_query([signal.SIGTERM], error=GoneError())
    assert query._wait(Running(lambda: None)) == "aborted"


def test_what_a_sink_could_not_write_is_an_error_all_the_same() -> None:
    """An error of our own, in the batch that was under way as the signal came, is not hidden by it."""
    error = SinkError("the disk is full")
    with pytest.raises(SinkError):
        waiting_query([signal.SIGTERM], error=error)._wait(Running(lambda: None))


def test_a_batch_that_needs_spark_no_more_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are on their way into the sinks as the JVM dies get there, and are counted."""
    query = waiting_query([signal.SIGTERM], busy=True)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        query._batches.busy = len(slept) < 3

    monkeypatch.setattr("downspout.spark.topology.query.SYSTEM_CLOCK.sleep", sleep)
    assert query._wait(Running(lambda: None)) == "signal"
    assert len(slept) == 3


@pytest.mark.parametrize("where", ["session", "run"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("error", [GoneError(), MissingExtraError("python3 does not run as Spark's worker")])
def test_a_signal_before_the_query_runs_ends_the_run_too(
    where: str, error: Exception, times: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While Spark or its workers start: what comes of the dead JVM, or of a second signal, is no error."""
    is_signal = True

    def fall(*given: Any) -> Any:
        for _ in range(times if is_signal else 0):
            os.kill(os.getpid(), signal.SIGTERM)
        raise error

    @contextlib.contextmanager
    def session(*given: Any) -> Iterator[Any]:
        yield fall() if where == "session" else None

    monkeypatch.setattr(driver, "_session", session)
    monkeypatch.setattr(Query, "run", fall)

    def run(checkpoint: str) -> Any:
        given = ["kafka.bootstrap=localhost:1", f"parquet.directory={tmp_path / 'out'}", "kafka.topics=lines"]
        return driver.run(from_class(Plain, "plain"), overrides=given, checkpoint=tmp_path / checkpoint)

    done = run("one")
    assert (done.result.signal, done.result.reason, done.batches) == (signal.SIGTERM, "aborted", 0)
    is_signal = False
    with pytest.raises(type(error)):
        run("another")


def test_a_jvm_that_died_by_itself_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever it is noticed, and whatever fails of the cleaning up: that it ended, and what to do."""

    @contextlib.contextmanager
    def session(*given: Any) -> Iterator[Any]:
        try:
            yield None
        finally:
            raise GoneError("o7.stop")

    def refuse() -> None:
        raise ConnectionRefusedError

    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=SimpleNamespace(nanoTime=refuse))))
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    monkeypatch.setattr(driver, "_session", session)
    monkeypatch.setattr(Query, "run", lambda *given: (_ for _ in ()).throw(GoneError("o6.awaitTermination")))
    given = ["kafka.bootstrap=localhost:1", f"parquet.directory={tmp_path / 'out'}", "kafka.topics=lines"]
    with pytest.raises(SparkError, match=r"^Spark's JVM (was )?ended.*: it goes on where it ended"):
        driver.run(from_class(Plain, "plain"), overrides=given, checkpoint=tmp_path / "one")


def test_what_py4j_logs_of_a_dead_jvm_is_kept_out() -> None:
    """It logs a traceback by the root logger and raises the same; what others log there is let through."""
    made = [
        logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)
        for path in ("/lib/python3.11/site-packages/py4j/java_gateway.py", "/home/py4js/bolts/mine.py")
    ]
    assert [is_not_py4js(record) for record in made] == [False, True]


def test_a_query_is_not_started_after_a_signal() -> None:
    """A signal that came while Spark was asked for other things ends the run before there is a query."""
    query = object.__new__(Query)
    vars(query).update(_values={"run.until": None}, _ticks=False, _received=[signal.SIGINT])
    session: Any = None
    assert query._until_it_ends(session, {"spout": {}}, 0.0) == "signal"
