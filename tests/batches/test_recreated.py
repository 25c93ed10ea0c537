from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from downspout.errors import DataLossError
from downspout.testing import FakeConsumer, FakeKafka, MemoryBatches, VirtualClock, run_topology
from spouts.batches import BatchCoordinator
from tests.batches.counting import LINES, values_of, word_count
from tests.batches.recreated import AGAIN, KINDS, LONGER, RecreatedContract

pytestmark = pytest.mark.fake_only("the contract has a twin in tests/broker/test_batches_recreated.py")
CONFIG = {"kafka.bootstrap": "fake://batches", "batch.store": "memory://test"}


class FakeTopic:
    name = "lines"
    bootstrap = "fake://batches"

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka, self.clock = kafka, VirtualClock()

    def write(self, lines: list[str]) -> None:
        for number, line in enumerate(lines):
            self._kafka.produce("lines", value=line.encode(), partition=number % 3)

    def delete(self) -> None:
        self._kafka.delete_topic("lines")

    def create_again(self, lines: list[str]) -> None:
        self.delete()
        self._kafka.create_topic("lines", 3)
        self.write(lines)


@pytest.fixture
def topic(kafka: FakeKafka) -> FakeTopic:
    return FakeTopic(kafka)


class TestRecreated(RecreatedContract):
    pass


@KINDS
@pytest.mark.parametrize("call", ["topic_ids", "beginning_offsets", "end_offsets", "seek", "poll"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_at_no_moment_of_a_batch_is_anything_passed_over(
    topic: FakeTopic,
    memory: MemoryBatches,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    call: str,
    when: str,
    policy: str,
) -> None:
    """The topic is created again before or after each call that an emitter makes: an error, or all of it is read."""
    poll = FakeConsumer.poll
    monkeypatch.setattr(FakeConsumer, "poll", lambda self, timeout_ms, max_records: poll(self, timeout_ms, 2))
    for nth in range(1, 60):
        memory.__init__("test")
        topic.create_again(LINES * 2)
        real, left = getattr(FakeConsumer, call), [nth]

        def between(self: FakeConsumer, *given: Any, real: Any = real, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] == 0 and when == "before":
                topic.create_again(LONGER * 2)
            found = real(self, *given)
            if left[0] == 0 and when == "after":
                topic.create_again(LONGER * 2)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(FakeConsumer, call, between)
            config = {**CONFIG, "kafka.on_data_loss": policy}
            try:
                run_topology(word_count(kind, records_max=6), config=config)
            except DataLossError:
                continue
        if left[0] > 0:
            assert nth > 2
            return
        with suppress(DataLossError):
            run_topology(word_count(kind), config=config)
            assert values_of(memory.states["counts"], kind).get("new", 0) == len(LONGER) * 2
    pytest.fail("the run makes more calls than this test has tried")


@KINDS
def test_a_topic_that_is_away_for_a_while_is_known_when_it_comes_back(
    kafka: FakeKafka, topic: FakeTopic, memory: MemoryBatches, kind: str
) -> None:
    """While it is not there, the place in it is kept, with the id: so the new one is noticed by then."""
    topic.write(LINES * 3)
    away = []

    def hook(at: str, what: str) -> None:
        if (at, what) == ("after", "delete_below") and not away:
            away.append(topic.clock.monotonic())
            kafka.delete_topic("lines")

    class Back(BatchCoordinator):
        def next_tuple(self) -> None:
            if away and not kafka.partitions("lines") and topic.clock.monotonic() > away[0] + 20:
                kafka.create_topic("lines", 3)
                topic.write(LONGER * 4)
            super().next_tuple()

    memory.hook = hook
    with pytest.raises(DataLossError, match=AGAIN):
        run_topology(
            word_count(kind, records_max=6, coordinator=Back, emit_interval_ms=100), config=CONFIG, clock=topic.clock
        )
    assert topic.clock.monotonic() > away[0] + 20
    assert "new" not in values_of(memory.states["counts"], kind)
