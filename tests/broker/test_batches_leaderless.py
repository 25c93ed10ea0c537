"""Batches while one of three brokers is gone, and with it a partition that has no other replica."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.broker import EmbeddedCluster
from downspout.clock import SYSTEM_CLOCK
from downspout.kafka import TopicPartition
from downspout.testing import MemoryBatches, run_topology
from tests.batches.counting import LINES, counted, values_of, word_count
from tests.broker.three_stage import ThreeStage
from tests.kafka.stage import unique
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.usefixtures("hurried"), pytest.mark.timeout(300)]
RUN_S = 15.0
"""How long a run goes on without a leader: each task waits for it 4 s, once, and then asks what it can have. On a busy
machine several runs may be needed."""


@pytest.fixture
def stage(three_brokers: EmbeddedCluster) -> Iterator[ThreeStage]:
    three_brokers.start()
    made = ThreeStage(three_brokers)
    yield made
    made.close()
    three_brokers.start()


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["opaque", pytest.param("transactional", marks=pytest.mark.sweep)])
def test_one_of_two_partitions_has_no_leader(stage: ThreeStage, kind: str) -> None:
    """Each has a task of its own: opaque batches have what the other one has, transactional ones wait."""
    topic = unique("lines")
    stage.create_apart(topic)
    producer = stage.cluster.producer()
    for number, line in enumerate(LINES):
        producer.send(topic, key=None, value=line.encode(), partition=number % 2)
    producer.flush()
    producer.close()
    stage.lose_leader(TopicPartition(topic, 1))
    with MemoryBatches("test") as memory:
        config = {"kafka.bootstrap": stage.bootstrap, "batch.store": "memory://test", "run.drain_s": 0.0}
        topology = word_count(kind, par=2, topics=[topic])

        def counts_what_can_be_read() -> bool:
            run_topology(topology, config=config, clock=SYSTEM_CLOCK, for_s=RUN_S)
            found = values_of(memory.states["counts"], kind) if "counts" in memory.states else {}
            return found == counted(LINES[::2] if kind == "opaque" else [])

        eventually(counts_what_can_be_read, otherwise=lambda: memory.states)
        stage.find_leader(TopicPartition(topic, 1))
        assert run_topology(topology, config=config, clock=SYSTEM_CLOCK).run.reason == "end"
        assert values_of(memory.states["counts"], kind) == counted(LINES)
