from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from downspout.batches import (
    Attempt,
    BatchRange,
    Coordinator,
    CoordinatorState,
    EmitBatch,
    EmitCommit,
    EmitterBatches,
    Held,
    Store,
)
from downspout.batches.core.coordinator import EmitSuccess, Status
from downspout.batches.core.held import Plan
from downspout.batches.core.protocol import (
    ForeignMetadataError,
    after,
    decode_partitions,
    decode_range,
    decode_state,
    encode_attempts,
    encode_partitions,
    encode_range,
    share,
)
from tests.sampling import examples


class CoordinatorMachine(RuleBasedStateMachine):
    """A coordinator and a model: what was emitted, what was stored, and which trees are open."""

    @initialize(max_active=st.integers(1, 4))
    def start(self, max_active: int) -> None:
        self.max_active = max_active
        self.stored = CoordinatorState()
        self.coordinator = Coordinator(self.stored, max_active)
        self.committed: list[int] = []
        self.numbers: dict[int, int] = {}  # the last attempt of each transaction that was emitted
        self.open: dict[tuple[str, Attempt], bool] = {}  # trees; whether their attempt is active

    def perform(self, actions: list[Any]) -> None:
        """Do as the coordinator says, and hold it against the model."""
        for action in actions:
            if isinstance(action, Store):
                assert action.state.current >= self.stored.current
                self.stored = action.state
            elif isinstance(action, EmitBatch):
                txid, number = action.attempt
                assert self.stored.attempts[txid] == number, "it is stored before it is emitted"
                assert number > self.numbers.get(txid, -1), "later attempts have higher numbers"
                self.numbers[txid] = number
                self.open["batch", action.attempt] = True
            elif isinstance(action, EmitCommit):
                assert action.attempt.txid == len(self.committed) + 1, "commits are in order"
                assert not [each for stream, each in self.open if stream == "commit" and self.open[stream, each]]
                self.open["commit", action.attempt] = True
            else:
                assert isinstance(action, EmitSuccess)
                assert self.stored.current == action.attempt.txid + 1, "success comes after the store"
                self.committed.append(action.attempt.txid)

    @precondition(lambda self: self.coordinator.next_txid() is not None)
    @rule()
    def begin(self) -> None:
        txid = self.coordinator.next_txid()
        assert txid is not None
        assert txid - self.coordinator.current < self.max_active
        self.perform(self.coordinator.begin(txid))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """A tree is complete; one of an attempt that is not active changes nothing."""
        stream, attempt = data.draw(st.sampled_from(sorted(self.open)))
        is_active = self.open.pop((stream, attempt))
        done = self.coordinator.processed if stream == "batch" else self.coordinator.committed
        before = self.seen()
        self.perform(done(attempt))
        assert is_active or self.seen() == before

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """A tree fails: its attempt and all later ones are given up; a late one changes nothing."""
        stream, attempt = data.draw(st.sampled_from(sorted(self.open)))
        is_active = self.open.pop((stream, attempt))
        before = self.seen()
        given_up = self.coordinator.failed(attempt)
        if not is_active:
            assert not given_up
            assert self.seen() == before
            return
        assert given_up[0] == attempt
        assert not [each for each, _ in self.coordinator.active if each.txid >= attempt.txid]
        for known in self.open:
            self.open[known] = self.open[known] and known[1] not in given_up

    @rule(max_active=st.integers(1, 4))
    def restart(self, max_active: int) -> None:
        """The process is started anew, with what is stored; trees that were open are not heard of again."""
        self.max_active = max_active
        self.coordinator = Coordinator(self.stored, max_active)
        self.open = {}

    def seen(self) -> Any:
        return self.coordinator.state(), list(self.coordinator.active)

    @invariant()
    def is_in_order(self) -> None:
        """Active transactions are those from the current one on, without a gap; only the first one commits."""
        active = list(self.coordinator.active)
        current = self.coordinator.current
        assert [attempt.txid for attempt, _ in active] == list(range(current, current + len(active)))
        assert Status.COMMITTING not in [status for _, status in active[1:]]
        assert self.committed == list(range(1, current))
        assert {attempt for attempt, _ in active} >= {each for (_, each), is_active in self.open.items() if is_active}


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_a_late_time_out_of_an_old_attempt_changes_nothing() -> None:
    """Trident's coordinator would throw out the running attempt, but not those behind it."""
    coordinator = Coordinator(CoordinatorState(), 2)
    coordinator.begin(1)
    coordinator.begin(2)
    assert coordinator.failed(Attempt(1, 0)) == [Attempt(1, 0), Attempt(2, 0)]
    coordinator.begin(1)
    coordinator.begin(2)
    assert coordinator.failed(Attempt(1, 0)) == []
    assert [attempt for attempt, _ in coordinator.active] == [Attempt(1, 1), Attempt(2, 1)]


