"""One broker for each way of being protected, shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.kafka.embedded import EmbeddedKafka

KINDS = {
    "tls": ("ssl", None),
    "plain": ("sasl_plaintext", "PLAIN"),
    "tls-scram-512": ("sasl_ssl", "SCRAM-SHA-512"),
}


@pytest.fixture(scope="session")
def scram_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """TLS and SCRAM-SHA-256: what most tests use."""
    with EmbeddedKafka(tmp_path_factory.mktemp("scram") / "kafka", security="sasl_ssl") as broker:
        yield broker


@pytest.fixture(scope="session", params=[*KINDS, "tls-scram-256"])
def any_kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Each kind of protection in turn, one broker at a time."""
    if request.param not in KINDS:
        yield request.getfixturevalue("scram_kafka")
        return
    security, mechanism = KINDS[request.param]
    folder = tmp_path_factory.mktemp("kafka") / "kafka"
    with EmbeddedKafka(folder, security=security, mechanism=mechanism) as broker:
        yield broker
