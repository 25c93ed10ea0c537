"""Whose is a directory: the sink's, alone, or also somebody else's?

**Files of others.** Readers of a plain directory read every file in it whose name, and whose folders' names, do not
begin with ``_`` or ``.``. A copy ``part-….parquet.bak`` doubles its rows, and ``notes.txt`` makes them fail. Where
there is a ``_spark_metadata``, Spark reads only the files that it names. A sink deletes nothing that it did not write,
and its own rows are right all the same: so it warns when it starts, and the audit says that the directory is not exact.

**No log.** Then nothing says that the directory is a sink's. Either there is no file that readers see, and the
directory becomes ours, or the sink does not start.

**Rows of other topics.** The log names the topology and the sink that a directory belongs to. But two topologies may
have one name: a file was copied, and the copy changed. What tells them apart is what they read. Where the rows and the
run have a topic in common, the run goes on, since lists of topics grow and shrink. Where they have none, the sink does
not start. The consumer group says nothing here: with another group, records are read again on purpose.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath

from downspout.errors import SinkError
from downspout.formatting import counted
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.runs import Run
from downspout.sink.storage.layout import OURS, incarnation_of, is_visible
from downspout.sink.storage.port import Storage

logger = logging.getLogger("downspout.sink")

SPARK_LOG = "_spark_metadata"
"""What a streaming query keeps in the directory that it writes: its list of files. Spark then reads no others."""
LOOK_MAX = 1_000  # Files that are looked at to say whose a directory without a log is: it may be a home directory
SHOWN_MAX = 3


def warn_of_foreign_files(directory: Path, names: Sequence[str], disk: Storage) -> None:
    """Warn of files that no sink has written and that readers read, and of what hides ours from Spark."""
    if names:
        count = counted(len(names), "file")
        say(
            f"{directory} holds {count} that no sink has written: {some(names)}. Readers (pyarrow, Spark, or globs of "
            "DuckDB and Polars) take them for the directory's data: rows appear twice, or they fail. Try: move them "
            "elsewhere"
        )
    if disk.exists(directory / SPARK_LOG):
        say(
            f"{directory / SPARK_LOG} is of a Spark job that has written to this sink's directory: Spark reads only "
            "the files that it names, and none of the sink's. Try: move it, and the files of that job, elsewhere"
        )


@lru_cache(maxsize=100)
def say(text: str) -> None:
    """Warn once in a process, though each task of a sink opens the directory."""
    logger.warning("%s", text)


def refuse_foreign(log: CommitLog) -> None:
    """Raise where a directory has no log, and holds what readers read.

    Raises:
        SinkError: so it is; the message says whether the log was deleted or the directory is somebody else's.
    """
    if (error := foreign(log)) is not None:
        raise error


def foreign(log: CommitLog) -> SinkError | None:
    """Return why a directory without a log cannot become a sink's; None where it can, or where there is a log.

    The race: all tasks of a sink open an empty directory together, and one of them may have flushed between our look at
    the log and our look at the files. Its entry was there before its files, so a second look at the log finds it.

    Raises:
        OSError: the disk says no.
    """
    directory, disk = log.directory, log.disk
    if disk.has_names(log.folder):
        return None
    below = (path.relative_to(directory).as_posix() for path in disk.files_below(directory, without=OURS))
    found = sorted(islice((path for path in below if is_visible(path) or path.startswith(f"{SPARK_LOG}/")), LOOK_MAX))
    if not found or disk.has_names(log.folder):
        return None
    if ours := [path for path in found if is_visible(path) and incarnation_of(path)]:
        return log_is_gone(log, ours)
    tops = list(dict.fromkeys(path.partition("/")[0] for path in found))
    return SinkError(
        f"{directory} is not empty and no sink has written to it: it holds {some(tops)}",
        cure="another parquet.directory: one that is empty, or does not exist yet",
    )


def lost_log(log: CommitLog) -> SinkError | None:
    """Return what to say where a log that was read and is empty was not always so; None where no sink has written."""
    top = log.directory
    names = sorted(path.relative_to(top).as_posix() for path in log.disk.files_below(top, without=OURS))
    ours = [name for name in names if is_visible(name) and incarnation_of(name)]
    return log_is_gone(log, ours) if ours else None


def log_is_gone(log: CommitLog, names: Sequence[str]) -> SinkError:
    """Return what to say of a directory that has data files of ours and no log."""
    return only_holds_sinks(log, names) or SinkError(
        f"{log.directory} holds data files ({some(names)}) but no commit log: what was written is not known, and rows "
        "would be written twice",
        cure=f"restore {log.layout.home} from a backup (if the directory was moved or copied, do so with all that is "
        "in it); or use another parquet.directory",
    )


def only_holds_sinks(log: CommitLog, names: Sequence[str]) -> SinkError | None:
    """Return what to say of a directory without a log if its data files are all in directories of sinks below it."""
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents[:-1]}
    sinks = sorted(each for each in folders if log.disk.exists(log.directory / each / OURS))
    if not sinks or not all(name.startswith(tuple(f"{each}/" for each in sinks)) for name in names):
        return None
    return SinkError(
        f"{log.directory} is no sink's directory, but holds such directories: {some(sinks)}",
        cure=f"the directory of one sink, such as {log.directory / sinks[0]}",
    )


def refuse_other_topics(log: CommitLog, run: Run | None) -> None:
    """Raise where all rows of a directory are of topics that the run does not read."""
    there = sorted({stream.topic for stream in log.coverage.streams()})
    # A run without a Kafka spout does not say what it reads, and is let through.
    if run is None or not there or not run.selections or any(run.selects(topic) for topic in there):
        return
    both = f"kafka.topics={there[0]},{run.topics[0]}" if run.topics else "a kafka.pattern for both"
    raise SinkError(
        f"{log.directory} holds only rows of {some(there)}, and topology {run.topology} reads {some(run.selections)}; "
        "it may be another topology of that name",
        cure=f"another parquet.directory; where the topic was renamed, one run that reads both ({both}); or "
        f"parquet.rebuild={log.rebuild + 1}, to rebuild the directory",
    )


def some(names: Sequence[str]) -> str:
    """Return the first few of some names.

    >>> some(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return ", ".join([*names[:SHOWN_MAX], *(["…"] if len(names) > SHOWN_MAX else [])])
