"""The directory of a single-node Storm and the content of its files.

==================== ===========================================================================================
``lock``             held while a process starts or stops the node
``node.json``        the ports, which are reused by the next start
``daemons.json``     the daemons that were started: name, id, birth; written as each starts, removed by a stop
``home/``            Storm's home: ``conf/storm.yaml``, ``log4j2/``, ``lib-worker`` (a link to the jars)
``data/``            data of ZooKeeper, nimbus and supervisor; emptied at each start
``logs/``            ``zookeeper.log``, ``nimbus.log``, ``supervisor.log``, each with a ``.console`` (the JVM's own
                     output), and ``workers/TOPOLOGY/PORT/worker.log``
``bin/``             our ``storm`` and ``lein`` (see ``downspout.storm.program``)
==================== ===========================================================================================

Only the owner can access the directory (0700, and 0600 for our files, nimbus's and ZooKeeper's), because it contains
settings of topologies. Supervisor and workers keep the user's umask, for the sake of the components' output.

A node lives from start to stop. Nothing in ``data/`` is needed afterwards: Kafka and the logs of the Parquet
directories hold a topology's progress. So a start after ``kill -9`` begins with an empty ZooKeeper, not with half of
its data.

**Slots whose workers do not start** are found in the supervisor's log, together with the process that blocks them. The
supervisor may presume a starting worker dead and start another one in its slot. If the first comes up all the same, it
occupies the slot's port unsupervised, and each later worker ends with a BindException. That appears only in the
worker's own log; the supervisor just logs "failed to launch".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from downspout.storm import groups
from downspout.system import files
from downspout.system.files import replace_json
from downspout.system.loopback import HOST, free_port, is_free
from downspout.system.process import ProcessIdentity
from downspout.wire.values import KRYO

OURS = frozenset({"lock", "node.json", "daemons.json", "config.json", "counters.json", "home", "data", "logs", "bin"})
"""The entries of the directory."""

START_S_MAX = 45  # For the start of a worker; Storm allows 120
SLOTS = 4  # Workers that the supervisor can run; Storm's default

JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)
"""For the daemons, which must start fast and do little; workers run with the JVM's defaults."""

ZOO_CFG = """\
tickTime=2000
dataDir={data}
clientPortAddress={host}
clientPort={port}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=conf
"""

LOG4J = """\
<?xml version="1.0" encoding="UTF-8"?>
<configuration status="error" shutdownHook="disable">
  <appenders>
    {file}
    {more}
  </appenders>
  <loggers>
    <root level="info"><appender-ref ref="LOG"/></root>
    <logger name="org.apache.zookeeper" level="warn"/>
    <logger name="org.apache.storm.shade.org.apache.zookeeper" level="warn"/>
    <logger name="org.apache.storm.shade.org.apache.curator" level="warn"/>
    <logger name="org.apache.storm.logging.ThriftAccessLogger" level="warn"/>
    {loggers}
  </loggers>
</configuration>
"""
_FILE = (
    '<RollingFile name="{name}" fileName="{path}" filePattern="{path}.%i">'
    '<PatternLayout charset="UTF-8" pattern="{line}"/>'
    '<Policies><SizeBasedTriggeringPolicy size="20 MB"/></Policies><DefaultRolloverStrategy max="3"/></RollingFile>'
)
LINE = "%d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %c{1} [%t] %msg%n"
_WORKER = "${sys:workers.artifacts}/${sys:storm.id}/${sys:worker.port}/${sys:logfile.name}"

LOG4J_DAEMON = LOG4J.format(
    file=_FILE.format(name="LOG", path="${sys:storm.log.dir}/${sys:logfile.name}", line=LINE), more="", loggers=""
)
# Storm's LogWriter, which starts each worker, logs the output of the worker's JVM to STDOUT and STDERR.
LOG4J_WORKER = LOG4J.format(
    file=_FILE.format(name="LOG", path=_WORKER, line=LINE),
    more=_FILE.format(name="CONSOLE", path=_WORKER + ".console", line="%msg%n"),
    loggers="".join(
        f'<logger name="{name}" level="info" additivity="false"><appender-ref ref="CONSOLE"/></logger>'
        for name in ("STDOUT", "STDERR")
    ),
)


