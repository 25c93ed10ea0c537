"""A real Storm for one machine: ZooKeeper, nimbus and a supervisor, of the jars on Maven Central.

A directory holds one node. Who starts or stops it holds a file lock meanwhile; what runs is in ``daemons.json``, which
is written as each process starts, so that whatever ends us, the next start or stop finds them and their workers
(:mod:`downspout.storm.groups`) and ends them before it does anything else. Once the node has started, a daemon that
ends is started again by its keeper (:mod:`downspout.storm.keep`), and topologies go on.

"It runs" means that *our* nimbus answers (its ``storm.local.dir`` is in our directory: another one may own the port),
that it leads, and, at the start, that the supervisor has reported. ZooKeeper is asked likewise for its ``dataDir``.

Nothing here is reachable from elsewhere as far as Storm lets us say so: ZooKeeper listens on the loopback address.
Nimbus, supervisor and workers have no setting for theirs and listen on all.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from downspout import config, jars
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import DownspoutError, RunsAlready, StormError
from downspout.locks import FileLock, is_held
from downspout.process import birth, send_signal
from downspout.storm import groups, launch, nimbus, node_files, readiness
from downspout.storm.node_files import HOST, Daemon, Daemons, Ports
from downspout.storm.readiness import PortTaken
from downspout.storm.status import Status

START_S_MAX = 120.0
"""A start takes about 8 s, and several times that on a busy machine."""

STOP_S_MAX = 20.0
KILL_WAIT_S = 12
"""Between deactivating a topology's spouts and ending its workers, when the node stops.

