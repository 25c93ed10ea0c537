"""A partition's log in a state machine: records arrive, and the cleaner takes some."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule


class GrowingLog(RuleBasedStateMachine):
    """``log`` holds the offsets that have a record, and ``end`` is the next one."""

    log: set[int]
    end: int

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        self.log |= set(range(self.end, self.end + count))
        self.end += count

    @rule(count=st.integers(1, 3))
    def append_gap(self, count: int) -> None:
        self.end += count

    @rule(count=st.integers(1, 4))
    def append_aborted(self, count: int) -> None:
        """Records that no reader of committed ones ever sees, and the marker that ends them."""
        self.end += count + 1

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        self.log.discard(data.draw(st.sampled_from(sorted(self.log))))
