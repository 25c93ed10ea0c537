"""The check of the executors before a query starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downspout.errors import MissingExtraError
from downspout.spark import PassingError, check_executors, executors
from downspout.spark.executors import ExecutorReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = ExecutorReport("driver", "/d", "python3.11", {}, {"downspout": "1", "bolts.a": "2"})


def executor(host: str, missing: Any = None, **digests: str) -> ExecutorReport:
    """Return what an executor says that has all that the driver has, but for what is given."""
    return ExecutorReport(host, "/executor/0", "/usr/bin/python3.11", missing or {}, {**HERE.digests, **digests})


@pytest.mark.sweep
@pytest.mark.spark
def test_a_local_session_is_one_executor(spark: SparkSession) -> None:
    """A local session can import what the driver can, and is looked at once."""
    assert check_executors(spark, ["spouts.kafka", "bolts.parquet"]) == 1


@pytest.mark.spark
def test_what_only_the_driver_can_import_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module on the driver's import path alone is an error with the module, the reason and the executor's Python."""
    (tmp_path / "only_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError) as caught:
        check_executors(spark, ["only_here"])
    said = str(caught.value)
    assert "cannot import only_here: ModuleNotFoundError: No module named 'only_here'" in said
    assert sys.executable in said
    assert "downspout spark bundle" in said


@pytest.mark.spark
def test_modules_are_found_where_the_driver_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the driver's import path that is sent along is searched on executors, as a query will."""
    (tmp_path / "sent_along.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert check_executors(spark, ["sent_along"], [str(tmp_path)]) == 1


@pytest.mark.spark
def test_a_module_that_ends_the_process_is_a_module_that_cannot_be_imported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.exit` at a module's top is a reason like any other, here and on executors."""
    (tmp_path / "leaves.py").write_text("raise SystemExit('no licence')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match="leaves cannot be imported on the driver: SystemExit: no licence"):
        check_executors(spark, ["leaves"])


def test_executors_that_are_like_the_driver_are_fine() -> None:
    executors.judge(HERE, [executor("a"), executor("b")])


def test_an_executor_with_other_sources_is_named() -> None:
    """An archive of yesterday is an error that names the module and one of the executors, and counts the others."""
    with pytest.raises(MissingExtraError) as caught:
        executors.judge(HERE, [executor("a"), executor("b", **{"bolts.a": "3"}), executor("c", **{"bolts.a": "3"})])
    expected = "on b (/executor/0, /usr/bin/python3.11), like 1 other, has another bolts.a than the driver"
    assert expected in str(caught.value)


def test_a_module_without_source_is_not_compared() -> None:
    bare = ExecutorReport("a", "/executor/0", "python3.11", {}, {"downspout": "1"})
    executors.judge(HERE, [bare])
    executors.judge(bare, [executor("b")])


def test_the_digest_is_of_names_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's digest changes with a file's text and name, not with its caches; a module has one of its own."""
    package = tmp_path / "a_package_of_this_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("x = 1", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def digest(name: str = package.name) -> str:
        found = ExecutorReport(*next(executors.look_for((name,))(iter(()))))
        return found.digests[name]

    first, module = digest(), digest(f"{package.name}.one")
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "two.py").touch()
    assert digest() == first
    (package / "one.py").rename(package / "two.py")
    renamed = digest()
    (package / "two.py").write_text("x = 2", encoding="utf-8")
    assert len({first, module, renamed, digest()}) == 4


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            'java.io.IOException: Cannot run program "python3.99": error=2, No such file or directory\n\tat x',
            "Executors cannot start python3.99: error=2, No such file or directory",
        ),
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.12 than that in driver: 3.11, PySpark cannot run",
            "python3.11 is Python 3.12 on an executor, and the driver is 3.11",
        ),
        (
            "Job aborted\nTraceback\n  File x\nModuleNotFoundError: No module named 'pyspark'\n\tat y",
            "python3.11 does not run as Spark's worker on an executor: ModuleNotFoundError: No module named 'pyspark'",
        ),
    ],
)
def test_a_python_that_will_not_do_is_told_from_what_spark_says(said: str, expected: str) -> None:
    """No interpreter, one of another version, and one that cannot be Spark's worker have each a sentence."""
    error = executors.no_python(said, "python3.11")
    assert error.message == expected
    assert str(error.cure).startswith(executors.PYTHON_CURE)


ABORTED = (
    "An error occurred while calling o64.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 0 in stage 4.0 failed 1 times, most recent failure: Lost task 0.0 in stage 4.0 (TID 8) (localhost "
    "executor driver): org.apache.spark.SparkException: "
)
FRAMES = "\n\tat org.apache.spark.api.python.X.run(X.scala:1)\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n"


@pytest.mark.parametrize(
    ("said", "reason", "cure"),
    [
        (
            ABORTED + "\nError from python worker:\n  warning: x\n  this python is broken: licence expired\n"
            "PYTHONPATH was:\n  /a:/b\norg.apache.spark.SparkException: EOFException occurred while reading the port "
            "number from pyspark.daemon's stdout." + FRAMES + "\nDriver stacktrace:" + FRAMES,
            "this python is broken: licence expired",
            "the same Python",
        ),
        (
            ABORTED + "\nBad data in pyspark.daemon's standard output. Invalid port number/socket path:\n"
            "  1751477356 (0x68656c6c)\nPython command to execute" + FRAMES,
            "it prints something before pyspark.daemon does (1751477356 (0x68656c6c))",
            "find what prints",
        ),
        ("\tat java.base/java.lang.Thread.run(Thread.java:840)", "Spark gave no reason", "Spark's log"),
    ],
)  # fmt: skip
def test_the_reason_is_never_a_stack_frame(said: str, reason: str, cure: str) -> None:
    """Why a worker does not run is said in its own words, or by the error's line, and what to do fits the reason."""
    error = executors.no_python(said, "python3")
    assert error.message == f"python3 does not run as Spark's worker on an executor: {reason}"
    assert cure in str(error.cure)


@pytest.mark.parametrize(
    "said",
    [
        "Python worker failed to connect back.",
        "EOFException occurred while reading the port number from pyspark.daemon's stdout.",
        "Python worker exited unexpectedly (crashed). Consider x",
    ],
)
def test_a_python_that_is_late_or_died_without_a_word_is_tried_again(said: str) -> None:
    """It is no missing package: another try may do."""
    assert isinstance(executors.no_python(ABORTED + said + FRAMES, "python3"), PassingError)
