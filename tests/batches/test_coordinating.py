from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from downspout.batches import BATCH, COMMIT, SUCCESS, Attempt, BatchStoreContext, BatchStoreError, open_batch_store
from downspout.batches.coordinating import Coordinating
from downspout.batches.core.protocol import message_id
from downspout.protocols import Failure
from downspout.settings import parse_scope
from downspout.testing import MemoryBatches

ONE, TWO = [["lines", 0]], [["lines", 0], ["lines", 1]]


class Source:
    def __init__(self) -> None:
        self.known: Sequence[Any] | None = ONE
        self.ready, self.ended = True, False

    def partitions(self, now: int) -> Sequence[Any] | None:
        return self.known

    def is_ready(self, txid: int) -> bool:
        return self.ready

    def end_reached(self, current: int) -> bool:
        return self.ended


class Driven:
    def __init__(self, memory: MemoryBatches, **settings: Any) -> None:
        self.source, self.emitted, self.now = Source(), list[tuple[str, Any]](), 0
        self.partitions: Sequence[Any] = ()
        store = open_batch_store(memory.location, BatchStoreContext("test"))
        given = {"emit_interval_ms": 0, "max_active": 2, **settings}
        parsed = parse_scope({f"batch.{key}": value for key, value in given.items()}, "batch")
        self.batches = Coordinating(store, "test-1", self.source, self.emit, parsed, logging.getLogger("test"))

    def emit(self, stream: str, values: list[Any], tup_id: str | None) -> None:
        assert tup_id == (None if stream == SUCCESS else message_id(stream, values[0]))
        self.emitted.append((stream, tuple(values[0])))
        if stream == BATCH:
            self.partitions = values[2]

    def turn(self, turns: int = 1, ms: int = 1) -> list[tuple[str, Any]]:
        """Have some turns; return what was emitted since the last call."""
        for _ in range(turns):
            self.now += ms
            self.batches.turn(self.now)
        emitted, self.emitted = self.emitted, []
        return emitted

    def ack(self, stream: str, txid: int, number: int = 0) -> None:
        self.batches.acked(message_id(stream, Attempt(txid, number)), self.now)

    def fail(self, stream: str, txid: int, number: int = 0, failure: Failure | None = None) -> None:
        self.batches.failed(message_id(stream, Attempt(txid, number)), failure, self.now)


@pytest.fixture
def memory() -> Iterator[MemoryBatches]:
    with MemoryBatches("test") as memory:
        yield memory


def test_a_batch_with_other_partitions_waits_for_those_before_it(memory: MemoryBatches) -> None:
    """Another task may have a partition then, and would not know where it stands."""
    driven = Driven(memory)
    assert driven.turn() == [(BATCH, (1, 0))]
    driven.source.known = TWO
    assert driven.turn(5) == []
    driven.ack(BATCH, 1)
    assert driven.turn(5) == [(COMMIT, (1, 0))]
    driven.ack(COMMIT, 1)
    assert driven.turn(2) == [(SUCCESS, (1, 0)), (BATCH, (2, 0)), (BATCH, (3, 0))]


def test_as_many_batches_begin_at_acks_after_a_turn_as_may_be_active(memory: MemoryBatches) -> None:
    """A batch that ends makes room for the next at once; a run that stops gives no turns, and comes to rest."""
    driven = Driven(memory)
    assert driven.turn(2) == [(BATCH, (1, 0)), (BATCH, (2, 0))]
    for stream, txid in ((BATCH, 1), (BATCH, 2), (COMMIT, 1), (COMMIT, 2), (BATCH, 3), (BATCH, 4), (COMMIT, 3)):
        driven.ack(stream, txid)
    driven.ack(COMMIT, 4)
    assert [each for each in driven.emitted if each[0] == BATCH] == [(BATCH, (3, 0)), (BATCH, (4, 0))]
    assert [each for each in driven.emitted if each[0] == SUCCESS] == [(SUCCESS, (txid, 0)) for txid in (1, 2, 3, 4)]
    assert driven.batches.is_idle


def test_a_transactional_replay_has_the_partitions_of_its_first_attempt(memory: MemoryBatches) -> None:
    """An opaque one has those of now; after the success nothing of them is kept."""
    for kind, again in (("transactional", ONE), ("opaque", TWO)):
        driven = Driven(memory, kind=kind, max_active=1)
        [(_, attempt)] = driven.turn()
        driven.source.known = TWO
        assert driven.partitions == ONE
        driven.fail(BATCH, *attempt)
        [(_, attempt)] = driven.turn()
        assert driven.partitions == again
        driven.batches.turn(driven.now, begins=False)
        driven.ack(BATCH, *attempt)
        driven.ack(COMMIT, *attempt)
        driven.batches.close()
    assert set(memory.partitions) <= {1}


def test_nothing_is_emitted_before_its_attempt_is_stored(memory: MemoryBatches) -> None:
    """A store that does not answer is tried again after a while, and what follows waits."""

    def away(when: str, what: str) -> None:
        raise BatchStoreError("away", passes=True)

    driven = Driven(memory)
    memory.hook = away
    assert driven.turn(500) == []
    assert memory.coordinator is None
    memory.hook = lambda when, what: None
    assert driven.turn(500)[0] == (BATCH, (1, 0))
    assert memory.coordinator is not None
    assert memory.coordinator.attempts[1] == 0


def test_what_waits_for_the_store_is_not_emitted_after_a_fail(memory: MemoryBatches) -> None:
    """An attempt that is given up before it was emitted stays stored, and its number is not used again."""
    driven = Driven(memory)
    driven.turn()
    left = [1]

    def away(when: str, what: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise BatchStoreError("away", passes=True)

    left[0] = 0
    memory.hook = away
    assert driven.turn(3) == []
    driven.fail(BATCH, 1)
    memory.hook = lambda when, what: None
    assert driven.turn(3, ms=300) == [(BATCH, (1, 1)), (BATCH, (2, 1))]


def test_no_batch_begins_while_the_source_is_not_known_or_not_ready(memory: MemoryBatches) -> None:
    driven = Driven(memory)
    driven.source.known = None
    assert driven.turn(3) == []
    driven.source.known, driven.source.ready = ONE, False
    assert driven.turn(3) == []
    driven.source.ready, driven.source.ended = True, True
    assert driven.turn(3) == []
    assert driven.batches.end_reached()
    assert driven.batches.is_idle


def test_fails_of_attempts_that_are_not_active_are_not_counted(memory: MemoryBatches) -> None:
    """Nor do they give anything up; timeouts are no errors of a bolt."""
    driven = Driven(memory, attempts_max=1, max_active=1)
    driven.turn()
    driven.fail(COMMIT, 1)
    driven.fail(BATCH, 7, 3, Failure("exception", error="no"))
    assert driven.turn(2) == []
    driven.fail(BATCH, 1, 0, Failure("timeout"))
    driven.fail(BATCH, 1, 0, Failure("exception", error="late"))
    assert driven.turn() == [(BATCH, (1, 1))]
    assert driven.batches.report()["batches_failed"] == 1
    assert driven.batches.report()["batch_attempts"] == 2
