"""Fixtures for pytest; installing downspout is enough to have them.

``kafka_broker``: a real Kafka of its own for the session, started when the first test asks for it. ``topic_name``: a
name that no other test uses. pytest loads this module in every run, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from downspout.broker.embedded import EmbeddedKafka


UNHURRIED = {"broker.session.timeout.ms": "30000"}
"""For a broker that nobody kills: its own controller does not take it for dead when tests leave it no time to run."""


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker for all tests of the session (``kafka_broker.bootstrap``), in a temporary directory.

    It ends with the session, also when pytest is terminated or killed: a watchdog sees to it. After a ``kill -9`` it
    would take half a minute to come back (:data:`UNHURRIED`); a test that kills brokers wants one of its own.
    """
    from downspout.broker.embedded import EmbeddedKafka

    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties=UNHURRIED, start_s_max=240.0) as broker:
        yield broker


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name for this test alone; the topic itself is not created."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{test[:60]}-{uuid.uuid4().hex[:8]}"