@pytest.mark.parametrize("max_active", [1, 2, 5])
def test_a_restart_goes_on_with_higher_attempts(max_active: int) -> None:
    """The numbers of all transactions from the current one on outlive a restart, however many may be active."""
    coordinator = Coordinator(CoordinatorState(7, {6: 9, 7: 2, 8: 4}), max_active)
    assert coordinator.state() == CoordinatorState(7, {7: 2, 8: 4})
    assert coordinator.is_replay(7)
    assert not coordinator.is_replay(9)
    assert coordinator.begin(7) == [Store(CoordinatorState(7, {7: 3, 8: 4})), EmitBatch(Attempt(7, 3))]


@pytest.mark.parametrize("txid", [1, 3])
def test_no_batch_begins_out_of_order(txid: int) -> None:
    coordinator = Coordinator(CoordinatorState(), 3)
    coordinator.begin(1)
    with pytest.raises(ValueError, match=rf"^transaction {txid} cannot begin now$"):
        coordinator.begin(txid)


def test_a_processed_batch_waits_for_those_before_it() -> None:
    coordinator = Coordinator(CoordinatorState(), 2)
    coordinator.begin(1)
    coordinator.begin(2)
    assert coordinator.processed(Attempt(2, 0)) == []
    assert coordinator.committed(Attempt(2, 0)) == []
    assert coordinator.processed(Attempt(1, 0)) == [EmitCommit(Attempt(1, 0))]
    assert coordinator.processed(Attempt(1, 0)) == []
    assert coordinator.committed(Attempt(1, 0)) == [
        Store(CoordinatorState(2, {2: 0})), EmitSuccess(Attempt(1, 0)), EmitCommit(Attempt(2, 0)),
    ]  # fmt: skip
    assert not coordinator.is_idle
    coordinator.committed(Attempt(2, 0))
    assert coordinator.is_idle


def test_what_is_held_follows_the_newest_attempt() -> None:
    """Older attempts, and transactions that are done, are stale; a newer attempt begins with nothing."""
    held = Held[list[str]](list)
    held.begin(Attempt(3, 1))
    held.of(Attempt(3, 1)).append("a")
    assert held.of(Attempt(3, 0)) is None
    assert not held.begin(Attempt(3, 0))
    assert held.of(Attempt(3, 1)) == ["a"]
    assert held.begin(Attempt(3, 2))
    assert held.of(Attempt(3, 2)) == []
    assert not held.has_begun(Attempt(3, 1))
    assert held.may_commit(Attempt(3, 2))
    assert len(held) == 1
    held.success(3)
    assert len(held) == 0
    assert held.of(Attempt(3, 3)) is None
    assert not held.may_commit(Attempt(3, 2))
    held.success(2)  # it may come late
    assert held.of(Attempt(3, 4)) is None


def test_batches_before_are_those_that_have_begun_the_latest_first() -> None:
    """What was only heard of says nothing about where the next batch starts."""
    held = Held[list[str]](list)
    for txid in (2, 4, 3):
        held.begin(Attempt(txid, 0))
    held.of(Attempt(5, 0))
    assert [attempt.txid for attempt, _ in held.before(6)] == [4, 3, 2]
    assert [attempt for attempt, _ in held.before(4)] == [(3, 0), (2, 0)]
    held.drop_after(3)
    assert [attempt.txid for attempt, _ in held.before(9)] == [3, 2]
    assert len(held) == 2


