"""The files in an embedded broker's directory, and the setup of a protected broker.

==================== ===========================================================================================
``lock``             held by the broker itself as long as it lives (see ``downspout.system.files``)
``cluster.json``     the cluster's id and the last port, kept across restarts
``broker.json``      the running broker: host, port, pid, start of the process, cluster id; written when it answers
``server.properties````log4j2.properties``: written anew at each start
``data/``            Kafka's own
``logs/``            ``server.log`` (Kafka's log, rolled) and ``console.log`` (output of the JVM itself)
``security/``        of a protected broker: ``security.json`` (protocol and mechanism), ``ca.pem`` (the broker's
                     certificate, which is its own authority), ``keystore.p12`` with its password, and the password
                     of the one user, ``downspout``
==================== ===========================================================================================

Only the owner has access (0700, 0600): the files hold records, and ``broker.json`` names the process that the next stop
ends. Kafka runs inside the directory, so its configuration contains no path to escape.

Protection is fixed when the directory is made. Broker and controller use mutual TLS, though they are one process, so
the controller's port is protected, too. Passwords are random, and never on a command line.
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
"""The content of the directory."""

BROKER, CONTROLLER, BOTH = "broker", "controller", "broker,controller"  # Roles of a node

RECORD_BYTES_MAX = 16 * 1024 * 1024
FOREVER_MS = 100 * 365 * 24 * 3600 * 1000

JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",  # halves the start time; a broker mostly copies bytes
    "-XX:+UseSerialGC",
    "-Xms64m",
    "-Xmx256m",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
)

# The shutdown hook would silence the log while the broker is still shutting down.
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
    """Return the configuration of a node that listens on the loopback address only.

    By default it is broker and controller; ``roles`` can limit it to one of these.

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
        # one node cannot replicate
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # with few partitions, the internal topics start faster
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # After `kill -9` the controller refuses the broker until its old session expires (by default 9 s), and the
        # broker retries after 0.1, 0.3, 0.7, 1.5, 3.1 … s.
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "2500",
        "group.min.session.timeout.ms": "500",
        # a misspelt topic is an error; a record of 5 MiB is not
        "auto.create.topics.enable": "false",
        "message.max.bytes": str(RECORD_BYTES_MAX),
        "replica.fetch.max.bytes": str(RECORD_BYTES_MAX),
        # Retention and rolling use the records' own timestamps: flights of 2013 would be deleted at once, and a year
        # of them in event-time order would be split into weekly segments.
        "log.retention.ms": "-1",
        "log.roll.ms": str(FOREVER_MS),
        # fits into the heap of 256 MiB
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
        **(overrides or {}),
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


@dataclass(frozen=True)
class ClusterFile:
    """The identity of a cluster across restarts."""

    cluster_id: str
    port: int | None = None
    formatted: bool = False


@dataclass(frozen=True)
class Broker:
    """A broker that answered when this was written."""

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
        """Its process."""
        return ProcessIdentity(self.pid, self.birth)

    @property
    def is_alive(self) -> bool:
        """Whether that process still runs, not another one with its pid."""
        return self.process.is_alive


def new_cluster_id() -> str:
    """Return an id in Kafka's format: a random UUID in URL-safe base64, without a leading dash.

    >>> len(new_cluster_id())
    22
    """
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def read_cluster(directory: Path) -> ClusterFile | None:
    """Read ``cluster.json``; None: missing or unreadable."""
    found: ClusterFile | None = _read(directory / "cluster.json", ClusterFile)
    return found


def read_broker(directory: Path) -> Broker | None:
    """Read ``broker.json``; None: no running broker."""
    broker: Broker | None = _read(directory / "broker.json", Broker)
    # After ``kill -9`` or a power cut the file is stale: its process is gone, or another one has its pid.
    return broker if broker is not None and broker.is_alive else None


