"""How a broker is entered, step by step, and how a broker is protected when its directory is made."""

from __future__ import annotations

import functools
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from downspout.broker import EmbeddedKafka, find_access
from downspout.broker import broker_files as security
from downspout.errors import BrokerError, ConfigError
from downspout.kafka import HungUpError, KafkaCluster, ListenerProtocol, NotKafkaError, RefusedError, address, ask_all
from downspout.system.java import java as find_java
from tests.security.brokers import START_S_MAX


def properties_of(broker: EmbeddedKafka) -> dict[str, str]:
    lines = (broker.directory / "server.properties").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def enter(broker: EmbeddedKafka, client: dict[str, Any], host: str = "127.0.0.1") -> None:
    with socket.create_connection((broker.broker.host, broker.broker.port), timeout=60) as connection:
        address.enter(connection, host, client)


@pytest.mark.broker
def test_a_certificate_for_another_host_is_refused(scram_kafka: EmbeddedKafka) -> None:
    """Whoever is reached under a name that the certificate does not hold gets no password."""
    with pytest.raises(RefusedError, match=r"is not for kafka\.example"):
        enter(scram_kafka, scram_kafka.client, "kafka.example")
    enter(scram_kafka, {**scram_kafka.client, "ssl_check_hostname": False}, "kafka.example")


@pytest.mark.broker
def test_the_controller_wants_a_certificate(scram_kafka: EmbeddedKafka) -> None:
    """The controller's port, on the same machine, lets nobody in without the broker's own certificate."""
    properties = properties_of(scram_kafka)
    port = int(properties["listeners"].rpartition(":")[2])
    client = {"security_protocol": "SSL", "ssl_cafile": scram_kafka.client["ssl_cafile"]}
    _, (trouble,) = ask_all([("127.0.0.1", port)], client)
    assert "127.0.0.1" in trouble.what
    assert "certificate of the client" in trouble.cure
    assert address.listener_at("127.0.0.1", port) == ListenerProtocol("SSL")


@pytest.mark.sweep
@pytest.mark.broker
def test_only_the_loopback_address_is_listened_on(scram_kafka: EmbeddedKafka, kafka_broker: EmbeddedKafka) -> None:
    """Whatever the protection, the listeners are on 127.0.0.1 and not reached by another address of the machine."""
    for broker in (scram_kafka, kafka_broker):
        properties = properties_of(broker)
        for name in ("listeners", "advertised.listeners"):
            assert all(part.split("://")[1].startswith("127.0.0.1:") for part in properties[name].split(","))
        with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match="refused"):
            other.connect(("::1", broker.broker.port))


@pytest.mark.broker
def test_a_plaintext_broker_is_told_from_a_protected_one(
    kafka_broker: EmbeddedKafka, scram_kafka: EmbeddedKafka
) -> None:
    """Who speaks TLS or SASL to a broker that speaks neither is told so; no password was sent."""
    for changes in ({}, {"security_protocol": "SSL"}, {"security_protocol": "SASL_PLAINTEXT"}):
        with pytest.raises(BrokerError, match="speaks PLAINTEXT, but") as caught:
            KafkaCluster(kafka_broker.bootstrap, {**scram_kafka.client, **changes})
        assert caught.value.cure == "kafka.client.security_protocol=PLAINTEXT"


