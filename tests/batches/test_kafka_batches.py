from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.testing import FakeKafka, run_topology
from downspout.testing.memory_batches import MemoryBatches
from tests.batches.counting import LINES, counted, values_of, word_count

pytestmark = pytest.mark.fake_only("the emitter's reading has a twin in tests/broker/test_batches_broker.py")


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A topic with three partitions."""
    with FakeKafka("batches") as kafka:
        kafka.create_topic("lines", 3)
        yield kafka


@pytest.fixture
def memory() -> Iterator[MemoryBatches]:
    """What outlives a run."""
    with MemoryBatches("test") as memory:
        yield memory


CONFIG = {"kafka.bootstrap": "fake://batches", "batch.store": "memory://test"}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize(("par", "active", "most"), [(1, 1, 1000), (2, 3, 3), (4, 2, 2)])
def test_a_run_counts_each_word_once(
    kafka: FakeKafka, memory: MemoryBatches, kind: str, par: int, active: int, most: int
) -> None:
    """A bounded run commits everything up to the end, in as many batches as the limits make of it, and ends."""
    for number, line in enumerate(LINES * 5):
        kafka.produce("lines", value=line.encode(), partition=number % 3)
    topology = word_count(kind, par, max_active=active, records_max=most)
    result = run_topology(topology, config=CONFIG)
    assert result.run.reason == "end"
    assert values_of(memory.states["counts"], kind) == counted(LINES * 5)
    assert memory.coordinator is not None
    assert memory.coordinator.current - 1 >= len(LINES) * 5 / max(most, 3)  # one record of each partition at least