A sink holds rows, and their acks, for up to ``parquet.flush_age_s`` (8): only then can the spout commit and leave in
order. Workers that end before that count like those that died.
"""
POLL_S = 0.1
LOCK_S_MAX = 2.0
STATUS_S_MAX = 2.0
"""How long nimbus may take for an answer before it counts as silent."""
ANSWER_S_MAX = 15.0
"""How long a node may be silent before its address is refused, to ``sparse submit`` for example."""
REPLACED_S_MAX = 45.0
"""The same where its keeper is about to replace nimbus."""
SILENT_S_MAX = 30.0
"""And before a start takes it for one that hangs, and starts its daemons again."""
ATTEMPTS_MAX = 3


class StormNode:
    """The Storm of one directory; as a context manager it is started and stopped.

    Args:
        directory: where its files are; made where it is missing.
        port: the port that nimbus must have; None: the one it had before, or any free one.
        detached: it survives us. Otherwise it is stopped when our process ends, even by ``kill -9``.
        settings: Storm's own settings, in addition to ours or instead of them.
        project: what relative directories in components' settings are relative to; not given: the working directory.
        start_s_max: how long a start may take, in seconds.
        clock: what waiting is.
    """

    def __init__(
        self,
        directory: str | Path,
        port: int | None = None,
        *,
        detached: bool = False,
        settings: Mapping[str, Any] | None = None,
        project: Path | None = None,
        start_s_max: float = START_S_MAX,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.port = port
        self.detached = detached
        self.project = (project or Path.cwd()).absolute()
        self._settings = dict(settings or {})
        self._start_s_max = start_s_max
        self._clock = clock
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    # --- what there is ---

    def status(self) -> Status:
        """Return what is known of the node, whoever started it.

        It asks ZooKeeper, and nimbus two questions: 2 s each at most. Nobody can ask a supervisor.
        """
        ports, daemons = node_files.read_ports(self.directory), node_files.read_daemons(self.directory)
        alive = daemons.alive if daemons is not None else []
        trouble = ""
        if is_held(self.directory / "lock"):
            state = "busy"
        elif not alive and not (daemons and daemons.has_survivors):
            state, daemons = "stopped", None
        elif len(alive) < len(launch.MAINS):
            state = "broken"
        else:
            trouble = readiness.trouble(ports, self.directory, STATUS_S_MAX)
            state = "silent" if trouble else "running"
        return Status(state, self.directory, ports, daemons, trouble)

    def settled(self) -> Status:
        """Return the status; of a node that is silent or busy for some seconds, the one after that.

        A nimbus that has much to do, or a machine that has, takes its time: that is no reason to refuse a submit.
        """
        began = self._clock.monotonic()
        while (status := self.status()).state in ("silent", "busy"):
            patience = REPLACED_S_MAX if status.trouble == readiness.LEADERLESS else ANSWER_S_MAX
            if self._clock.monotonic() >= began + patience:
                break
            self._clock.sleep(POLL_S)
        return status

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the running nimbus.

        Raises:
            StormError: the node does not run, or has not answered for :data:`ANSWER_S_MAX`.
        """
        status = self.settled()
        if status.state != "running" or status.ports is None:
            said = [f"\nThe last words of {name}:\n{self._last_words(name)}\n" for name in status.gone]
            what = f"Storm is {status.condition} ({self.directory})"
            raise StormError(what + "".join(said), cure=status.cure)
        return HOST, status.ports.nimbus

    def ports(self) -> Ports:
        """Return the ports that the node has, or will have: chosen now where it never ran."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if (known := node_files.read_ports(self.directory)) is None:
            known = Ports.choose(nimbus=self.port)
            node_files.write(self.directory, known)
        return known

    # --- starting ---

    def start(self, tell: Callable[[str], None] = lambda what: None) -> Self:
        """Start what the node consists of and wait until it can take topologies.

        Of a node that hangs the daemons are started again, and its topologies go on; unless it is to end with us, or
        to have settings, which takes a new one.

        Args:
            tell: is told what becomes of a node that hangs.

        Raises:
            RunsAlready: it runs.
            StormError: somebody else starts or stops it; a demanded port is in use; a process ended or
                stayed silent (the message holds the end of its log).
            MissingExtraError: no Java, nothing to fetch the jars with, or no ``streamparse_run`` for the workers.
        """
        library, java = jars.resolve("storm")[0].parent, jars.java()
        environment = launch.environment(self.project, java)
        with self._locked():
            if self._is_whole():
                self._refuse_running(tell)
                if self._may_stay() and self._revive(tell):
                    return self
                tell("it is replaced; its topologies are gone: submit them again")
            self._sweep()
            if not self.detached:
                self._watchdog = _start_watchdog(self.directory)
            try:
                self._start(library, java, environment)
            except BaseException as error:
                self._sweep()
                self._call_off()
                if isinstance(error, OSError):
                    raise _unwritable(self.directory, error) from error
                raise
        return self

    def _start(self, library: Path, java: Path, environment: dict[str, str]) -> None:
        for attempt in range(ATTEMPTS_MAX):
            ports = Ports.choose(node_files.read_ports(self.directory), self.port)
            if self.port is not None and not node_files.is_free(self.port):
                raise self._port_in_use()
            try:
                self._start_at(ports, library, java, environment)
                return
            except PortTaken:
                self._sweep()
                if attempt == ATTEMPTS_MAX - 1:
                    raise self._died("zookeeper", "or nimbus lost the race for a free port") from None

    def _port_in_use(self) -> StormError:
        return StormError(
            f"Port {self.port} of {HOST} is in use by another process",
            cure="another port, or none to have a free one chosen",
        )

    def _start_at(self, ports: Ports, library: Path, java: Path, environment: dict[str, str]) -> None:
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        node_files.write_home(self.directory, ports, library, self._settings)
        node_files.write(self.directory, ports)
        self._launch("zookeeper", java, library, environment)
        self._await("zookeeper", lambda: readiness.zookeeper_answers(ports, self.directory))
        self._launch("nimbus", java, library, environment, ports.nimbus)
        self._launch("supervisor", java, library, environment)
        self._await("nimbus", lambda: readiness.nimbus_answers(ports, self.directory))
        self._await("supervisor", lambda: readiness.is_complete(ports))
        if (known := node_files.read_daemons(self.directory)) is not None:
            node_files.write(self.directory, replace(known, complete=True))

    def _launch(self, name: str, java: Path, library: Path, environment: dict[str, str], port: int = 0) -> None:
        child = launch.start(name, self.directory, java, library, environment, port)
        self._children[name] = child
        known = node_files.read_daemons(self.directory)
        started = {**(known.processes if known else {}), name: Daemon(child.pid, birth(child.pid) or "")}
        node_files.write(self.directory, Daemons(jars.STORM_VERSION, started))

    def _await(self, name: str, answers: Callable[[], bool]) -> None:
        deadline = self._clock.monotonic() + self._start_s_max
        while self._clock.monotonic() < deadline:
            for each, child in self._children.items():
                if (code := child.poll()) is not None:
                    said = node_files.last_lines(self.directory, each, 40)
                    if "Address already in use" in said or "BindException" in said:
                        raise PortTaken
                    raise self._died(each, f"ended while starting (exit code {code})")
            if answers():
                return
            self._clock.sleep(POLL_S)
        raise self._died(name, f"did not answer within {self._start_s_max:g} s")

    # --- ending ---

    def stop(self, wait_s: int = KILL_WAIT_S, on_kill: Callable[[list[str]], None] = lambda names: None) -> bool:
        """End topologies, supervisor, nimbus and ZooKeeper, in this order, whoever started them.

        Args:
            wait_s: time between deactivating the spouts and ending the workers, in seconds.
            on_kill: is given the names of the topologies that are about to end, before the wait; where there are any.

        Returns:
            Whether there was anything to stop.

        Raises:
            StormError: somebody else starts or stops the node.
        """
        if not self.directory.exists():
            return False
        with self._locked():
            status = self._ports_if_running()
            if status is not None:
                self._kill_topologies(status, wait_s, on_kill)
            found = self._sweep()
        self._call_off()
        return found

    def kill(self) -> bool:
        """End all processes by ``kill -9``, workers too, as a crash would. Return whether there was one."""
        daemons = node_files.read_daemons(self.directory)
        found = False
        for daemon in daemons.processes.values() if daemons else ():
            for member in groups.members(daemon.pid):
                found |= send_signal(member.pid, member.birth, signal.SIGKILL)
        self._reap()
        return found

    def _is_whole(self) -> bool:
        daemons = node_files.read_daemons(self.directory)
        return daemons is not None and len(daemons.alive) == len(launch.MAINS)

    def _ports_if_running(self) -> Ports | None:
        ports = node_files.read_ports(self.directory)
        is_known = ports is not None and self._is_whole()
        return ports if is_known and ports and readiness.nimbus_answers(ports, self.directory) else None

    def _kill_topologies(self, ports: Ports, wait_s: int, on_kill: Callable[[list[str]], None]) -> None:
        """Kill all topologies and wait until nimbus has forgotten them; a nimbus that fails at it is stopped anyway."""
        try:
            names = [topology.name for topology in nimbus.summary(HOST, ports.nimbus).topologies]
            for name in names:
                nimbus.kill(HOST, ports.nimbus, name, wait_s)
            if names:
                on_kill(names)
            deadline = self._clock.monotonic() + wait_s + STOP_S_MAX
            while nimbus.summary(HOST, ports.nimbus).topologies and self._clock.monotonic() < deadline:
                self._clock.sleep(POLL_S)
        except StormError:
            return

    def _sweep(self) -> bool:
        """End whatever was started and not ended, last first, and forget it; return whether there was anything."""
        daemons = node_files.read_daemons(self.directory)
        found = False
        for daemon in reversed(daemons.processes.values()) if daemons else ():
            found |= groups.end(daemon.pid, daemon.birth, STOP_S_MAX, self._clock)
        (self.directory / "daemons.json").unlink(missing_ok=True)
        self._reap()
        return found

    def _reap(self) -> None:
        for child in self._children.values():
            child.poll()
        self._children = {name: child for name, child in self._children.items() if child.returncode is None}

    def _call_off(self) -> None:
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
            self._watchdog = None

    # --- the directory ---

    def _locked(self) -> FileLock:
        """Return the lock, to be entered with ``with``."""
        return _NodeLock(self.directory / "lock")

    def _refuse_running(self, tell: Callable[[str], None]) -> None:
        """Raise if the node runs; return where it hangs. It may take its time to answer."""
        ports = node_files.read_ports(self.directory)
        deadline, told = self._clock.monotonic() + SILENT_S_MAX, ""
        while self._is_whole() and (trouble := readiness.trouble(ports, self.directory, 5.0)):
            if trouble != told:
                tell(f"{trouble}; it has {SILENT_S_MAX:g} s")
                told = trouble
            if self._clock.monotonic() >= deadline:
                return
            self._clock.sleep(POLL_S)
        if self._is_whole():
            raise RunsAlready(
                f"Storm runs already in {self.directory}, its nimbus at {HOST}:{ports.nimbus if ports else '?'}",
                cure="use it, or stop it with `downspout storm stop`",
            )

    def _may_stay(self) -> bool:
        """Return whether the node that is there is one as we would start."""
        ports = node_files.read_ports(self.directory)
        return self.detached and not self._settings and ports is not None and self.port in (None, ports.nimbus)

    def _revive(self, tell: Callable[[str], None]) -> bool:
        """End the daemons of a node that hangs, for their keepers to start them again; return whether that helped.

        All of them, since nobody can say which one it is: what they know is in ZooKeeper's files. Workers go on.
        """
        ports, daemons = node_files.read_ports(self.directory), node_files.read_daemons(self.directory)
        if ports is None or daemons is None:
            return False
        tell("its daemons are started again; topologies go on")
        for keeper in daemons.processes.values():
            for pid in groups.children(keeper.pid):
                send_signal(pid, birth(pid) or "", signal.SIGKILL)
        deadline = self._clock.monotonic() + self._start_s_max
        while self._is_whole() and self._clock.monotonic() < deadline:
            if not readiness.trouble(ports, self.directory, STATUS_S_MAX) and readiness.is_complete(ports):
                return True
            self._clock.sleep(POLL_S)
        return False

    def _died(self, name: str, what: str) -> StormError:
        return StormError(
            f"Storm's {name} {what}; its last words:\n{self._last_words(name)}\n",
            cure=f"read {self.directory}/logs/{name}.log and {name}.console",
        )

    def _last_words(self, name: str) -> str:
        return node_files.last_lines(self.directory, name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _NodeLock(FileLock):
    """The lock on a node's directory, with an error of ours."""

    def __enter__(self) -> FileLock:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_ours = self.acquire(LOCK_S_MAX)  # who asks for the status holds it for a moment
        except OSError as error:
            raise _unwritable(self.path.parent, error) from error
        if not is_ours:
            raise StormError(
                f"Another process starts or stops the Storm in {self.path.parent}", cure="wait until it is done"
            )
        return self


def _unwritable(directory: Path, error: OSError) -> StormError:
    return StormError(
        f"Storm cannot use its directory {directory}: {error.strerror or error}",
        cure="a directory that can be written to and has space (`--dir`, or DOWNSPOUT_HOME), as the user who owns it",
    )


def default_directory() -> Path:
    """Return where ``downspout storm start`` keeps its node."""
    return config.home() / "storm"


def _start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends the node once we have ended, whatever ends us."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from downspout.storm.node import watch; watch(sys.argv[1])",
            str(directory),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def watch(directory: str) -> None:
    """Wait until standard input ends, which it does with the process at its other end, then end the node."""
    while os.read(0, 4096):
        pass
    try:
        StormNode(directory).stop(wait_s=0)
    except DownspoutError:
        StormNode(directory).kill()
