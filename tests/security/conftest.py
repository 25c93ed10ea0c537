"""Brokers get long timeouts: these tests are about their answers, not their speed."""

from __future__ import annotations

import pytest

from downspout.kafka import address

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a broker of a busy machine more than the seconds after which it counts as silent."""
    listener_at = address.listener_at
    monkeypatch.setattr(address, "ANSWER_S_MAX", PATIENCE_S)
    monkeypatch.setattr(address, "listener_at", lambda host, port, *_: listener_at(host, port, PATIENCE_S))
