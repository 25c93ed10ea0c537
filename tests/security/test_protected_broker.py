"""Everything of ours against real brokers that speak TLS, ask for a password, or both."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka, default_directory, find_access
from downspout.cli import main
from downspout.kafka import TopicPartition, cluster_for
from tests.security.brokers import START_S_MAX
from tests.security.shop_scene import SHOP, VARIABLE, Shop
from tests.sink.support import rows_of

pytestmark = pytest.mark.broker


@pytest.fixture
def shop(
    any_kafka: EmbeddedKafka,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shop:
    return Shop(tmp_path, any_kafka, topic_name, monkeypatch, capsys)


def hidden_in(secret: str, text: str | bytes) -> bool:
    """Return whether a secret is in there, as it is or in the base64 in which logins travel."""
    data = text.encode() if isinstance(text, str) else text
    return any(form in data for form in (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")[:-2]))


def test_every_command_gets_in_and_no_secret_gets_out(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Topics, records, a run, dead letters, their replay, audit, hand-over and check work by the settings of the file
    and the environment; the password is in nothing that is printed, logged, written or committed."""
    shop.command("kafka", "create", shop.topic, "--partitions", "2")
    shop.publish([*(json.dumps({"id": n, "city": "Łódź"}) for n in range(20)), "no JSON"])
    assert "0 errors, 0 warnings" in shop.command("check", SHOP)
    shop.run("--json", "-")
    rows = rows_of(shop.folder / "output" / "orders")
    assert sorted(row["id"] for row in rows) == list(range(20))
    assert "1 dead letter" in shop.command("dlq", "ls", shop.letters)
    assert "\nexact: " in shop.command("audit", "output/orders", "--dead-letters", shop.letters)
    assert "1 record written" in shop.command("dlq", "replay", shop.letters, "--yes")
    shop.run()
    options = json.loads(
        shop.command("offsets", "export", shop.topic, "--to", "spark", "--json").partition("\nnote")[0]
    )
    assert sum(options["startingOffsets"][shop.topic].values()) == 22
    assert shop.topic in shop.command("kafka", "topics")
    assert "no JSON" in shop.command("kafka", "consume", shop.letters)
    shop.command("settings")
    if shop.password:
        assert not hidden_in(shop.password, shop.said)
        assert not hidden_in(shop.password, caplog.text)
        assert not [name for name, data in shop.written().items() if hidden_in(shop.password, data)]
        offsets = shop.broker_offsets()
        assert offsets
        assert not hidden_in(shop.password, repr(offsets))


def test_columns_come_through_tls(shop: Shop) -> None:
    """Megabytes, in columns, over a connection that reads as much as TLS gives: what was sent, and then some more."""
    cluster = cluster_for(shop.broker.bootstrap, shop.client)
    cluster.ensure_topic(shop.topic)
    tp = TopicPartition(shop.topic, 0)
    consumer = cluster.consumer(group=None, client=shop.client, columns=True)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    sent, found = [], []
    for size in (700_000, 10):
        values = [bytes([number]) * size for number in range(8)]
        producer = cluster.producer()
        for value in values:
            producer.send(shop.topic, key=None, value=value, partition=0)
        producer.flush()
        producer.close()
        sent += values
        end = consumer.end_offsets([tp])[tp]
        for _ in range(100):
            found += [record.value for record in consumer.poll(1000, 100).get(tp, ())]
            if consumer.position(tp) == end:
                break
    consumer.close()
    assert found == sent


class Everything(logging.Handler):
    """Keeps all records of some loggers, whatever levels and filters commands have set."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(record.getMessage() for record in self.records)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Everything]:
    handler = Everything()
    for name in ("kafka", "downspout"):
        caplog.set_level(logging.DEBUG, logger=name)
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in ("kafka", "downspout"):
        logging.getLogger(name).removeHandler(handler)


def test_no_secret_is_logged_at_debug(shop: Shop, log: Everything) -> None:
    """With all that kafka-python has to say, the password is not in the log; its requests are."""
    cluster = cluster_for(shop.broker.bootstrap, shop.client)
    cluster.ensure_topic(shop.topic)
    producer = cluster.producer()
    producer.send(shop.topic, key=None, value=b"x")
    producer.flush()
    producer.close()
    consumer = cluster.consumer(group=None, client=shop.client)
    assert consumer.partitions_for(shop.topic) == frozenset({0})
    consumer.close()
    assert "ProduceRequest" in log.text
    assert "Starting KafkaAdminClient with configuration" in log.text
    if shop.password:
        assert "SaslAuthenticateRequest" in log.text
        assert not hidden_in(shop.password, log.text)
        assert not [record for record in log.records if hidden_in(shop.password, repr(record.args))]


def test_a_broker_keeps_its_password_to_itself(shop: Shop) -> None:
    """It is on no command line and in no log of the broker's, and its files are for their owner alone."""
    directory = shop.broker.directory
    if shop.password:
        command_line = Path(f"/proc/{shop.broker.broker.pid}/cmdline").read_bytes()
        assert shop.password.encode() not in command_line
        logs = [path for path in (directory / "logs").iterdir() if path.is_file()]
        assert logs
        assert not [path for path in logs if shop.password.encode() in path.read_bytes()]
    assert not (directory / "format.args").exists()
    assert (directory / "security").stat().st_mode & 0o077 == 0
    assert (directory / "server.properties").stat().st_mode & 0o077 == 0


