"""Filters of the log."""

from __future__ import annotations

import logging
import sys

import pytest
from kafka import errors

from downspout.cli.terminal import WHILE_S, OnceInAWhile, OneLine
from downspout.kafka import log_filters
from downspout.testing import VirtualClock


def record(name: str, line: int, text: str = "lost %s", *args: object) -> logging.LogRecord:
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


def test_a_record_forges_no_line_of_the_log() -> None:
    """What it holds is escaped; a traceback, which has lines, is indented, so that each line of the log is one."""
    form = OneLine("%(levelname)s %(message)s")
    assert form.format(record("x", 1, "lost %s", "a\nERROR all is lost\x1b[2J")) == (
        r"WARNING lost a\nERROR all is lost\x1b[2J"
    )
    try:
        raise ValueError("no word\nERROR all is lost\r\x1b[31m")
    except ValueError:
        raised = record("x", 1)
        raised.exc_info = sys.exc_info()
    first, *more = form.format(raised).splitlines()
    assert first == "WARNING lost x"
    assert all(line.startswith("    ") for line in more)
    assert "\x1b" not in "".join(more)


def test_our_own_lines_always_pass() -> None:
    once = OnceInAWhile("kafka", VirtualClock())
    assert all(once.filter(record("downspout.engine", 7)) for _ in range(5))
    assert all(once.filter(record("kafkaesque", 7)) for _ in range(5))


CLIENT = {
    "slow step": (
        "kafka.net.selector",
        "Task <x> ran for 0.113s (>0.100s threshold). It is blocking the event loop",
        (),
    ),
    "refresh at close": ("kafka.cluster", "Metadata refresh: failed %s", (errors.Cancelled(),)),
    "send at close": (
        "kafka.producer.sender",
        "%s: Error sending produce request to node %d: %s",
        ("<Sender>", 1, errors.Cancelled()),
    ),
}
TIMED_OUT = errors.RequestTimedOutError("Request timed out after 2999 ms")
CLIENT |= {
    "connection of a request that timed out": ("kafka.net.connection", "%s: Connection lost: %s", ("<x>", TIMED_OUT)),
    "transport of one": ("kafka.net.transport", "%s: Abort (%s)", ("<x>", TIMED_OUT)),
}
NEWS = {
    "a request that timed out": ("kafka.net.connection", "%s: %s. Closing connection.", ("<x>", TIMED_OUT)),
    "a connection": ("kafka.net.connection", "%s: Connection lost: %s", ("<x>", errors.KafkaConnectionError("reset"))),
    "a task": ("kafka.net.selector", "Task %s left RUNNING after step; demoting to UNSCHEDULED", ("x",)),
    "refresh": ("kafka.cluster", "Metadata refresh: failed %s", (errors.KafkaConnectionError("gone"),)),
    "send": (
        "kafka.producer.sender",
        "%s: Error sending produce request to node %d: %s",
        ("<Sender>", 1, errors.NotLeaderForPartitionError()),
    ),
    "another line": ("kafka.cluster", "Cancelled: %s", (errors.Cancelled(),)),
}


@pytest.mark.parametrize(("given", "shown"), [
    *(pytest.param(line, False, id=name) for name, line in CLIENT.items()),
    *(pytest.param(line, True, id=name) for name, line in NEWS.items()),
])  # fmt: skip
def test_what_nobody_can_act_on_is_left_out_at_its_logger(
    given: tuple[str, str, tuple[object, ...]], shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Slow steps of the client's loop and requests that its close has cancelled are left out, other errors are not."""
    log_filters.install()
    name, text, args = given
    with caplog.at_level(logging.ERROR, logger=name):  # a command that ran before may have silenced the client's
        logging.getLogger(name).error(text, *args)
    assert bool(caplog.records) is shown
