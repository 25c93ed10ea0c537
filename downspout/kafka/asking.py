"""Answers that a command waits for.

A coordinator or a leader that moves leaves a question without an answer for some seconds. The spout asks again on its
next turn; a command has only one turn, so it asks again here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kafka import errors

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError
from downspout.kafka.retry_gate import cure_of, describe

ANSWER_S_MAX = 30.0
AGAIN_S = 0.5

Answer = TypeVar("Answer")


def answer_of(question: Callable[[], Answer], what: str, *, clock: Clock = SYSTEM_CLOCK) -> Answer:
    """Return what Kafka answers; ask again for up to 30 s while the error is one that passes.

    >>> answer_of(lambda: 42, "the lag of group orders")
    42
    """
    deadline = clock.monotonic() + ANSWER_S_MAX
    while True:
        try:
            return question()
        except errors.KafkaError as error:
            if not error.retriable or clock.monotonic() >= deadline:
                cure = "try again when the brokers are up; `downspout kafka status` shows the local one"
                raise BrokerError(
                    f"Kafka does not tell {what}: {describe(error)}", cure=cure_of(error, cure)
                ) from error
        clock.sleep(AGAIN_S)