@pytest.mark.sweep
@pytest.mark.broker
def test_an_expired_certificate_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose certificate has expired is refused with that reason, in the wording for a user."""
    expired = functools.partial(security.make_keystore, start="-10d", days=1)
    monkeypatch.setattr(security, "make_keystore", expired)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with monkeypatch.context() as blind:  # or the start itself would wait for an answer that it can trust
        blind.setattr(address, "_tls", lambda client: trusting)
        broker = EmbeddedKafka(tmp_path / "kafka", security="ssl", start_s_max=START_S_MAX).start()
    try:
        with pytest.raises(BrokerError, match="its certificate has expired") as caught:
            KafkaCluster(broker.bootstrap, broker.client)
        assert broker.bootstrap in str(caught.value)
        assert caught.value.cure == "renew the broker's certificate"
        assert broker.status().state == "silent"
    finally:
        broker.stop()


# --- without a broker -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_files_of_a_protected_broker_are_private_and_new_each_time(tmp_path: Path) -> None:
    """Passwords are made at random, and nobody but the owner can read them; a certificate is for loopback alone."""
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(security.decide(tmp_path / name, "sasl_ssl", None, java=find_java(), is_new=True))
    passwords = [each.client["sasl_plain_password"] for each in made]
    assert len(set(passwords)) == 2
    assert all(len(password) >= 32 for password in passwords)
    for name in ("password", "keystore.password"):
        assert stat.S_IMODE((made[0].folder / name).stat().st_mode) == 0o600
    assert made[0].settings["sasl_plain_password"] == f"file:{made[0].folder / 'password'}"
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.load_verify_locations(made[0].folder / "ca.pem")
    (authority,) = found.get_ca_certs()
    assert authority["subjectAltName"] == (("IP Address", "127.0.0.1"), ("DNS", "localhost"))
    assert security.read_security(tmp_path / "one") == made[0]


@pytest.mark.parametrize(
    ("protocol", "mechanism", "message"),
    [("tls", None, "security = 'tls' is unknown"), ("sasl_ssl", "DIGEST-MD5", "mechanism = 'DIGEST-MD5' is unknown")],
)
def test_unknown_protection_is_refused(tmp_path: Path, protocol: str, mechanism: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        security.decide(tmp_path, protocol, mechanism, java=Path("java"), is_new=True)


def test_a_directory_made_before_is_never_opened_up(tmp_path: Path) -> None:
    """A directory whose protection cannot be read is not taken for an unprotected one."""
    (tmp_path / "security").mkdir()
    (tmp_path / "security" / "security.json").write_text("{", encoding="utf-8")
    with pytest.raises(BrokerError, match=r"security\.json cannot be read"):
        security.decide(tmp_path, None, None, java=Path("java"), is_new=False)
    with pytest.raises(BrokerError, match="No embedded Kafka"):
        find_access(tmp_path)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


ANSWERS = {
    "an alert of TLS": (b"\x15\x03\x03\x00\x02\x02\x46", HungUpError),
    "nothing": (b"", HungUpError),
    "a length of 4 GiB": (b"\xff\xff\xff\xff", NotKafkaError),
    "a length of 2 GiB": (b"\x7f\xff\xff\xff", NotKafkaError),
    "half an answer": (b"\x00\x00\x00\x20\x00\x00\x00\x01", HungUpError),
    "another question's": (b"\x00\x00\x00\x08\x00\x00\x00\x07\x00\x00\x00\x00", NotKafkaError),
    "two billion brokers": (b"\x00\x00\x00\x08\x00\x00\x00\x01\x7f\xff\xff\xff", NotKafkaError),
    "a text beyond the end": (
        b"\x00\x00\x00\x0e\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x7f\xff",
        NotKafkaError,
    ),
    "no UTF-8": (b"\x00\x00\x00\x0f\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01\xff", NotKafkaError),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_of_anybody_is_taken_apart_with_care(server: socket.socket, case: str) -> None:
    """Whatever comes back from a port: an error of the documented kind, without waiting for what will not come."""
    import threading

    answer, kind = ANSWERS[case]

    def reply() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    thread = threading.Thread(target=reply)
    thread.start()
    with pytest.raises(kind):
        address.ask(*server.getsockname(), timeout_s=60.0)
    thread.join()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A certificate that is not there, or is none, is an error with the setting and the file."""
    client = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "none.pem")}
    with pytest.raises(ConfigError, match=r"kafka\.client\.ssl_cafile = .*none\.pem' cannot be read: No such file"):
        address.check_client(client)
    (tmp_path / "none.pem").write_text("no certificate", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"kafka\.client\.ssl_cafile cannot be used"):
        address.check_client(client)


def test_an_older_look_of_a_broker_directory_is_open(tmp_path: Path) -> None:
    assert security.read_security(tmp_path).is_open
    assert security.read_security(tmp_path).settings == {}
