"""A consumer's report on its connections while a broker hangs; with a real one: ``test_spout_outage.py``."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from downspout.kafka.patches.connecting import UNCONNECTED_S as SILENT_S
from downspout.kafka.patches.connecting import connected as connected_of

LONG_S, FETCH_S = 60.0, 0.5


def connection(node: str, heard_s: float, *asked_s: float) -> Any:
    """Return a connection, what was last heard of it, and since when questions wait, the oldest first."""
    now = time.monotonic()
    requests = [(number, None, now - ago, now, None) for number, ago in enumerate(asked_s)]
    return SimpleNamespace(
        node_id=node, in_flight_requests=requests, transport=SimpleNamespace(last_read=now - heard_s)
    )


Figures = tuple[str, float] | tuple[str, float, float] | tuple[str, float, float, float]


def connected(*figures: Figures, joins: bool = False) -> bool:
    connections = [connection(*one) for one in figures]
    consumer = SimpleNamespace(
        config={"fetch_max_wait_ms": FETCH_S * 1000},
        _manager=SimpleNamespace(least_used_connections=lambda: connections),
        _coordinator=SimpleNamespace(rejoining=joins, coordinator_id="coordinator"),
    )
    return connected_of(consumer)()


@pytest.mark.parametrize(("expected", "figures"), [
    (False, []),
    (True, [("1", LONG_S)]),  # nothing is asked
    (True, [("1", LONG_S, 1.0)]),
    (True, [("1", SILENT_S, SILENT_S)]),  # a fetch that finds nothing waits at the broker
    (False, [("1", LONG_S, LONG_S, 1.0)]),
    (False, [("1", LONG_S), ("coordinator", LONG_S, LONG_S)]),  # all is paused: heartbeats tell
    (True, [("1", LONG_S, LONG_S), ("2", 0.2)]),  # one of several
])  # fmt: skip
def test_a_broker_that_answers_nothing_is_as_good_as_none(expected: bool, figures: list[Figures]) -> None:
    """With connections alone nobody is connected: a question that waits for long, with nothing heard, tells."""
    assert connected(*figures) == expected


def test_a_join_may_wait_for_others() -> None:
    """The coordinator answers a join when all have joined: meanwhile its silence is none, and that of others is."""
    join = ("coordinator", LONG_S, LONG_S)
    assert connected(("1", LONG_S), join, joins=True)
    assert not connected(("1", LONG_S, LONG_S), join, joins=True)
