"""One broker for each way of being protected, shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.broker import EmbeddedKafka
from downspout.testing import UNHURRIED

START_S_MAX = 240.0
"""A JVM that makes keys and speaks TLS needs half a minute on a busy machine; its usual limit is a minute."""
KINDS = {
    "tls": ("ssl", None),
    "plain": ("sasl_plaintext", "PLAIN"),
    "tls-scram-512": ("sasl_ssl", "SCRAM-SHA-512"),
}


@pytest.fixture(scope="session")
def scram_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    folder = tmp_path_factory.mktemp("scram") / "kafka"
    with EmbeddedKafka(folder, properties=UNHURRIED, security="sasl_ssl", start_s_max=START_S_MAX) as broker:
        yield broker


@pytest.fixture(
    scope="session",
    params=[
        "tls",
        pytest.param("plain", marks=pytest.mark.sweep),
        pytest.param("tls-scram-512", marks=pytest.mark.sweep),
        "tls-scram-256",
    ],
)
def any_kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Each kind of protection in turn, one broker at a time."""
    if request.param not in KINDS:
        yield request.getfixturevalue("scram_kafka")
        return
    security, mechanism = KINDS[request.param]
    folder = tmp_path_factory.mktemp("kafka") / "kafka"
    with EmbeddedKafka(
        folder, properties=UNHURRIED, security=security, mechanism=mechanism, start_s_max=START_S_MAX
    ) as broker:
        yield broker
