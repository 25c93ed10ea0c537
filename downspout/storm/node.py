"""A real Storm for one machine: ZooKeeper, nimbus and a supervisor, from the jars on Maven Central.

A directory holds one node and is locked while the node is started or stopped. ``daemons.json`` is updated as each
process starts; so the next start or stop finds processes, and their workers, that a crash of ours left behind
(:mod:`downspout.storm.groups`), and ends them first. It is a Storm for development: a daemon that ends or hangs is not
restarted; the status reports it, and the next start replaces the node.

A node runs if *our* nimbus answers (its ``storm.local.dir`` is in our directory: another nimbus may own the port) and
leads; at the start, the supervisor must also have reported. ZooKeeper is identified by its ``dataDir``.

As far as Storm can be configured, nothing is reachable from other machines: ZooKeeper listens on the loopback address.
Nimbus, supervisor and workers have no such setting and listen on all addresses.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import DownspoutError, MissingExtraError, RunsAlready, StormError
from downspout.settings import folders
from downspout.storm import groups, nimbus, node_files
from downspout.storm.node_files import JVM_FLAGS, Daemons, Ports, python_path
from downspout.system import files, jars
from downspout.system.files import is_held
from downspout.system.java import home_of
from downspout.system.java import java as find_java
from downspout.system.loopback import HOST, is_free
from downspout.system.process import ProcessIdentity, await_end, run_at_our_end
from downspout.system.service import POLL_S, LocalService
from downspout.system.waiting import Report, report_to_stderr, waiting

# --- starting daemons ---

MAINS = {
    "zookeeper": "org.apache.storm.shade.org.apache.zookeeper.server.quorum.QuorumPeerMain",
    "nimbus": "org.apache.storm.daemon.nimbus.Nimbus",
    "supervisor": "org.apache.storm.daemon.supervisor.Supervisor",
}
HEAP = {"zookeeper": "-Xmx96m", "nimbus": "-Xmx256m", "supervisor": "-Xmx128m"}


def start_daemon(
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
        # A session of its own keeps Ctrl-C in our terminal from the daemons and makes each lead a process group.
        return subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Components inherit the supervisor's umask, and others may read their output.
            umask=-1 if name == "supervisor" else files.UMASK,
        )


def daemon_environment(project: Path, java: Path) -> dict[str, str]:
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


# --- readiness ---


class PortTaken(Exception):
    """Another process took one of the ports before a daemon did."""


def zookeeper_answers(ports: Ports, directory: Path) -> bool:
    """Return whether our ZooKeeper, identified by its directory, answers. Raises PortTaken if another one does."""
    try:
        with socket.create_connection((HOST, ports.zookeeper), timeout=2.0) as connection:
            connection.sendall(b"conf")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return False
    if b"dataDir=" not in answer:  # it listens but does not serve yet
        return False
    if f"dataDir={directory / 'data' / 'zookeeper'}".encode() not in answer:
        raise PortTaken
    return True


def nimbus_answers(ports: Ports, directory: Path, timeout_s: float = 5.0) -> bool:
    """Return whether our nimbus, identified by its configured directory, answers."""
    try:
        found = nimbus.configuration(HOST, ports.nimbus, timeout_s)
    except StormError:
        return False
    return found.get("storm.local.dir") == str(directory / "data")


def trouble_of(ports: Ports | None, directory: Path, timeout_s: float) -> str:
    """Describe the part of a started node that does not work; empty if all that can be queried do."""
    if ports is None:
        return "node.json is missing"
    try:
        if not zookeeper_answers(ports, directory):
            return "ZooKeeper does not answer"
    except PortTaken:
        return "another process has ZooKeeper's port"
    if not nimbus_answers(ports, directory, timeout_s):
        return "nimbus does not answer"
    knows = nimbus.knows_leader(HOST, ports.nimbus, timeout_s)
    return "" if knows else "nimbus knows of no leader" if knows is False else "nimbus cannot say who leads"


def is_complete(ports: Ports) -> bool:
    """Return whether nimbus leads and the supervisor has reported to it."""
    try:
        summary = nimbus.summary(HOST, ports.nimbus)
    except StormError:
        return False
    return bool(summary.supervisors) and any(each.isLeader for each in summary.nimbuses)


# --- status ---


@dataclass(frozen=True)
class NodeStatus:
    """The status of the node in a directory."""

    # ``running``; ``silent`` (its processes live, but ZooKeeper or nimbus does not answer correctly); ``broken`` (some
    # processes have ended); ``busy`` (it is being started or stopped); ``stopped``
    state: str
    directory: Path
    ports: Ports | None  # current or next ones; None if it never ran
    daemons: Daemons | None  # None if no process runs
    trouble: str = ""  # of a silent node, in words

    @property
    def version(self) -> str:
        """The version of the running Storm; empty if none runs."""
        return self.daemons.version if self.daemons else ""

    @property
    def alive(self) -> dict[str, int]:
        """The process ids of the running daemons, by name."""
        return {name: self.daemons.processes[name].pid for name in self.daemons.alive} if self.daemons else {}

    @property
    def gone(self) -> list[str]:
        """The names of the daemons that have ended while others run."""
        return [name for name in MAINS if name not in self.daemons.alive] if self.daemons else []

    @property
    def condition(self) -> str:
        """The state in words, with the dead daemons of a broken node and the trouble of a silent one."""
        if self.state == "broken":
            return f"broken: {' and '.join(self.gone)} ended"
        return f"{self.state}: {self.trouble}" if self.trouble else self.state

    @property
    def cure(self) -> str:
        """What to do if it does not run."""
        if self.state == "silent":
            return "wait; if that does not help, `downspout storm stop`, then `downspout storm start`"
        if self.state == "broken":
            return "`downspout storm start`, which replaces it; topologies must be submitted again"
        return "wait" if self.state == "busy" else "`downspout storm start`"

    @property
    def nimbus(self) -> str:
        """The address of nimbus as ``host:port``; empty before the first start."""
        return f"{HOST}:{self.ports.nimbus}" if self.ports else ""


# --- the node ---

START_S_MAX = 120.0  # A start takes about 8 s, several times that on a busy machine

STOP_S_MAX = 20.0
KILL_WAIT_S = 12
"""Seconds between deactivating a topology's spouts and ending its workers, when the node stops.