@dataclass(frozen=True)
class Ports:
    """The ports of a node."""

    zookeeper: int
    nimbus: int
    supervisor: int
    slots: tuple[int, ...]

    @classmethod
    def choose(cls, former: Ports | None = None, nimbus: int | None = None) -> Ports:
        """Return ports that are free now: the requested one, the previous ones, or any."""
        wanted = [former.zookeeper, former.nimbus, former.supervisor, *former.slots] if former else [0] * (3 + SLOTS)
        if nimbus is not None:
            wanted[1] = nimbus
        chosen: list[int] = []
        for port in wanted:
            while port in chosen or not port or (port != nimbus and not is_free(port)):
                port = free_port()
            chosen.append(port)
        return cls(chosen[0], chosen[1], chosen[2], tuple(chosen[3:]))


@dataclass(frozen=True)
class Daemons:
    """The daemons, in the order of their start."""

    version: str
    processes: dict[str, ProcessIdentity] = field(default_factory=dict)

    @property
    def alive(self) -> list[str]:
        """The names of the running ones."""
        return [name for name, daemon in self.processes.items() if daemon.is_alive]

    @property
    def has_survivors(self) -> bool:
        """Whether any process of their groups runs, such as a worker after all daemons were killed."""
        return any(groups.survivors(daemon) for daemon in self.processes.values())


