"""What an audit takes from the settings that runs have noted beside the commit log."""

from __future__ import annotations

from pathlib import Path

from downspout.sink.log.commit_log import CommitLog
from downspout.sink.notes import Run, read_runs


def noted_run(directory: Path) -> Run:
    """Return the latest run that a directory knows; what its log says, where it knows none.

    Raises:
        SinkError: the log is damaged.
    """
    if runs := read_runs(directory):
        return runs[0]
    log = CommitLog(directory)
    log.refresh()
    # A group is called like its topology where no setting names it.
    return Run(log.topology or "", spouts={"": {}} if log.topology else {})


def dead_letters_of(directory: Path, run: Run, group: str | None) -> list[str]:
    """Return the dead-letter topics that a directory's runs may have written to; they need not exist."""
    runs = read_runs(directory) or [run]
    topics = [topic for one in runs for topic in one.dead_letter_topics]
    return list(dict.fromkeys([*([f"{group}.dead-letters"] if group else []), *topics]))
