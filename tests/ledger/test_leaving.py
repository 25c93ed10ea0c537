"""Records too far behind count as done without processing (`kafka.behind_max`)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from downspout.ledger import NEVER, PartitionLedger
from tests.ledger.test_ledger_machine import LedgerMachine
from tests.ledger.test_range_machine import RangeMachine


class LeavingMachine(LedgerMachine):
    """The ledger beside its model, with one rule more."""

    @precondition(lambda self: self.here)
    @rule(most=st.integers(0, 8))
    def leave_behind(self, most: int) -> None:
        """What is out, or waits, more than so far behind the newest that is done counts as done; nothing else does."""
        done = [o for o in range(self.ledger.base, self.ledger.next) if self.state.get(o, "done") == "done"]
        limit = max(done, default=self.ledger.base - 1) - most
        assert limit == self.ledger.newest_done - most
        expected = sorted(o for o, s in self.state.items() if s != "done" and o < limit)
        assert self.ledger.mark_done_below(limit) == [(o, o + 1, 1) for o in expected]
        for offset in expected:
            self.finish(offset)


class LeavingRangesMachine(RangeMachine):
    @rule(most=st.integers(0, 20))
    def leave_behind(self, most: int) -> None:
        """What lies too far behind counts as done, up to the first range that reaches into what does not."""
        limit = self.ledger.newest_done - most
        for start, end, _ in self.ledger.mark_done_below(limit):
            stop, offsets = self.parts.pop(start)
            self.most.pop(start, None)
            assert stop == end
            self.mark(offsets, "done")
        first = min(self.parts, default=limit)
        assert first >= limit or self.parts[first][0] > limit


class TestLeaving(LeavingMachine.TestCase):  # type: ignore[valid-type]
    settings = settings(LedgerMachine.TestCase.settings, max_examples=40)


class TestLeavingRanges(LeavingRangesMachine.TestCase):  # type: ignore[valid-type]
    settings = settings(RangeMachine.TestCase.settings, max_examples=40)


def test_what_another_way_settles_stays() -> None:
    """An entry that waits for its dead letter is not left out, and neither is what lies behind it."""
    ledger = PartitionLedger(0)
    ledger.emit_many([0, 1, 2, 3], now=0)
    ledger.fail(1, now=0)
    ledger.postpone(1, NEVER)
    assert ledger.mark_done_below(4) == [(0, 1, 1)]
    assert ledger.resolve(1)
    assert ledger.mark_done_below(4) == [(2, 3, 1), (3, 4, 1)]