def read_ports(directory: Path) -> Ports | None:
    """Return the content of ``node.json``, or None if it is missing or unreadable."""
    try:
        values = json.loads((directory / "node.json").read_text(encoding="utf-8"))
        return Ports(values["zookeeper"], values["nimbus"], values["supervisor"], tuple(values["slots"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_daemons(directory: Path) -> Daemons | None:
    """Return the content of ``daemons.json``, whether its processes run or not; None if missing or unreadable."""
    try:
        values = json.loads((directory / "daemons.json").read_text(encoding="utf-8"))
        processes = {name: ProcessIdentity(**each) for name, each in values["processes"].items()}
        return Daemons(values["version"], processes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write(directory: Path, what: Ports | Daemons) -> None:
    """Replace ``node.json`` or ``daemons.json`` atomically."""
    name, values = "node.json" if isinstance(what, Ports) else "daemons.json", asdict(what)
    if isinstance(what, Daemons):
        values["processes"] = {each: process._asdict() for each, process in what.processes.items()}
    replace_json(directory / name, values, 0o600)


def storm_yaml(directory: Path, ports: Ports, overrides: Mapping[str, Any] | None = None) -> str:
    """Return Storm's configuration for one node; JSON, which is YAML too.

    >>> '"nimbus.thrift.port": 3' in storm_yaml(Path("/x"), Ports(2, 3, 4, (5,)))
    True
    """
    values = {
        "storm.zookeeper.servers": [HOST],
        "storm.zookeeper.port": ports.zookeeper,
        "nimbus.seeds": [HOST],
        "nimbus.thrift.port": ports.nimbus,
        "supervisor.thrift.port": ports.supervisor,
        "supervisor.slots.ports": list(ports.slots),
        "storm.local.hostname": HOST,
        "storm.local.dir": str(directory / "data"),
        "storm.workers.artifacts.dir": str(directory / "logs" / "workers"),
        "storm.blobstore.replication.factor": 1,
        # One user on one machine: exact and fresh figures, workers that start and are replaced at once.
        "topology.stats.sample.rate": 1.0,
        "executor.metrics.frequency.secs": 5,
        "nimbus.monitor.freq.secs": 2,
        "supervisor.monitor.frequency.secs": 1,
        # While a worker starts, the supervisor waits for its first heartbeat and does not watch its process: one that
        # dies while starting is noticed after the larger of these two. A start takes about 4 s, at a tenfold overload
        # of the machine about 20, at a thirtyfold one more than 30.
        "supervisor.worker.start.timeout.secs": START_S_MAX,
        "supervisor.worker.timeout.secs": START_S_MAX,
        # Nimbus moves silent workers to other slots. The only supervisor replaces them anyway, so nimbus must wait
        # longer than the supervisor; otherwise it would kill workers that are still starting.
        "nimbus.task.timeout.secs": 2 * START_S_MAX,
        "nimbus.task.launch.secs": 2 * START_S_MAX,
        "task.refresh.poll.secs": 2,
        "worker.childopts": "-Xmx%HEAP-MEM%m -XX:+UseSerialGC -XX:-UsePerfData",
        "topology.worker.logwriter.childopts": "-Xmx64m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
        "storm.daemon.metrics.reporter.plugins": [],
        **KRYO,  # for topologies without our spout, which registers it on any cluster
        **(overrides or {}),
    }
    return json.dumps(values, indent=1) + "\n"


def write_home(directory: Path, ports: Ports, library: Path, overrides: Mapping[str, Any] | None = None) -> None:
    """Write the files that Storm reads at its start."""
    home = directory / "home"
    logs, data = directory / "logs", directory / "data"
    # Each one by itself: `parents=True` would ignore the mode for parents.
    for folder in (home, home / "conf", home / "log4j2", logs, logs / "workers", data, data / "supervisor"):
        folder.mkdir(mode=0o700, exist_ok=True)
    (logs / "supervisor.log").touch(0o600)
    link = home / "lib-worker"
    if link.is_symlink():
        link.unlink()
    link.symlink_to(library.absolute())
    files.write(home / "conf" / "storm.yaml", storm_yaml(directory, ports, overrides))
    zoo = ZOO_CFG.format(data=directory / "data" / "zookeeper", host=HOST, port=ports.zookeeper)
    files.write(home / "conf" / "zoo.cfg", zoo)
    files.write(home / "log4j2" / "cluster.xml", LOG4J_DAEMON)
    files.write(home / "log4j2" / "worker.xml", LOG4J_WORKER)


def python_path(first: str, environ: Mapping[str, str]) -> str:
    """Return a PYTHONPATH that starts with these folders.

    Relative ones depend on the working directory: ``src`` serves any project in whose root ``sparse`` is called. An
    editable installation has its whole checkout on the path, and streamparse appends a project's folder after that; so
    the checkout's ``spouts`` would hide the project's.

    >>> python_path("src", {"PYTHONPATH": "src:/x"}), python_path("src", {})
    ('src:/x', 'src')
    """
    rest = [
        part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in first.split(os.pathsep)
    ]
    return os.pathsep.join([first, *rest])


# --- stuck slots ---

LOG_BYTES = 2 * 1024 * 1024
PROC = Path("/proc")
_FAILED = re.compile(r"\bSLOT (\d+): Container .* failed to launch in \d+ ms")
_STATE = re.compile(r"\[SLOT_(\d+)\] STATE .*-> (\S+) msInState: \d+(?: topo:\S+ worker:(\S+))?")


@dataclass(frozen=True)
class StuckSlot:
    """A slot whose last workers failed to launch."""

    port: int
    failures: int  # in a row
    is_taken: bool  # whether a process has its port
    holder: int | None  # that process, if known
    held_by: str  # "a worker of TOPOLOGY-ID", or the process's program

    def __str__(self) -> str:
        times = "once" if self.failures == 1 else f"{self.failures} times in a row"
        text = f"slot {self.port}: its worker failed to launch {times}"
        if self.holder is not None:
            return f"{text}; process {self.holder} ({self.held_by}) has its port. Try: kill {self.holder}"
        if self.is_taken:
            return f"{text}; another process has its port. Try: `lsof -i :{self.port}`, and end that process"
        return f"{text}. Try: `downspout storm logs`, which has the worker's own log"


def stuck_slots(log: Path) -> list[StuckSlot]:
    """Return the slots without a worker because, according to the supervisor's log, the last ones failed to launch."""
    failures: dict[int, int] = {}
    starting: dict[int, str] = {}  # the id of the worker that is being started
    for line in _tail(log):
        if failed := _FAILED.search(line):
            failures[int(failed[1])] = failures.get(int(failed[1]), 0) + 1
        elif state := _STATE.search(line):
            port, name, worker = int(state[1]), state[2], state[3]
            if name in ("running", "empty"):
                failures.pop(port, None)
            starting[port] = worker or ""
    found = []
    for port, count in sorted(failures.items()):
        is_taken = not is_free(port)
        holder = _listener(port) if is_taken else None
        words = _command(holder) if holder is not None else []
        if f"-Dworker.id={starting.get(port)}" not in words:  # otherwise the worker is just starting
            found.append(StuckSlot(port, count, is_taken, holder, _named(words)))
    return found


def _tail(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return
    yield from text.splitlines()


def _listener(port: int) -> int | None:
    """Return the process that listens at a port; None if unknown: another user's process, or not on Linux."""
    sockets = set()
    for table in (PROC / "net" / "tcp", PROC / "net" / "tcp6"):
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{rest[5]}]")
    for entry in PROC.glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if str(entry.readlink()) in sockets:
                return int(entry.parent.parent.name)
    return None


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    return []


def _named(words: list[str]) -> str:
    """Describe a process by its command line.

    >>> _named(["/usr/bin/java", "-Dstorm.id=rows-1-17", "-Dworker.id=7c1f"]), _named(["/usr/bin/python3", "-m", "x"])
    ('a worker of rows-1-17', 'python3')
    """
    topology = next((word.partition("=")[2] for word in words if word.startswith("-Dstorm.id=")), "")
    return f"a worker of {topology}" if topology else Path(words[0]).name if words else ""
