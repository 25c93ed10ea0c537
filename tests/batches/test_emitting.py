"""Which records an emitter task has in a batch, also after another process has taken its place."""

from __future__ import annotations

import logging

import pytest

from downspout.batches import Attempt, BatchStoreContext, open_batch_store
from downspout.batches.emitting import Emitting
from downspout.batches.setup import BatchSetup
from downspout.clock import SYSTEM_CLOCK
from downspout.kafka import TopicPartition
from downspout.testing import FakeKafka, MemoryBatches

pytestmark = pytest.mark.fake_only("it is about what the store of the batches holds, and not about Kafka")
PARTITIONS = [["lines", 0], ["lines", 1]]
FIRST, AGAIN, SECOND, SECOND_AGAIN = Attempt(1, 0), Attempt(1, 1), Attempt(2, 0), Attempt(2, 1)


class Emitter:
    """A process that emits, and what it says of its batches: the offsets of each partition."""

    def __init__(self, memory: MemoryBatches, kind: str) -> None:
        conf = {
            "kafka.bootstrap": "fake://batches", "kafka.topics": "lines", "kafka.poll_timeout_ms": 1,
            "batch.kind": kind, "batch.store": memory.location, "batch.records_max": 4,
        }  # fmt: skip
        setup, log = BatchSetup.of(conf, {}), logging.getLogger("test")
        store = open_batch_store(memory.location, BatchStoreContext("test"))
        self.epoch = memory.epoch
        self.emitting = Emitting(setup, setup.open_consumer(log), store, SYSTEM_CLOCK, log)

    def batch(self, attempt: Attempt) -> list[list[int]]:
        found = self.emitting.batch(attempt, self.epoch, PARTITIONS)
        assert found is not None
        return [[record.offset for record in found.get(TopicPartition(*tp), ())] for tp in PARTITIONS]

    def commit(self, attempt: Attempt) -> bool:
        is_whole = self.emitting.commit(attempt, self.epoch)
        if is_whole:
            self.emitting.success(attempt, self.epoch)
        return is_whole


@pytest.fixture
def lines(kafka: FakeKafka) -> FakeKafka:
    """Five records in the first partition, one in the second: a batch has two of each at most."""
    for partition in (0, 0, 0, 0, 0, 1):
        kafka.produce("lines", value=b"x", partition=partition)
    return kafka


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "a process for each step"])
def test_a_batch_begins_where_the_one_before_ended(
    lines: FakeKafka, memory: MemoryBatches, kind: str, restarts: bool
) -> None:
    """Its ranges are in the store when it is committed, also that of a partition without a record in it."""
    emitter = Emitter(memory, kind)
    seen = []
    for txid in (1, 2, 3):
        seen.append(emitter.batch(Attempt(txid, 0)))
        assert emitter.commit(Attempt(txid, 0))
        assert [[*memory.ranges[f"lines/{number}"]] for number in (0, 1)] == [[txid], [txid]]
        ranges = [memory.ranges[f"lines/{number}"][txid] for number in (0, 1)]
        assert [found.next for found in ranges] == [min(2 * txid, 5), 1]
        if restarts:
            emitter = Emitter(memory, kind)
    assert seen == [[[0, 1], [0]], [[2, 3], []], [[4], []]]


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "a process for each step"])
def test_an_attempt_of_a_transactional_batch_has_the_records_of_the_first(
    lines: FakeKafka, memory: MemoryBatches, restarts: bool
) -> None:
    """Whatever has come meanwhile, and although a batch behind it was begun."""
    emitter = Emitter(memory, "transactional")
    assert emitter.batch(FIRST) == [[0, 1], [0]]
    assert emitter.batch(SECOND) == [[2, 3], []]
    for partition in (0, 1):
        lines.produce("lines", value=b"later", partition=partition)
    if restarts:
        emitter = Emitter(memory, "transactional")
    assert emitter.batch(AGAIN) == [[0, 1], [0]]
    assert emitter.batch(SECOND_AGAIN) == [[2, 3], []]
    assert emitter.commit(AGAIN)
    assert emitter.commit(SECOND_AGAIN)


