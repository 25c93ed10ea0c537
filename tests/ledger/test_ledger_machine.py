"""The ledger beside a model that is too simple to be wrong: a dict of states, searched from the start each time."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from downspout.ledger import (
    AT_WORK,
    NOTHING,
    AssignmentEpochs,
    Backoff,
    CommitMetadata,
    Fact,
    PartitionLedger,
    decode,
    encode,
    id_prefix,
    split_id,
)
from downspout.ledger import isolation as rules
from tests.ledger.growing_log import GrowingLog

BACKOFF = Backoff(5, 60)
LIMIT = 12
CEILING = 3
WINDOW, WHOLE_WINDOW = 4, rules.WINDOW
MINE = frozenset({"p"})
NONE: frozenset[str] = frozenset()


class LedgerMachine(GrowingLog):
    """One partition: a log that grows and is cut, a reader that goes back, answers in any order, crashes, rebalances.

    The model: ``state`` of each offset ever read (``out``, ``failed``, ``done``), ``attempts`` and ``ready`` times.
    ``told`` is what the last commit told the broker, ``answered`` the last of which we have its word.
    """

    @property
    def here(self) -> bool:
        return "p" in self.assignment.owned

    @property
    def known(self) -> bool:
        """Whether words still count: it is ours, or may return."""
        return self.here or "p" in self.assignment.aside

    def has(self, *states: str) -> bool:
        return not set(states).isdisjoint(self.state.values())

    @initialize(start=st.integers(0, 5), count=st.integers(0, 10))
    def begin(self, start: int, count: int) -> None:
        self.now = 0
        self.log = set(range(start, start + count))
        self.end = start + count
        self.ledger = PartitionLedger(start, BACKOFF)
        self.position = start
        self.start = start
        self.state: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.backoffs: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        self.told: tuple[int, str] = (start, "")
        self.answered = self.told
        self.topic = 0
        self.stale: list[str] = []
        self.assignment: AssignmentEpochs[str] = AssignmentEpochs()
        self.assignment.apply([Fact("assigned", MINE)])
        self.prefix = self.new_prefix()
        self.told_done: set[int] = set()
        self.told_attempts: dict[int, int] = {}
        self.isolation = AT_WORK
        self.ever_out: set[tuple[int, int]] = set()
        rules.WINDOW = WINDOW
        self.high = start

    # --- the log ---

    @precondition(lambda self: self.here and self.end > self.start)
    @rule(data=st.data(), latest=st.booleans())
    def truncate(self, data: st.DataObject, latest: bool) -> None:
        """An unclean election cuts the log; if we were beyond its end, reading starts anew in a new epoch."""
        self.end = data.draw(st.integers(self.start, self.end))
        self.log = {offset for offset in self.log if offset < self.end}
        # The reader may be beyond what was ever emitted: markers and aborted records count in its position.
        if max(self.high, self.position, self.told[0]) > self.end:
            self.assignment.renew("p")
            begin = min(self.log, default=self.end)
            self.start_at(self.end if latest else begin)
            self.told = self.answered = (self.ledger.base, "")

    @rule(count=st.integers(0, 8), kept=st.booleans())
    def create_again(self, count: int, kept: bool) -> None:
        """The topic is deleted and made anew; its group's commit is gone, or a tool has kept it."""
        self.topic += 1
        self.log, self.end, self.start = set(range(count)), count, 0
        base, text = self.told
        assert decode(base, text, topic_id=str(self.topic)) == NOTHING, "another topic's progress"
        if not kept or base > self.end:
            self.told = (0, "")
        self.assignment = AssignmentEpochs(self.assignment.last_epoch)
        self.assignment.apply([Fact("assigned", MINE)])
        self.start_at(self.told[0])

    # --- the reader ---

    @precondition(lambda self: self.here)
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
            if not self.has_room(offset):
                self.position = offset
                return
            if self.told_attempts.get(offset, 0) > CEILING and offset not in self.state:
                self.ledger.recall(offset, self.now)
                assert self.ledger.resolve(offset)
                self.finish(offset)
                self.high = max(self.high, offset + 1)
                continue
            assert self.ledger.emit(offset, self.now) == self.may_emit(offset), offset
            self.note_emit(offset)
        if records:
            self.position = records[-1] + 1
        else:
            self.position = max(self.position, self.end)

    def has_room(self, offset: int) -> bool:
        """Whether the isolation lets a record out now; one that is to be out alone is written down first."""
        if not self.isolation.until:
            return True
        self.ledger.passed(offset)
        self.high = max(self.high, offset)
        if not self.isolation.single:
            return offset < self.isolation.window_end(self.ledger.base)
        if self.has("out"):
            return False
        if self.may_emit(offset) and self.told_attempts.get(offset, 0) <= CEILING:
            self.position = offset
            self.commit("ok", alone=offset)
        return True

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def seek_back(self, data: st.DataObject) -> None:
        """The reader goes back further than a retry needs: it must emit nothing before its time."""
        self.position = data.draw(st.integers(self.ledger.base, max(self.ledger.base, self.position)))
        self.read(6)

    @precondition(lambda self: self.here and self.has("failed"))
    @rule(data=st.data())
    def settle_otherwise(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s == "failed"]))
        assert self.ledger.resolve(offset)
        self.finish(offset)

    @precondition(lambda self: self.here and self.has("failed"))
    @rule(data=st.data(), ms=st.integers(0, 50))
    def postpone(self, data: st.DataObject, ms: int) -> None:
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
            self.ever_out.add((self.topic, offset))
            if offset in self.told_attempts and offset not in self.attempts:
                self.attempts[offset] = self.backoffs[offset] = self.told_attempts[offset]
        elif offset not in self.state:
            self.state[offset] = "done"
        self.high = max(self.high, offset + 1)

    def finish(self, offset: int) -> None:
        self.state[offset] = "done"
        self.attempts.pop(offset, None)

    # --- words ---

    @precondition(lambda self: self.known and self.has("out"))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s == "out"]))
        owner = self.owner_of(self.prefix + str(offset))
        assert owner is self.ledger
        assert owner.ack(offset)
        self.finish(offset)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def word_of_an_earlier_epoch(self, data: st.DataObject) -> None:
        """An ack or a fail of what was out before a crash, a loss or a new topic finds no owner."""
        assert self.owner_of(data.draw(st.sampled_from(self.stale))) is None

    @precondition(lambda self: self.known and self.has("failed", "done"))
    @rule(data=st.data())
    def late_words(self, data: st.DataObject) -> None:
        """A second or late word on what is not out changes nothing."""
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s != "out"]))
        assert not self.ledger.ack(offset)
        assert self.ledger.fail(offset, self.now) is None
        assert self.ledger.timeout(offset, self.now) is None

    @precondition(lambda self: self.known and self.has("out"))
    @rule()
    def ack_all(self) -> None:
        for offset in [o for o, s in self.state.items() if s == "out"]:
            assert self.ledger.ack(offset)
            self.finish(offset)

    @precondition(lambda self: self.known and self.has("out"))
    @rule(data=st.data(), timed_out=st.booleans())
    def fail(self, data: st.DataObject, timed_out: bool) -> None:
        """A record fails or times out; above the ceiling it is dead-lettered."""
        offset = data.draw(st.sampled_from([o for o, s in self.state.items() if s == "out"]))
        trouble = (self.ledger.timeout if timed_out else self.ledger.fail)(offset, self.now)
        assert trouble is not None
        self.state[offset] = "failed"
        self.attempts[offset] = self.attempts.get(offset, 0) + (not timed_out)
        self.backoffs[offset] = self.backoffs.get(offset, 0) + 1
        self.ready[offset] = self.now + BACKOFF.delay(self.backoffs[offset])
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
        self.now += ms

    # --- commits ---

    @precondition(lambda self: self.here)
    @rule(outcome=st.sampled_from(["ok", "failed", "applied but not answered"]))
    def commit(self, outcome: str, alone: int | None = None, last: bool = False) -> None:
        """A commit: the broker has it or not, and we learn it or not."""
        self.ledger.passed(self.position)
        self.high = max(self.high, self.position)
        point = self.ledger.commit_point()
        if self.isolation.single and alone is None:
            alone = next((o for o, s in self.state.items() if s == "out"), None)
        through = point >= self.isolation.window_end(self.ledger.base)
        isolation = self.isolation.at(point, moved=point > self.ledger.base, through=through, alone=alone)
        text = encode(
            point,
            topology_id="t",
            task=1,
            topic_id=str(self.topic),
            done=self.ledger.done_beyond(point),
            failures=self.ledger.failures_from(point),
            isolation=isolation.end() if last else isolation,
        )
        assert point >= self.told[0], "a commit went back"
        if outcome != "failed":
            self.told = (point, text)
        if outcome == "ok":
            self.answered = self.told
            self.isolation = isolation
            self.ledger.committed(point)
            self.position = max(self.position, point)
            self.high = max(self.high, point)

    # --- the group ---

    @precondition(lambda self: self.here)
    @rule(kind=st.sampled_from(["eager", "cooperative", "lost"]))
    def give_up(self, kind: str) -> None:
        """The partition is taken away: set aside, or forgotten at once."""
        facts = {
            "eager": [Fact("revoked", MINE)],
            "cooperative": [Fact("revoked", MINE), Fact("assigned", NONE)],
            "lost": [Fact("lost", MINE)],
        }
        changes = self.assignment.apply(facts[kind])
        assert changes.forgotten == (NONE if kind == "eager" else MINE)

    @precondition(lambda self: not self.here)
    @rule(others=st.integers(0, 3))
    def get_back(self, others: int) -> None:
        """It is assigned again; somebody else may have had it, and have committed what they did."""
        self.somebody_else(others)
        returned = bool(self.assignment.apply([Fact("assigned", MINE)]).returned)
        if returned and self.told == self.answered:
            return  # all goes on as it was
        if returned:
            self.assignment.renew("p")
        self.restart()

    @precondition(lambda self: "p" in self.assignment.aside)
    @rule()
    def goes_to_somebody_else(self) -> None:
        assert self.assignment.apply([Fact("assigned", NONE)]).forgotten == MINE

    @rule()
    def crash(self) -> None:
        """Kill and restart: all that is known is the last commit, and that nobody said goodbye."""
        self.assignment = AssignmentEpochs(self.assignment.last_epoch)  # ids of the dead process find no owner either
        self.assignment.apply([Fact("assigned", MINE)])
        self.restart(died=True)

    @precondition(lambda self: self.here)
    @rule()
    def stop(self) -> None:
        """Commit for the last time, and start again: nothing that was out is to blame."""
        self.commit("ok", last=True)
        self.assignment = AssignmentEpochs(self.assignment.last_epoch)
        self.assignment.apply([Fact("assigned", MINE)])
        before = self.isolation.starts
        self.restart(died=True)
        assert self.isolation.starts in (0, before), "an orderly end adds to no row"

    def somebody_else(self, count: int) -> None:
        """Another owner starts from the commit, processes so many records, and commits."""
        base, told = self.read_told()
        other = PartitionLedger(base, BACKOFF, told.done, told.failures)
        for offset in sorted(o for o in self.log if o >= base)[:count]:
            if other.emit(offset, self.now):
                other.ack(offset)
        point = other.commit_point()
        if count and point > base:
            done, failures = other.done_beyond(point), other.failures_from(point)
            text = encode(point, topology_id="t", task=2, topic_id=str(self.topic), done=done, failures=failures)
            self.told = (point, text)
            self.state |= dict.fromkeys(range(base, point), "done")

    def read_told(self) -> tuple[int, CommitMetadata]:
        base, text = self.told
        return base, decode(base, text, topic_id=str(self.topic))

    def restart(self, died: bool = False) -> None:
        """Begin with nothing but the commit; a record that was out alone when the process died has failed."""
        base, told = self.read_told()
        before_isolation = told.isolation if died else told.isolation.end()
        if (alone := before_isolation.alone) is not None:
            assert before_isolation.single
            assert (self.topic, alone) in self.ever_out, "to blame, and never out"
            told = replace(told, failures={**told.failures, alone: told.failures.get(alone, 0) + 1})
        assert all(attempts <= CEILING + 1 for attempts in told.failures.values())
        told_done = {o for start, end in told.done for o in range(start, end)}
        done = {o for o, s in self.state.items() if s == "done" and o >= base}
        assert {o for o in told_done if o in self.state} <= done, "something not done counts as done"
        before = {o: s for o, s in self.state.items() if self.start <= o < base}
        start = self.start
        self.start_at(base, told)
        self.start, self.state, self.told_done = start, before, told_done
        self.isolation = before_isolation.start(base, LIMIT + 6, self.end)
        if died and not before_isolation.ended and base < self.end:
            assert self.isolation.starts == before_isolation.starts + 1

    def start_at(self, base: int, told: CommitMetadata = NOTHING) -> None:
        """A new epoch: a new ledger, and nothing that was out has an owner."""
        self.stale += [self.prefix + str(offset) for offset, state in self.state.items() if state == "out"]
        self.ledger = PartitionLedger(base, BACKOFF, told.done, told.failures)
        self.start = self.position = self.high = base
        self.state, self.attempts, self.backoffs, self.ready = {}, {}, {}, {}
        self.told_done, self.told_attempts = set(), dict(told.failures)
        self.answered = self.told
        self.isolation = AT_WORK
        self.prefix = self.new_prefix()

    def new_prefix(self) -> str:
        return id_prefix(self.assignment.epoch("p"), "t", str(self.topic), 0)

    def owner_of(self, message_id: str) -> PartitionLedger | None:
        """Find the ledger of an id, as the spout does."""
        found = split_id(message_id)
        return self.ledger if found and self.known and found[0] == self.prefix[:-1] else None

    def teardown(self) -> None:
        """Once faults end, every record that is there is resolved, and the commit is the end of the log."""
        rules.WINDOW = WHOLE_WINDOW
        if not hasattr(self, "ledger"):
            return
        if not self.here:
            self.get_back(0)
        for _ in range(100):
            self.now += 100
            self.read(6)
            for offset in [o for o, s in self.state.items() if s == "out"]:
                assert self.ledger.ack(offset)
                self.finish(offset)
            self.commit("ok")
            if self.told[0] >= self.end:
                break
        missing = [o for o in self.log if o >= self.start and self.state.get(o, "done") != "done"]
        assert not missing, f"never resolved: {missing}"
        assert self.told[0] >= self.end, f"the commit stays at {self.told[0]}, the log ends at {self.end}"
        assert self.log <= set(range(self.start)) | self.state.keys() | set(range(self.told[0]))

    # --- always ---

    @invariant()
    def the_ledger_is_in_form(self) -> None:
        self.ledger.check()

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
        states = list(self.state.values())
        assert self.ledger.in_flight == states.count("out")
        assert self.ledger.failed == states.count("failed")

    @invariant()
    def a_watch_is_kept(self) -> None:
        """One record is out at a time, or none beyond the window."""
        out = [offset for offset, state in self.state.items() if state == "out"]
        if self.isolation.single:
            assert len(out) <= 1
        elif self.isolation.until:
            assert all(offset < self.isolation.window_end(self.ledger.base) for offset in out)
        assert not self.isolation.until or self.isolation.until > self.ledger.base

    @invariant()
    def done_beyond_the_commit_is_counted(self) -> None:
        """The count of what is done beyond the commit is that of its ranges."""
        ranges = self.ledger.done_beyond(self.ledger.commit_point())
        assert self.ledger.done_beyond_commit == sum(end - start for start, end in ranges)

    @invariant()
    def outstanding_is_bounded(self) -> None:
        assert self.ledger.outstanding <= LIMIT + 6 - 1


LedgerMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LEDGER_EXAMPLES", "1000")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestLedger(LedgerMachine.TestCase):  # type: ignore[valid-type]
    pass
