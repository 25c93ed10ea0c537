"""The contract of the consumer port for partitions without a leader, on three brokers of which one is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.broker import EmbeddedCluster
from tests.broker.three_stage import ThreeStage
from tests.kafka import contract

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.usefixtures("hurried")]


@pytest.fixture
def stage(three_brokers: EmbeddedCluster) -> Iterator[ThreeStage]:
    three_brokers.start()
    made = ThreeStage(three_brokers)
    yield made
    made.close()
    three_brokers.start()


class TestLeaderless(contract.LeaderlessContract):
    pass
