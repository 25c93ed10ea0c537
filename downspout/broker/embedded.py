"""A real Kafka for one machine: one node, KRaft, no installation beyond a JVM.

The jars come from :mod:`downspout.system.jars`. A directory holds one cluster; across restarts, even after ``kill -9``,
it keeps its id, its data and, if still free, its port.

Two brokers must never share a directory, so a file lock is taken before anything is written there. The broker inherits
the locked file, and we close ours once it answers: from then on the lock lives exactly as long as the broker, even if
our process ends.

"It answers" means that the port returns the metadata of *our* cluster, with the broker registered. Choosing a free port
races with all other processes: without this check, the loser might mistake the winner's broker for its own.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from downspout.broker import broker_files
from downspout.broker.broker_files import (
    Broker,
    ClusterFile,
    Security,
    argument_file,
    check_wanted,
    decide,
    read_security,
    write_private,
)
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, DownspoutError
from downspout.kafka import address
from downspout.kafka.address import RefusedError
from downspout.settings import folders
from downspout.system import files, jars, loopback, process
from downspout.system.files import FileLock, is_held
from downspout.system.java import java as find_java
from downspout.system.loopback import HOST
from downspout.system.service import LocalService
from downspout.system.waiting import Report, report_to_stderr, waiting

START_S_MAX = 180.0  # A start takes 1 to 2 s, and a minute on a machine that has ten times as much to do

STOP_S_MAX = 20.0
ATTEMPTS_MAX = 5

_detached: list[subprocess.Popen[bytes]] = []  # kept, because Python warns when it collects a running child


class _PortTaken(Exception):
    """Another process took one of the ports before the broker did."""


@dataclass(frozen=True)
class BrokerStatus:
    """The state of a directory's broker.

    ``state`` is ``running``, ``silent`` (the process lives but does not answer), ``starting`` (or another process holds
    the lock) or ``stopped``.
    """

    state: str
    directory: Path
    broker: Broker | None


class EmbeddedKafka(LocalService):
    """The broker of one directory; a ``with`` block starts and stops it."""

    NAME = "Kafka"
    ERROR = BrokerError

    def __init__(
        self,
        directory: str | Path,  # for data, logs and configuration; made if missing
        port: int | None = None,  # None: the previous one, or any free one
        *,
        # ``plaintext``, ``ssl``, ``sasl_plaintext`` or ``sasl_ssl``, fixed when the directory is made; None: the
        # directory's own, or plaintext. Clients then need :attr:`client`.
        security: str | None = None,
        mechanism: str | None = None,  # of SASL: ``PLAIN``, ``SCRAM-SHA-256`` (default) or ``SCRAM-SHA-512``
        # survive our process; otherwise the broker stops when our process ends, even by ``kill -9``
        detached: bool = False,
        properties: Mapping[str, str] | None = None,  # Kafka's settings; they override ours
        start_s_max: float = START_S_MAX,  # time limit of a start, in seconds
        clock: Clock = SYSTEM_CLOCK,
        # for the other nodes of an :class:`~downspout.broker.cluster.EmbeddedCluster`
        controller_port: int | None = None,
        roles: str = broker_files.BOTH,  # in that cluster: broker, controller, or both
    ) -> None:
        super().__init__(directory, clock)
        self.port = port
        self.detached = detached
        self._wanted = (security, mechanism)
        self._security = Security(self.directory)
        self._properties = dict(properties or {})
        self._start_s_max = start_s_max
        self._controller_port = controller_port
        self._roles = roles
        self._process: subprocess.Popen[bytes] | None = None

    # --- what there is ---

    @property
    def broker(self) -> Broker:
        """The running broker."""
        if (broker := broker_files.read_broker(self.directory)) is None:
            raise BrokerError(f"No Kafka is running in {self.directory}", cure="`downspout kafka start`")
        return broker

    @property
    def bootstrap(self) -> str:
        """The address of the running broker (``host:port``)."""
        return self.broker.bootstrap

    @property
    def security(self) -> Security:
        """The protection of this directory's broker."""
        return read_security(self.directory)

    @property
    def client(self) -> dict[str, Any]:
        """The kafka-python properties needed to connect, with the password; empty for plaintext."""
        return self.security.client

    def check_security(self) -> None:
        """Raise a BrokerError if the directory was made with another protection."""
        check_wanted(self.directory, *self._wanted)

    def status(self) -> BrokerStatus:
        """Return the state of the broker, whichever process started it; takes at most 2 s."""
        if (broker := broker_files.read_broker(self.directory)) is not None:
            state = "running" if _answers(broker, self.directory) else "silent"
        else:
            state = "starting" if is_held(self.directory / "lock") else "stopped"
        return BrokerStatus(state, self.directory, broker)

    # --- starting ---

    def start(self, progress: Report = report_to_stderr) -> Self:
        """Start the broker and wait until it answers.

        Args:
            progress: called in a thread every few seconds during a long start, with a line that tells the step.

        Raises:
            BrokerError: the directory is locked or cannot be written to, the requested port is in use, or the broker
                ended or stayed silent (the message holds the end of its log).
            MissingExtraError: no Java, or no way to fetch the jars.
        """
        library, program = jars.resolve("kafka", progress)[0].parent, find_java()
        lock = self._take(broker_files.OURS)
        try:
            command = [str(program), *broker_files.JVM_FLAGS, "-cp", f"{library}/*"]
            with waiting(f"waiting for Kafka to format {self.directory}/data", progress):
                cluster = self._prepare(command, program)
            limit = f"at most {self._start_s_max:g} s; its log is {self.directory}/logs/server.log"
            with waiting(f"waiting for Kafka to answer ({limit})", progress):
                broker = self._launch(command, cluster, lock)
            broker_files.write(self.directory, replace(cluster, port=broker.port, formatted=True))
            broker_files.write(self.directory, broker)
            if self.detached:
                self._stop_watchdog()  # from now on anybody can find and stop it
        except OSError as error:
            self._end_process()
            lock.release()
            raise self._unwritable(error) from error
        except BaseException:
            self._end_process()
            lock.release()
            raise
        lock.hand_over()
        return self

    def _in_use(self) -> BrokerError:
        broker = broker_files.read_broker(self.directory)
        who = f"the broker {broker.bootstrap} (process {broker.pid})" if broker else "a process that is starting one"
        return BrokerError(
            f"{self.directory} is in use by {who}",
            cure="use that broker, stop it with `downspout kafka stop`, or choose another directory",
        )

    def _prepare(self, command: list[str], java: Path) -> ClusterFile:
        """Format the directory for a cluster, unless that was done before."""
        (self.directory / "logs").mkdir(mode=0o700, exist_ok=True)
        (self.directory / "broker.json").unlink(missing_ok=True)  # we hold the lock: it is stale
        files.write(self.directory / "log4j2.properties", broker_files.LOG4J)
        cluster = broker_files.read_cluster(self.directory)
        if cluster is None and (self.directory / "data" / "meta.properties").exists():
            raise BrokerError(
                f"{self.directory}/data belongs to a cluster, but cluster.json is missing or cannot be read",
                cure="restore it, or remove the directory if its records are not needed",
            )
        is_new = cluster is None or not cluster.formatted
        self._security = decide(self.directory, *self._wanted, java=java, is_new=is_new)
        cluster = cluster or ClusterFile(broker_files.new_cluster_id())
        broker_files.write(self.directory, cluster)
        if not cluster.formatted:
            self._write_properties(*self._choose_ports(cluster.port, 0))
            self._format(command, cluster)
        return cluster

    def _format(self, command: list[str], cluster: ClusterFile) -> None:
        arguments = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
        arguments += ["-t", cluster.cluster_id, "-c", "server.properties", *self._security.format_arguments()]
        secret = self.directory / "format.args"  # because everybody can read a command line
        format_command = [*command, argument_file(secret, arguments)]
        try:
            with self._console() as console:
                done = subprocess.run(
                    format_command,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=files.UMASK,
                    timeout=self._start_s_max,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise self._failed(f"took longer than {self._start_s_max:g} s to format {self.directory}/data") from error
        finally:
            secret.unlink()
        if done.returncode != 0:
            raise self._failed(f"could not format {self.directory}/data (exit code {done.returncode})")

    def _launch(self, command: list[str], cluster: ClusterFile, lock: FileLock) -> Broker:
        for attempt in range(ATTEMPTS_MAX):
            port, controller_port = self._choose_ports(cluster.port, attempt)
            self._write_properties(port, controller_port)
            try:
                return self._launch_at(port, command, cluster, lock)
            except _PortTaken:
                self._end_process()
                if self.port is not None and not loopback.is_free(self.port):
                    raise self._port_in_use(self.port) from None
        raise self._failed(f"lost the race for a free port {ATTEMPTS_MAX} times")

    def _choose_ports(self, former: int | None, attempt: int) -> tuple[int, int]:
        if self.port is not None:
            if not loopback.is_free(self.port):
                raise self._port_in_use(self.port)
            port = self.port
        elif former is not None and attempt == 0 and loopback.is_free(former):
            port = former
        else:
            port = loopback.free_port()
        return port, self._controller_port or loopback.free_port(avoid=port)

    def _write_properties(self, port: int, controller_port: int) -> None:
        given = {**self._security.properties(port, controller_port), **self._properties}
        text = broker_files.server_properties(port, controller_port, given, self._roles)
        write_private(self.directory / "server.properties", text)

    def _launch_at(self, port: int, command: list[str], cluster: ClusterFile, lock: FileLock) -> Broker:
        log = self.directory / "logs" / "server.log"
        log_start = log.stat().st_size if log.exists() else 0
        with self._console() as console:
            # In its own session, so Ctrl-C in our terminal does not end the broker before we have drained.
            self._process = process.start_gated(
                [*command, "kafka.Kafka", "server.properties"],
                cwd=self.directory,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=files.UMASK,
                pass_fds=(lock.fileno(),),
            )
        started = process.ProcessIdentity.of(self._process.pid)
        self._watchdog = process.start_watchdog(*started)
        if self.detached:
            _detached.append(self._process)
        process.let_go(self._process)
        self._await_answer(port, cluster.cluster_id, log_start)
        return Broker(HOST, port, *started, cluster.cluster_id)

    def _await_answer(self, port: int, cluster_id: str, log_start: int) -> None:
        def answers() -> bool:
            assert self._process is not None
            if (code := self._process.poll()) is not None:
                if "Address already in use" in self._log_since(log_start):
                    raise _PortTaken
                raise self._failed(f"ended while starting (exit code {code})")
            if self._roles == broker_files.CONTROLLER:
                return not loopback.is_free(port)  # a controller does not answer clients
            try:
                answer = address.ask(HOST, port, client=self._security.client)
            except (OSError, address.NotKafkaError, RefusedError):  # the user is not known at once, either
                return False
            if answer.cluster_id != cluster_id:
                raise _PortTaken
            return f"{HOST}:{port}" in answer.brokers

        if not self._wait_until(answers, self._start_s_max):
            raise self._failed(f"did not answer at {HOST}:{port} within {self._start_s_max:g} s")

    def _console(self) -> BinaryIO:
        path = self.directory / "logs" / "console.log"
        files.write(path, b"")
        return path.open("wb")

    def _log_since(self, start: int) -> str:
        log = self.directory / "logs" / "server.log"
        try:
            data = log.read_bytes()
        except OSError:
            return ""
        return data[start if len(data) >= start else 0 :].decode(errors="replace")

    def _failed(self, what: str) -> DownspoutError:
        return self._died("Kafka", what, "server.log", "console.log")

    # --- ending ---

    def stop(self) -> bool:
        """Shut the broker down, whichever process started it; return whether one was running.

        Raises:
            BrokerError: it does not end, even by ``kill -9``.
        """
        return self._end(signal.SIGTERM)

    def kill(self) -> bool:
        """Kill the broker with ``kill -9``, like a crash, without cleanup; return whether one was running."""
        return self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop the broker if it runs, and start it."""
        self.stop()
        return self.start()

    def abandon(self) -> None:
        """Kill the broker with ``kill -9``, even while another thread of ours waits for its start."""
        started = self._process
        if not self.kill() and started is not None:
            started.kill()

    def _end(self, number: int) -> bool:
        broker = broker_files.read_broker(self.directory)
        if broker is None:
            self._end_process()
            return False
        if not self._signal_and_wait(broker, number) and not self._signal_and_wait(broker, signal.SIGKILL):
            raise BrokerError(
                f"Process {broker.pid} did not end, even after SIGKILL", cure=f"see `ps -fp {broker.pid}`"
            )
        self._end_process()
        if number != signal.SIGKILL:
            self._forget()
        return True

    def _signal_and_wait(self, broker: Broker, number: int) -> bool:
        broker.process.signal(number)
        return self._wait_until(lambda: not broker.is_alive, STOP_S_MAX)

    def _forget(self) -> None:
        """Remove ``broker.json``, unless another broker has started already."""
        lock = FileLock(self.directory / "lock")
        if lock.acquire():
            (self.directory / "broker.json").unlink(missing_ok=True)
            lock.release()

    def _end_process(self) -> None:
        """End the process that we started, and its watchdog."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process in _detached:
                _detached.remove(self._process)
            self._process = None
        self._stop_watchdog()


def default_directory() -> Path:
    """Return the directory of ``downspout kafka start``."""
    return folders.home() / "kafka"


def find_access(directory: Path | None = None) -> tuple[str, dict[str, str]]:
    """Return the address of the ``embedded`` broker, and the kafka-python properties needed to connect.

    A password is a reference to its file.

    Raises:
        BrokerError: it does not run, or does not answer.
    """
    where = (directory or default_directory()).absolute()
    return find_bootstrap(where), read_security(where).settings


def find_bootstrap(directory: Path | None = None) -> str:
    """Return the address of the ``embedded`` broker, run by ``downspout kafka start``."""
    where = (directory or default_directory()).absolute()
    if (broker := broker_files.read_broker(where)) is None:
        raise BrokerError(f"No embedded Kafka is running in {where}", cure="`downspout kafka start`")
    if not _answers(broker, where, 10.0):
        raise BrokerError(
            f"The embedded Kafka {broker.bootstrap} (process {broker.pid}) does not answer",
            cure=f"`downspout kafka stop`, then `downspout kafka start`; its log is {where}/logs/server.log",
        )
    return broker.bootstrap


def _answers(broker: Broker, directory: Path, timeout_s: float = 2.0) -> bool:
    try:
        client = read_security(directory).client
        return address.ask(broker.host, broker.port, timeout_s, client).cluster_id == broker.cluster_id
    except (OSError, address.NotKafkaError, RefusedError, DownspoutError):
        return False
