from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from downspout.broker import EmbeddedKafka
from downspout.clock import SYSTEM_CLOCK
from downspout.testing import MemoryBatches
from tests.batches.recreated import RecreatedContract
from tests.kafka.broker_stage import RealStage

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def memory() -> Iterator[MemoryBatches]:
    with MemoryBatches("test") as memory:
        yield memory


class RealTopic:
    """A topic of a name of its own."""

    clock = SYSTEM_CLOCK

    def __init__(self, stage: RealStage) -> None:
        self._stage, self.bootstrap = stage, stage.bootstrap
        self.name = f"lines-{uuid.uuid4().hex[:8]}"
        stage.create(self.name, 3)

    def write(self, lines: list[str]) -> None:
        producer = self._stage.cluster.producer()
        for number, line in enumerate(lines):
            producer.send(self.name, key=None, value=line.encode(), partition=number % 3)
        producer.flush()
        producer.close()

    def delete(self) -> None:
        self._stage.delete(self.name)

    def create_again(self, lines: list[str]) -> None:
        self.delete()
        self._stage.create(self.name, 3)
        self.write(lines)


@pytest.fixture
def topic(kafka_broker: EmbeddedKafka) -> Iterator[RealTopic]:
    stage = RealStage(kafka_broker.bootstrap)
    yield RealTopic(stage)
    stage.close()


class TestRecreated(RecreatedContract):
    pass