@pytest.mark.sweep
def test_a_protected_broker_stays_so(
    scram_kafka: EmbeddedKafka,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After a stop it starts with the same protection, password and records, without being told; and with no other."""
    shop = Shop(tmp_path, scram_kafka, topic_name, monkeypatch, capsys)
    shop.command("kafka", "create", shop.topic)
    shop.publish(["kept"])
    shop.broker.stop()
    EmbeddedKafka(shop.broker.directory, detached=True, start_s_max=START_S_MAX).start()
    assert shop.broker.client == shop.client
    shop.configure(shop.client)
    (shop.folder / "downspout.toml").unlink()
    where = ["--bootstrap", "embedded", "--dir", str(shop.broker.directory)]
    assert "kept" in shop.command("kafka", "consume", shop.topic, *where)
    other = ["--tls", "--sasl", "plain"]
    out = shop.command("kafka", "start", "--dir", str(shop.broker.directory), *other, code=4)
    assert "was made with" in out


REFUSED: dict[str, tuple[dict[str, str | None], str, str]] = {
    "wrong password": (
        {"sasl_plain_password": "hush-hush"},
        "refuses user 'downspout' by SCRAM-SHA-256",
        "kafka.client.sasl_plain_username and sasl_plain_password",
    ),
    "unknown user": ({"sasl_plain_username": "nobody"}, "refuses user 'nobody'", "sasl_plain_username"),
    "untrusted certificate": (
        {"ssl_cafile": None},
        "certificate is not signed by a trusted authority",
        "kafka.client.ssl_cafile=",
    ),
    "plaintext client": (
        {"security_protocol": "PLAINTEXT"},
        "speaks SASL_SSL (SCRAM-SHA-256), but kafka.client.security_protocol is PLAINTEXT",
        "kafka.client.security_protocol=SASL_SSL",
    ),
    "no password": ({"security_protocol": "SSL"}, "speaks SASL_SSL", "security_protocol=SASL_SSL"),
    "no TLS": ({"security_protocol": "SASL_PLAINTEXT"}, "speaks SASL_SSL", "security_protocol=SASL_SSL"),
    "wrong mechanism": (
        {"sasl_mechanism": "PLAIN"},
        "does not accept PLAIN, only SCRAM-SHA-256",
        "kafka.client.sasl_mechanism=SCRAM-SHA-256",
    ),
}


@pytest.mark.timeout(120)  # a client alone goes on for minutes
@pytest.mark.parametrize("case", REFUSED)
def test_whom_the_broker_refuses_is_told_why(
    case: str,
    scram_kafka: EmbeddedKafka,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run and the commands end with the culprit, the address and the cure, before a client's time-out, and without
    the password."""
    changes, what, cure = REFUSED[case]
    shop = Shop(tmp_path, scram_kafka, topic_name, monkeypatch, capsys)
    shop.configure({name: value for name, value in {**shop.client, **changes}.items() if value is not None})
    for said in (shop.run(code=4), shop.command("kafka", "topics", code=4)):
        assert scram_kafka.bootstrap in said
        assert what in said
        assert f"Try: {cure}" in said or cure in said.partition("Try:")[2]
        assert "Traceback" not in said
    assert "hush-hush" not in shop.said
    assert not hidden_in(shop.password, shop.said)


def test_options_alone_get_in(
    scram_kafka: EmbeddedKafka,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without any file a command gets in by --bootstrap and --client, and a mistake there is told without a value."""
    shop = Shop(tmp_path, scram_kafka, topic_name, monkeypatch, capsys)
    (tmp_path / "downspout.toml").unlink()
    given = {**shop.client, "sasl_plain_password": f"env:{VARIABLE}"}
    options = [word for name, value in given.items() for word in ("--client", f"{name}={value}")]
    where = ["--bootstrap", scram_kafka.bootstrap]
    shop.command("kafka", "create", topic_name, *where, *options)
    assert topic_name in shop.command("kafka", "topics", *where, *options)
    said = shop.command("kafka", "topics", *where, *options, "--client", "sasl_plain_pasword=hush-hush", code=2)
    assert "sasl_plain_password" in said
    shop.command("kafka", "topics", *where, *options, "--client", "hush-hush", code=2)
    assert "hush-hush" not in shop.said


@pytest.mark.sweep
def test_a_protected_broker_is_started_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kafka start --tls --sasl` prints what other clients need, which works as it stands, and not the password itself;
    started again it does the same; `embedded` needs nothing."""
    monkeypatch.chdir(tmp_path)
    assert main(["kafka", "start", "--tls", "--sasl", "plain"]) == 0
    try:
        printed = capsys.readouterr().out
        assert main(["kafka", "start"]) == 0
        again = capsys.readouterr().out
        toml = printed[printed.index("[kafka.client]") :]
        assert again.endswith(toml)
        assert main(["kafka", "create", "orders"]) == 0
        bootstrap = find_access()[0]
        Path("downspout.toml").write_text(f'[kafka]\nbootstrap = "{bootstrap}"\n{toml}', encoding="utf-8")
        assert main(["kafka", "topics"]) == 0
        out = capsys.readouterr().out
        assert "orders" in out
        password = (default_directory() / "security" / "password").read_text(encoding="utf-8").strip()
        assert password not in printed + again + out
    finally:
        assert main(["kafka", "stop"]) == 0
