"""The ledger beside a model that is too simple to be wrong: a dict of states, searched from the start each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from downspout.ledger.metadata import decode, encode
from downspout.ledger.offsets import PartitionLedger
from downspout.ledger.retries import Backoff

BACKOFF = Backoff(initial_ms=5, delay_ms=5, delay_ms_max=60)
LIMIT = 12
CEILING = 3


class LedgerMachine(RuleBasedStateMachine):
    """One partition: a log that grows and gets holes, a reader that goes back, words in any order, crashes.

    The model: ``state`` of each offset ever read (``out``, ``failed``, ``done``), ``attempts`` and ``ready`` times.
    ``told`` is what the last commit told the broker.
    """

    @initialize(start=st.integers(0, 5), count=st.integers(0, 10))
    def begin(self, start: int, count: int) -> None:
        """A log that begins somewhere and holds some records."""
        self.now = 0
        self.log = set(range(start, start + count))
        self.end = start + count
        self.ledger = PartitionLedger(start, BACKOFF)
        self.position = start
        self.start = start
        self.state: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.setbacks: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        self.told: tuple[int, str] = (start, "")
        self.told_done: set[int] = set()
        self.told_attempts: dict[int, int] = {}
        self.high = start

    # --- the log ---

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        """Records arrive."""
        self.log |= set(range(self.end, self.end + count))
        self.end += count

    @rule(count=st.integers(1, 3))
    def append_gap(self, count: int) -> None:
        """Markers, or an aborted transaction."""
        self.end += count

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """The cleaner takes a record."""
        self.log.discard(data.draw(st.sampled_from(sorted(self.log))))

    # --- the reader ---

    @rule(most=st.integers(1, 6))
    def read(self, most: int) -> None:
        """One turn as the spout takes it: limit, seek back, gap, emit."""
        if not self.ledger.may_poll(LIMIT, self.now):
            assert len([o for o in range(self.ledger.base, self.high) if o in self.state]) >= LIMIT
            return
        retry = self.ledger.earliest_ready_retry(self.now)
        ready = [o for o, s in self.state.items() if s == "failed" and self.ready[o] <= self.now]
        assert retry == (min(ready) if ready else None)
        if retry is not None:
            self.position = retry
        records = sorted(o for o in self.log if o >= self.position)[:most]
        if retry is not None:
            first = records[0] if records else self.end
            expected = [o for o, s in self.state.items() if s == "failed" and retry <= o < first]
            assert self.ledger.gone(retry, first) == len(expected)
            for offset in expected:
                self.finish(offset)
        for offset in records:
            assert self.ledger.emit(offset, self.now) == self.may_emit(offset), offset
            self.note_emit(offset)
        if records:
            self.position = records[-1] + 1
        else:
            self.position = max(self.position, self.end)

    @rule(data=st.data())
    def seek_back(self, data: st.DataObject) -> None:
        """The reader goes back further than a retry needs: it must emit nothing before its time."""
        self.position = data.draw(st.integers(self.ledger.base, max(self.ledger.base, self.position)))
        self.read(6)

    @precondition(lambda self: "failed" in self.state.values())
    @rule(data=st.data())
    def settle_otherwise(self, data: st.DataObject) -> None:
        """What waits for a retry is dead-lettered instead."""
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s == "failed"]))
        assert self.ledger.resolve(offset)
        self.finish(offset)

    @precondition(lambda self: "failed" in self.state.values())
    @rule(data=st.data(), ms=st.integers(0, 50))
    def postpone(self, data: st.DataObject, ms: int) -> None:
        """A retry gets another time, earlier or later."""
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s == "failed"]))
        self.ledger.postpone(offset, self.now + ms)
        self.ready[offset] = self.now + ms

    def may_emit(self, offset: int) -> bool:
        """By the model: not done, not out, and a retry only when its time has come."""
        state = self.state.get(offset)
        if state is None:
            return offset not in self.told_done
        return state == "failed" and self.ready[offset] <= self.now

    def note_emit(self, offset: int) -> None:
        """Bring the model up to date with a record that was read."""
        if self.may_emit(offset):
            self.state[offset] = "out"
            if offset in self.told_attempts and offset not in self.attempts:
                self.attempts[offset] = self.setbacks[offset] = self.told_attempts[offset]
        elif offset not in self.state:
            self.state[offset] = "done"
        self.high = max(self.high, offset + 1)

    def finish(self, offset: int) -> None:
        """In the model, a record is done."""
        self.state[offset] = "done"
        self.attempts.pop(offset, None)

    # --- words ---

    @precondition(lambda self: "out" in self.state.values())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        """A record comes through."""
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s == "out"]))
        assert self.ledger.ack(offset)
        self.finish(offset)

    @precondition(lambda self: {"failed", "done"} & set(self.state.values()))
    @rule(data=st.data())
    def late_words(self, data: st.DataObject) -> None:
        """A second or late word on what is not out changes nothing."""
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s != "out"]))
        assert not self.ledger.ack(offset)
        assert self.ledger.fail(offset, self.now) is None
        assert self.ledger.timeout(offset, self.now) is None

    @precondition(lambda self: "out" in self.state.values())
    @rule()
    def ack_all(self) -> None:
        """Everything that is out comes through."""
        for offset in [o for o, s in self.state.items() if s == "out"]:
            assert self.ledger.ack(offset)
            self.finish(offset)

    @precondition(lambda self: "out" in self.state.values())
    @rule(data=st.data(), timed_out=st.booleans())
    def fail(self, data: st.DataObject, timed_out: bool) -> None:
        """A record fails or times out; above the ceiling it is dead-lettered."""
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s == "out"]))
        trouble = (self.ledger.timeout if timed_out else self.ledger.fail)(offset, self.now)
        assert trouble is not None
        self.state[offset] = "failed"
        self.attempts[offset] = self.attempts.get(offset, 0) + (not timed_out)
        self.setbacks[offset] = self.setbacks.get(offset, 0) + 1
        self.ready[offset] = self.now + BACKOFF.delay(self.setbacks[offset])
        assert trouble.failures == self.attempts[offset] <= CEILING + 1
        if trouble.failures > CEILING:
            assert self.ledger.resolve(offset)
            self.finish(offset)

    @rule(offset=st.integers(-3, 200))
    def foreign_word(self, offset: int) -> None:
        """A word about something that was never read changes nothing."""
        if offset not in self.state:
            assert not self.ledger.ack(offset)
            assert self.ledger.fail(offset, self.now) is None

    @rule(ms=st.integers(1, 40))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.now += ms

    # --- commits ---

    @rule(outcome=st.sampled_from(["ok", "failed", "applied but not answered"]))
    def commit(self, outcome: str) -> None:
        """A commit: the broker has it or not, and we learn it or not."""
        self.ledger.passed(self.position)
        self.high = max(self.high, self.position)
        point = self.ledger.commit_point()
        text = encode(
            point,
            topology_id="t",
            task=1,
            done=self.ledger.done_beyond(point),
            failures=self.ledger.failures_from(point),
        )
        assert point >= self.told[0], "a commit went back"
        if outcome != "failed":
            self.told = (point, text)
        if outcome == "ok":
            self.ledger.committed(point)
            self.position = max(self.position, point)
            self.high = max(self.high, point)

    @rule()
    def crash(self) -> None:
        """Kill and restart, or another owner: all that is known is the last commit."""
        base, text = self.told
        told = decode(base, text)
        self.told_done = {o for start, end in told.done for o in range(start, end)}
        self.told_attempts = dict(told.failures)
        done = {o for o, s in self.state.items() if s == "done" and o >= base}
        assert {o for o in self.told_done if o in self.state} <= done, "something not done counts as done"
        self.ledger = PartitionLedger(base, BACKOFF, told.done, told.failures)
        self.position = self.high = base
        self.state = {o: s for o, s in self.state.items() if o < base}
        self.attempts, self.setbacks, self.ready = {}, {}, {}

    # --- always ---

    @invariant()
    def the_ledger_is_in_form(self) -> None:
        """Its own check."""
        self.ledger._check()

    @invariant()
    def the_commit_point_is_the_models(self) -> None:
        """The lowest offset that exists, was read and is not done; never beyond anything unresolved."""
        point = self.ledger.commit_point()
        open_ = [o for o, s in self.state.items() if s in ("out", "failed")]
        if open_:
            assert point == min(open_)
        else:
            assert point >= self.high
        assert all(self.state.get(o, "done") == "done" for o in range(self.start, min(point, self.high)))

    @invariant()
    def the_counts_are_the_models(self) -> None:
        """What is out and what waits."""
        states = list(self.state.values())
        assert self.ledger.in_flight == states.count("out")
        assert self.ledger.failed == states.count("failed")

    @invariant()
    def outstanding_is_bounded(self) -> None:
        """At most the limit and one poll more."""
        assert self.ledger.outstanding <= LIMIT + 6 - 1


LedgerMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LEDGER_EXAMPLES", "300")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestLedger(LedgerMachine.TestCase):  # type: ignore[misc]
    """Runs the machine under pytest."""


def test_everything_is_resolved_in_the_end() -> None:
    """With failures that stop, whatever happened before, each record ends done and the commit at the end."""
    ledger = PartitionLedger(0, BACKOFF)
    for offset in range(50):
        ledger.emit(offset, now=0)
        if offset % 3 == 0:
            ledger.fail(offset, now=0)
        else:
            ledger.ack(offset)
    now = 0
    while (pending := ledger.oldest_pending()) is not None:
        now += 100
        retry = ledger.earliest_ready_retry(now)
        assert retry == pending
        ledger.emit(retry, now)
        ledger.ack(retry)
    assert ledger.commit_point() == 50
