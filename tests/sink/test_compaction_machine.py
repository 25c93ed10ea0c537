"""Any sequence of flushes, replays, compactions, stops, sweeps and rebuilds, against a model that is a set."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from downspout.audit import look_at_files
from downspout.sink import Layout, SinkWriter
from downspout.testing import Killed, VirtualClock
from tests.disks import SteppedDisk
from tests.sampling import examples
from tests.sink.compaction_support import compact, expected, flush, opened, plain, sweep, through_the_log, write

EXAMPLES = examples(80)
OFFSETS = st.integers(0, 20).flatmap(lambda start: st.integers(1, 8).map(lambda count: range(start, start + count)))
STEPS = st.integers(1, 90)


class Machine(RuleBasedStateMachine):
    """A directory, and the offsets whose rows must be in it."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp()) / "out"
        self.count = 0
        self.rebuild = 0
        self.rows: set[int] = set()
        self.open: SinkWriter = self.reopened()

    @property
    def has_log(self) -> bool:
        return any(Layout(self.directory).log.glob("*.json"))

    def name(self) -> str:
        self.count += 1
        return f"w{self.count}"

    def reopened(self) -> SinkWriter:
        return opened(self.directory, self.name(), rebuild=self.rebuild)

    @rule(offsets=OFFSETS)
    def flush_by_a_new_writer(self, offsets: range) -> None:
        """A task starts and writes; of rows that are there it writes none."""
        flush(self.directory, offsets, self.name(), rebuild=self.rebuild)
        self.rows.update(offsets)

    @rule(offsets=OFFSETS)
    def flush_by_the_open_writer(self, offsets: range) -> None:
        """The task that has been there all the time writes."""
        assert write(self.open, offsets).rows == len(set(offsets) - self.rows)
        self.rows.update(offsets)

    @rule(offsets=OFFSETS, stop=STEPS)
    def a_flush_is_stopped(self, offsets: range, stop: int) -> None:
        """A flush that is stopped at some step is there as a whole or not at all."""

        def before(step: int) -> None:
            if step == stop:
                raise Killed

        try:
            flush(self.directory, offsets, self.name(), SteppedDisk(before), self.rebuild)
            self.rows.update(offsets)
        except Killed:
            after = {row[1] for row in through_the_log(self.directory)}
            assert after in (self.rows, self.rows | set(offsets))
            self.rows = after

    @precondition(lambda self: self.has_log)
    @rule(size=st.sampled_from([3_000, 6_000, 128_000_000]), keep_s=st.sampled_from([0.0, 1e6]))
    def compact(self, size: int, keep_s: float) -> None:
        compact(self.directory, target_bytes=size, keep_s=keep_s)
        assert plain(self.directory) == expected(self.rows)

    @precondition(lambda self: self.has_log)
    @rule(stop=STEPS)
    def a_compaction_is_stopped(self, stop: int) -> None:
        def before(step: int) -> None:
            if step == stop:
                raise Killed

        with contextlib.suppress(Killed):
            compact(self.directory, SteppedDisk(before))

    @precondition(lambda self: self.has_log)
    @rule(offsets=OFFSETS, at=STEPS)
    def a_flush_comes_into_a_compaction(self, offsets: range, at: int) -> None:
        """The open writer writes at some step of a compaction."""
        done = False

        def before(step: int) -> None:
            nonlocal done
            if step == at:
                done = True
                write(self.open, offsets)

        compact(self.directory, SteppedDisk(before))
        self.rows.update(offsets if done else ())

    @rule()
    def sweep(self) -> None:
        """Whoever has something staged is taken for dead, the open writer too."""
        sweep(self.directory)

    @rule(offsets=OFFSETS)
    def a_new_generation(self, offsets: range) -> None:
        """The directory starts anew; the open writer is of the past, and is replaced."""
        self.rebuild = max(self.rebuild, 1) + 1
        flush(self.directory, offsets, self.name(), rebuild=self.rebuild)
        self.rows = set(offsets)
        self.open = self.reopened()

    @invariant()
    def a_reader_through_the_log_sees_each_row_once(self) -> None:
        """At any moment; and the auditor finds by itself what a plain reader may see besides."""
        if not hasattr(self, "rows"):
            return
        assert through_the_log(self.directory) == expected(self.rows)
        found = look_at_files(self.directory, VirtualClock())
        assert [found.gone, found.unknown, found.changed, found.forgotten, found.unreadable] == [[], [], [], [], {}]
        seen: Counter[int] = Counter(row[1] for row in plain(self.directory).elements())
        if not found.staged and not found.replaced and not found.outdated:
            assert seen == Counter(self.rows)
        offsets = {o for ranges in found.rows.values() for start, end in ranges for o in range(start, end)}
        assert offsets == set(seen)

    def teardown(self) -> None:
        if hasattr(self, "rows"):
            self.reopened()
            assert plain(self.directory) == expected(self.rows)
            shutil.rmtree(self.directory.parent)


@pytest.mark.slow
def test_any_sequence_keeps_each_row_once() -> None:
    """Whatever is written, replayed, compacted, stopped, swept and begun anew, in whatever order: each row once."""
    given = settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(Machine, settings=given)
