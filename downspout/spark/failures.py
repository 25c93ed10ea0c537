"""Explain why a query of Spark's ended, in a sentence, and retry transient failures.

Spark reports errors in pages of Java stack frames. Three kinds are distinguished:

* *Our own errors*, raised on the driver or an executor: their text is somewhere in these pages.
* *A Python process of Spark's* that was late or died: a worker, the daemon that forks workers, or the process that
  plans a query's batches. Spark retries a task, but neither the planning of a query nor a stage whose task has used up
  its attempts. A restarted query continues from its checkpoint.
* *The end of the JVM*, after which nothing more can be queried.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import downspout.errors
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import DownspoutError, SparkError
from downspout.ledger.retry_schedule import Backoff

T = TypeVar("T")

TRIES = 4  # Attempts per task: the default of clusters (spark.task.maxFailures), but not of `local[N]`
RESTARTS_MAX = 10  # Consecutive retries of failures that Spark does not retry
PAUSES = Backoff(2_000, 16_000)
FORGOTTEN_S = 300.0  # An attempt that ran for so long resets the count of failures

LATE = "a Python worker of Spark's did not start within 10 s"
"""A constant of Spark's (PythonWorkerFactory), too short for a busy machine; a retry may succeed."""
DIED = "a Python process of Spark's died"

_PASSING = {
    LATE: re.compile(r"Python worker failed to connect back"),
    DIED: re.compile(
        r"Python worker exited unexpectedly|Python daemon failed to launch worker|"
        r"reading the port number from [\w.]+'s stdout|"
        # The process that plans a query's batches has closed its socket; Spark's message is empty.
        r"(?:EOF|IO|Socket|ClosedChannel)Exception[^\n]*\n(?:\s+at [^\n]*\n)*?\s+at [^\n]*PythonStreaming\w+Runner"
    ),
}
BUSY_CURE = "run it again when the machine has less to do: it goes on where it ended"
DIED_CURE = (
    "run it again: it goes on where it ended. If it ends at the same place, a record or a bolt ends Python; "
    "`downspout run` finds such a record and dead-letters it"
)
JVM_CURE = "run it again: it goes on where it ended. .downspout/logs/spark.log, or the system's log, may say why"
LOG_CURE = "look into Spark's log, here .downspout/logs/spark.log; another run goes on where this one ended"


class PassingError(SparkError):
    """A Python process of Spark's was late or died. A retry may succeed."""


def passes(error: BaseException | str) -> str:
    """Describe a failure that a retry may cure, given the error or Spark's text; empty for any other.
    >>> passes(Exception("org.apache.spark.SparkException: Python worker failed to connect back."))
    "a Python worker of Spark's did not start within 10 s"
    >>> passes(Exception("no such column"))
    ''
    """
    text = _text(error)
    return next((what for what, pattern in _PASSING.items() if pattern.search(text)), "")


def _text(error: BaseException | str) -> str:
    """Return an error's text with Java's stack frames, which PySpark omits."""
    return f"{error}\n{getattr(error, '_stackTrace', '')}"


def passing(what: str, where: str = "") -> PassingError:
    """Return the error for a failure that retries did not cure."""
    return PassingError(f"{what}{where}", cure=BUSY_CURE if what == LATE else DIED_CURE)


def pause_s(times: int) -> float:
    """Return the pause after so many consecutive failures.

    >>> [pause_s(times) for times in (1, 2, 3, 4, 5)]
    [2.0, 4.0, 8.0, 16.0, 16.0]
    """
    return PAUSES.delay(times) / 1000


def retried(work: Callable[[], T], report: Callable[[str], None] | None = None) -> T:
    """Return the result of ``work``; retry it, after a pause, if it fails for a transient reason.

    For your own jobs: ``retried(lambda: start_query().awaitTermination())``. A query with a checkpoint continues where
    it ended; a batch job starts over.

    Args:
        work: creates and runs a query, or does anything else with Spark.
        report: called with a sentence before each pause; default: print it to standard error.

    Raises:
        PassingError: eleven such failures in a row.
    """
    failures = 0
    while True:
        began = SYSTEM_CLOCK.monotonic()
        try:
            return work()
        except Exception as error:
            if not (what := passes(error)):
                raise
            failures = 1 if SYSTEM_CLOCK.monotonic() - began >= FORGOTTEN_S else failures + 1
            if failures > RESTARTS_MAX:
                raise passing(what, f", {failures} times in a row") from error
        text = f"{what}; trying again in {pause_s(failures):.0f} s"
        if report is None:
            print(text, file=sys.stderr, flush=True)
        else:
            report(text)
        SYSTEM_CLOCK.sleep(pause_s(failures))


def explain(error: BaseException) -> DownspoutError | None:
    """Return the error to show for one that Spark or Py4J has raised; None if it is a bug in a program.

    >>> print(explain(Exception("… downspout.errors.BrokerError: no topic x. Try: create it\\n  at org.apache…")))
    no topic x. Try: create it
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if isinstance(error, DownspoutError):
        return error
    if (ours := _ours(str(error))) is not None:
        return ours
    if (how := jvm_ended()) is not None:
        return SparkError(f"Spark's JVM {how}", cure=JVM_CURE)
    if what := passes(error):
        return passing(what)
    if not isinstance(error, Py4JError | PySparkException) or "Traceback (most recent call last)" in str(error):
        return None
    return SparkError(f"Spark ended the query: {reason_of(str(error))}", cure=LOG_CURE)


@contextmanager
def explained() -> Iterator[None]:
    """Raise the error of :func:`explain`, if any, instead of Spark's."""
    try:
        yield
    except Exception as error:
        if (told := explain(error)) is None or told is error:
            raise
        raise told from error


def _ours(text: str) -> DownspoutError | None:
    """Return the last of our errors in Spark's text."""
    found = re.findall(r"downspout\.errors\.(\w+Error): (.*)", text)
    for name, said in reversed(found):
        kind = getattr(downspout.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, DownspoutError):
            message, _, cure = said.partition(". Try: ")
            return kind(message.strip(), cure=cure.strip() or None)
    return None


def jvm_ended() -> str | None:
    """Describe how this process's JVM ended; None if it answers or never existed."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    if SparkContext._jvm is None:
        return None
    try:
        SparkContext._jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        # Under spark-submit the JVM is our parent, so we have no process object.
        code = getattr(SparkContext._gateway, "proc", None) and SparkContext._gateway.proc.poll()
        return f"was ended by {signal.Signals(-code).name}" if code and code < 0 else "ended"
    return None


def reason_of(said: str) -> str:
    """Return the most informative line of Java's output: the last error of a program, or the first of Spark's."""
    errors = [found[1].strip() for line in said.splitlines() if (found := _ERROR.match(line.strip()))]
    own = [error for error in errors if not error.startswith(("java.", "org.apache."))]
    if own:
        return own[-1]
    reason = errors[0] if errors else "Spark gave no reason"
    reason = re.sub(r"^.*\(\S+ executor \S+\): ", "", reason)
    return re.sub(r"^(?:[a-z]\w*\.)+\w*SparkException: ", "", reason) or reason


_ERROR = re.compile(r"(?:Caused by: |: )?((?:[a-zA-Z_][\w$]*\.)*\w*(?:Error|Exception|Exit)\b.*)")
"""A line with an error; stack frames begin with "at"."""
