from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from downspout.clock import SYSTEM_CLOCK
from downspout.kafka import KafkaCluster
from downspout.testing import Killed, MemoryBatches, run_topology
from tests.batches.counting import LINES, counted, values_of, word_count

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


@pytest.fixture
def memory() -> Iterator[MemoryBatches]:
    with MemoryBatches("test") as memory:
        yield memory


def write(cluster: KafkaCluster, topic: str, lines: list[str]) -> None:
    """Write lines in transactions of three, each followed by one that is aborted: the log has gaps and markers."""
    producer = cluster.transactional_producer(f"writer-{topic}")
    for start in range(0, len(lines), 3):
        for ends, some in ((producer.commit, lines[start : start + 3]), (producer.abort, ["aborted"] * 2)):
            producer.begin()
            for number, line in enumerate(some):
                producer.send(topic, key=None, value=line.encode(), partition=number % 3)
            producer.flush()
            ends()
    producer.close()


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_log_with_gaps_is_counted_once_over_kills(cluster: KafkaCluster, memory: MemoryBatches, kind: str) -> None:
    """Markers and aborted records are passed over, small batches go on where they ended, and a run ends at the end."""
    topic = f"lines-{uuid.uuid4().hex[:8]}"
    cluster.ensure_topic(topic, 3)
    write(cluster, topic, LINES * 4)
    config = {"kafka.bootstrap": cluster.bootstrap, "batch.store": "memory://test"}
    for number, most in enumerate((6, 9, 3, 1000)):
        left = [8 + 2 * number]

        def hook(at: str, what: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed(what)

        memory.hook = hook
        topology = word_count(kind, 2, max_active=2, records_max=most, topics=[topic])
        try:
            run_topology(topology, config=config, clock=SYSTEM_CLOCK)
        except Killed:
            continue
        break
    memory.hook = lambda at, what: None
    result = run_topology(word_count(kind, topics=[topic]), config=config, clock=SYSTEM_CLOCK)
    assert result.run.reason == "end"
    assert values_of(memory.states["counts"], kind) == counted(LINES * 4)


def test_a_replay_passes_over_partitions_of_which_it_has_nothing(cluster: KafkaCluster, memory: MemoryBatches) -> None:
    """A transactional batch is emitted again by a new process, though two of its three partitions are empty."""
    topic = f"lines-{uuid.uuid4().hex[:8]}"
    cluster.ensure_topic(topic, 3)
    producer = cluster.producer()
    for line in LINES:
        producer.send(topic, key=None, value=line.encode(), partition=1)
    producer.flush()
    producer.close()
    config = {"kafka.bootstrap": cluster.bootstrap, "batch.store": "memory://test"}

    def hook(at: str, what: str) -> None:
        if (at, what) == ("after", "save_ranges"):
            raise Killed(what)

    memory.hook = hook
    with pytest.raises(Killed):
        run_topology(word_count("transactional", topics=[topic]), config=config, clock=SYSTEM_CLOCK)
    memory.hook = lambda at, what: None
    run_topology(word_count("transactional", topics=[topic]), config=config, clock=SYSTEM_CLOCK)
    assert values_of(memory.states["counts"], "transactional") == counted(LINES)
