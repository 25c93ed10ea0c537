"""Parse bootstrap strings, and diagnose addresses that do not work.

A client retries in the background until it times out: a wrong password and an expired certificate both end as "timed
out". This module sends one request to an address without a client. The result is one of: nobody listens, unknown host
name, not Kafka, refused (TLS or SASL, with the broker's message and a cure), or answered. No message holds a secret.
"""

from __future__ import annotations

import queue
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka.net.sasl import get_sasl_mechanism

from downspout.errors import ConfigError
from downspout.kafka.patches.connecting import tls_context

# --- One question on a connection ---


ANSWER_BYTES_MAX = 4 * 1024 * 1024
TLS_ALERT = b"\x15\x03"
CLIENT_ID = b"downspout"


class NotKafkaError(Exception):
    """The peer does not behave like a Kafka broker."""


class HungUpError(NotKafkaError):
    """The peer closed the connection or sent a TLS alert, as brokers do if the security protocol is wrong."""


class AnswerReader:
    """Reads the fields of a response in order.

    >>> reader = AnswerReader(bytes([0, 0, 0, 7, 0, 2]) + b"ab" + bytes([255, 255]))
    >>> reader.number(">i"), reader.text(), reader.text()
    (7, 'ab', '')
    """

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._place = 0

    def number(self, form: str) -> int:
        """Return the next number; ``form`` is a format of ``struct``."""
        try:
            (value,) = struct.unpack_from(form, self._answer, self._place)
        except struct.error:
            raise NotKafkaError("the answer is cut short") from None
        self._place += struct.calcsize(form)
        return int(value)

    def data(self, form: str) -> bytes:
        """Return the next length-prefixed bytes; null is empty."""
        size = max(self.number(form), 0)  # -1: null
        if self._place + size > len(self._answer):
            raise NotKafkaError("the answer is cut short")
        self._place += size
        return self._answer[self._place - size : self._place]

    def text(self) -> str:
        """Return the next text."""
        try:
            return self.data(">h").decode()
        except UnicodeDecodeError as error:
            raise NotKafkaError(f"the answer cannot be read: {error}") from None


def text(value: str) -> bytes:
    """Encode a string for a request."""
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def exchange(connection: socket.socket, key: int, version: int, body: bytes) -> AnswerReader:
    """Send a request, and return the body of the response.

    ``version`` must be one without flexible headers (KIP-482).

    Raises:
        OSError: the connection broke, or timed out.
    """
    header = struct.pack(">hhih", key, version, 1, len(CLIENT_ID)) + CLIENT_ID
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    start = _read(connection, 4)
    if start[:2] == TLS_ALERT:
        raise HungUpError("it answered with a TLS alert")
    (size,) = struct.unpack(">i", start)
    if not 6 <= size <= ANSWER_BYTES_MAX:
        raise NotKafkaError("it answers, but not as a Kafka broker")
    reader = AnswerReader(_read(connection, size))
    if reader.number(">i") != 1:
        raise NotKafkaError("the answer belongs to another request")
    return reader


