"""A standalone Spark cluster on this machine: one master and one worker of the installed PySpark, on free ports.

The worker's environment is bare: a PATH with the interpreter below our virtual environment, no PYTHONPATH, and a
folder of its own to work in. So what an executor imports came with the job.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from downspout.spark import submit
from downspout.system import birth, python_name
from downspout.system.java import for_spark, java
from downspout.system.process import start_watchdog, stop_watchdog
from tests.command import BASE_PYTHON

ROOT = Path(__file__).resolve().parents[2]
STARTED_S_MAX = 300.0
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


def spark_home(folder: Path) -> Path:
    """Return the installed PySpark under another name: Spark writes into its home, below ``work``."""
    home = folder / "spark-home"
    if not home.exists():
        home.mkdir(parents=True)
        for entry in Path(pyspark.__file__).parent.iterdir():
            if entry.name != "work":
                (home / entry.name).symlink_to(entry)
    return home


def bare_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a machine that has Java, Spark and a Python, and nothing of ours."""
    base = Path(BASE_PYTHON).resolve()
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if not (programs / name).exists():
        (programs / name).symlink_to(base)
    found = {
        "PATH": f"{programs}:{java().parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "SPARK_HOME": str(spark_home(folder)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
    }
    for_spark(found)
    return found


@dataclass(frozen=True)
class Cluster:
    """One that runs.

    Attributes:
        master: ``spark://127.0.0.1:PORT``.
        folder: its logs, and below ``work`` the executors' working directories.
    """

    master: str
    folder: Path

    def executors_said(self) -> str:
        """Return what all executors have written to their standard error."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("work/*/*/stderr")))


def forget_environments(folder: Path) -> None:
    """Remove what executors have unpacked, 340 MB each; their logs stay."""
    for above in ("", "*/", "*/*/"):
        for place in folder.glob(f"{above}work/*/*/environment"):
            shutil.rmtree(place, ignore_errors=True)


def driver_environment(folder: Path, master: str) -> dict[str, str]:
    """Return the environment of ``spark-submit`` on this machine, for a cluster whose executors have nothing of ours.

    Executors of ``local-cluster`` are children of the driver's JVM and find programs on its PATH. So Python is the bare
    one there, also for what Spark plans on the driver, and only the driver's PYTHONPATH has our packages: the archive's
    takes its place on executors.
    """
    found = submit.environment(python_name()) | {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    if master.startswith("local-cluster"):
        bare = bare_environment(folder)
        libraries = sysconfig.get_path("purelib")
        found |= {"PATH": bare["PATH"], "SPARK_HOME": bare["SPARK_HOME"], "PYTHONPATH": f"{ROOT}:{libraries}"}
    return found


@contextmanager
def standalone_cluster(folder: Path, cores: int = 2) -> Iterator[Cluster]:
    """Give a cluster and stop it at the end, both processes by their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = bare_environment(folder)
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    processes: list[subprocess.Popen[bytes]] = []
    watchdogs: list[subprocess.Popen[bytes]] = []  # a test run that is killed leaves no cluster behind
    try:
        processes.append(_start("master.Master", address, folder, environment))
        watchdogs.append(start_watchdog(processes[-1].pid, birth(processes[-1].pid) or ""))
        master = _wait(processes[-1], folder / "master.Master.log", r"Starting Spark master at (spark://\S+)")
        place = ["--cores", str(cores), "--memory", "2g", "--work-dir", str(folder / "work"), *address, master]
        processes.append(_start("worker.Worker", place, folder, environment))
        watchdogs.append(start_watchdog(processes[-1].pid, birth(processes[-1].pid) or ""))
        _wait(processes[-1], folder / "worker.Worker.log", r"Successfully registered with master (\S+)")
        yield Cluster(master, folder)
    finally:
        for process in reversed(processes):  # the worker ends its executors
            process.terminate()
            process.wait(60)
        for watchdog in watchdogs:
            stop_watchdog(watchdog)
        forget_environments(folder)


def _start(name: str, arguments: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a daemon of Spark's. ``spark-class`` becomes the JVM, so its id is the JVM's."""
    command = [
        str(Path(environment["SPARK_HOME"]) / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{name}",
        *arguments,
    ]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes], log: Path, wanted: str) -> str:
    deadline = time.monotonic() + STARTED_S_MAX
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if found := re.search(wanted, text):
            return found[1]
        assert process.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"{log.name} does not say {wanted!r}: {log.read_text(errors='replace')}")
