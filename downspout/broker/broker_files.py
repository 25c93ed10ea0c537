"""The files in an embedded broker's directory, and how a protected broker is set up.

==================== ===========================================================================================
``lock``             held by the broker itself as long as it lives (see ``downspout.system.files``)
``cluster.json``     the cluster's id and the last port: what makes it the same cluster after a restart
``broker.json``      the running broker: host, port, pid, birth of the process, cluster id; written when it answers
``server.properties````log4j2.properties``: written anew at each start
``data/``            Kafka's own
``logs/``            ``server.log`` (Kafka's log, rolled) and ``console.log`` (output of the JVM itself)
``security/``        of a protected broker: ``security.json`` (protocol and mechanism), ``ca.pem`` (the broker's
                     certificate, which is its own authority), ``keystore.p12`` with its password, and the password
                     of the one user, ``downspout``
==================== ===========================================================================================

Everything belongs to its owner alone (0700, 0600): it holds records, and ``broker.json`` names the process that the
next stop ends. Kafka runs inside the directory, so its configuration names no path that would have to be escaped.

Protection is chosen when the directory is made, and stays. Between broker and controller, which are one process, TLS is
spoken with certificates on both sides: the controller's port is as closed as the broker's. Passwords are random, and no
program gets one on its command line.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from downspout.errors import BrokerError, ConfigError
from downspout.kafka.address import MECHANISMS
from downspout.settings.secrets import resolve_client
from downspout.system import files
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
class ClusterFile:
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


def read_cluster(directory: Path) -> ClusterFile | None:
    """Return what ``cluster.json`` says, or None where there is none that can be read."""
    found: ClusterFile | None = _read(directory / "cluster.json", ClusterFile)
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


def write(directory: Path, what: ClusterFile | Broker) -> None:
    """Write ``cluster.json`` or ``broker.json``, so that a reader sees the whole old or new one."""
    name = "cluster.json" if isinstance(what, ClusterFile) else "broker.json"
    replace_json(directory / name, asdict(what), 0o600)


# --- A protected broker ---


PROTOCOLS = {"plaintext": "PLAINTEXT", "ssl": "SSL", "sasl_plaintext": "SASL_PLAINTEXT", "sasl_ssl": "SASL_SSL"}
BY_OPTIONS = {(False, False): None, (True, False): "ssl", (False, True): "sasl_plaintext", (True, True): "sasl_ssl"}
"""What ``--tls`` and ``--sasl`` stand for; without both: whatever the directory was made with."""
MECHANISM = "SCRAM-SHA-256"
USER = "downspout"
FOLDER = "security"
VALID_DAYS = 3650
KEYTOOL_S_MAX = 60.0
KEYTOOL = "java.base/sun.security.tools.keytool.Main"
"""The program ``keytool``: every Java can run it, also one that has no such program beside it."""


@dataclass(frozen=True)
class Security:
    """How the broker of a directory is protected."""

    directory: Path  # of the broker
    protocol: str = "PLAINTEXT"  # of Kafka: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    mechanism: str = ""  # of SASL; empty without it

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.directory / FOLDER

    @property
    def is_open(self) -> bool:
        """Whether everybody on this machine may enter."""
        return self.protocol == "PLAINTEXT"

    @property
    def settings(self) -> dict[str, str]:
        """What a client needs, in kafka-python's spelling; the password is a reference to its file."""
        if self.is_open:
            return {}
        found = {"security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            found["ssl_cafile"] = str(self.folder / "ca.pem")
        if self.mechanism:
            found["sasl_mechanism"] = self.mechanism
            found["sasl_plain_username"] = USER
            found["sasl_plain_password"] = f"file:{self.folder / 'password'}"
        return found

    @property
    def client_hint(self) -> str:
        """What a client needs, for ``downspout.toml``; empty: nothing."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.settings.items()]
        head = ["", "kafka.bootstrap = embedded needs no settings; other clients need", "[kafka.client]"]
        return "\n".join([*head, *lines]) if lines else ""

    @property
    def client(self) -> dict[str, Any]:
        """What a client needs, with the password itself. Raises ConfigError: the file of the password is gone."""
        return resolve_client(self.settings)

    def properties(self, port: int, controller_port: int) -> dict[str, str]:
        """Return settings of the broker, in place of or besides those of an open one; they hold secrets."""
        if self.is_open:
            return {}
        listener = self.protocol
        found = {
            "listeners": f"{listener}://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"{listener}://{HOST}:{port}",
            "listener.security.protocol.map": f"{listener}:{listener},CONTROLLER:SSL",
            "inter.broker.listener.name": listener,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": f"{FOLDER}/keystore.p12",
            "ssl.keystore.password": _secret(self.folder / "keystore.password"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": f"{FOLDER}/ca.pem",
            "listener.name.controller.ssl.client.auth": "required",
        }
        return {**found, **self._sasl(_secret(self.folder / "password"))} if self.mechanism else found

    def _sasl(self, password: str) -> dict[str, str]:
        scram = self.mechanism.startswith("SCRAM")
        module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
        login = f'org.apache.kafka.common.security.{module} required username="{USER}" password="{password}"'
        users = "" if scram else f' user_{USER}="{password}"'
        prefix = f"listener.name.{self.protocol.lower()}"
        return {
            "sasl.enabled.mechanisms": self.mechanism,
            "sasl.mechanism.inter.broker.protocol": self.mechanism,
            f"{prefix}.{self.mechanism.lower()}.sasl.jaas.config": f"{login}{users};",
        }

    def format_arguments(self) -> list[str]:
        """Return what formatting the directory needs besides; it holds a secret."""
        if not self.mechanism.startswith("SCRAM"):
            return []
        password = _secret(self.folder / "password")
        return ["--add-scram", f"{self.mechanism}=[name={USER},password={password}]"]


def read_security(directory: Path) -> Security:
    """Return how the broker of a directory is protected; one that says nothing of it is open."""
    path = directory / FOLDER / "security.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Security(directory, str(found["protocol"]), str(found["mechanism"]))
    except FileNotFoundError:
        return Security(directory)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BrokerError(
            f"{path} cannot be read: {error}", cure="restore it, or remove the directory if its records are not needed"
        ) from None


def decide(directory: Path, protocol: str | None, mechanism: str | None, *, java: Path, is_new: bool) -> Security:
    """Return how a broker is protected that is about to start, with all files that it needs.

    ``protocol`` and ``mechanism`` are None where any will do: as it is, and open where it is new.

    Raises:
        ConfigError: no such protocol or mechanism.
        BrokerError: the directory's is another, or the certificate cannot be made.
        OSError: the directory cannot be written to.
    """
    if is_new:
        wanted = _wanted(directory, protocol, mechanism)
        if not wanted.is_open:
            _make(wanted, java)
        return wanted
    return check_wanted(directory, protocol, mechanism)


def check_wanted(directory: Path, protocol: str | None, mechanism: str | None) -> Security:
    """Return how the broker of a directory is protected, which was made before.

    Raises:
        ConfigError: no such protocol or mechanism.
    """
    wanted, found = _wanted(directory, protocol, mechanism), read_security(directory)
    if protocol is not None and wanted != found:
        raise BrokerError(
            f"the broker of {directory} was made with {_name(found)}, not with {_name(wanted)}",
            cure="another directory; or remove this one if its records are not needed",
        )
    return found


def _wanted(directory: Path, protocol: str | None, mechanism: str | None) -> Security:
    if protocol is not None and protocol not in PROTOCOLS:
        raise ConfigError(f"security = {protocol!r} is unknown", cure=", ".join(PROTOCOLS))
    name = PROTOCOLS[protocol or "plaintext"]
    if not name.startswith("SASL_"):
        return Security(directory, name)
    if mechanism is not None and mechanism.upper() not in MECHANISMS:
        raise ConfigError(f"mechanism = {mechanism!r} is unknown", cure=", ".join(MECHANISMS))
    return Security(directory, name, (mechanism or MECHANISM).upper())


def _name(security: Security) -> str:
    return f"{security.protocol} {security.mechanism}".strip()


def _make(security: Security, java: Path) -> None:
    """Write all files of a new broker; what an earlier attempt left is replaced."""
    shutil.rmtree(security.folder, ignore_errors=True)
    security.folder.mkdir(mode=0o700)
    make_keystore(security.folder, java)
    files.write(security.folder / "password", f"{secrets.token_urlsafe(24)}\n")
    files.replace_json(
        security.folder / "security.json", {"protocol": security.protocol, "mechanism": security.mechanism}, 0o600
    )


def make_keystore(folder: Path, java: Path, *, start: str = "-1d", days: int = VALID_DAYS) -> None:
    """Make a key, and a certificate for the loopback address that is its own authority.

    Files of a former one are replaced. ``start`` is when it becomes valid, relative to now, as keytool takes it.

    Raises:
        BrokerError: keytool fails.
        OSError: the folder cannot be written to.
    """
    for name in ("keystore.p12", "ca.pem"):
        (folder / name).unlink(missing_ok=True)
    files.write(folder / "keystore.password", f"{secrets.token_urlsafe(24)}\n")
    store = ["-alias", "kafka", "-keystore", "keystore.p12", "-storetype", "PKCS12"]
    store += ["-storepass:file", "keystore.password"]
    _keytool(
        folder, java, "-genkeypair", *store, "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=downspout",
        "-startdate", start, "-validity", str(days),
        "-ext", f"san=ip:{HOST},dns:localhost", "-ext", "bc:critical=ca:true",
        "-ext", "ku:critical=digitalSignature,keyCertSign",
    )  # fmt: skip
    _keytool(folder, java, "-exportcert", "-rfc", *store, "-file", "ca.pem")


def _keytool(folder: Path, java: Path, *arguments: str) -> None:
    command = [str(java), "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-m", KEYTOOL, *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=KEYTOOL_S_MAX, check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BrokerError(f"keytool {arguments[0]} does not end after {KEYTOOL_S_MAX:g} s", cure="try again") from None
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())[:300]
        raise BrokerError(f"no certificate could be made: keytool {arguments[0]}: {said}", cure=f"look at {java}")


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BrokerError(f"{path} cannot be read: {error.strerror}", cure="restore it") from None


def write_private(path: Path, text: str) -> None:
    """Write a file of Java's, which reads no other letters than Latin-1, and which may hold secrets."""
    files.write(path, text.encode("latin-1", "backslashreplace"))


def argument_file(path: Path, arguments: list[str]) -> str:
    """Write arguments of Java where its launcher finds them, and return what stands for them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     argument_file(Path(folder) / "x.args", ["a", 'b "c"']), (Path(folder) / "x.args").read_text()
    ('@x.args', '"a"\\n"b \\\\"c\\\\""\\n')
    """
    quoted = ['"{}"'.format(argument.replace("\\", "\\\\").replace('"', '\\"')) for argument in arguments]
    write_private(path, "".join(f"{line}\n" for line in quoted))
    return f"@{path.name}"