def _read(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise HungUpError("the connection was closed without an answer")
        parts += part
    return parts


# --- TLS and SASL ---


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Mechanisms by user and password; the others are left to the client."""

OTHER_MECHANISMS = ("GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM")
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
UNSUPPORTED_MECHANISM, NO_SASL_HERE = 33, 34
ROUNDS_MAX = 4
FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")


class RefusedError(Exception):
    """A broker answers and refuses us; ``cure`` suggests a fix."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.cure = cure


class ListenerProtocol(NamedTuple):
    """The security protocol of a port."""

    protocol: str
    mechanisms: tuple[str, ...] = ()


def protocol_of(client: Mapping[str, Any]) -> str:
    """Return the security protocol of a client's properties."""
    return str(client.get("security_protocol") or "PLAINTEXT")


def check_client(client: Mapping[str, Any]) -> None:
    """Raise if a client's TLS and SASL properties cannot work with any broker.

    Raises:
        ConfigError: an unknown protocol or mechanism, no user or password, a file that cannot be read.

    >>> check_client({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"})
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafka.client.sasl_plain_username is not set, and PLAIN needs it. Try: ...
    """
    check_names(client)
    if protocol_of(client).endswith("SSL"):
        _tls(client)


def check_names(client: Mapping[str, Any]) -> None:
    """Check like :func:`check_client`, without reading files."""
    for name, value in client.items():
        if name.startswith(("sasl_plain_", "ssl_password")) and not isinstance(value, str | None):
            raise ConfigError(f"kafka.client.{name} is not text", cure="quotes around it")
    protocol = protocol_of(client)
    if protocol not in PROTOCOLS:
        raise ConfigError(f"kafka.client.security_protocol = {protocol!r} is unknown", cure=", ".join(PROTOCOLS))
    if protocol.startswith("SASL_"):
        mechanism = client.get("sasl_mechanism")
        if mechanism not in MECHANISMS + OTHER_MECHANISMS:
            what = f"= {mechanism!r} is unknown" if mechanism else f"is not set, and {protocol} needs it"
            raise ConfigError(f"kafka.client.sasl_mechanism {what}", cure=", ".join(MECHANISMS))
        for name in ("sasl_plain_username", "sasl_plain_password") if mechanism in MECHANISMS else ():
            if not client.get(name):
                example = "env:KAFKA_PASSWORD" if name.endswith("password") else "a user"
                raise ConfigError(
                    f"kafka.client.{name} is not set, and {mechanism} needs it", cure=f"kafka.client.{name}={example}"
                )


def _tls(client: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the client's TLS context."""
    for name in FILES:
        if client.get(name):
            try:
                with open(client[name], "rb"):
                    pass
            except OSError as error:
                raise ConfigError(
                    f"kafka.client.{name} = {client[name]!r} cannot be read: {error.strerror}", cure="another file"
                ) from None
    try:
        return tls_context(client)
    except (ssl.SSLError, OSError, ValueError) as error:
        named = ", ".join(f"kafka.client.{name}" for name in FILES if client.get(name))
        reason = getattr(error, "reason", None) or type(error).__name__
        raise ConfigError(f"{named} cannot be used: {reason}", cure="PEM files, and ssl_password of the key") from None


def can_enter(client: Mapping[str, Any]) -> bool:
    """Return whether :func:`enter` supports the mechanism; otherwise SASL is left to the client."""
    return not protocol_of(client).startswith("SASL_") or client.get("sasl_mechanism") in MECHANISMS


def enter(connection: socket.socket, host: str, client: Mapping[str, Any]) -> socket.socket:
    """Do the TLS handshake and authenticate; return the connection to use from then on.

    Raises:
        OSError: the connection broke, or timed out.
        ConfigError: the properties are invalid.
        NotKafkaError: the peer does not speak this protocol.
        RefusedError: the broker refuses us, or its certificate is not trusted.
    """
    check_client(client)
    protocol = protocol_of(client)
    if protocol.endswith("SSL"):
        connection = _wrap(connection, host, client)
    if protocol.startswith("SASL_") and can_enter(client):
        _authenticate(connection, host, client)
    return connection


def _wrap(connection: socket.socket, host: str, client: Mapping[str, Any]) -> socket.socket:
    try:
        return _tls(client).wrap_socket(connection, server_hostname=host.rstrip("."))
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(error, host) from None
    except TimeoutError:
        raise
    except (ssl.SSLError, ConnectionError) as error:
        raise HungUpError(f"no TLS: {getattr(error, 'reason', None) or error}") from None


UNTRUSTED = {
    9: ("is not valid yet", "correct the clocks, or the certificate"),
    10: ("has expired", "renew the broker's certificate"),
    23: ("is revoked", "another certificate for the broker"),
}


def _untrusted(error: ssl.SSLCertVerificationError, host: str) -> RefusedError:
    if error.verify_code in UNTRUSTED:
        return RefusedError("its certificate {}".format(*UNTRUSTED[error.verify_code]), UNTRUSTED[error.verify_code][1])
    if error.verify_code in (62, 64):  # name, address
        cure = "an address that the certificate holds, or kafka.client.ssl_check_hostname=false"
        return RefusedError(f"its certificate is not for {host}", cure)
    what = f"its certificate is not signed by a trusted authority ({error.verify_message})"
    return RefusedError(what, "kafka.client.ssl_cafile=PEM file of the authority")


def _authenticate(connection: socket.socket, host: str, client: Mapping[str, Any]) -> None:
    wanted = str(client["sasl_mechanism"])
    answer = exchange(connection, SASL_HANDSHAKE, 1, text(wanted))
    code = answer.number(">h")
    if code == NO_SASL_HERE:
        raise HungUpError("no SASL here")
    if code == UNSUPPORTED_MECHANISM:
        offered = _mechanisms(answer)
        cure = f"kafka.client.sasl_mechanism={offered[0]}" if offered else "a listener with SASL"
        raise RefusedError(f"it does not accept {wanted}, only {', '.join(offered) or 'nothing'}", cure)
    if code:
        raise NotKafkaError(f"the SASL handshake failed (error {code})")
    mechanism = get_sasl_mechanism(wanted)(host=host, **client)
    for _ in range(ROUNDS_MAX):
        token = mechanism.auth_bytes()
        answer = exchange(connection, SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
        if code := answer.number(">h"):
            user = client["sasl_plain_username"]
            raise RefusedError(
                f"it refuses user {user!r} by {wanted} ({answer.text()})",
                "kafka.client.sasl_plain_username and sasl_plain_password",
            )
        answer.text()
        try:
            mechanism.receive(answer.data(">i"))
        except (ValueError, KeyError, UnicodeDecodeError):
            raise RefusedError("it does not prove that it knows the password", "check the address") from None
        if mechanism.is_done():
            return
    raise NotKafkaError(f"{wanted} does not end")


def _mechanisms(answer: AnswerReader) -> tuple[str, ...]:
    return tuple(answer.text() for _ in range(min(max(answer.number(">i"), 0), 100)))


def listener_at(host: str, port: int, timeout_s: float = 1.0) -> ListenerProtocol | None:
    """Detect the security protocol of a port; None: no Kafka broker. Sends no secret."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    for tls in (True, False):
        try:
            with socket.create_connection((host, port), timeout=timeout_s) as connection:
                return _listener(anybody.wrap_socket(connection) if tls else connection, tls)
        except ssl.SSLError as error:
            if "CERTIFICATE" in str(error.reason):  # it wants one of ours: "bad", "required" or "unknown", by its kind
                return ListenerProtocol("SSL")
        except (OSError, NotKafkaError):
            continue
    return None


def _listener(connection: socket.socket, tls: bool) -> ListenerProtocol | None:
    answer = exchange(connection, SASL_HANDSHAKE, 1, text("?"))
    code = answer.number(">h")
    if code == UNSUPPORTED_MECHANISM:
        return ListenerProtocol("SASL_SSL" if tls else "SASL_PLAINTEXT", _mechanisms(answer))
    return ListenerProtocol("SSL" if tls else "PLAINTEXT") if code == NO_SASL_HERE else None


# --- Addresses ---


METADATA = 3
METADATA_VERSION = 2  # the oldest version with the cluster's id; Kafka 4 still supports it
PORT_DEFAULT = 9092
ANSWER_S_MAX = 3.0
ADVERTISED_S_MAX = 1.0  # For a connection to an advertised address
SILENT_S_MAX = 0.5
NEXT_S = 0.3  # Delay before the next address is tried too; a healthy broker answers within milliseconds
START = "start the broker (`downspout kafka start`), or correct kafka.bootstrap"


class Trouble(NamedTuple):
    """Why an address cannot be used."""

    what: str
    cure: str = START


def parse_bootstrap(bootstrap: str, setting: str = "kafka.bootstrap") -> list[tuple[str, int]]:
    """Return the addresses in ``host:port,host:port``; an IPv6 address stands in brackets.

    >>> parse_bootstrap("one:9093, two, [::1]:9094")
    [('one', 9093), ('two', 9092), ('::1', 9094)]
    """
    addresses = []
    for part in (part.strip() for part in bootstrap.split(",")):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(PORT_DEFAULT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
            raise ConfigError(
                f"{setting} = {bootstrap!r}: {part!r} is not an address",
                cure="host:port,host:port, or `embedded`",
            )
        addresses.append((host, int(port)))
    return addresses


class BrokerAnswer(NamedTuple):
    """A broker's answer about its cluster."""

    cluster_id: str
    brokers: tuple[str, ...]
    """Addresses (``host:port``) of the brokers that serve clients; empty while a broker is still starting."""


def ask(host: str, port: int, timeout_s: float = 2.0, client: Mapping[str, Any] | None = None) -> BrokerAnswer:
    """Return the metadata of the broker at this address.

    ``timeout_s`` limits connecting, and each read.

    Raises:
        OSError: no connection (``socket.gaierror``: unknown name; ``TimeoutError``: no answer).
        NotKafkaError: no broker that speaks the protocol of ``client``.
        RefusedError: the broker refuses us.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        # no topics
        entered = enter(connection, host, client or {})
        return _parse(exchange(entered, METADATA, METADATA_VERSION, struct.pack(">i", 0)))


def _parse(answer: Any) -> BrokerAnswer:
    """Read the brokers (node, host, port, rack) and the cluster's id; ignore the rest."""
    brokers = []
    for _ in range(answer.number(">i")):
        answer.number(">i")
        host = answer.text()
        brokers.append(f"{host}:{answer.number('>i')}")
        answer.text()
    return BrokerAnswer(answer.text(), tuple(brokers))


Address = tuple[str, int]


def ask_all(
    addresses: Sequence[Address], client: Mapping[str, Any] | None = None
) -> tuple[Address | None, list[Trouble]]:
    """Return the first address that works, or None and the problem of each.

    A silent address does not delay the others; the whole call takes 3 to 5 s at most.

    Raises:
        ConfigError: the properties are invalid.
    """
    client = client or {}
    check_client(client)
    answers: queue.SimpleQueue[tuple[int, Trouble | Exception | None]] = queue.SimpleQueue()

    def ask_one(number: int) -> None:
        try:
            answers.put((number, _trouble(*addresses[number], client)))
        except Exception as error:
            answers.put((number, error))

    wrong: dict[int, Trouble] = {}
    asked = 0
    while len(wrong) < len(addresses):
        if asked < len(addresses):
            threading.Thread(target=ask_one, args=(asked,), name="ask-kafka", daemon=True).start()
            asked += 1
        try:
            number, found = answers.get(timeout=NEXT_S if asked < len(addresses) else None)
        except queue.Empty:
            continue
        if isinstance(found, Exception):
            raise found
        if found is None:
            return addresses[number], []
        wrong[number] = found
    return None, [wrong[number] for number in sorted(wrong)]


def _trouble(host: str, port: int, client: Mapping[str, Any]) -> Trouble | None:
    try:
        if client.get("proxy_url") or client.get("socks5_proxy"):
            return None  # only the client can connect through a proxy
        if can_enter(client):
            return _advertised(host, port, ask(host, port, ANSWER_S_MAX, client))
        else:
            with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as connection:
                enter(connection, host, client)
    except socket.gaierror:
        return Trouble(f"the host name {host} is unknown")
    except TimeoutError:
        # It will probably time out again: wait briefly, because a spout must answer within 5 s.
        return _mismatch(host, port, client, SILENT_S_MAX) or Trouble(f"{host}:{port} does not answer")
    except RefusedError as error:
        return Trouble(f"{host}:{port}: {error}", error.cure)
    except (NotKafkaError, ssl.SSLError):
        return _mismatch(host, port, client) or Trouble(f"what listens on {host}:{port} is not a Kafka broker")
    except OSError as error:
        return Trouble(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
    return None


def _advertised(host: str, port: int, answer: BrokerAnswer) -> Trouble | None:
    """Return the trouble if no advertised address can be reached from here.

    A client uses the advertised addresses after its first request; its own error would name the bootstrap address,
    which works.
    """
    wrong = []
    if f"{host}:{port}" in answer.brokers:
        return None
    for broker in answer.brokers:
        name, _, number = broker.rpartition(":")
        try:
            socket.create_connection((name, int(number)), timeout=ADVERTISED_S_MAX).close()
        except socket.gaierror:
            wrong.append(f"{broker} (unknown name)")
        except (OSError, UnicodeError) as error:
            wrong.append(f"{broker} ({(getattr(error, 'strerror', None) or str(error)).lower()})")
        else:
            return None
    if not wrong:
        return None  # it is still starting
    return Trouble(
        f"{host}:{port} answers, but its brokers advertise {', '.join(wrong)}, where nothing answers from here",
        "advertised.listeners of the broker: an address that its clients can reach; or a name for it in /etc/hosts",
    )


def _mismatch(host: str, port: int, client: Mapping[str, Any], step_s_max: float = 1.0) -> Trouble | None:
    """Return the problem if the broker at this port uses another security protocol."""
    ours, found = protocol_of(client), listener_at(host, port, step_s_max)
    if found is None:
        return None
    if found.protocol == ours:
        what = "closes the connection"
        cure = "kafka.client.ssl_certfile and ssl_keyfile: it may want a certificate of the client"
        return Trouble(f"{host}:{port} {what}", cure if ours == "SSL" else "check the broker's log")
    by = f" ({', '.join(found.mechanisms)})" if found.mechanisms else ""
    return Trouble(
        f"{host}:{port} speaks {found.protocol}{by}, but kafka.client.security_protocol is {ours}",
        f"kafka.client.security_protocol={found.protocol}",
    )