def test_an_attempt_of_an_opaque_batch_has_what_is_there_by_now(lines: FakeKafka, memory: MemoryBatches) -> None:
    """Behind the batch before; what is stored at its commit is what it held, and not what the first attempt did."""
    emitter = Emitter(memory, "opaque")
    assert emitter.batch(FIRST) == [[0, 1], [0]]
    assert emitter.batch(SECOND) == [[2, 3], []]
    assert emitter.commit(FIRST)
    lines.produce("lines", value=b"later", partition=1)
    assert emitter.batch(SECOND_AGAIN) == [[2, 3], [1]]
    assert emitter.commit(SECOND_AGAIN)
    assert [memory.ranges[f"lines/{number}"][2].next for number in (0, 1)] == [4, 2]


def test_a_partition_that_an_opaque_batch_leaves_out_keeps_its_place(lines: FakeKafka, memory: MemoryBatches) -> None:
    """While it has no leader; the batch's range of it is empty, and the next one goes on there, in another process."""
    emitter = Emitter(memory, "opaque")
    emitter.batch(FIRST)
    emitter.commit(FIRST)
    lines.leaderless.add(TopicPartition("lines", 0))
    assert emitter.batch(SECOND) == [[], []]
    assert emitter.commit(SECOND)
    lines.leaderless.clear()
    assert memory.ranges["lines/0"][2].next == 2
    assert Emitter(memory, "opaque").batch(Attempt(3, 0)) == [[2, 3], []]


def test_a_first_batch_that_comes_again_without_a_partition_skips_nothing(
    lines: FakeKafka, memory: MemoryBatches
) -> None:
    """Its first attempt was stored, and failed all the same; the batch behind it has begun before the second is."""
    emitter = Emitter(memory, "opaque")
    assert emitter.batch(FIRST) == [[0, 1], [0]]
    assert emitter.emitting.commit(FIRST, emitter.epoch)  # a state has failed, so there is no success
    lines.leaderless.add(TopicPartition("lines", 0))
    assert emitter.batch(AGAIN) == [[], [0]]
    lines.leaderless.clear()
    assert emitter.batch(SECOND) == [[0, 1], []]
    assert emitter.commit(AGAIN)
    assert emitter.commit(SECOND)
    assert Emitter(memory, "opaque").batch(Attempt(3, 0)) == [[2, 3], []]


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_what_is_out_and_what_is_committed_is_told(lines: FakeKafka, memory: MemoryBatches, kind: str) -> None:
    """Before the first commit there is none; another process knows that of those before it."""

    def figures(emitter: Emitter) -> list[int | None]:
        found = emitter.emitting.by_partition()["lines[0]"]
        return [found[name] for name in ("committed", "emitted", "in_flight", "lag")]

    emitter = Emitter(memory, kind)
    assert emitter.emitting.by_partition() == {}
    emitter.batch(FIRST)
    assert figures(emitter) == [None, 1, 2, 5]
    emitter.batch(SECOND)
    assert figures(emitter) == [None, 3, 4, 5]
    emitter.commit(FIRST)
    assert figures(emitter) == [2, 3, 2, 3]
    emitter = Emitter(memory, kind)
    emitter.batch(SECOND_AGAIN)
    assert figures(emitter) == [2, 3, 2, 3]


def test_a_process_commits_no_batch_whose_beginning_it_has_not_seen(lines: FakeKafka, memory: MemoryBatches) -> None:
    """It does not know the ranges, so the attempt fails, and begins again."""
    Emitter(memory, "opaque").batch(FIRST)
    emitter = Emitter(memory, "opaque")
    assert not emitter.commit(FIRST)
    assert not memory.ranges
    assert emitter.batch(AGAIN) == [[0, 1], [0]]