def read_ports(directory: Path, count: int) -> list[int] | None:
    """Return a cluster's previous ports, if there were ``count``: first for clients, then for controllers."""
    try:
        ports = json.loads((directory / "ports.json").read_text(encoding="utf-8"))["ports"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = isinstance(ports, list) and len(ports) == count and all(isinstance(port, int) for port in ports)
    return ports if whole else None


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return kind(**values)
    except (OSError, ValueError, TypeError):
        return None


def write(directory: Path, what: ClusterFile | Broker) -> None:
    """Replace ``cluster.json`` or ``broker.json`` atomically."""
    name = "cluster.json" if isinstance(what, ClusterFile) else "broker.json"
    replace_json(directory / name, asdict(what), 0o600)


# --- A protected broker ---


PROTOCOLS = {"plaintext": "PLAINTEXT", "ssl": "SSL", "sasl_plaintext": "SASL_PLAINTEXT", "sasl_ssl": "SASL_SSL"}
BY_OPTIONS = {(False, False): None, (True, False): "ssl", (False, True): "sasl_plaintext", (True, True): "sasl_ssl"}
"""The protocol of ``--tls`` and ``--sasl``; without both: the directory's own."""
MECHANISM = "SCRAM-SHA-256"
USER = "downspout"
FOLDER = "security"
VALID_DAYS = 3650
KEYTOOL_S_MAX = 60.0
KEYTOOL = "java.base/sun.security.tools.keytool.Main"
"""The main class of ``keytool``, which also works in a Java without that program."""


@dataclass(frozen=True)
class Security:
    """The protection of a directory's broker."""

    directory: Path
    protocol: str = "PLAINTEXT"  # PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    mechanism: str = ""  # of SASL, if used

    @property
    def folder(self) -> Path:
        """The folder of the security files."""
        return self.directory / FOLDER

    @property
    def is_open(self) -> bool:
        """Whether it has no protection: everybody on this machine can connect."""
        return self.protocol == "PLAINTEXT"

    @property
    def settings(self) -> dict[str, str]:
        """A client's kafka-python properties; the password is a reference to its file."""
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
        """A client's properties for ``downspout.toml``; empty: none needed."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.settings.items()]
        head = ["", "kafka.bootstrap = embedded needs no settings; other clients need", "[kafka.client]"]
        return "\n".join([*head, *lines]) if lines else ""

    @property
    def client(self) -> dict[str, Any]:
        """A client's properties, with the password itself. Raises ConfigError: its file is missing."""
        return resolve_client(self.settings)

    def properties(self, port: int, controller_port: int) -> dict[str, str]:
        """Return settings that override or extend those of an open broker; they hold secrets."""
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
        """Return further arguments for formatting the directory; they hold a secret."""
        if not self.mechanism.startswith("SCRAM"):
            return []
        password = _secret(self.folder / "password")
        return ["--add-scram", f"{self.mechanism}=[name={USER},password={password}]"]


def read_security(directory: Path) -> Security:
    """Read the protection of a directory's broker; without ``security.json`` it is open."""
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
    """Return the protection of a broker that is about to start; make the files of a new one.

    Without ``protocol`` and ``mechanism``, an existing directory keeps its own, and a new one is open.

    Raises:
        ConfigError: an unknown protocol or mechanism.
        BrokerError: the directory has another, or the certificate cannot be made.
        OSError: the directory cannot be written to.
    """
    if is_new:
        wanted = _wanted(directory, protocol, mechanism)
        if not wanted.is_open:
            _make(wanted, java)
        return wanted
    return check_wanted(directory, protocol, mechanism)


def check_wanted(directory: Path, protocol: str | None, mechanism: str | None) -> Security:
    """Return the protection of an existing directory's broker.

    Raises:
        ConfigError: an unknown protocol or mechanism.
        BrokerError: the directory has another.
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
    """Write all security files of a new broker, replacing those of an earlier attempt."""
    shutil.rmtree(security.folder, ignore_errors=True)
    security.folder.mkdir(mode=0o700)
    make_keystore(security.folder, java)
    files.write(security.folder / "password", f"{secrets.token_urlsafe(24)}\n")
    files.replace_json(
        security.folder / "security.json", {"protocol": security.protocol, "mechanism": security.mechanism}, 0o600
    )


def make_keystore(folder: Path, java: Path, *, start: str = "-1d", days: int = VALID_DAYS) -> None:
    """Make a key, and a self-signed certificate for the loopback address; replace existing files.

    ``start`` is the beginning of its validity, relative to now, in keytool's format.

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
    """Write a file for Java, which reads Latin-1 only, and which may hold secrets."""
    files.write(path, text.encode("latin-1", "backslashreplace"))


def argument_file(path: Path, arguments: list[str]) -> str:
    """Write an argument file for Java's launcher, and return the argument that names it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     argument_file(Path(folder) / "x.args", ["a", 'b "c"']), (Path(folder) / "x.args").read_text()
    ('@x.args', '"a"\\n"b \\\\"c\\\\""\\n')
    """
    quoted = ['"{}"'.format(argument.replace("\\", "\\\\").replace('"', '\\"')) for argument in arguments]
    write_private(path, "".join(f"{line}\n" for line in quoted))
    return f"@{path.name}"
