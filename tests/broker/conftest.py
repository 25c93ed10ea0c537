"""Shared fixtures for tests on the real broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from downspout.broker import EmbeddedCluster, EmbeddedKafka
from downspout.kafka import KafkaCluster, KafkaConsumerPort, address, client, consumer

UNHURRIED_S = 60
"""How long a question to a broker may take here: other tests leave it, or us, no time to run now and then."""
SPOUTS_MS_MAX = consumer.REMOTE_MS_MAX
SPOUTS_ANSWER_S_MAX = address.ANSWER_S_MAX
BOOTSTRAP_MS_MAX = client.CONNECTION["bootstrap_timeout_ms"]


@pytest.fixture(autouse=True, scope="module")
def _unhurried() -> Iterator[None]:
    """Let questions to a broker take a minute; a spout under Storm has 4 s for each, and tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer, "REMOTE_MS_MAX", UNHURRIED_S * 1000)
        patch.setattr(address, "ANSWER_S_MAX", float(UNHURRIED_S))
        patch.setattr(client, "TOPIC_READY_S", UNHURRIED_S)
        patch.setattr(client, "ERROR_S_MAX", UNHURRIED_S)
        patch.setitem(client.CONNECTION, "bootstrap_timeout_ms", UNHURRIED_S * 1000)
        yield


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give questions to a broker no more time than users have: for tests of a broker that does not answer."""
    monkeypatch.setattr(consumer, "REMOTE_MS_MAX", SPOUTS_MS_MAX)
    monkeypatch.setattr(address, "ANSWER_S_MAX", SPOUTS_ANSWER_S_MAX)
    monkeypatch.setitem(client.CONNECTION, "bootstrap_timeout_ms", BOOTSTRAP_MS_MAX)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Collect processes; whatever still runs at the end is killed by its pid."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def cluster(kafka_broker: EmbeddedKafka) -> KafkaCluster:
    return KafkaCluster(kafka_broker.bootstrap)


@pytest.fixture(scope="package")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Three brokers, and a controller in a process of its own: so two of the three may be paused."""
    with EmbeddedCluster(tmp_path_factory.mktemp("three"), controller_apart=True) as made:
        yield made


@pytest.fixture
def consumers() -> Iterator[list[KafkaConsumerPort]]:
    made: list[KafkaConsumerPort] = []
    yield made
    for each in made:
        each.close()
