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
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from downspout.clock import Clock
from downspout.errors import SinkError
from downspout.parquet.disk import Disk
from downspout.parquet.entry import FENCE, Entry
from downspout.parquet.layout import (
    OURS,
    REPLACED_FOLDER,
    STAGING_FOLDER,
    incarnation_of,
    is_data,
    up_to,
)
from downspout.parquet.log import CommitLog, read_entries
from downspout.wording import counted

__all__ = ["SWEEP_AFTER_S", "Recovery", "move"]

logger = logging.getLogger("downspout.parquet")

SWEEP_AFTER_S = 3600.0
"""Staged files whose writer has written nothing for so long are swept. Too short costs a writer its work, no row."""


class Recovery:
    """Brings a directory to what its log says.

    Args:
        log: the directory's log.
        catch_up: reads new entries, and raises if they are not of our sink.
        make_entry: makes the next entry of a kind.
        clock: for ages.
    """

    def __init__(
        self, log: CommitLog, catch_up: Callable[[], object], make_entry: Callable[..., Entry], clock: Clock
    ) -> None:
        self._log = log
        self._disk = log.disk
        self._directory = log.directory
        self._catch_up = catch_up
        self._make_entry = make_entry
        self._clock = clock

    def settle(self) -> None:
        """Check the data files against the log, bring into sight what counts, and out of sight what does not."""
        visible = self._visible()
        visible |= self._refuse_unknown(visible)
        staged = self._staged()
        log = self._log
        self._move((path for path in staged if path in log.files), STAGING_FOLDER, Path())
        self._move((path for path in staged if path in log.removed), STAGING_FOLDER, REPLACED_FOLDER)
        self._move((path for path in visible if path in log.removed), Path(), REPLACED_FOLDER)
        self._refuse_gone(visible | staged)

    def _visible(self) -> set[str]:
        """Return the data files that readers see; once there is a log, those that a writer of ours may have made."""
        found = (
            path.relative_to(self._directory).as_posix()
            for path in self._disk.files_below(self._directory, without=OURS.name)
        )
        return {path for path in found if is_data(path) and (not self._log.length or incarnation_of(path))}

    def _staged(self) -> set[str]:
        top = self._directory / STAGING_FOLDER
        return {path.relative_to(top).as_posix() for path in self._disk.files_below(top)}

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
            raise SinkError(
                f"{self._directory} holds data files ({min(visible)}) but no commit log: what was written is not known",
                cure=f"restore {self._log.folder} from a backup, or use another parquet.directory",
            )
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
        removers = [entry for entry in read_entries(self._directory) if path in entry.removed]
        if removers:
            how = "compacted away" if removers[-1].files else "forgotten with --forget-missing"
            raise SinkError(
                f"{self._directory / path} was {how} (entry {removers[-1].number}), and is there again",
                cure="move it away; rows that were forgotten come again in a new generation (parquet.generation)",
            )

    def _unknown(self, visible: set[str]) -> set[str]:
        known = {path for path in visible if path in self._log.files or path in self._log.removed}
        return {path for path in visible - known if not self._log.length or incarnation_of(path)}

    def gone(self, there: Collection[str] = ()) -> list[str]:
        """Return the files that count and are nowhere. One that was not seen may have been on its way into sight.

        The race: another process moves a file from staging into sight while we look at the one and then at the other,
        or compacts it away. So each is looked up by its name, and then the log is asked again.

        Args:
            there: files that need no look.
        """
        gone = [path for path in self._log.files if path not in there and not self._is_somewhere(path)]
        if gone:
            self._catch_up()
            gone = [path for path in gone if path in self._log.files and not self._is_somewhere(path)]
        return gone

    def _refuse_gone(self, there: set[str]) -> None:
        if gone := self.gone(there):
            raise SinkError(
                f"{self._directory / gone[0]} is gone, and the commit log names it "
                f"({counted(len(gone), 'such file')}): its rows are missing, and would not be written again",
                cure="restore it from a backup; or, if its rows are not wanted any more, "
                f"downspout compact {self._directory} --forget-missing",
            )

    def _is_somewhere(self, path: str) -> bool:
        places = (self._directory, self._directory / STAGING_FOLDER, self._directory)
        return any(self._disk.exists(place / path) for place in places)

    def _move(self, paths: Iterable[str], source: Path, target: Path) -> None:
        move(self._disk, self._directory, sorted(paths), source, target)

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
        self._move((path for path in self._staged() if path in self._log.files), STAGING_FOLDER, Path())
        swept = 0
        for name in (name for writer in sorted(dead) for name in leftovers[writer] if name not in self._log.removed):
            path = self._directory / STAGING_FOLDER / name
            swept += self._disk.exists(path)
            self._disk.remove(path)
        if swept:
            logger.info("%s: swept %s of stopped writers", self._directory, counted(swept, "file"))
        return swept

    def _last_sign_of_life(self, names: Iterable[str]) -> float:
        return max(self._disk.modified(self._directory / STAGING_FOLDER / name) for name in names)

    def _leftovers(self) -> dict[str, list[str]]:
        """Return the staged files that no entry names, by writer."""
        found: dict[str, list[str]] = {}
        for name in self._staged():
            writer = incarnation_of(name)
            if writer and name not in self._log.files and name not in self._log.removed:
                found.setdefault(writer, []).append(name)
        return found

    def _fence(self, writers: set[str]) -> None:
        while missing := sorted(writers - self._log.fenced):
            if not self._log.append(self._make_entry(FENCE, fenced=tuple(missing))):
                self._catch_up()


def move(disk: Disk, directory: Path, paths: Iterable[str], source: Path, target: Path) -> list[str]:
    """Move data files from one part of a directory to another, durably.

    A folder is durable before anything is moved into it: a power cut could otherwise leave the renaming without the
    folder. That it is there says nothing: who made it may have been stopped before it was synced.

    Returns:
        Those that were not there: others have moved them, and maybe further than we would.
    """
    wanted = list(paths)
    folders = sorted({(directory / target / path).parent for path in wanted})
    for folder in folders:
        disk.make_folder(folder)
    for above in sorted({above for folder in folders for above in up_to(folder, directory)[1:]}):
        disk.sync(above)
    absent: list[str] = []
    changed: set[Path] = set()
    for path in wanted:
        place = directory / target / path
        try:
            disk.rename(directory / source / path, place)
        except FileNotFoundError:
            absent.append(path)
            continue
        changed.add(place.parent)
    for folder in sorted(changed):
        disk.sync(folder)
    return absent
