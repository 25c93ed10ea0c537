from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kafka import errors

from downspout.kafka import TopicPartition, ask_leaders

LED, LOST = TopicPartition("t", 0), TopicPartition("t", 1)


class Client:
    """A consumer that knows, look by look, who leads the second partition; a wait for it ends as the test says."""

    def __init__(self, looks: Sequence[int | None], waits: bool = True) -> None:
        self._looks, self._waits = list(looks), waits
        self._cluster = self._manager = self
        self.waited = 0

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return who leads a partition; the last look holds for good."""
        if partition == LED:
            return 1
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def run(self, wait: Any) -> None:
        """Wait for a leader: it is found, or time is over."""
        self.waited += 1
        if not self._waits:
            raise errors.KafkaTimeoutError("no leader")


def asked(client: Client, *answers: dict[TopicPartition, int] | None) -> tuple[Any, int]:
    """Ask, and be answered so in turns (None: with a KeyError); return the last answer, and the number of questions."""
    left = list(answers)

    def ask(timeout_ms: int) -> dict[TopicPartition, int]:
        assert 0 < timeout_ms <= 500
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            raise KeyError(LOST)
        return answer

    found = ask_leaders(client, [LED, LOST], 500, ask)
    return found, len(answers) - len(left) + 1


def test_an_answer_counts_where_all_leaders_are_known_before_and_after() -> None:
    client = Client([2])
    assert asked(client, {LED: 5, LOST: 6}) == ({LED: 5, LOST: 6}, 1)
    assert client.waited == 0


def test_a_leader_is_waited_for_before_the_question() -> None:
    for unknown in (None, -1):
        client = Client([unknown, 2])
        assert asked(client, {LED: 5, LOST: 6})[0] == {LED: 5, LOST: 6}
        assert client.waited == 1


def test_a_leader_that_is_lost_meanwhile_is_asked_again() -> None:
    """Whether the client stumbles over it, or leaves its partition out without a word."""
    assert asked(Client([2, 2]), None, {LED: 5, LOST: 6}) == ({LED: 5, LOST: 6}, 2)
    client = Client([2, -1, -1, 2])
    assert asked(client, {LED: 5}, {LED: 5, LOST: 6}) == ({LED: 5, LOST: 6}, 2)
    assert client.waited == 1


def test_a_leader_that_stays_away_is_an_error_that_passes() -> None:
    """It is waited for as long as the call may take."""
    with pytest.raises(errors.KafkaTimeoutError):
        asked(Client([2, 2, -1], waits=False), None)
    with pytest.raises(errors.KafkaTimeoutError):
        asked(Client([2]), None)
