"""The states of a group session, and their transitions."""

from __future__ import annotations

import pytest

from downspout.spout import TRANSITIONS, GroupSession, SessionState
from downspout.testing import FakeKafka
from tests.spout.spout_driver import TOPIC, Driver, fill


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    states: list[str] = []
    first: list[GroupSession] = []
    become = GroupSession.become

    def noted(self: GroupSession, state: SessionState) -> None:
        become(self, state)
        first.append(self)
        if self is first[0]:
            states.append(state.value)

    monkeypatch.setattr(GroupSession, "become", noted)
    return states


@pytest.mark.fake_only("each turn is counted, and a broker takes any number of them")
def test_a_session_joins_runs_drains_and_leaves(bare_kafka: FakeKafka, passed: list[str]) -> None:
    """A hand-over waits in one state for what is out, in the next for the rebalance, and ends in a new assignment."""
    kafka = bare_kafka
    kafka.create_topic(TOPIC, 2)
    for partition in (0, 1):
        fill(kafka, 10, partition)
    one = Driver(kafka)
    one.run()
    assert passed[-1] == "running"
    passed.clear()
    two = Driver(kafka, member=2)
    two.spout.next_tuple()
    one.run(3)
    assert passed == ["draining"]
    one.ack_all()
    one.run(1)
    assert passed == ["draining", "handed over"]
    own = []
    for _ in range(10):
        two.spout.next_tuple()
        passed.clear()
        one.run(1)
        own += passed
    assert own == ["joining", "running"]
    passed.clear()
    one.spout.close()
    assert passed == ["left"]


def test_a_session_that_has_left_goes_nowhere() -> None:
    """Every other state can be left, and only the end of a hand-over or a change of partitions leads to joining."""
    assert not TRANSITIONS[SessionState.LEFT]
    assert all(SessionState.LEFT in TRANSITIONS[state] for state in SessionState if state is not SessionState.LEFT)
    assert SessionState.RUNNING not in TRANSITIONS[SessionState.DRAINING] | TRANSITIONS[SessionState.HANDED_OVER]
