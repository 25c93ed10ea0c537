"""Check before a query starts that executors have Downspout and the topology's modules in the driver's version.

Spark pickles components and sources by name. An executor that cannot import them fails inside a task, four times, with
a page of traceback from Spark's serializers. One with *other* files than the driver (an archive of yesterday) does not
fail at all and runs yesterday's bolts. So a tiny job comes first, with a task for each slot. Its function is nested:
cloudpickle sends such a function by value, so it only needs Python to report missing modules. The results are compared
with the driver's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from downspout.errors import MissingExtraError
from downspout.formatting import counted
from downspout.spark import check_pyspark
from downspout.spark.failures import PassingError, passes, passing, reason_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LIBRARY = ("downspout", "downspout.spark.data_source")
"""Modules that every query needs; the second one imports the libraries."""

ROUNDS_MAX = 3
"""Executors that register during a round are checked in the next one; later ones are not checked."""

CURE = (
    "make the archive (again) with `downspout spark bundle`, and give it to `downspout spark submit --bundle FILE`; "
    "or install the same on every worker"
)
SILENCE_CURE = "find what prints when this Python starts: a script around it, sitecustomize.py, a .pth file"
LOG_CURE = "what the worker has said is in Spark's log, here .downspout/logs/spark.log"
PYTHON_CURE = "the same Python, 3.x for 3.x, on every worker; `--python NAME` says what it is called there"

Answer: TypeAlias = "tuple[Any, ...]"
Look: TypeAlias = "Callable[[Iterator[Any]], Iterator[Answer]]"


@dataclass(frozen=True)
class ExecutorReport:
    """The report of one executor's Python."""

    host: str
    folder: str  # the executor's working directory, which distinguishes executors of one machine
    python: str  # the interpreter
    missing: dict[str, str] = field(hash=False)  # why a module cannot be imported, by module
    digests: dict[str, str] = field(hash=False)  # of the modules' sources, if available

    def __str__(self) -> str:
        return f"{self.host} ({self.folder}, {self.python})"


def check_executors(spark: SparkSession, modules: Sequence[str], path: Sequence[str] = ()) -> int:
    """Check that every executor can import the driver's version of modules; return the number of executors.

    Args:
        modules: dotted names besides Downspout itself: those of a topology's components.
        path: additional folders for these modules, but not for Downspout, on executors that have them.

    Raises:
        MissingExtraError: an executor cannot import one of them, has another version of it, or lacks the driver's
            version of Python; the message names the executor, the module and the reason. Or PySpark is too old.
        PassingError: a Python process did not start in time, or died; a retry may succeed.
    """
    check_pyspark()
    context = spark.sparkContext
    ask = look_for((*LIBRARY, *modules), tuple(path))
    here = ExecutorReport(*next(ask(iter(()))))
    if context.master.partition("[")[0] == "local":  # one executor, in the driver's JVM
        seen = {ExecutorReport(*each) for each in _translated(context, lambda: _ask_locally(spark, ask))}
    else:
        seen = _ask_all(context, ask)
    judge(here, sorted(seen, key=str))
    return len(seen)


