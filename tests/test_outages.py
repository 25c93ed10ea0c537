"""Log lines about outages: one early, one a minute, one at the end."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from downspout.errors import StoreAwayError
from downspout.outages import Outages, Patience
from downspout.testing import VirtualClock
from tests.waiting import eventually


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
    outages.end("broker 1 (a:9092)", "is not waited for any more")
    assert caplog.records[-1].getMessage() == "broker 1 (a:9092) is not waited for any more, after 4 s"
    assert not outages.current()


def test_a_thread_says_what_a_request_without_an_answer_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stands in it says nothing itself; what only takes its time is not mentioned."""
    monkeypatch.setattr("downspout.outages.LOOK_S", 0.01)
    monkeypatch.setattr("downspout.outages.SOON_S", 0.01)
    outages, asked = Outages(), list[int]()

    def look() -> tuple[str, str] | None:
        asked.append(threading.get_ident())
        return ("has been locked", "process 7") if len(asked) > 2 else None

    with outages.asking("the database", "table", since=time.monotonic(), soon_s=0.01, look=look):
        eventually(lambda: caplog.messages)
    assert threading.get_ident() not in asked
    assert len(asked) >= 3
    assert caplog.messages[0].startswith("the database has been locked since ")
    assert caplog.messages[0].endswith(" (process 7); table waits for it and goes on when it can be used again")
    outages.over("the database", "table")
    assert caplog.messages[-1] == "the database can be used again, after 0 s"
    assert outages.current() == []


def test_an_attempt_in_progress_does_not_change_what_the_last_answer_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full at the last attempt is full, and not silent, while the next one lasts."""
    monkeypatch.setattr("downspout.outages.LOOK_S", 0.01)
    outages, since = Outages(), time.monotonic() - 60
    outages.waiting("the disk", "table", "No space left", since, "has been full")
    caplog.clear()
    before = outages.current()[0].last
    with outages.asking("the disk", "table", since=since):
        eventually(lambda: outages.current()[0].last > before)
    (outage,) = outages.current()
    assert (outage.state, outage.why) == ("has been full", "No space left")


def test_patience_tries_again_with_pauses_that_grow_until_it_was_long_enough() -> None:
    """Pauses double up to 5 s; an end is the store's error, with how long it was away; a success begins anew."""
    clock, when, is_back = VirtualClock(), list[float](), list[bool]()
    patience = Patience("files", 60.0, clock)

    def work() -> str:
        when.append(clock.monotonic())
        if is_back:
            return "done"
        raise StoreAwayError("out has been full", cure="free the disk", state="has been full")

    with pytest.raises(StoreAwayError, match=r"out has been full, for 6\d s. Try: free the disk"):
        patience.until_it_works(work, "out")
    assert [after - before for before, after in pairwise(when)][:7] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    is_back.append(True)
    assert patience.until_it_works(work, "out") == "done"
    assert patience.lasted_s == 0
