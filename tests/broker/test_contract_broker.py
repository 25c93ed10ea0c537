"""The contract of the consumer port, on a real broker: what keeps the fake honest.

What is read as columns is read here as well. That nothing else depends on it, `make test-all` shows.
"""

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
    """Give tests that wait for a question to time out the time that users have, and not a minute."""
    if request.node.originalname in (
        "test_a_partition_that_does_not_exist_has_no_end",
        "test_commits_in_an_open_transaction_cannot_be_read",
    ):
        request.getfixturevalue("hurried")


class TestReading(contract.ReadingContract):
    pass


class TestPositions(contract.PositionContract):
    pass


class TestTopics(contract.TopicContract):
    pass


class TestCommits(contract.CommitContract):
    pass


class TestGroups(contract.GroupContract):
    pass


class TestDeadLetters(contract.DeadLetterContract):
    pass


class TestProducing(contract.ProducerContract):
    pass


class TestTransactions(contract.TransactionContract):
    pass


class TestReadingInColumns(contract.ReadingContract):
    columns = True


class TestPositionsInColumns(contract.PositionContract):
    columns = True


@pytest.mark.sweep
class TestTopicsInColumns(contract.TopicContract):
    columns = True


@pytest.mark.sweep
class TestCommitsInColumns(contract.CommitContract):
    columns = True


@pytest.mark.sweep
class TestGroupsInColumns(contract.GroupContract):
    columns = True


@pytest.mark.sweep
class TestDeadLettersInColumns(contract.DeadLetterContract):
    columns = True
