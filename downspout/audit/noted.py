"""What an audit takes from the settings that runs have noted beside the commit log."""

from __future__ import annotations

import os
from pathlib import Path

from downspout.sink.log.commit_log import CommitLog
from downspout.sink.runs import Run, read_runs
from downspout.sink.storage.layout import home_beside


def noted_run(directory: Path) -> Run:
    """Return the latest run that a directory knows; what its log says, where it knows none.

    Raises:
        SinkError: the log is damaged.
    """
    if runs := read_runs(directory):
        return runs[0]
    log = CommitLog(directory)
    log.refresh()
    # A group is called like its topology where no setting names it. Directories of earlier versions say no more.
    return Run(log.topology or "", spouts={"": {}} if log.topology else {})


def dead_letters_of(directory: Path, run: Run, group: str | None) -> list[str]:
    """Return the dead-letter topics that a directory's runs may have written to; they need not exist."""
    runs = read_runs(directory) or [run]
    topics = [topic for one in runs for topic in one.dead_letter_topics]
    return list(dict.fromkeys([*([f"{group}.dead-letters"] if group else []), *topics]))


def usable_file(directory: Path, run: Run) -> str:
    """Return the file of a run's topology, if an audit may run it without being asked to; else nothing."""
    if not run.file or os.path.isabs(run.file):
        return ""
    # A note is a file that others may have written. So only what lies in the user's own project is run, which is the
    # working directory, and nothing that lies in the directory that is audited or beside it with its log.
    file, here = Path(run.file).resolve(), Path.cwd()
    theirs = (directory.resolve(), home_beside(directory).resolve())
    is_ours = file.is_file() and file.is_relative_to(here) and not any(map(file.is_relative_to, theirs))
    return run.file if is_ours else ""
