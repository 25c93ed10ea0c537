"""The structure behind "no call takes longer than 5 s": every wait for a broker that a call may contain is shorter."""

from __future__ import annotations

import inspect

import pytest

from downspout.dead_letters import dead_letter
from downspout.kafka import address, consumer
from downspout.settings import SETTINGS
from downspout.wire import EXIT_S_MAX

CALL_S_MAX = 5.0

WAITS = {
    "a request to a broker": consumer.REMOTE_MS_MAX / 1000,
    "whether a broker is there": address.ANSWER_S_MAX,
    "a dead letter, queued and acknowledged": dead_letter.PRODUCER["max_block_ms"] / 1000
    + inspect.signature(dead_letter.DeadLetters).parameters["timeout_s"].default,
    "the last work": EXIT_S_MAX,
}


@pytest.mark.parametrize("what", WAITS)
def test_each_wait_is_shorter_than_a_call_may_be(what: str) -> None:
    """Storm's heartbeat ends a worker whose component is silent; no wait of ours comes near it."""
    assert 0 < WAITS[what] < CALL_S_MAX


def test_a_poll_cannot_be_set_to_wait_longer() -> None:
    assert SETTINGS["kafka.poll_timeout_ms"].maximum == CALL_S_MAX * 1000
