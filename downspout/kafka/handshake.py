"""How a broker is entered: TLS and SASL on one connection, as kafka-python would, and why it does not work.

A client tries again in the background where a password is wrong or a certificate has expired, and ends with "timed
out". Here each step is made once, and what a broker or TLS says is put into words, with what to do about it. Nothing
that is said holds a secret.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka.net.sasl import get_sasl_mechanism

from downspout.errors import ConfigError
from downspout.kafka.frames import HungUpError, NotKafkaError, Reader, exchange, text
from downspout.kafka.patches.tls_context import tls_context

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Those by user and password; a listener may want others, which are left to the client."""

OTHER_MECHANISMS = ("GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM")
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
UNSUPPORTED_MECHANISM, NO_SASL_HERE = 33, 34
ROUNDS_MAX = 4
FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")


class RefusedError(Exception):
    """A broker is there and refuses us; ``cure`` says what would help."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.cure = cure


class Listener(NamedTuple):
    """What a port speaks."""

    protocol: str
    mechanisms: tuple[str, ...] = ()


def protocol_of(client: Mapping[str, Any]) -> str:
    """Return the security protocol that properties of a client name."""
    return str(client.get("security_protocol") or "PLAINTEXT")


def check_client(client: Mapping[str, Any]) -> None:
    """Raise where properties of a client about TLS and SASL cannot work, whatever the broker.

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
    """Raise as :func:`check_client`, without a look at files."""
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
    """Return what the client would use for TLS."""
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
    """Return whether :func:`enter` can make all steps; otherwise SASL is left to the client."""
    return not protocol_of(client).startswith("SASL_") or client.get("sasl_mechanism") in MECHANISMS


def enter(connection: socket.socket, host: str, client: Mapping[str, Any]) -> socket.socket:
    """Do what comes before the first request, and return what to speak through from then on.

    Raises:
        OSError: the connection broke, or nothing came in time.
        ConfigError: the properties make no sense.
        NotKafkaError: what answers does not speak this protocol.
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
    what = f"its certificate is not signed by an authority that we trust ({error.verify_message})"
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
        raise RefusedError(f"it does not take {wanted}, but {', '.join(offered) or 'nothing'}", cure)
    if code:
        raise NotKafkaError(f"the handshake for SASL failed (error {code})")
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


def _mechanisms(answer: Reader) -> tuple[str, ...]:
    return tuple(answer.text() for _ in range(min(max(answer.number(">i"), 0), 100)))


def listener_at(host: str, port: int, timeout_s: float = 1.0) -> Listener | None:
    """Return how a port wants to be spoken to, None where that is no Kafka broker. No secret is sent."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    for tls in (True, False):
        try:
            with socket.create_connection((host, port), timeout=timeout_s) as connection:
                return _listener(anybody.wrap_socket(connection) if tls else connection, tls)
        except ssl.SSLError as error:
            if "CERTIFICATE" in str(error.reason):  # it misses ours: "bad", "required" or "unknown", by its kind
                return Listener("SSL")
        except (OSError, NotKafkaError):
            continue
    return None


def _listener(connection: socket.socket, tls: bool) -> Listener | None:
    answer = exchange(connection, SASL_HANDSHAKE, 1, text("?"))
    code = answer.number(">h")
    if code == UNSUPPORTED_MECHANISM:
        return Listener("SASL_SSL" if tls else "SASL_PLAINTEXT", _mechanisms(answer))
    return Listener("SSL" if tls else "PLAINTEXT") if code == NO_SASL_HERE else None
