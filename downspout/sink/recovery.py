"""What is done when a directory is opened: finish what was committed, refuse what was damaged, sweep what was left.

The log says which files count. Recovery brings the directory to what the log says, and every step of it may be done by
several at once, and again after a stop: a data file goes one way only, from staging into sight, from there among the
replaced, and whoever moves it second finds nothing to move.

**The sweeper.** A staged file that no entry names is of a flush that was stopped, or of one that is under way. Nobody
can tell: its writer may have been paused for an hour and wake up. So the sweeper first appends a ``fence`` for that
writer, and then deletes. The writer cannot miss it: before its next entry it reads all that were made, finds itself
fenced, and stages its rows again under another name. A writer that was quicker has its entry before the fence, and then
the sweeper, having read it, brings the files into sight instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from downspout.clock import Clock
from downspout.errors import SinkError, coordinates
from downspout.formatting import counted
from downspout.sink.identity.coverage import Coverage
from downspout.sink.log.commit_log import CommitLog, read_entries
from downspout.sink.log.entry import FENCE, Entry
from downspout.sink.ownership import log_is_gone, warn_of_foreign_files
from downspout.sink.storage.data_files import below, move
from downspout.sink.storage.layout import OURS, incarnation_of, is_data, is_read

logger = logging.getLogger("downspout.sink")

PLACES_MAX = 5  # Partitions that an error names
SWEEP_AFTER_S = 3600.0
"""Staged files whose writer has written nothing for so long are swept. Too short costs a writer its work, no row."""


class Recovery:
    """Brings a directory to what its log says."""

    def __init__(
        self, log: CommitLog, catch_up: Callable[[], object], make_entry: Callable[..., Entry], clock: Clock
    ) -> None:
        self._log = log
        self._disk = log.disk
        self._directory = log.directory
        self._catch_up = catch_up
        self._make_entry = make_entry
        self._clock = clock
        self._foreign: list[str] = []

    def repair(self) -> None:
        """Check the data files against the log, bring into sight what counts, and out of sight what does not."""
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
        """Raise where there are data files that no entry names: the log, or its end, was deleted.

        Their rows would be written twice. Files of others (no name of ours) are refused only where there is no log.

        The race: another writer's flush, between our look at the log and our look at the files. Its entry was
        there before its files came into sight, so for files that we saw, a second look finds the entry. A file that
        vanishes meanwhile was compacted away, by an entry that has since been followed by another compaction.
        """
        if not self._unknown(visible):
            return set()
        self._catch_up()
        if not self._log.length:
            raise log_is_gone(self._log, sorted(visible))
        if unknown := {path for path in self._unknown(visible) if self._disk.exists(self._directory / path)}:
            self._refuse_revenant(min(unknown))
            raise SinkError(
                f"{self._directory / min(unknown)} is named by no entry of the commit log ({len(unknown)} such): "
                "were the log's last entries deleted, its rows would be written twice",
                cure=f"restore {self._log.folder} from a backup; or move the file away if its rows are not wanted",
            )
        return self._visible()

    def _refuse_revenant(self, path: str) -> None:
        """Raise if the log once took this file out of sight, and somebody has put it back. Reads all entries."""
        removers = [entry for entry in read_entries(self._directory, self._disk) if path in entry.removed]
        if removers:
            how = "compacted away" if removers[-1].files else "forgotten with --forget-missing"
            raise SinkError(
                f"{self._directory / path} was {how} (entry {removers[-1].number}), and is there again",
                cure="move it away; rows that were forgotten come again after a rebuild (parquet.rebuild)",
            )

    def _unknown(self, visible: set[str]) -> set[str]:
        known = {path for path in visible if path in self._log.files or path in self._log.removed}
        return {path for path in visible - known if not self._log.length or incarnation_of(path)}

    def gone(self, there: Collection[str] = ()) -> list[str]:
        """Return the files that count and are nowhere. One that was not seen may have been on its way into sight."""
        gone = [path for path in self._log.files if path not in there and not self._is_somewhere(path)]
        # The race: another process moves a file from staging into sight while we look at the one and then at the other,
        # or compacts it away. So each is looked up by its name, and then the log is asked again.
        if gone:
            self._catch_up()
            gone = [path for path in gone if path in self._log.files and not self._is_somewhere(path)]
        return gone

    def _refuse_gone(self, there: set[str]) -> None:
        if gone := self.gone(there):
            raise SinkError(
                f"{self._directory / gone[0]} is gone, and the commit log names it "
                f"({counted(len(gone), 'such file')}{self._records_of(gone)}): its rows are missing, and would not be "
                "written again",
                cure=f"restore it from a backup; or, if the rows are not wanted any more, downspout "
                f"compact {self._directory} --forget-missing",
            )

    def _records_of(self, gone: Sequence[str]) -> str:
        """Return which records the flushes of some files were made of; other files of these flushes may be there."""
        covered = Coverage()
        for entry in read_entries(self._directory, self._disk):
            if any(file.path in gone for file in entry.files):
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
        """Delete what writers have staged and will never commit; return how many files that were.

        Args:
            after_s: the age in seconds of the newest file of a writer from which on it is taken for dead.
        """
        leftovers = self._leftovers()
        now = self._clock.wall()
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
        layout = self._log.layout
        return max(self._disk.modified(layout.staged(name)) for name in names)

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
            if not self._log.append(self._make_entry(FENCE, fenced=tuple(missing))):
                self._catch_up()
