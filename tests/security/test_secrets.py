"""A secret is used but never visible: in output, logs, files, errors, or data sent to an engine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamparse import Grouping, Topology

from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.cli import main
from downspout.compare import engines, freeze
from downspout.errors import ConfigError, DownspoutError
from downspout.kafka import TopicPartition, log_filters
from downspout.settings import CLIENT_PREFIX, SETTINGS, layers, with_secrets
from downspout.spout import setup_of
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests.security.shop_scene import SHOP

SECRET = "hunter2-Überraschung"
PASSWORD = "kafka.client.sasl_plain_password"
GIVEN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"}
TOML = "[kafka]\ntopics = ['orders']\nbootstrap = 'fake://secrets'\n[kafka.client]\n"
TOML += "".join(f"{name} = '{value}'\n" for name, value in GIVEN.items())
ON_FAKE = pytest.mark.fake_only("the same with a real broker is in test_protected_broker")


class Spelled(Topology):
    """A secret in plain text in the topology itself."""

    orders = KafkaSpout.spec(
        topics=["orders"], bootstrap="fake://secrets", fields=["value", "origin"], poll_timeout_ms=10, retries_max=0,
        client={**GIVEN, "sasl_plain_password": SECRET},
    )  # fmt: skip
    parse = JsonParseBolt.spec(fields=["id", "city"], inputs={orders: Grouping.SHUFFLE})
    sink = ParquetBolt.spec(directory="out", schema=["id:int64", "city:string"], inputs={parse: Grouping.SHUFFLE})


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A topic with a good record and a bad one."""
    with FakeKafka("secrets") as kafka:
        kafka.ensure_topic("orders", 1)
        for value in (b'{"id": 1, "city": "x"}', b"no JSON"):
            kafka.produce("orders", value)
        yield kafka


