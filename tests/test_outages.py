"""Lines about what does not answer: one soon, one a minute, one when it is over."""

from __future__ import annotations

import pytest

from downspout.outages import Outages
from downspout.testing import VirtualClock


def test_an_outage_is_told_soon_once_a_minute_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Each line names what is silent and since when, why, and all that wait; tries in between add none."""
    clock = VirtualClock()
    outages = Outages(clock)
    for _ in range(130):
        outages.waiting("broker 2 (b:9092)", "group orders", "connection timed out")
        outages.waiting("broker 2 (b:9092)", "out")
        clock.sleep(1)
    outages.over("broker 2 (b:9092)", "group orders")
    outages.over("broker 2 (b:9092)", "out")
    soon, minute, later, over = (record.getMessage() for record in caplog.records)
    assert soon.startswith("broker 2 (b:9092) has not answered since ")
    assert soon.endswith(" (connection timed out); group orders, out wait for it and go on when it answers")
    assert minute.startswith("for 63 s: broker 2 (b:9092) has not answered since ")
    assert later.startswith("for 2 min: ")
    assert over == "broker 2 (b:9092) answers again, after 2 min"


def test_what_answers_again_at_once_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that restarts gives none; one that was silent for as long as a try took gives one at once."""
    clock = VirtualClock()
    outages = Outages(clock)
    outages.waiting("broker 1 (a:9092)", "out")
    clock.sleep(1)
    outages.over("broker 1 (a:9092)", "out")
    assert not caplog.records
    began = clock.monotonic()
    clock.sleep(4)
    outages.waiting("broker 1 (a:9092)", "out", since=began)
    (line,) = caplog.records
    assert line.getMessage().endswith("; out waits for it and goes on when it answers")
    assert [outage.waiting for outage in outages.current()] == [{"out": None}]
