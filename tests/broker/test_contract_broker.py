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


@pytest.fixture(autouse=True)
def _what_is_not_there_is_soon_told(request: pytest.FixtureRequest) -> None:
    """Give the one test that waits for a question to time out the time that users have, and not a minute."""
    if request.node.originalname == "test_a_partition_that_does_not_exist_has_no_end":
        request.getfixturevalue("hurried")


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
