"""The rows that a rerun of the topology makes of records, and the port through which the audit reruns it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from downspout.kafka.port import Record
from downspout.sink.log import CommitLog
from downspout.sink.notes import Run, read_runs


@dataclass(frozen=True)
class Failed:
    """A record that a bolt failed: the reason, and the paths of its rows that reached the sink nevertheless."""

    reason: str
    paths: tuple[str, ...] = ()


Replay = Callable[[Sequence[Record]], Mapping[tuple[str, int, int], Iterable[str] | Failed]]
"""Runs the topology on records: (topic, partition, offset) → the paths of the rows that reach the sink, one per row; or
the failure. A record that is absent was acked and made no row."""


@dataclass
class Expected:
    """Expected rows: offsets by path; failures by offset; offsets with two rows of one path."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    twins: list[int] = field(default_factory=list)

    def add(self, replay: Replay | None, records: Sequence[Record]) -> None:
        """Run records of one partition; does nothing without a ``replay``."""
        if replay is None or not records:
            return
        for (_, _, offset), outcome in replay(records).items():
            if isinstance(outcome, Failed):
                self.failed[offset] = outcome.reason
            paths = Counter(outcome.paths if isinstance(outcome, Failed) else outcome)
            for path in paths:
                self.rows.setdefault(path, []).append(offset)
            if not isinstance(outcome, Failed) and max(paths.values(), default=0) > 1:
                self.twins.append(offset)


# --- recorded settings ---


def noted_run(directory: Path) -> Run:
    """Return the latest run recorded in a directory, or a run with the topology of its log.

    Raises:
        SinkError: the log is damaged.
    """
    if runs := read_runs(directory):
        return runs[0]
    log = CommitLog(directory)
    log.refresh()
    # By default, a group has the name of its topology.
    return Run(log.topology or "", spouts={"": {}} if log.topology else {})


def dead_letters_of(directory: Path, run: Run, group: str | None) -> list[str]:
    """Return the dead-letter topics that a directory's runs may have written to; they need not exist."""
    runs = read_runs(directory) or [run]
    topics = [topic for one in runs for topic in one.dead_letter_topics]
    return list(dict.fromkeys([*([f"{group}.dead-letters"] if group else []), *topics]))