def test_an_emitter_goes_on_after_the_newest_batch_that_it_knows() -> None:
    """Memory has the newer attempt of a transaction; the store has what other processes committed."""
    batches = EmitterBatches[str]()
    stored = {1: BatchRange(0, 4), 2: BatchRange(5, 9)}
    assert batches.before("p", 3, stored) == stored[2]
    assert batches.before("p", 2, stored) == stored[1]
    assert batches.before("p", 1, stored) is None
    assert batches.hear(Attempt(2, 1))
    batches.begin(Attempt(2, 1), {"p": BatchRange(5, 6)})
    assert batches.before("p", 3, stored) == BatchRange(5, 6)
    assert batches.before("other", 3, {}) is None
    assert batches.before("p", 3, {**stored, 3: BatchRange(10, 11)}) == BatchRange(5, 6)
    assert batches.before("p", 4, {**stored, 3: BatchRange(10, 11)}) == BatchRange(10, 11)
    assert not batches.hear(Attempt(2, 0))
    assert batches.to_commit(Attempt(2, 0)) is None
    assert batches.to_commit(Attempt(2, 1)) == {"p": BatchRange(5, 6)}
    assert batches.hear(Attempt(2, 2))
    assert batches.to_commit(Attempt(2, 2)) is None
    batches.begin(Attempt(2, 2), {"p": BatchRange(5, 6)})
    batches.begin(Attempt(3, 0), {"p": BatchRange(7, 8)})
    assert batches.before("p", 3, {}) == BatchRange(5, 6), "what lies behind says nothing about it"
    assert batches.hear(Attempt(2, 3))
    assert batches.before("p", 4, {}) is None, "what lies behind is given up"
    batches.success(2)
    assert not batches.hear(Attempt(2, 4))


def test_a_range_of_an_attempt_that_failed_says_nothing_of_what_the_next_one_leaves_out() -> None:
    batches, stored = EmitterBatches[str](), {1: BatchRange(0, 4)}
    batches.begin(Attempt(1, 1), {"other": BatchRange(0, 2)}, left_out=["p"])
    assert batches.before("p", 2, stored) is None
    assert batches.before("another task's", 2, stored) == stored[1]
    assert batches.to_commit(Attempt(1, 1)) == {"other": BatchRange(0, 2)}
    assert batches.in_flight() == {"other": 3}


def test_a_transactional_batch_is_again_new_or_nothing() -> None:
    batches = EmitterBatches[str]()
    stored = {4: BatchRange(5, 9), 5: BatchRange(9, 9)}
    assert batches.plan("p", 4, stored) == Plan(BatchRange(5, 9), is_new=False)
    assert batches.plan("p", 5, stored) == Plan(BatchRange(10, 9), is_new=False), "Trident's form of an empty batch"
    batches.begin(Attempt(7, 0), {"p": BatchRange(10, 14), "other": BatchRange(0, 4)})
    assert batches.plan("p", 8, {8: BatchRange(14, 14)}) == Plan(BatchRange(15, 14), is_new=False), "by memory"
    assert batches.plan("other", 8, {8: BatchRange(14, 14)}) == Plan(BatchRange(14, 14), is_new=False)
    assert batches.plan("p", 3, stored) == Plan(None, is_new=False)
    assert batches.plan("p", 6, stored) == Plan(None, is_new=True)
    assert batches.plan("p", 1, {}) == Plan(None, is_new=True)


@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
def test_each_partition_has_one_task(tasks: int) -> None:
    shares = [share(range(7), task, tasks) for task in range(tasks)]
    assert sorted(number for each in shares for number in each) == list(range(7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"firstOffset": 5, "lastOffset": 9, "topologyId": "a-1"}, BatchRange(5, 9, "a-1")),
        ({"firstOffset": 5, "lastOffset": 4}, BatchRange(5, 4)),
        ({"firstOffset": -1, "lastOffset": -1, "topologyId": None}, BatchRange(-1, -1)),
        (
            {"offset": 5, "nextOffset": 10, "topology": {"id": "a-1", "name": "a"}, "topic": "t"},
            BatchRange(5, 9, "a-1"),
        ),
        ({"offset": 5, "nextOffset": 5, "instanceId": "i"}, BatchRange(5, 4)),
        ({"firstOffset": 5, "lastOffset": 9, "topologyId": "a-1", "topicId": "x"}, BatchRange(5, 9, "a-1", "x")),
        ({"firstOffset": 5, "lastOffset": 9, "topicId": None}, BatchRange(5, 9)),
    ],
)
def test_metadata_of_both_forms_is_read(value: dict[str, Any], expected: BatchRange) -> None:
    assert decode_range(value) == expected
    assert decode_range(encode_range(expected)) == expected


