"""How the processes of a node are started, and what they and all that they start find in their environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from downspout.errors import MissingExtraError
from downspout.settings import folders
from downspout.storm.node_files import JVM_FLAGS, python_path
from downspout.system import files
from downspout.system.java import home_of

MAINS = {
    "zookeeper": "org.apache.storm.shade.org.apache.zookeeper.server.quorum.QuorumPeerMain",
    "nimbus": "org.apache.storm.daemon.nimbus.Nimbus",
    "supervisor": "org.apache.storm.daemon.supervisor.Supervisor",
}
HEAP = {"zookeeper": "-Xmx96m", "nimbus": "-Xmx256m", "supervisor": "-Xmx128m"}


def start(
    name: str, directory: Path, java: Path, library: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start one daemon of the node in a directory."""
    home, logs = directory / "home", directory / "logs"
    command = [str(java), *JVM_FLAGS, HEAP[name], f"-Ddaemon.name={name}", f"-Dstorm.home={home}"]
    command += [f"-Dstorm.log.dir={logs}", f"-Dlogfile.name={name}.log", "-Djava.deserialization.disabled=true"]
    command += [f"-Dlog4j.configurationFile={home / 'log4j2' / 'cluster.xml'}", "-Dstorm.conf.file="]
    command += ["-cp", f"{library}/*{os.pathsep}{home / 'conf'}", MAINS[name]]
    if name == "zookeeper":
        command.append(str(home / "conf" / "zoo.cfg"))
    files.write(logs / f"{name}.console", b"")
    with (logs / f"{name}.console").open("wb") as console:
        # A session of its own: Ctrl-C in our terminal is not for the daemons, and what they start stays together.
        return subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Components inherit the supervisor's, and their output is for others to read, too.
            umask=-1 if name == "supervisor" else files.UMASK,
        )


def environment(project: Path, java: Path) -> dict[str, str]:
    """Return the environment of the daemons, which workers and components inherit."""
    programs = Path(sys.executable).parent
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    if shutil.which("streamparse_run", path=path) is None:
        raise MissingExtraError(
            f"There is no streamparse_run in {programs}, with which Storm's workers start components",
            cure="`pip install downspout` into the environment that runs this command",
        )
    return folders.worker_environment(project) | {
        "PATH": path,
        "JAVA_HOME": str(home_of(java)),
        "PYTHONPATH": python_path(".:resources", os.environ),
    }