def in_file(folder: Path, monkey: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    (folder / "downspout.toml").write_text(f"{TOML}sasl_plain_password = '{SECRET}'\n", encoding="utf-8")
    return SHOP, []


def in_environment(folder: Path, monkey: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    (folder / "downspout.toml").write_text(TOML, encoding="utf-8")
    monkey.setenv("DOWNSPOUT_KAFKA_CLIENT_SASL_PLAIN_PASSWORD", SECRET)
    return SHOP, []


def in_variable(folder: Path, monkey: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    (folder / "downspout.toml").write_text(f"{TOML}sasl_plain_password = 'env:MINE'\n", encoding="utf-8")
    monkey.setenv("MINE", SECRET)
    return SHOP, []


def in_secret_file(folder: Path, monkey: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    secret = folder.parent / "secret"
    secret.write_text(SECRET + "\n", encoding="utf-8")
    (folder / "downspout.toml").write_text(f"{TOML}sasl_plain_password = 'file:{secret}'\n", encoding="utf-8")
    return SHOP, []


def in_option(folder: Path, monkey: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    (folder / "downspout.toml").write_text(TOML, encoding="utf-8")
    return SHOP, ["--set", f"{PASSWORD}={SECRET}"]


def in_spec(folder: Path, monkey: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    return "tests.security.test_secrets:Spelled", []


WAYS = [in_file, in_environment, in_variable, in_secret_file, in_option, in_spec]
PLAIN = (in_file, in_option, in_spec)


@ON_FAKE
@pytest.mark.slow
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_command_shows_or_writes_it(
    way: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However it is given: neither check nor a run, with dead letters or failing, nor an audit shows it, logs it or
    writes it; and check says what would be better than plain text."""
    project = tmp_path / "project"
    project.mkdir()
    target, words = way(project, monkeypatch)
    monkeypatch.chdir(project)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    assert main(["check", target, *words]) == 0
    checked = capfd.readouterr().out
    assert PASSWORD in checked
    assert ("stands in plain text" in checked) == (way in PLAIN)
    assert main(["run", target, "--until", "end", "--json", "run.json", *words]) == 0
    assert json.loads(Path("run.json").read_text(encoding="utf-8"))
    assert main(["run", target, "--until", "end", "--set", "kafka.client.no_such=1", *words]) == 2
    assert main(
        ["run", target, "--until", "end", "--set", "kafka.dead_letter_topic=", "--set", "kafka.group=g", *words]
    )
    directory = "output/orders" if target == SHOP else "out"
    main(["audit", directory, "--bootstrap", "fake://secrets", "--topology", target, *words])
    main(["settings"])
    said = "".join(capfd.readouterr())
    assert "kafka.client.no_such" in said
    assert SECRET not in checked + said + caplog.text
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    own = {project / "downspout.toml", tmp_path / "secret"}
    assert len(written) >= 4
    assert not [path for path, data in written.items() if SECRET.encode() in data and path not in own]


# --- engines ----------------------------------------------------------------------------------------------------


def test_what_nimbus_is_sent_holds_the_reference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spout's configuration for Storm has the name of the variable; the value is looked up by the worker's task, and
    is in no text of what it knows."""
    monkeypatch.setenv("P", SECRET)
    spec = KafkaSpout.spec(topics=["t"], bootstrap="b:1", client={**GIVEN, "sasl_plain_password": "env:P"})

    class Sent(Topology):
        spout = spec

    sent = Sent.thrift_spouts["spout"].common.json_conf
    assert json.loads(sent)[PASSWORD] == "env:P"
    assert SECRET not in repr(Sent.thrift_topology).encode().decode("unicode_escape")
    setup = setup_of({**json.loads(sent), "topology.name": "t"}, {})
    assert setup.client["sasl_plain_password"] == SECRET
    assert SECRET not in repr(setup)


@pytest.mark.parametrize("key", [key for key in SETTINGS if key.endswith("password")])
def test_each_password_is_a_reference_that_is_looked_up(key: str) -> None:
    """A password itself is refused, whichever setting it is given to."""
    assert with_secrets({key: "env:P"}, {"P": SECRET}) == {key: SECRET}
    with pytest.raises(ConfigError, match=f"{key} is not a reference to a secret"):
        with_secrets({key: SECRET}, {})


def test_a_worker_without_the_variable_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the variable is missing, the error names it and the setting."""
    monkeypatch.delenv("P", raising=False)
    with pytest.raises(ConfigError, match=r"sasl_plain_password = 'env:P': P is not in the environment"):
        setup_of({"kafka.topics": ["t"], PASSWORD: "env:P"}, {})


@ON_FAKE
@pytest.mark.usefixtures("fake")
def test_a_comparison_writes_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job, the options of its runs and the plan of a native Spark version have the reference."""
    monkeypatch.chdir(tmp_path)
    target, words = in_environment(tmp_path, monkeypatch)
    job = freeze(target, None, words, tmp_path / "job")
    written = json.dumps([engines.source_of(spout) for spout in job.spouts], ensure_ascii=False)
    assert "env:DOWNSPOUT_KAFKA_CLIENT_SASL_PLAIN_PASSWORD" in written
    told = [written, repr(job), repr(job.confs), repr(job.isolation("storm")), *job.options("local")]
    assert not [text for text in told if SECRET in text]


@ON_FAKE
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("way", PLAIN, ids=lambda way: way.__name__)
def test_a_comparison_refuses_plain_text(
    way: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be written into files and onto command lines is refused before, without the value."""
    monkeypatch.chdir(tmp_path)
    target, overrides = way(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"sasl_plain_password is given in plain text.*env:NAME") as caught:
        freeze(target, None, [word for word in overrides if word != "--set"], tmp_path / "job")
    assert SECRET not in str(caught.value)


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0123", "1e5", "true", "null", "[1]", '"quoted"', "env", "a=b"])
def test_a_password_that_looks_like_something_else_stays_itself(text: str) -> None:
    """What is given as text for a client's text is not read as a number or as JSON."""
    from downspout.engine import Graph, resolve

    found = resolve(Graph("g", {}, {}), [f"{PASSWORD}={text}"], environ={}).run.values
    assert with_secrets(found, {})[PASSWORD] == text


def test_a_password_that_is_no_text_is_refused() -> None:
    """A number, as TOML may have it, is an error that does not show it."""
    client = {**GIVEN, "sasl_plain_password": 987654}
    conf = {"kafka.topics": ["t"], **{CLIENT_PREFIX + name: value for name, value in client.items()}}
    with pytest.raises(ConfigError, match=r"sasl_plain_password = .* is not text") as caught:
        setup_of(conf, {})
    assert "987654" not in str(caught.value)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"security_protocol": "TLS"}, "'TLS' is not known. Try: one of PLAINTEXT"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism is not set"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM"}, "'SCRAM' is not known. Try: one of PLAIN"),
        ({**GIVEN, "sasl_plain_username": ""}, "sasl_plain_username is not set"),
        (GIVEN, "sasl_plain_password is not set"),
    ],
)
def test_what_cannot_work_is_found_without_a_broker(client: dict[str, Any], message: str) -> None:
    """Settings about TLS and SASL that are incomplete or unknown are errors that name the setting."""
    conf = {CLIENT_PREFIX + name: value for name, value in client.items()}
    with pytest.raises(ConfigError, match=message):
        setup_of({"kafka.topics": ["t"], **conf}, {})


def test_an_option_without_a_value_is_not_repeated() -> None:
    """A --set or --client that was cut in two shows no more than the name."""
    with pytest.raises(DownspoutError) as caught:
        layers.from_command_line([f"{PASSWORD} {SECRET}"])
    assert SECRET not in str(caught.value)


# --- what kafka-python logs -----------------------------------------------------------------------------------


class SaslAuthenticateRequest:
    def __str__(self) -> str:
        return SECRET


@pytest.mark.parametrize(
    ("logger", "text", "args"),
    [
        ("kafka.net.connection", "%s Request %d: %s", ("c", 1, SaslAuthenticateRequest())),
        ("kafka.protocol.parser", "%s Sending request %d %s", ("c", 1, SaslAuthenticateRequest())),
        ("kafka.protocol.parser", "%s Send: %r", ("c", SECRET.encode())),
        ("kafka.admin.client", "Starting with %s", ({"sasl_plain_password": SECRET, "client_id": "x"},)),
        ("kafka.admin.client", "Starting with %(sasl_plain_password)s", ({"sasl_plain_password": SECRET},)),
    ],
)
def test_what_kafka_python_would_log_is_covered(logger: str, text: str, args: tuple[Any, ...]) -> None:
    """Neither a request that logs in, nor bytes, nor properties are let through as they are."""
    record = logging.LogRecord(logger, logging.DEBUG, "x.py", 1, text, args, None)
    shown = record.getMessage() if log_filters.cover(record) else ""
    assert "hunter2" not in shown
    assert "hunter2" not in repr(record.args) or shown == ""


def test_other_requests_are_logged_as_they_are() -> None:
    """A place in Kafka, a request that holds no login: nothing of them is lost."""
    args = ("c", 1, TopicPartition("t", 0))
    record = logging.LogRecord("kafka.net.connection", logging.DEBUG, "x.py", 1, "%s Request %d: %s", args, None)
    assert log_filters.cover(record)
    assert record.getMessage() == "c Request 1: TopicPartition(topic='t', partition=0)"
