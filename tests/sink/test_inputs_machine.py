"""Sinks with several inputs whose rows share their origins, under everything that may happen to them.

Three sources make rows of the same few records. Two tasks of one sink read one to three of them, under names that
change from deployment to deployment. Tuples come in any order and again; flushes are stopped before any step; a task of
the old deployment may live on beside one of the new. Whatever happens: no row is there twice, what was acked is there,
and in the end, replayed, each row of each source is there exactly once.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

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
from pystorm.component import Tuple

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.errors import SinkError
from downspout.ledger import Origin
from downspout.sink import CommitLog
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sampling import examples
from tests.sink.support import rows_of, sink

EXAMPLES = examples(120)
SOURCES = ("A", "B", "C")
Row = tuple[str, int, str]
"""Source, offset, path."""
ROWS = st.tuples(st.sampled_from(SOURCES), st.integers(0, 3), st.sampled_from(["", "split.0"]))


class Task:
    """One task of the sink.

    Attributes:
        names: how the deployment calls the sources that the task reads.
        held: the tuples that it was given and has not acked, by id.
    """

    def __init__(self, cls: Any, directory: Path, names: dict[str, str], input_names: dict[str, str]) -> None:
        conf: dict[str, Any] = {"parquet.schema": ["word:string"]}
        if cls is AggregateBolt:
            conf |= {"parquet.keys": ["word"], "parquet.aggregates": ["count"]}
        conf["parquet.input_names"] = [f"{name}={step}" for name, step in input_names.items()]
        self.names = names
        self.held: dict[str, Row] = {}
        inputs = [(name, "default") for name in names.values()]
        self.bolt = sink(cls, directory, fields=["origin", "word"], inputs=inputs, **conf)

    def take(self, row: Row) -> None:
        source, offset, path = row
        made = Tuple(
            f"{len(self.held)}", self.names[source], "default", 1, (Origin("t", "id", 0, offset, path), word(row))
        )
        self.held[made.id] = row
        self.bolt.process(made)

    def flush(self, stop: int | None) -> list[Row]:
        """Flush, stopped before a step or not; return the rows that were acked.

        Raises:
            Killed: it was.
            SinkError: another deployment has changed the directory.
        """
        assert self.bolt.failed == {}
        disk = SteppedDisk(lambda step: None if step != stop else stop_here())
        self.bolt.writer.disk = self.bolt.writer.log.disk = disk
        held, self.held = self.held, {}
        self.bolt.acked.clear()
        self.bolt.drain()
        assert sorted(self.bolt.acked) == sorted(held)
        return list(held.values())


def stop_here() -> None:
    raise Killed


def word(row: Row) -> str:
    """Return what a row says; no two rows say the same."""
    return "/".join(map(str, row))


class Inputs(RuleBasedStateMachine):
    cls: ClassVar[Any] = ParquetBolt

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name) / "out"
        self.past: dict[str, list[str]] = {source: [] for source in SOURCES}
        """the names that each source ever had"""
        self.names: dict[str, str] = {}
        self.given: set[Row] = set()
        self.acked: set[Row] = set()
        self.tasks: list[Task] = []

    def teardown(self) -> None:
        """Replay all that the last deployment can; then each row is there once."""
        if self.tasks:
            self._deploy(self.names, "AB")
            rows = sorted(row for row in self.given if row[0] in self.names)
            for task in self.tasks:
                for row in rows:
                    task.take(row)
                task.flush(None)
            seen = self._seen()
            assert {row: seen[word(row)] for row in rows} == dict.fromkeys(rows, 1)
        self.folder.cleanup()

    def _seen(self) -> Counter[str]:
        seen: Counter[str] = Counter()
        for row in rows_of(self.directory):
            seen[row["word"]] += row.get("count", 1)
        return seen

    def _input_names(self) -> dict[str, str]:
        """Return what a user who knows all writes into parquet.input_names: what each new name stands for."""
        log = CommitLog(self.directory)
        log.refresh()
        found: dict[str, str] = {}
        for source, name in self.names.items():
            if name in log.inputs.steps:
                continue
            before = [old for old in reversed(self.past[source]) if old in log.inputs.steps]
            found[name] = log.inputs.steps[before[0]] if before else name
        return found if log.length else {}

    def _deploy(self, names: dict[str, str], tasks: str) -> None:
        """Start these tasks (of A and B) with these names; what they held is neither acked nor failed."""
        self.names = names
        for source, name in names.items():
            self.past[source].append(name)
        input_names = self._input_names()
        sole = len(names) == 1 and self._is_renamed()
        for index, task in enumerate("AB"):
            if task in tasks:
                self.tasks[index] = Task(self.cls, self.directory, dict(names), {} if sole else input_names)

    def _is_renamed(self) -> bool:
        """Return whether the only input stands for the one that wrote last, which a sink knows by itself."""
        log = CommitLog(self.directory)
        log.refresh()
        (source,) = self.names
        return len(log.inputs.last) == 1 and log.inputs.last[0] in self.past[source]

    @initialize(sources=st.sampled_from(["A", "B", "AB", "ABC"]))
    def begin(self, sources: str) -> None:
        self.names = {source: source.lower() for source in sources}
        for source, name in self.names.items():
            self.past[source].append(name)
        self.tasks = [Task(self.cls, self.directory, dict(self.names), {}) for _ in range(2)]

    @rule(row=ROWS, index=st.integers(0, 1))
    def deliver(self, row: Row, index: int) -> None:
        """Give a tuple to a task, be it the first time or again."""
        if row[0] in self.tasks[index].names:
            self.given.add(row)
            self.tasks[index].take(row)

    @rule(index=st.integers(0, 1), stop=st.none() | st.integers(1, 20))
    def flush(self, index: int, stop: int | None) -> None:
        """Flush; where it was stopped, or the directory has moved on, the task is started again as now deployed."""
        try:
            self.acked.update(self.tasks[index].flush(stop))
        except (Killed, SinkError):
            self._deploy(self.names, "AB"[index])

    @rule(
        source=st.sampled_from(SOURCES),
        tasks=st.sampled_from(["AB", "A", "B"]),
        change=st.sampled_from(["name", "set"]),
    )
    def redeploy(self, source: str, tasks: str, change: str) -> None:
        """Add a source, take one away or rename one; a task that is not named stays as it was, beside the new one."""
        names = dict(self.names)
        if source not in names or change == "name":
            names[source] = f"{source.lower()}{len(self.past[source])}"
        elif len(names) > 1:
            del names[source]
        self._deploy(names, tasks)

    @precondition(lambda self: self.tasks)
    @invariant()
    def no_row_is_lost_or_twice(self) -> None:
        """What was acked is in the files; nothing is there twice, and nothing that never came."""
        seen = self._seen()
        assert max(seen.values(), default=0) <= 1
        assert {word(row) for row in self.acked} <= set(seen) <= {word(row) for row in self.given}


class AggregatedInputs(Inputs):
    cls = AggregateBolt


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Inputs, AggregatedInputs])
def test_each_row_of_each_input_exactly_once(machine: type[Inputs]) -> None:
    """Whatever is replayed, stopped, renamed, added or removed: each input's row of a record is there once."""
    run_state_machine_as_test(machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None))
