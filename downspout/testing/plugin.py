"""Fixtures for pytest, available once downspout is installed.

``kafka_broker``: a real Kafka for the session, started on first use. ``topic_name``: a name that no other test uses.
pytest loads this module in every run, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from downspout.broker.embedded import EmbeddedKafka


UNHURRIED = {"broker.session.timeout.ms": "30000"}
"""For a broker that nobody kills: on a busy machine, its controller must not consider it dead."""


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker for all tests of the session (``kafka_broker.bootstrap``), in a temporary directory.

    A watchdog ends it with the session, even if pytest is killed. After a ``kill -9`` it would take half a minute to
    restart (:data:`UNHURRIED`); a test that kills brokers needs one of its own.
    """
    from downspout.broker.embedded import EmbeddedKafka

    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties=UNHURRIED, start_s_max=240.0) as broker:
        yield broker


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name for this test alone, without creating the topic."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{test[:60]}-{uuid.uuid4().hex[:8]}"
