"""Fetch requests of a consumer that gathers; that the client applies them: ``tests/broker/test_client.py``."""

from __future__ import annotations

from types import SimpleNamespace

from downspout.kafka import gathering


def test_a_broker_gathers_while_there_are_records() -> None:
    """Polls that wait in vain for longer than gathering takes have it answer at once; the next record ends that."""
    config = {"fetch_min_bytes": 1, "fetch_max_wait_ms": 500, "check_crcs": True}
    polled = gathering(SimpleNamespace(_fetcher=SimpleNamespace(config=config)), 4096, 100)
    asked = []
    for waited_ms in (0, 10, 90, 10, 200, 0, 100):
        polled(waited_ms)
        asked.append((config["fetch_min_bytes"], config["fetch_max_wait_ms"]))
    gathers, answers = (4096, 100), (1, 500)
    assert asked == [gathers, gathers, gathers, answers, answers, gathers, gathers]
    assert config["check_crcs"]
