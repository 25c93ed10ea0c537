"""An embedded broker that speaks TLS, asks for a password, or both: its certificate, its user, its settings.

What it is protected by is chosen when its directory is made, and stays. Everything is in the folder ``security`` of
that directory, for its owner alone:

===================== ========================================================================================
``security.json``     protocol and mechanism
``ca.pem``            the broker's certificate, which is its own authority: what clients trust
``keystore.p12``      the certificate with its key; ``keystore.password`` opens it
``password``          of the one user, ``downspout``
===================== ========================================================================================

Between broker and controller, which are one process, TLS is spoken with certificates on both sides: the controller's
port is as closed as the broker's. Passwords are made at random; no program gets one on its command line.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downspout.errors import BrokerError, ConfigError
from downspout.kafka.address import MECHANISMS
from downspout.settings.secrets import resolve_client
from downspout.system import files
from downspout.system.loopback import HOST

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
        head = ["", "kafka.bootstrap = embedded knows how to enter; others need", "[kafka.client]"]
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
