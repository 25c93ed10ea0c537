"""What ends a query of Spark's, in a sentence; and what passes, so that the same is tried again.

Spark says what went wrong in pages of Java's stack frames. Three kinds are told apart:

* *An error of ours*, raised on the driver or on an executor: its text stands somewhere in these pages.
* *A Python process of Spark's* that was late or died: a worker, the daemon that forks workers, or the process that
  plans a query's batches. Spark tries a task again, but neither the planning of a query nor a stage whose task
  has used up its tries. To start the query again continues from its checkpoint.
* *The JVM*, without which nothing more can be asked.
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

TRIES = 4  # How often a task is tried: what a cluster does by default (spark.task.maxFailures), and `local[N]` does not
RESTARTS_MAX = 10  # How often in a row something is tried again that Spark does not try again
PAUSES = Backoff(2_000, 16_000)
FORGOTTEN_S = 300.0  # After a try that went well for so long, failures are counted anew

LATE = "a Python worker of Spark's did not start within 10 s"
"""The time is a constant of Spark's (PythonWorkerFactory). On a busy machine it is too short, and that passes."""
DIED = "a Python process of Spark's died"

_PASSING = {
    LATE: re.compile(r"Python worker failed to connect back"),
    DIED: re.compile(
        r"Python worker exited unexpectedly|Python daemon failed to launch worker|"
        r"reading the port number from [\w.]+'s stdout|"
        # The process that plans a query's batches: its end of a socket is closed, and Spark's message is empty.
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
    """A Python process of Spark's was late or died. Another try may do."""


def passes(error: BaseException | str) -> str:
    """Return, in words, what has failed and may work when it is tried again; empty for all else.

    The error, or what Spark says of it.

    >>> passes(Exception("org.apache.spark.SparkException: Python worker failed to connect back."))
    "a Python worker of Spark's did not start within 10 s"
    >>> passes(Exception("no such column"))
    ''
    """
    text = _text(error)
    return next((what for what, pattern in _PASSING.items() if pattern.search(text)), "")


def _text(error: BaseException | str) -> str:
    """Return all that is known of an error; PySpark leaves Java's stack frames out of what it shows."""
    return f"{error}\n{getattr(error, '_stackTrace', '')}"


def passing(what: str, where: str = "") -> PassingError:
    """Return the error for what has passed too rarely."""
    return PassingError(f"{what}{where}", cure=BUSY_CURE if what == LATE else DIED_CURE)


def pause_s(times: int) -> float:
    """Return how long to wait after so many failures in a row.

    >>> [pause_s(times) for times in (1, 2, 3, 4, 5)]
    [2.0, 4.0, 8.0, 16.0, 16.0]
    """
    return PAUSES.delay(times) / 1000


def retried(work: Callable[[], T], report: Callable[[str], None] | None = None) -> T:
    """Call ``work`` and return what it returns; call it again, after a pause, where it failed by what passes.

    For jobs of one's own: ``retried(lambda: start_query().awaitTermination())``. A query with a checkpoint continues
    where it ended; a batch job is done from its beginning.

    Args:
        work: makes and runs a query, or does anything else with Spark.
        report: is given a sentence before each pause; not given: it goes to standard error.

    Raises:
        PassingError: it failed so eleven times in a row.
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
    """Return the error for a user in one that Spark or Py4J has raised; None where it is a mistake in a program.

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
    """Raise the error for a user in the place of Spark's, where there is one."""
    try:
        yield
    except Exception as error:
        if (told := explain(error)) is None or told is error:
            raise
        raise told from error


def _ours(text: str) -> DownspoutError | None:
    """Return the last error of ours that a page of Spark's names."""
    found = re.findall(r"downspout\.errors\.(\w+Error): (.*)", text)
    for name, said in reversed(found):
        kind = getattr(downspout.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, DownspoutError):
            message, _, cure = said.partition(". Try: ")
            return kind(message.strip(), cure=cure.strip() or None)
    return None


def jvm_ended() -> str | None:
    """Return, in words, how the JVM of this process has ended; None where it answers, or there was none."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    if SparkContext._jvm is None:
        return None
    try:
        SparkContext._jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        # Under spark-submit the JVM is our parent, and there is no process to ask.
        code = getattr(SparkContext._gateway, "proc", None) and SparkContext._gateway.proc.poll()
        return f"was ended by {signal.Signals(-code).name}" if code and code < 0 else "ended"
    return None


def reason_of(said: str) -> str:
    """Return the line of a page of Java's that says most: the error of a program, else the first of Spark's."""
    errors = [found[1].strip() for line in said.splitlines() if (found := _ERROR.match(line.strip()))]
    own = [error for error in errors if not error.startswith(("java.", "org.apache."))]
    if own:
        return own[-1]
    reason = errors[0] if errors else "Spark gave no reason"
    reason = re.sub(r"^.*\(\S+ executor \S+\): ", "", reason)
    return re.sub(r"^(?:[a-z]\w*\.)+\w*SparkException: ", "", reason) or reason


_ERROR = re.compile(r"(?:Caused by: |: )?((?:[a-zA-Z_][\w$]*\.)*\w*(?:Error|Exception|Exit)\b.*)")
"""A line that names an error, and is no stack frame: those begin with "at"."""
