"""What of the log is shown."""

from __future__ import annotations

import logging

from downspout.cli.logs import WHILE_S, OnceInAWhile
from downspout.testing import VirtualClock


def record(name: str, line: int, text: str = "lost %s", *args: object) -> logging.LogRecord:
    """Return a log record of one line of code."""
    return logging.LogRecord(name, logging.WARNING, "client.py", line, text, args or ("x",), None)


def test_a_line_of_the_client_is_heard_once_in_a_while_with_the_number_left_out() -> None:
    """The same line of kafka-python's code is shown once in a while, and then tells how often it was not."""
    clock = VirtualClock()
    once = OnceInAWhile("kafka", clock)
    assert [once.filter(record("kafka.net", 7)) for _ in range(40)] == [True] + [False] * 39
    assert once.filter(record("kafka.net", 8))
    clock.advance(WHILE_S)
    again = record("kafka.net", 7)
    assert once.filter(again)
    assert again.getMessage() == "lost x (39 more like this)"


def test_our_own_lines_always_pass() -> None:
    """What is not the client's is never left out."""
    once = OnceInAWhile("kafka", VirtualClock())
    assert all(once.filter(record("downspout.local", 7)) for _ in range(5))
    assert all(once.filter(record("kafkaesque", 7)) for _ in range(5))
