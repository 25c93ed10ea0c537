"""Open a directory: check that it belongs to this sink, finish committed flushes, sweep abandoned files.

The log says which files count, and recovery brings the directory into line with it. Every step may run in several
processes at once, and again after a stop: a data file moves one way only, from staging to its final name and from there
to ``replaced/``, and a process that comes second finds nothing to move.

**The sweeper.** A staged file that no entry names belongs to a stopped flush or to a running one. The two look alike: a
paused writer may wake up after an hour. So the sweeper appends a ``fence`` for that writer before it deletes.
Before its next entry the writer reads all new entries, finds itself fenced, and stages its rows again under another
name. If the writer was faster, its entry precedes the fence; the sweeper reads it and publishes the files instead.

**Foreign files.** Readers of a plain directory read every file unless its name, or a folder's, begins with ``_`` or
``.``. A copy ``part-….parquet.bak`` doubles its rows, ``notes.txt`` makes readers fail, and with a ``_spark_metadata``
Spark reads only the files listed in it. A sink deletes nothing that it did not write, and its own rows stay correct: it
warns at its start, and the audit reports the directory as not exact.

**No log.** Without a log nothing proves that the directory is a sink's. If it has no file that readers see, the sink
takes it; otherwise the sink does not start.

**Rows of other topics.** The log names the topology and the sink that own a directory, but two topologies may share a
name after a copy. Their topics tell them apart. If the rows and the run share a topic, the run goes on, because lists
of topics grow and shrink; if not, the sink does not start. The consumer group does not matter: reading records again
with another group is deliberate.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath

from downspout.errors import SinkError, coordinates
from downspout.formatting import counted
from downspout.sink.layout import OURS, below, incarnation_of, is_data, is_read, is_visible, move
from downspout.sink.log import CommitLog, DirectoryWriter, read_entries
from downspout.sink.log_entry import FENCE, Coverage
from downspout.sink.notes import Run
from downspout.sink.storage import Storage

logger = logging.getLogger("downspout.sink")

PLACES_MAX = 5  # Partitions that an error names
SWEEP_AFTER_S = 3600.0
"""Staged files whose writer has written nothing for so long are swept. Too short costs a writer its work, no row."""


class Recovery:
    """Brings a directory into line with its log."""

    def __init__(self, writer: DirectoryWriter) -> None:
        self._writer = writer
        self._log, self._disk, self._directory = writer.log, writer.disk, writer.directory
        self._foreign: list[str] = []

    def repair(self) -> None:
        """Check the data files against the log; publish those that count, and move the others away."""
        visible = self._visible()
        visible |= self._refuse_unknown(visible)
        staged = self._staged()
        log, (staging, sight, replaced) = self._log, self._log.layout.places
        self._move((path for path in staged if path in log.files), staging, sight)
        self._move((path for path in staged if path in log.removed), staging, replaced)
        self._move((path for path in visible if path in log.removed), sight, replaced)
        self._refuse_gone(visible | staged)
        warn_of_foreign_files(self._directory, self._foreign, self._disk)

    def _visible(self) -> set[str]:
        """Return the data files that readers see; once there is a log, those that a writer of ours may have made."""
        log = self._log
        found = [
            path.relative_to(self._directory).as_posix()
            for path in self._disk.files_below(self._directory, without=OURS)
        ]
        ours = {path for path in found if is_data(path) and incarnation_of(path)}
        # What else readers see is noted: no writer of ours gives such names.
        self._foreign = sorted(path for path in {*found} - ours if is_read(path) and path not in log.files)
        return {path for path in found if is_data(path) and (not log.length or incarnation_of(path))}

    def _staged(self) -> set[str]:
        return below(self._disk, self._log.layout.staging)

    def _refuse_unknown(self, visible: set[str]) -> set[str]:
        """Raise if there are data files that no entry names: the log, or its end, was deleted.

        Their rows would be written twice. Foreign files (not named like ours) are refused only without a log.

        The race: another writer's flush, between our look at the log and our look at the files. Its entry was
        there before its files came into sight, so for files that we saw, a second look finds the entry. A file that
        vanishes meanwhile was compacted away, by an entry that has since been followed by another compaction.
        """
        if not self._unknown(visible):
            return set()
        self._writer.catch_up()
        if not self._log.length:
            raise log_is_gone(self._log, sorted(visible))
        if unknown := {path for path in self._unknown(visible) if self._disk.exists(self._directory / path)}:
            self._refuse_revenant(min(unknown))
            raise SinkError(
                f"{self._directory / min(unknown)} is not named by any entry of the commit log ({len(unknown)} such "
                "files): if the log's last entries were deleted, its rows would be written twice",
                cure=f"restore {self._log.folder} from a backup; or move the file away if its rows are not wanted",
            )
        return self._visible()

    def _refuse_revenant(self, path: str) -> None:
        """Raise if the log removed this file earlier and it has been restored since. Reads all entries."""
        removers = [entry for entry in read_entries(self._directory, self._disk) if path in entry.removed]
        if removers:
            how = "compacted away" if removers[-1].files else "forgotten with --forget-missing"
            raise SinkError(
                f"{self._directory / path} was {how} (entry {removers[-1].number}), but exists again",
                cure="move it away; rows that were forgotten come again after a rebuild (parquet.rebuild)",
            )

    def _unknown(self, visible: set[str]) -> set[str]:
        known = {path for path in visible if path in self._log.files or path in self._log.removed}
        return {path for path in visible - known if not self._log.length or incarnation_of(path)}

    def gone(self, there: Collection[str] = ()) -> list[str]:
        """Return the committed files that are missing. A file not in ``there`` may just have been published."""
        gone = [path for path in self._log.files if path not in there and not self._is_somewhere(path)]
        # The race: another process moves a file from staging into sight while we look at the one and then at the other,
        # or compacts it away. So each is looked up by its name, and then the log is asked again.
        if gone:
            self._writer.catch_up()
            gone = [path for path in gone if path in self._log.files and not self._is_somewhere(path)]
        return gone

    def _refuse_gone(self, there: set[str]) -> None:
        if gone := self.gone(there):
            raise SinkError(
                f"{self._directory / gone[0]} is gone, although the commit log names it "
                f"({counted(len(gone), 'such file')}{self._records_of(gone)}): its rows are missing, and would not be "
                "written again",
                cure=f"restore it from a backup; or, if the rows are not wanted any more, downspout "
                f"compact {self._directory} --forget-missing",
            )

    def _records_of(self, gone: Sequence[str]) -> str:
        """Return which records the flushes of some files were made of; other files of these flushes may be there."""
        covered, named = Coverage(), set(gone)
        for entry in read_entries(self._directory, self._disk):
            if any(file.path in named for file in entry.files):
                covered.update(entry.coverage)
        ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for stream in covered.streams():
            ranges.setdefault((stream.topic, stream.partition), []).extend(covered.ranges(stream))
        places = [
            f"{coordinates(topic, partition, min(found)[0])} to @{max(end for _, end in found) - 1}"
            for (topic, partition), found in sorted(ranges.items())
            if found
        ]
        more = f" and {len(places) - PLACES_MAX} more partitions" if len(places) > PLACES_MAX else ""
        return f", flushed with rows of {', '.join(places[:PLACES_MAX])}{more}" if places else ""

    def _is_somewhere(self, path: str) -> bool:
        places = (self._directory, self._log.layout.staging, self._directory)
        return any(self._log.layout.holds(self._disk, place, path) for place in places)

    def _move(self, paths: Iterable[str], source: Path, target: Path) -> None:
        move(self._disk, self._log.layout, sorted(paths), source, target)

    # --- the sweeper ------------------------------------------------------------------------------------

    def sweep(self, after_s: float = SWEEP_AFTER_S) -> int:
        """Delete staged files that will never be committed; return their number.

        Args:
            after_s: a writer is presumed dead when its newest file has this age in seconds.
        """
        leftovers = self._leftovers()
        now = self._writer.clock.wall()
        dead = {
            writer
            for writer, names in leftovers.items()
            if writer in self._log.fenced or now - self._last_sign_of_life(names) >= after_s
        }
        if not dead:
            return 0
        self._fence(dead)
        # What was committed before the fence has been read by now.
        self._move((path for path in self._staged() if path in self._log.files), *self._log.layout.places[:2])
        swept = 0
        for name in (name for writer in sorted(dead) for name in leftovers[writer] if name not in self._log.removed):
            swept += self._log.layout.holds(self._disk, self._log.layout.staging, name)
            self._disk.remove(self._log.layout.staged(name))
        if swept:
            logger.info("%s: swept %s of stopped writers", self._directory, counted(swept, "file"))
        return swept

    def _last_sign_of_life(self, names: Iterable[str]) -> float:
        """Return when the newest of a writer's files was changed; for ever, if it has none any more."""
        layout = self._log.layout
        # 0.0: it has moved, or was deleted, since it was listed. Who moved it is alive.
        return max(filter(None, (self._disk.modified(layout.staged(name)) for name in names)), default=float("inf"))

    def _leftovers(self) -> dict[str, list[str]]:
        """Return the staged files that no entry names, by writer."""
        found: dict[str, list[str]] = {}
        for name in sorted(self._staged()):
            writer = incarnation_of(name)
            if writer and name not in self._log.files and name not in self._log.removed:
                found.setdefault(writer, []).append(name)
        return found

    def _fence(self, writers: set[str]) -> None:
        while missing := sorted(writers - self._log.fenced):
            if not self._log.append(self._writer.entry(FENCE, fenced=tuple(missing))):
                self._writer.catch_up()