def look_for(modules: tuple[str, ...], places: tuple[str, ...] = ()) -> Look:
    """Return the function that executors run. It must not use this module, which they may lack."""
    ours = tuple(module for module in modules if module.partition(".")[0] == "downspout")
    theirs = tuple(module for module in modules if module not in ours)

    def look(_: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
        import hashlib
        import importlib
        import os
        import socket
        import sys

        def sources(module: Any) -> Iterator[tuple[str, str]]:
            for place in getattr(module, "__path__", ()):
                for base, folders, names in os.walk(place):
                    # A wheel has these two inside the package, a checkout beside it.
                    folders[:] = sorted(set(folders) - {"__pycache__", "spouts", "bolts"})
                    for path in (os.path.join(base, name) for name in sorted(names) if name.endswith(".py")):
                        yield os.path.relpath(path, place), path
            if not hasattr(module, "__path__") and (getattr(module, "__file__", None) or "").endswith(".py"):
                yield "", module.__file__

        missing, digests = {}, {}
        for name in (*ours, None, *theirs):
            if name is None:  # Downspout is imported before the topology's folders are added
                sys.path += [place for place in places if place not in sys.path]
                continue
            try:
                digest, count = hashlib.sha256(), 0
                for inside, path in sources(importlib.import_module(name)):
                    with open(path, "rb") as file:
                        digest.update(inside.encode() + file.read())
                        count += 1
                if count:
                    digests[name] = digest.hexdigest()
            except (Exception, SystemExit) as error:
                missing[name] = f"{type(error).__name__}: {error}"
        yield socket.gethostname(), os.getcwd(), sys.executable, missing, digests

    return look


def _ask_locally(spark: SparkSession, look: Look) -> list[Answer]:
    """Run the job as an Arrow query, which warms up what the topology's queries use; an RDD job costs a second."""

    def rows(_: Iterator[Any]) -> Iterator[Any]:
        import json

        import pyarrow

        yield pyarrow.RecordBatch.from_pydict({"said": [json.dumps(each) for each in look(iter(()))]})

    return [tuple(json.loads(row.said)) for row in spark.range(1).mapInArrow(rows, "said string").collect()]


def _ask_all(context: SparkContext, look: Look) -> set[ExecutorReport]:
    """Run the job with a task per slot: all slots are free, and Spark assigns tasks to executors in turn."""
    seen: set[ExecutorReport] = set()
    for _ in range(ROUNDS_MAX):
        tasks = context.defaultParallelism
        job = context.parallelize(range(tasks), tasks).mapPartitions(look)
        seen.update(ExecutorReport(*each) for each in _translated(context, job.collect))
        if len(seen) >= len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1:  # the driver is among them
            break
    return seen


def _translated(context: SparkContext, ask: Callable[[], list[Answer]]) -> list[Answer]:
    from py4j.protocol import Py4JJavaError  # Py4J's other errors mean that the JVM has ended
    from pyspark.errors import PySparkException

    try:
        return ask()
    except (Py4JJavaError, PySparkException) as error:
        raise no_python(str(error), context.pythonExec) from error


def no_python(said: str, wanted: str) -> MissingExtraError | PassingError:
    """Return the error for a Python that does not run on executors.

    >>> print(no_python('java.io.IOException: Cannot run program "python3.11": error=2, No such file', "python3.11"))
    Executors cannot start python3.11: error=2, No such file. Try: the same Python, 3.x for 3.x, on every worker; \
`--python NAME` says what it is called there
    """
    if found := re.search(r'Cannot run program "([^"]+)"[^:]*: ([^\n]+)', said):
        return MissingExtraError(f"Executors cannot start {found[1]}: {found[2]}", cure=PYTHON_CURE)
    if found := re.search(r"Python in worker has different version:? ([\d.]+) than that in driver:? ([\d.]+)", said):
        text = f"{wanted} is Python {found[1].rstrip('.')} on an executor, and the driver is {found[2].rstrip('.')}"
        return MissingExtraError(text, cure=PYTHON_CURE)
    if (own := _own_words(said)) is not None:
        reason, cure = own
    elif what := passes(said):
        return passing(what)
    else:
        reason, cure = reason_of(said), f"{PYTHON_CURE}; {LOG_CURE}"
    return MissingExtraError(f"{wanted} does not run as Spark's worker on an executor: {reason}", cure=cure)


def _own_words(said: str) -> tuple[str, str] | None:
    """Return the output of a Python that did not become a worker, and a cure; None if it printed nothing.

    >>> _own_words("x: Error from python worker:\\n  licence expired\\nPYTHONPATH was:\\n  /x\\n\\tat java.Thread")[0]
    'licence expired'
    """
    if found := re.search(r"Error from python worker:\s*\n(.*?)\n\s*PYTHONPATH was", said, re.DOTALL):
        lines = [line.strip() for line in found[1].splitlines() if line.strip()]
        if lines:
            return lines[-1], PYTHON_CURE
    if found := re.search(r"Bad data in (\S+)'s standard output.*?\n\s*([^\n]+)", said, re.DOTALL):
        return f"it prints something before {found[1]} does ({found[2].strip()})", SILENCE_CURE
    return None


def judge(here: ExecutorReport, seen: Sequence[ExecutorReport]) -> None:
    """Raise the first error: of the driver, then of executors, by module."""
    for module, reason in here.missing.items():
        raise MissingExtraError(
            f"{module} cannot be imported on the driver: {reason}", cure="install what it needs here"
        )
    modules = dict.fromkeys(module for each in seen for module in (*each.missing, *each.digests))
    for module in modules:
        if lacking := [each for each in seen if module in each.missing]:
            reason = lacking[0].missing[module]
            raise MissingExtraError(f"The executor {_and_more(lacking)} cannot import {module}: {reason}", cure=CURE)
        digest = here.digests.get(module)
        if digest and (other := [each for each in seen if each.digests.get(module, digest) != digest]):
            raise MissingExtraError(
                f"The executor {_and_more(other)} has another {module} than the driver: its source differs", cure=CURE
            )


def _and_more(executors: Sequence[ExecutorReport]) -> str:
    more = f", like {counted(len(executors) - 1, 'other')}," if len(executors) > 1 else ""
    return f"on {executors[0]}{more}"