A sink holds rows, and their acks, for up to ``parquet.flush_age_s`` (8); after that the spout can commit and exit in
order. A worker that ends earlier counts as one that died.
"""
LOCK_S_MAX = 2.0
STATUS_S_MAX = 2.0  # How long nimbus may take to answer before it counts as silent
ANSWER_S_MAX = 15.0  # How long a node may be silent before callers such as ``sparse submit`` get an error
ATTEMPTS_MAX = 3

WATCH = "import sys; from downspout.storm.node import watch; watch(sys.argv[1])"


class StormNode(LocalService):
    """The Storm of one directory; a context manager starts and stops it."""

    NAME = "Storm"
    ERROR = StormError

    def __init__(
        self,
        directory: str | Path,  # created if missing
        port: int | None = None,  # nimbus's port; None: the previous one, or any free one
        *,
        # whether it survives our process; if not, it is stopped when our process ends, even by ``kill -9``
        detached: bool = False,
        settings: Mapping[str, Any] | None = None,  # Storm's own settings; they override ours
        # the base of relative directories in components' settings; default: the working directory
        project: Path | None = None,
        start_s_max: float = START_S_MAX,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(directory, clock)
        self.port = port
        self.detached = detached
        self.project = (project or Path.cwd()).absolute()
        self._settings = dict(settings or {})
        self._start_s_max = start_s_max
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._awaited = "the Storm that is there to answer"

    # --- status ---

    def status(self) -> NodeStatus:
        """Return the state of the node, whichever process started it.

        It queries ZooKeeper once and nimbus twice, at most 2 s each. A supervisor cannot be queried.
        """
        ports, daemons = node_files.read_ports(self.directory), node_files.read_daemons(self.directory)
        alive = daemons.alive if daemons is not None else []
        trouble = ""
        if is_held(self.directory / "lock"):
            state = "busy"
        elif not alive and not (daemons and daemons.has_survivors):
            state, daemons = "stopped", None
        elif len(alive) < len(MAINS):
            state = "broken"
        else:
            trouble = trouble_of(ports, self.directory, STATUS_S_MAX)
            state = "silent" if trouble else "running"
        return NodeStatus(state, self.directory, ports, daemons, trouble)

    def steady_status(self) -> NodeStatus:
        """Return the status, after waiting up to :data:`ANSWER_S_MAX` for a silent or busy node."""
        began = self._clock.monotonic()
        while (status := self.status()).state in ("silent", "busy"):
            # A busy nimbus or machine answers slowly; that is no reason to refuse a submit.
            if self._clock.monotonic() >= began + ANSWER_S_MAX:
                break
            self._clock.sleep(POLL_S)
        return status

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the running nimbus. Raises StormError: the node does not run."""
        status = self.steady_status()
        if status.state != "running" or status.ports is None:
            said = [f"\nThe end of the log of {name}:\n{self._end_of(*_logs(name))}\n" for name in status.gone]
            what = f"Storm is {status.condition} ({self.directory})"
            raise StormError(what + "".join(said), cure=status.cure)
        return HOST, status.ports.nimbus

    def ports(self) -> Ports:
        """Return the ports of the node, chosen now if it never ran."""
        files.own(self.directory, node_files.OURS)
        if (known := node_files.read_ports(self.directory)) is None:
            known = Ports.choose(nimbus=self.port)
            node_files.write(self.directory, known)
        return known

    # --- starting ---

    def start(self, progress: Report = report_to_stderr) -> Self:
        """Start the daemons and wait until they accept topologies.

        ``progress`` is called in a thread with what the start waits for.

        Raises:
            RunsAlready: it runs.
            StormError: another process starts or stops it; the requested port is in use; a process ended or
                stayed silent (the message contains the end of its log).
            MissingExtraError: no Java, no means to fetch the jars, or no ``streamparse_run`` for the workers.
        """
        library, java = jars.resolve("storm", progress)[0].parent, find_java()
        environment = daemon_environment(self.project, java)
        with self._locked(), waiting(lambda: f"waiting for {self._awaited}", progress):
            if self._is_whole():
                ports = node_files.read_ports(self.directory)
                where = f"{HOST}:{ports.nimbus if ports else '?'}"
                raise RunsAlready(
                    f"Storm is already running in {self.directory}, with nimbus at {where}",
                    cure="use it, or stop it with `downspout storm stop`",
                )
            self._sweep()
            if not self.detached:
                self._watchdog = run_at_our_end("-c", WATCH, str(self.directory))
            try:
                self._start(library, java, environment)
            except BaseException as error:
                self._sweep()
                self._stop_watchdog()
                if isinstance(error, OSError):
                    raise self._unwritable(error) from error
                raise
        return self

    def _start(self, library: Path, java: Path, environment: dict[str, str]) -> None:
        for attempt in range(ATTEMPTS_MAX):
            ports = Ports.choose(node_files.read_ports(self.directory), self.port)
            if self.port is not None and not is_free(self.port):
                raise self._port_in_use(self.port)
            try:
                self._start_at(ports, library, java, environment)
                return
            except PortTaken:
                self._sweep()
                if attempt == ATTEMPTS_MAX - 1:
                    raise self._failed("zookeeper", "or nimbus lost the race for a free port") from None

    def _start_at(self, ports: Ports, library: Path, java: Path, environment: dict[str, str]) -> None:
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        node_files.write_home(self.directory, ports, library, self._settings)
        node_files.write(self.directory, ports)
        self._launch("zookeeper", java, library, environment)
        self._await("zookeeper", lambda: zookeeper_answers(ports, self.directory))
        self._launch("nimbus", java, library, environment)
        self._launch("supervisor", java, library, environment)
        self._await("nimbus", lambda: nimbus_answers(ports, self.directory))
        self._await("supervisor", lambda: is_complete(ports))

    def _launch(self, name: str, java: Path, library: Path, environment: dict[str, str]) -> None:
        child = start_daemon(name, self.directory, java, library, environment)
        self._children[name] = child
        known = node_files.read_daemons(self.directory)
        started = {**(known.processes if known else {}), name: ProcessIdentity.of(child.pid)}
        node_files.write(self.directory, Daemons(jars.STORM_VERSION, started))

    def _await(self, name: str, answers: Callable[[], bool]) -> None:
        self._awaited = f"Storm's {name} to answer (at most {self._start_s_max:g} s)"

        def come_up() -> bool:
            for each, child in self._children.items():
                if (code := child.poll()) is not None:
                    said = self._end_of(*_logs(each), count=40)
                    if "Address already in use" in said or "BindException" in said:
                        raise PortTaken
                    raise self._failed(each, f"ended while starting (exit code {code})")
            return answers()

        if not self._wait_until(come_up, self._start_s_max):
            raise self._failed(name, f"did not answer within {self._start_s_max:g} s")

    # --- ending ---

    def stop(self, wait_s: int = KILL_WAIT_S, on_kill: Callable[[list[str]], None] = lambda names: None) -> bool:
        """End topologies, supervisor, nimbus and ZooKeeper, in this order, whichever process started them.

        Spouts are deactivated ``wait_s`` before workers end. ``on_kill`` is called with the names of the topologies
        once they are being killed.

        Returns:
            Whether anything was running.

        Raises:
            StormError: another process starts or stops the node.
        """
        if not self.directory.exists():
            return False
        with self._locked():
            status = self._ports_if_running()
            if status is not None:
                self._kill_topologies(status, wait_s, on_kill)
            found = self._sweep()
        self._stop_watchdog()
        return found

    def kill(self) -> bool:
        """End all processes by ``kill -9``, workers too, as a crash would. Return whether there was one."""
        daemons = node_files.read_daemons(self.directory)
        found = False
        for daemon in daemons.processes.values() if daemons else ():
            for member in groups.survivors(daemon):
                found |= member.signal(signal.SIGKILL)
        self._reap()
        return found

    def _is_whole(self) -> bool:
        daemons = node_files.read_daemons(self.directory)
        return daemons is not None and len(daemons.alive) == len(MAINS)

    def _ports_if_running(self) -> Ports | None:
        ports = node_files.read_ports(self.directory)
        is_known = ports is not None and self._is_whole()
        return ports if is_known and ports and nimbus_answers(ports, self.directory) else None

    def _kill_topologies(self, ports: Ports, wait_s: int, on_kill: Callable[[list[str]], None]) -> None:
        """Kill all topologies and wait until nimbus has removed them; errors are ignored, as nimbus is stopped next."""
        try:
            names = [topology.name for topology in nimbus.summary(HOST, ports.nimbus).topologies]
            for name in names:
                nimbus.kill(HOST, ports.nimbus, name, wait_s)
            if names:
                on_kill(names)
            self._wait_until(lambda: not nimbus.summary(HOST, ports.nimbus).topologies, wait_s + STOP_S_MAX)
        except StormError:
            return

    def _sweep(self) -> bool:
        """End the recorded daemons and their groups, last first, and delete the record; return whether any ran."""
        daemons = node_files.read_daemons(self.directory)
        found = False
        for daemon in reversed(daemons.processes.values()) if daemons else ():
            found |= groups.end(daemon, STOP_S_MAX, self._clock)
        (self.directory / "daemons.json").unlink(missing_ok=True)
        self._reap()
        return found

    def _reap(self) -> None:
        for child in self._children.values():
            child.poll()
        self._children = {name: child for name, child in self._children.items() if child.returncode is None}

    # --- the directory ---

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._take(node_files.OURS, LOCK_S_MAX)  # `status` holds it for a moment
        try:
            yield
        finally:
            lock.release()

    def _in_use(self) -> StormError:
        return StormError(
            f"Another process is starting or stopping the Storm in {self.directory}", cure="wait until it is done"
        )

    def _failed(self, name: str, what: str) -> DownspoutError:
        return self._died(f"Storm's {name}", what, *_logs(name))


def _logs(name: str) -> tuple[str, str]:
    """Return a daemon's log and its JVM's output."""
    return f"{name}.log", f"{name}.console"


def default_directory() -> Path:
    """Return the directory of ``downspout storm start``."""
    return folders.home() / "storm"


def watch(directory: str) -> None:
    """Stop a node once the process that started it has ended."""
    await_end()
    try:
        StormNode(directory).stop(wait_s=0)
    except DownspoutError:
        StormNode(directory).kill()
