"""A Spark session for one machine: quiet, on the loopback interface, in UTC.

Spark's defaults suit clusters. On a laptop they bind to the machine's public address, open a web server, print screens
of log lines, shuffle into 200 partitions and show timestamps in the local time zone. This session does none of that,
and reports a missing Java. Spark's log goes to ``.downspout/logs/spark.log``.

**Ctrl-C and SIGTERM.** PySpark sets a handler of SIGINT whenever a context is created. It cancels jobs through the
bridge to the JVM; a second Ctrl-C interrupts that bridge in the middle of a call and leaves only pages of traceback. So
our handler is set after that, until the session is stopped.

The first signal is answered at once, with a line that names what the run waits for and what a second signal does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from downspout.errors import MissingExtraError
from downspout.exit_guard import say
from downspout.settings import folders
from downspout.spark import pyspark_version
from downspout.spark.failures import TRIES
from downspout.system.java import for_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOG_BYTES_MAX = 5_000_000

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "WARN",
    # Spark's 200 partitions would be 200 tiny tasks.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # These jobs take seconds; a second, better compilation of the same code pays off after minutes.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}
"""Settings of :func:`spark_session`; its ``config`` overrides them."""


@contextmanager
def spark_session(name: str, *, cores: int = 2, config: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield a local Spark session and stop it at the end. Its JVM serves later sessions and ends with this process.

    A session that is already active (a notebook's, a test suite's) is used and left running. Under ``spark-submit``,
    its configuration applies instead of DEFAULTS and the arguments.

    Args:
        name: shown in Spark's log.
        cores: threads that run tasks.
        config: Spark settings; they override DEFAULTS.

    Raises:
        MissingExtraError: PySpark or Java is missing, or Java did not start.
    """
    pyspark_version()
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    with _ctrl_c_as_before():
        session = _submitted() if "PYSPARK_GATEWAY_PORT" in os.environ else _start(name, cores, config or {})
        _keep_quiet_when_the_jvm_ends(session.sparkContext)
        try:
            yield session
        finally:
            # A signal to the whole process group may have ended the JVM already.
            with suppress(Py4JError, OSError):
                session.stop()


@contextmanager
def _ctrl_c_as_before() -> Iterator[None]:
    """Restore the handler of SIGINT, which PySpark replaces and does not restore when the session is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _submitted() -> SparkSession:
    """Return the session of a driver that spark-submit started; its JVM has the configuration."""
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
    conf.setMaster(with_tries(conf.get("spark.master")))
    try:
        if SparkContext._gateway is None:
            # SparkSession.builder would start the same JVM, but with our standard error.
            with log.open("ab") as stderr, quick_workers():
                SparkContext._gateway = launch_gateway(conf, {"stderr": stderr})
                SparkContext._jvm = SparkContext._gateway.jvm
        context = SparkContext(conf=conf)
    except PySparkRuntimeError as error:
        raise MissingExtraError(f"Spark did not start: {error}", cure=f"read {log}") from error
    return SparkSession(context)


def with_tries(master: str) -> str:
    """Add a cluster's number of attempts per task to a local master, which otherwise has one, whatever is set.

    >>> with_tries("local[2]"), with_tries("local"), with_tries("local[*, 1]"), with_tries("spark://host:7077")
    ('local[2, 4]', 'local[1, 4]', 'local[*, 1]', 'spark://host:7077')
    """
    found = re.fullmatch(r"local(?:\[([^],]+)\])?", master)
    return f"local[{found[1] or 1}, {TRIES}]" if found else master


def _prepare_environment() -> None:
    """Set Spark's Python, Java and address.

    Raises:
        MissingExtraError: Java is missing or too old.
    """
    for_spark(os.environ)
    _quiet()
    # Otherwise Spark's workers use the `python3` on PATH, which has other packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Otherwise Spark resolves the host name, and warns or fails on an offline laptop.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _quiet() -> None:
    # Interrupted by Ctrl-C, the bridge to the JVM logs a page of traceback although nothing is wrong.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(is_not_py4js)
    # PySpark warns on every start with pandas 3. Rows travel as Arrow here, and the pinned versions are tested.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")


def is_not_py4js(record: logging.LogRecord) -> bool:
    """Filter records that Py4J sends to the root logger when the JVM has ended; it also raises the error."""
    return "py4j" not in Path(record.pathname).parts


def _keep_quiet_when_the_jvm_ends(context: SparkContext) -> None:
    """Suppress the traceback of PySpark's accumulator server when a connection ends in the middle of a message."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None


def _log_file() -> Path:
    path = folders.home().absolute() / "logs" / "spark.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".1.log"))
    return path


HOME_PARTS = ("bin", "conf", "jars", "sbin")


@contextmanager
def quick_workers() -> Iterator[None]:
    """Halve the start time of the Python workers of a JVM that is started within this context.

    Spark puts ``SPARK_HOME/python/lib/pyspark.zip`` first on the path of each Python worker. The archive contains no
    compiled modules, so every worker compiles its imports: 1.3 CPU-seconds before it connects, instead of 0.5; on a
    busy machine that may exceed Spark's limit of 10 s. So Spark is started from a folder with the parts of PySpark that
    the JVM needs but without ``python``: the archive's path does not exist, and Python imports the installed package. A
    SPARK_HOME set by the user is kept.
    """
    home = None if "SPARK_HOME" in os.environ else _spark_home()
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _spark_home() -> Path | None:
    """Return the folder, created if missing; None if it cannot be created, or PySpark is not an installed package."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    if not all((installed / part).is_dir() for part in ("bin", "jars")):
        return None
    digest = hashlib.sha256(f"{pyspark.__version__} {installed}".encode()).hexdigest()[:12]
    home = folders.cache() / "spark-home" / digest
    try:
        home.mkdir(parents=True, exist_ok=True)
        for part in HOME_PARTS:
            with suppress(FileExistsError):  # by an earlier or a concurrent run
                (home / part).symlink_to(installed / part)
    except OSError:
        return None
    return home


# --- signals ---

PATIENCE = 3  # So many signals interrupt the process anywhere; one less while nothing polls them


class Signals:
    """Records SIGINT and SIGTERM; without effect outside the main thread."""

    def __init__(self) -> None:
        self.received: list[int] = []  # one signal requests an orderly end, two an immediate one
        # names what the run waits for; called in the signal handler
        self.doing: Callable[[], str] = lambda: "Spark to start"
        self.watched = False  # whether ``received`` is polled
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Set the handlers, again if they were replaced."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._note)
            if before != self._note:
                self._before.setdefault(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        name = signal.Signals(number).name
        if len(self.received) == 1:
            again = "Ctrl-C again" if number == signal.SIGINT else f"a second {name}"
            say(f"{name}: waiting for {self.doing()}; {again} stops at once")
        elif len(self.received) == 2:
            say(f"{name}: stopping at once; uncommitted batches will be computed again")
        if len(self.received) >= (PATIENCE if self.watched else PATIENCE - 1):
            raise KeyboardInterrupt
