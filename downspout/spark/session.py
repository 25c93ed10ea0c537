"""A Spark session for one machine: quiet, on the loopback interface, in UTC.

Spark's defaults are made for clusters. On a laptop they bind to the machine's public address, open a web server, print
screens of log lines, shuffle into 200 partitions and show timestamps in the laptop's time zone. The session made
here does none of that, and says what is missing where there is no Java. What Spark logs goes to
``.downspout/logs/spark.log``.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from downspout import config as settings
from downspout.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_BYTES_MAX = 5_000_000

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "WARN",
    # One machine, a few cores: 200 shuffle partitions would be 200 tiny tasks.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # These jobs take seconds; a second, better compilation of the same code pays off after minutes.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}
"""What :func:`spark_session` sets; ``config`` may overrule each."""


@contextmanager
def spark_session(name: str, *, cores: int = 2, config: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Give a local Spark session and stop it at the end. Its JVM ends with this process and serves the next session.

    Where a session runs already (a notebook's, a test suite's), that one is given, and left running. Under
    ``spark-submit`` it is the one that was configured there: nothing of DEFAULTS, nor of the arguments.

    Args:
        name: shown in Spark's log.
        cores: threads that run tasks.
        config: Spark settings in addition to DEFAULTS, or instead of them.

    Raises:
        MissingExtraError: PySpark or Java is missing, or Java did not start.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("PySpark is not installed", cure="pip install 'downspout[spark]'") from None

    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    with _ctrl_c_as_before():
        session = _submitted() if "PYSPARK_GATEWAY_PORT" in os.environ else _start(name, cores, config or {})
        try:
            yield session
        finally:
            # A signal to the whole process group ends the JVM before us; then there is nothing left to stop.
            with suppress(Py4JError, OSError):
                session.stop()


@contextmanager
def _ctrl_c_as_before() -> Iterator[None]:
    """Put the handler of SIGINT back: PySpark sets one that cancels jobs, and leaves it when the session is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _submitted() -> SparkSession:
    """Return the session of a driver that spark-submit has started: its JVM is there, and knows the configuration."""
    from pyspark.sql import SparkSession

    _quiet()
    return SparkSession.builder.getOrCreate()


def _start(name: str, cores: int, config: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _prepare_environment()
    log = _log_file()
    conf = SparkConf().setMaster(f"local[{cores}]").setAppName(name)
    conf.setAll([*DEFAULTS.items(), ("spark.sql.warehouse.dir", str(log.parent / "warehouse")), *config.items()])
    try:
        if SparkContext._gateway is None:
            # SparkSession.builder would start the same JVM, but with its chatter on our standard error.
            with log.open("ab") as stderr:
                SparkContext._gateway = launch_gateway(conf, {"stderr": stderr})
                SparkContext._jvm = SparkContext._gateway.jvm
        context = SparkContext(conf=conf)
    except PySparkRuntimeError as error:
        raise MissingExtraError(f"Spark did not start: {error}", cure=f"read {log}") from error
    return SparkSession(context)


def _prepare_environment() -> None:
    """Say to Spark which Python, Java and address to use.

    Raises:
        MissingExtraError: no Java, or one that is too old.
    """
    from downspout.jars import java

    program, home = java(), os.environ.get("JAVA_HOME")
    if home and not program.is_relative_to(home):
        del os.environ["JAVA_HOME"]  # else Spark would insist on it, and fail
    _quiet()
    # Else Spark's workers take the `python3` on PATH, which has other packages than this one.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Else Spark looks its own host name up, and warns or fails on a laptop that is offline.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _quiet() -> None:
    # Interrupted by Ctrl-C, its bridge to the JVM logs a page of traceback for what is no error.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # PySpark warns on every start with pandas 3. Rows travel as Arrow here, and what is tested is what is pinned.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")


def _log_file() -> Path:
    path = settings.home().absolute() / "logs" / "spark.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".1.log"))
    return path