@pytest.mark.parametrize(
    "value",
    [
        None, 7, [], {}, {"firstOffset": 5}, {"firstOffset": "5", "lastOffset": 9}, {"firstOffset": 5, "lastOffset": 3},
        {"firstOffset": True, "lastOffset": 9}, {"offset": 5}, {"offset": 5, "nextOffset": "9"},
        {"offset": 5, "nextOffset": 3}, {"firstOffset": 5, "lastOffset": 9, "topologyId": 4},
        {"firstOffset": 5, "lastOffset": 9, "topicId": 4},
    ],
)  # fmt: skip
def test_other_metadata_is_refused(value: Any) -> None:
    with pytest.raises(ForeignMetadataError, match=r"is not the metadata of a batch$"):
        decode_range(value)


def test_the_topics_id_stands_beside_tridents_fields() -> None:
    """Where it is not known, what is written is Trident's form to the letter."""
    trident = {"firstOffset": 5, "lastOffset": 9, "topologyId": "a-1"}
    assert encode_range(BatchRange(5, 9, "a-1", "x")) == {**trident, "topicId": "x"}
    assert encode_range(BatchRange(5, 9, "a-1")) == trident


def test_an_empty_batch_of_tridents_is_known_by_the_one_before() -> None:
    assert after(BatchRange(9, 9, "x"), BatchRange(5, 9)) == BatchRange(10, 9, "x")
    assert after(BatchRange(9, 9), BatchRange(5, 8)) == BatchRange(9, 9)
    assert after(BatchRange(9, 9), None) == BatchRange(9, 9)
    assert after(BatchRange(0, 0), None) == BatchRange(0, 0)
    assert after(BatchRange(-1, -1, "x"), None) == BatchRange(0, -1, "x")
    assert after(BatchRange(5, 9), BatchRange(5, 9)) == BatchRange(5, 9)
    one = BatchRange(9, 9, "x", "with a topic's id it is none of Trident's")
    assert after(one, BatchRange(5, 9)) == one
    assert (BatchRange.empty(4, "x", "id"), BatchRange.empty(4).next) == (BatchRange(4, 3, "x", "id"), 4)


def test_the_coordinators_state_is_read_as_it_was_written() -> None:
    """JSON makes texts of the transaction ids."""
    state = CoordinatorState(3, {3: 1, 4: 0})
    assert decode_state(3, encode_attempts(state)) == state
    assert decode_state(None, None) == CoordinatorState(1, {})
    assert decode_state(0, {}) == CoordinatorState(1, {})
    assert decode_state(2, None) == CoordinatorState(2, {})


@pytest.mark.parametrize(
    ("current", "attempts", "what"),
    [
        ("3", {}, "currtx is '3', not a number"),
        (3, {"3": "1"}, "not attempts by transaction"),
        (3, {"three": 1}, "not attempts by transaction"),
        (3, [1], "not attempts by transaction"),
    ],
)
def test_another_state_is_refused(current: Any, attempts: Any, what: str) -> None:
    with pytest.raises(ForeignMetadataError, match=what):
        decode_state(current, attempts)


@pytest.mark.parametrize(
    "value", [None, 7, [7], [{}], [{"topic": "t"}], [{"topic": 1, "partition": 0}], [{"topic": "t", "partition": "0"}]]
)
def test_partitions_of_another_form_are_refused(value: Any) -> None:
    with pytest.raises(ForeignMetadataError, match=r"does not name partitions$"):
        decode_partitions(value)


def test_partitions_are_read_as_they_were_written() -> None:
    partitions = [["b", 1], ["a", 0]]
    assert decode_partitions(encode_partitions(partitions)) == partitions


@pytest.mark.parametrize("value", [None, 3, [1], [1, 2, 3], ["a", 0]])
def test_what_is_no_attempt_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"is not an attempt \(txid, attempt\)$"):
        Attempt.of(value)
    assert str(Attempt(3, 1)) == "transaction 3, attempt 1"
