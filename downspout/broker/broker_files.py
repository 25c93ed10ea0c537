"""What is in an embedded broker's directory, and what its files say.

==================== ===========================================================================================
``lock``             held by the broker itself as long as it lives (see ``downspout.system.files``)
``cluster.json``     the cluster's id and the last port: what makes it the same cluster after a restart
``broker.json``      the running broker: host, port, pid, birth of the process, cluster id; written when it answers
``server.properties````log4j2.properties``: written anew at each start
``data/``            Kafka's own
``logs/``            ``server.log`` (Kafka's log, rolled) and ``console.log`` (output of the JVM itself)
``security/``        of a protected broker: see ``downspout.broker.security``
==================== ===========================================================================================

All of it is its owner's alone (0700, 0600): records are in it, and ``broker.json`` names the process
that the next stop ends.

Kafka runs inside the directory, so its configuration names no path that would have to be escaped.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from downspout.system.files import replace_json
from downspout.system.loopback import HOST
from downspout.system.process import ProcessIdentity

OURS = frozenset(
    {
        "lock",
        "cluster.json",
        "broker.json",
        "server.properties",
        "format.args",
        "log4j2.properties",
        "data",
        "logs",
        "security",
    }
)
"""What is in the directory."""

BROKER, CONTROLLER, BOTH = "broker", "controller", "broker,controller"  # What a node is

RECORD_BYTES_MAX = 16 * 1024 * 1024
FOREVER_MS = 100 * 365 * 24 * 3600 * 1000

JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",  # starts in half the time; a broker mostly copies bytes
    "-XX:+UseSerialGC",
    "-Xms64m",
    "-Xmx256m",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
)

# Without its shutdown hook: it would silence the log while the broker is still shutting down.
LOG4J = """\
status = error
shutdownHook = disable
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = logs/server.log
appender.file.filePattern = logs/server.%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %c{1}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.requests.name = kafka.network.RequestChannel$
logger.requests.level = warn
"""


def server_properties(
    port: int, controller_port: int, overrides: Mapping[str, str] | None = None, roles: str = BOTH
) -> str:
    """Return the configuration of a single broker that is its own controller, reachable from this machine alone.

    With other ``roles`` it is a broker whose controller is elsewhere, or a controller alone.

    >>> "listeners=PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002" in server_properties(20001, 20002)
    True
    """
    broker, controller = f"PLAINTEXT://{HOST}:{port}", f"CONTROLLER://{HOST}:{controller_port}"
    values = {
        "process.roles": roles,
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": {BOTH: f"{broker},{controller}", BROKER: broker, CONTROLLER: controller}[roles],
        "advertised.listeners": controller if roles == CONTROLLER else broker,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "data",
        # one node: nothing can be replicated
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # one user: few partitions of the internal topics start faster
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # After `kill -9` the controller refuses the broker until its former session has run out (9 s by default), and
        # the broker asks after 0.1, 0.3, 0.7, 1.5, 3.1 … s.
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "2500",
        "group.min.session.timeout.ms": "500",
        # a misspelt topic is an error, and a record of 5 MiB is none
        "auto.create.topics.enable": "false",
        "message.max.bytes": str(RECORD_BYTES_MAX),
        "replica.fetch.max.bytes": str(RECORD_BYTES_MAX),
        # Retention and rolling go by the records' own timestamps: flights of 2013 would be deleted at once, and a year
        # of them in event-time order would be cut into a segment per week.
        "log.retention.ms": "-1",
        "log.roll.ms": str(FOREVER_MS),
        # small: 256 MiB of heap are for everything
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
        **(overrides or {}),
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


@dataclass(frozen=True)
class Cluster:
    """What makes it the same cluster after a restart."""

    cluster_id: str
    port: int | None = None
    formatted: bool = False


@dataclass(frozen=True)
class Broker:
    """A broker that answers, or did when this was written."""

    host: str
    port: int
    pid: int
    birth: str
    cluster_id: str

    @property
    def bootstrap(self) -> str:
        """Its address as ``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def process(self) -> ProcessIdentity:
        """The process that it is."""
        return ProcessIdentity(self.pid, self.birth)

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs (not another one that was given its id)."""
        return self.process.is_alive


def new_cluster_id() -> str:
    """Return an id in Kafka's form: a random UUID in URL-safe base64, never with a leading dash.

    >>> len(new_cluster_id())
    22
    """
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def read_cluster(directory: Path) -> Cluster | None:
    """Return what ``cluster.json`` says, or None where there is none that can be read."""
    found: Cluster | None = _read(directory / "cluster.json", Cluster)
    return found


def read_broker(directory: Path) -> Broker | None:
    """Return what ``broker.json`` says of a process that still runs; a stale file counts as none."""
    broker: Broker | None = _read(directory / "broker.json", Broker)
    # The file is stale after ``kill -9`` or a power cut: its process is gone, or its id belongs to another process.
    return broker if broker is not None and broker.is_alive else None


def read_ports(directory: Path, count: int) -> list[int] | None:
    """Return the ports that a cluster had, if it had so many: those for clients, then those of the controllers."""
    try:
        ports = json.loads((directory / "ports.json").read_text(encoding="utf-8"))["ports"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ports if len(ports) == count and all(isinstance(port, int) for port in ports) else None


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return kind(**values)
    except (OSError, ValueError, TypeError):
        return None


def write(directory: Path, what: Cluster | Broker) -> None:
    """Write ``cluster.json`` or ``broker.json``, so that a reader sees the whole old or new one."""
    replace_json(directory / f"{type(what).__name__.lower()}.json", asdict(what), 0o600)