# --- foreign files, and directories of others ---

SPARK_LOG = "_spark_metadata"
"""What a streaming query keeps in the directory that it writes: its list of files. Spark then reads no others."""
LOOK_MAX = 1_000  # Files that are looked at to say whose a directory without a log is: it may be a home directory
SHOWN_MAX = 3


def warn_of_foreign_files(directory: Path, names: Sequence[str], disk: Storage) -> None:
    """Warn of foreign files that readers would read, and of anything that hides our files from Spark."""
    if names:
        count = counted(len(names), "file")
        say(
            f"{directory} holds {count} that no sink has written: {some(names)}. Readers (pyarrow, Spark, or globs of "
            "DuckDB and Polars) take them for the directory's data: rows appear twice, or they fail. Try: move them "
            "elsewhere"
        )
    if disk.exists(directory / SPARK_LOG):
        say(
            f"{directory / SPARK_LOG} belongs to a Spark job that has written to this sink's directory: Spark reads "
            "only the files that it names, and none of the sink's. Try: move it, and the files of that job, elsewhere"
        )


@lru_cache(maxsize=100)
def say(text: str) -> None:
    """Warn once in a process, though each task of a sink opens the directory."""
    logger.warning("%s", text)


def refuse_foreign(log: CommitLog) -> None:
    """Raise if a directory has no log but has files that readers read.

    Raises:
        SinkError: it does; the message says whether the log was deleted or the directory belongs to another program.
    """
    if (error := foreign(log)) is not None:
        raise error


