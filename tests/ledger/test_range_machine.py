"""The ledger with ranges, beside a model that is too simple to be wrong: a dict of states, and who went out with whom.

Reading, words and commits are as in ``tests.ledger.test_ledger_machine``, which has more kinds of trouble and single
records alone. Here some records fail whenever they are tried, whoever goes with them.
"""

from __future__ import annotations

import os
from math import ceil, log2

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from downspout.ledger import Backoff, PartitionLedger, decode, encode

BACKOFF = Backoff(5, 60)
LIMIT = 30
CEILING = 2
POLL = 12


class RangeMachine(RuleBasedStateMachine):
    """One partition. ``state``: of each offset seen. ``parts``: lowest offset → (end, records) of what is not done."""

    @initialize(start=st.integers(0, 5), culprits=st.sets(st.integers(0, 60), max_size=4))
    def begin(self, start: int, culprits: set[int]) -> None:
        self.now = 0
        self.log: set[int] = set()
        self.end = start
        self.culprits = culprits
        self.told = (start, "")
        self.lettered: set[int] = set()
        self.done_ever: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.start_at_told()

    def start_at_told(self) -> None:
        base, text = self.told
        told = decode(base, text)
        self.ledger = PartitionLedger(base, BACKOFF, told.done, told.failures)
        self.position = self.high = base
        self.told_done = {offset for start, end in told.done for offset in range(start, end)}
        assert self.told_done & self.log <= self.done_ever, "something not done counts as done"
        self.attempts = dict(told.failures)
        self.state: dict[int, str] = {}
        self.parts: dict[int, tuple[int, list[int]]] = {}
        self.most: dict[int, int] = {}

    # --- the log ---

    @rule(count=st.integers(1, 15))
    def append(self, count: int) -> None:
        self.log |= set(range(self.end, self.end + count))
        self.end += count

    @rule(count=st.integers(1, 3))
    def append_gap(self, count: int) -> None:
        self.end += count

    @precondition(lambda self: self.log)
    @rule(data=st.data(), count=st.integers(1, 6))
    def compact(self, data: st.DataObject, count: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.log)))
        self.log -= set(range(first, first + count))

    # --- the reader ---

    @rule(size=st.integers(1, 9), most=st.integers(1, POLL))
    def read(self, size: int, most: int) -> None:
        """One turn as the spout takes it: seek back, gap, chunks of up to ``size`` records of what a poll brings."""
        if not self.ledger.may_poll(LIMIT, self.now):
            return
        retry = self.ledger.earliest_ready_retry(self.now)
        waiting = [start for start in self.parts if self.state[start] == "failed"]
        ready = [start for start in waiting if self.ledger.retry_state(start).ready_at <= self.now]
        assert retry == min(ready, default=None)
        self.position = self.position if retry is None else retry
        records = sorted(offset for offset in self.log if offset >= self.position)[:most]
        if retry is not None:
            self.gone(retry, records[0] if records else self.end)
        at = 0
        while at < len(records):
            before = records[at - 1] + 1 if at else records[0]
            at += (self.again if records[at] < self.ledger.next else self.first)(records[at:], before, size)
        self.position = records[-1] + 1 if records else max(self.position, self.end)

    def gone(self, start: int, end: int) -> None:
        """What waits there is not in the log any more."""
        self.ledger.gone(start, end)
        for first in [o for o in self.parts if start <= o < end and self.state[o] == "failed"]:
            stop, offsets = self.parts.pop(first)
            most = self.most.pop(first)
            self.mark([o for o in offsets if o < end], "done")
            if stop > end:
                self.keep(end, stop, [o for o in offsets if o >= end], most)

    def first(self, records: list[int], before: int, size: int) -> int:
        """Emit records that were not seen; return how many were looked at."""
        offset = records[0]
        free = self.ledger.free_until(offset, records[-1] + 1)
        if offset in self.ledger.earlier_failures:
            if self.ledger.earlier_failures[offset] > CEILING:
                self.ledger.recall(offset, self.now)
                self.give_up(offset)
            else:
                assert self.ledger.emit(offset, self.now)
                self.go_out(offset, offset + 1, [offset])
            return 1
        if free == offset:
            assert offset in self.told_done, "neither done nor told of, and not free"
            self.ledger.passed(offset + 1)
            self.mark([offset], "done")
            return 1
        chunk = [o for o in records if o < free][:size]
        assert not set(chunk) & self.told_done, "what is done goes out again"
        self.ledger.emit_range(chunk[0], chunk[-1] + 1, len(chunk), self.now)
        self.go_out(chunk[0], chunk[-1] + 1, chunk)
        return len(chunk)

    def again(self, records: list[int], before: int, size: int) -> int:
        """Look at records that were seen: emit the first that wait and are due; return how many were looked at."""
        key = self.ledger.first_waiting(before)
        waiting = [start for start in self.parts if self.state[start] == "failed" and start >= before]
        assert key == min(waiting, default=None)
        if key is None or key > records[0]:
            return 1
        stop, _ = self.parts[key]
        chunk = [offset for offset in records if offset < stop]
        if not chunk:  # the reader that is sent to it will find that it is gone
            self.gone(key, stop)
            return 1
        trouble = self.ledger.retry_state(key)
        assert trouble is not None
        if trouble.ready_at > self.now:
            return len(chunk)
        if stop == key + 1:
            assert self.ledger.emit(key, self.now)
            self.go_out(key, stop, [key])
            return 1
        chunk = chunk[: min(size, trouble.most)]
        assert trouble.most <= self.most[key]
        self.ledger.emit_part(key, chunk[0], chunk[-1] + 1, len(chunk), self.now)
        _, offsets = self.parts.pop(key)
        most = self.most.pop(key)
        self.mark([o for o in offsets if o <= chunk[-1] and o not in chunk], "done")
        rest = [o for o in offsets if o > chunk[-1]]
        self.go_out(chunk[0], chunk[-1] + 1, chunk)
        if rest and self.ledger.retry_state(chunk[-1] + 1) is not None:
            self.keep(chunk[-1] + 1, stop, rest, most)
        else:  # not as many records as there were: the cleaner took those of the rest
            assert not set(rest) & self.log
            self.mark(rest, "done")
        return len(chunk)

    def keep(self, start: int, stop: int, offsets: list[int], most: int) -> None:
        self.parts[start] = (stop, offsets)
        self.most[start] = most
        self.state[start] = "failed"

    def go_out(self, start: int, end: int, offsets: list[int]) -> None:
        self.parts[start] = (end, offsets)
        self.mark(offsets, "out")
        self.high = max(self.high, end)

    def mark(self, offsets: list[int], state: str) -> None:
        self.state |= dict.fromkeys(offsets, state)
        if state == "done":
            self.done_ever |= set(offsets)

    # --- words ---

    def out(self) -> list[int]:
        return sorted(start for start in self.parts if self.state[start] == "out")

    @precondition(lambda self: self.out())
    @rule(data=st.data())
    def word(self, data: st.DataObject) -> None:
        """Something is acked, or failed where a culprit is in it."""
        self.answer(data.draw(st.sampled_from(self.out())))

    @precondition(lambda self: self.out())
    @rule(data=st.data(), split=st.booleans())
    def timeout(self, data: st.DataObject, split: bool) -> None:
        """Something times out: it stays whole, unless that was once too often."""
        start = data.draw(st.sampled_from(self.out()))
        end, offsets = self.parts[start]
        trouble = self.ledger.timeout(start, self.now)
        assert trouble is not None
        assert trouble.failures == self.attempts.get(start, 0) * (end == start + 1)
        assert (trouble.end, trouble.records, trouble.most) == (end, len(offsets), len(offsets))
        self.most[start] = len(offsets)
        if split and end > start + 1:
            self.ledger.split(start)
            self.most[start] = ceil(len(offsets) / 2)
        self.mark(offsets, "failed")

    def answer(self, start: int) -> None:
        end, offsets = self.parts[start]
        assert self.ledger.out_until(start) == end
        if not self.culprits & set(offsets):
            assert self.ledger.ack(start) == len(offsets)
            del self.parts[start]
            self.mark(offsets, "done")
            return
        trouble = self.ledger.fail(start, self.now)
        assert trouble is not None
        self.mark(offsets, "failed")
        self.most[start] = ceil(len(offsets) / 2)
        assert trouble.most == self.most[start]
        if end == start + 1:
            self.attempts[start] = self.attempts.get(start, 0) + 1
            assert trouble.failures == self.attempts[start] <= CEILING + 1
            if trouble.failures > CEILING:
                self.give_up(start)
        else:
            assert trouble.failures == 0

    def give_up(self, offset: int) -> None:
        assert self.ledger.resolve(offset)
        assert offset not in self.lettered or self.told[0] <= offset, "two letters in one life"
        self.lettered.add(offset)
        self.parts.pop(offset, None)
        self.most.pop(offset, None)
        self.attempts.pop(offset, None)
        self.mark([offset], "done")
        self.high = max(self.high, offset + 1)

    @rule(offset=st.integers(-2, 80))
    def late_words(self, offset: int) -> None:
        """A word about the middle of a range, or about what is not out, changes nothing."""
        if offset not in self.out():
            assert self.ledger.out_until(offset) is None
            assert not self.ledger.ack(offset)
            assert self.ledger.fail(offset, self.now) is None
            assert self.ledger.timeout(offset, self.now) is None

    @rule(ms=st.integers(1, 40))
    def wait(self, ms: int) -> None:
        self.now += ms

    # --- commits and lives ---

    @rule()
    def commit(self) -> None:
        self.ledger.passed(self.position)
        self.high = max(self.high, self.position)
        point = self.ledger.commit_point()
        assert point >= self.told[0], "a commit went back"
        done, failures = self.ledger.done_beyond(point), self.ledger.failures_from(point)
        self.told = point, encode(point, topology_id="t", task=1, done=done, failures=failures)
        self.ledger.committed(point)
        self.position = max(self.position, point)

    @rule()
    def crash(self) -> None:
        self.start_at_told()

    def teardown(self) -> None:
        """Once the world is calm each culprit has its letter after few tries, all else is done, all is committed."""
        if not hasattr(self, "ledger"):
            return
        tries = 0
        while tries < 200 and (not tries or self.told[0] < self.end):
            tries += 1
            self.now += 100
            self.read(9, POLL)
            for start in self.out():
                self.answer(start)
            self.commit()
        assert self.told[0] >= self.end, f"the commit stays at {self.told[0]}, the log ends at {self.end}"
        polls = ceil(len(self.log) / POLL) + 1
        assert tries <= (polls + 2) * (ceil(log2(LIMIT)) + CEILING + 3), f"{tries} turns"
        assert self.lettered <= self.culprits, "an innocent was given up"
        missing = [offset for offset in self.log if offset not in self.done_ever]
        assert all(offset in self.done_ever or offset < self.told[0] for offset in missing)

    # --- always ---

    @invariant()
    def the_ledger_is_in_form(self) -> None:
        self.ledger.check()

    @invariant()
    def the_commit_passes_nothing_unresolved(self) -> None:
        """It is the lowest record that is out or failed, or what is left of a range that begins in a gap."""
        point = self.ledger.commit_point()
        if self.parts:
            assert point == min(self.parts)
        else:
            assert point >= self.high

    @invariant()
    def what_is_out_is_counted_in_records(self) -> None:
        """Of what waits the cleaner may have taken some, which is not known before it is read again."""
        out = sum(len(self.parts[start][1]) for start in self.out())
        assert self.ledger.in_flight == out
        assert self.ledger.outstanding < LIMIT + POLL


RangeMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LEDGER_EXAMPLES", "500")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


WRONG = {
    "splits nothing": ("fail", lambda self, offset, now: self.timeout(offset, now)),
    "counts a range as one": ("ack", lambda self, offset: RIGHT["ack"](self, offset) and 1),
    "forgets the rest of a range": (
        "emit_part",
        lambda self, *part: RIGHT["emit_part"](self, *part) + rest(self, part),
    ),
    "lets out what is done": ("free_until", lambda self, start, end: end),
    "takes what was cut as gone": ("gone", lambda self, start, end: RIGHT["gone"](self, start, self.next)),
    "commits past what waits": ("commit_point", lambda self: min(self._flying, default=self.next)),
}
RIGHT = {name: getattr(PartitionLedger, name) for name in ("ack", "emit_part", "gone")}


def rest(ledger: PartitionLedger, part: tuple[int, ...]) -> int:
    """Resolve what is left of a range of which a part went out."""
    return int(ledger.retry_state(part[2]) is not None and ledger.resolve(part[2]))


@pytest.mark.parametrize("error", list(WRONG))
def test_the_machine_finds_an_error_that_is_planted(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger with an error in what is new for ranges is found out: the machine is not blind."""
    monkeypatch.setattr(PartitionLedger, *WRONG[error])
    phases = [Phase.generate]
    quick = settings(
        RangeMachine.TestCase.settings, max_examples=300, phases=phases, derandomize=True, report_multiple_bugs=False
    )
    with pytest.raises((AssertionError, ValueError)):
        run_state_machine_as_test(RangeMachine, settings=quick)


class TestRanges(RangeMachine.TestCase):  # type: ignore[valid-type]
    pass
