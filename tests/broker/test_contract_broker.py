"""The contract of the consumer port, on a real broker: what keeps the fake honest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kafka import contract
from tests.kafka.broker_stage import RealStage

pytestmark = pytest.mark.broker


@pytest.fixture
def stage(kafka_broker: Any) -> Iterator[RealStage]:
    """The broker of the session; each test uses topics and groups of its own."""
    made = RealStage(kafka_broker.bootstrap)
    yield made
    made.close()


class TestReading(contract.ReadingContract):
    """On a real broker."""


class TestTopics(contract.TopicContract):
    """On a real broker."""


class TestCommits(contract.CommitContract):
    """On a real broker."""


class TestGroups(contract.GroupContract):
    """On a real broker."""


class TestDeadLetters(contract.DeadLetterContract):
    """On a real broker."""


class TestReadingInColumns(contract.ReadingContract):
    """On a real broker, read as columns."""

    columns = True


class TestTopicsInColumns(contract.TopicContract):
    """On a real broker, read as columns."""

    columns = True


class TestCommitsInColumns(contract.CommitContract):
    """On a real broker, read as columns."""

    columns = True


class TestGroupsInColumns(contract.GroupContract):
    """On a real broker, read as columns."""

    columns = True


class TestDeadLettersInColumns(contract.DeadLetterContract):
    """On a real broker, read as columns."""

    columns = True