def foreign(log: CommitLog) -> SinkError | None:
    """Return why a directory without a log cannot become a sink's; None if it can, or has a log.

    The race: all tasks of a sink open an empty directory together, and one of them may have flushed between our look at
    the log and our look at the files. Its entry was there before its files, so a second look at the log finds it.

    Raises:
        OSError: the disk refused.
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
    """Return the error if an empty log has lost its entries; None if no sink has written."""
    top = log.directory
    names = sorted(path.relative_to(top).as_posix() for path in log.disk.files_below(top, without=OURS))
    ours = [name for name in names if is_visible(name) and incarnation_of(name)]
    return log_is_gone(log, ours) if ours else None


def log_is_gone(log: CommitLog, names: Sequence[str]) -> SinkError:
    """Return the error for a directory with our data files but no log."""
    return only_holds_sinks(log, names) or SinkError(
        f"{log.directory} holds data files ({some(names)}) but no commit log: what was written is not known, and rows "
        "would be written twice",
        cure=f"restore {log.layout.home} from a backup (if the directory was moved or copied, do so with all that is "
        "in it); or use another parquet.directory",
    )


def only_holds_sinks(log: CommitLog, names: Sequence[str]) -> SinkError | None:
    """Return the error for a directory without a log whose data files are all in directories of sinks below it."""
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents[:-1]}
    sinks = sorted(each for each in folders if log.disk.exists(log.directory / each / OURS))
    if not sinks or not all(name.startswith(tuple(f"{each}/" for each in sinks)) for name in names):
        return None
    return SinkError(
        f"{log.directory} is not a sink's directory, but holds such directories: {some(sinks)}",
        cure=f"the directory of one sink, such as {log.directory / sinks[0]}",
    )


def refuse_other_topics(log: CommitLog, run: Run | None) -> None:
    """Raise if all rows of a directory are of topics that the run does not read."""
    there = sorted({stream.topic for stream in log.coverage.streams()})
    # A run without a Kafka spout does not say what it reads, and is let through.
    if run is None or not there or not run.selections or any(run.selects(topic) for topic in there):
        return
    both = f"kafka.topics={there[0]},{run.topics[0]}" if run.topics else "a kafka.pattern for both"
    raise SinkError(
        f"{log.directory} holds only rows of {some(there)}, and topology {run.topology} reads {some(run.selections)}; "
        "it may be another topology of that name",
        cure=f"another parquet.directory; if the topic was renamed, one run that reads both ({both}); or "
        f"parquet.rebuild={log.rebuild + 1}, to rebuild the directory",
    )


def some(names: Sequence[str]) -> str:
    """Return the first few of some names.

    >>> some(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return ", ".join([*names[:SHOWN_MAX], *(["…"] if len(names) > SHOWN_MAX else [])])
