"""The audit's second witness: what the log says, entry by entry, and whether it can be so.

Checksums show what was torn. What was edited by somebody who also made a new checksum shows here, as far as entries
contradict one another, or by what the files hold instead. All entries are read, from the first: a checkpoint is only
compared with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from downspout.errors import DownspoutError, SinkError
from downspout.sink.coverage import Coverage
from downspout.sink.layout import incarnation_of
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.log.entry import COMPACT, FENCE, FLUSH, REBUILD, DataFile, Entry
from downspout.sink.log.history import History
from downspout.sink.object_store import storage_of

_CURE = "restore the log from a backup; a log that was changed by hand cannot be trusted"


@dataclass
class LogSide:
    """What a log says."""

    length: int = 0  # how many entries
    topology: str = ""  # whose they are
    schemas: tuple[tuple[str, ...], ...] = ()  # the columns that its entries declare, the first ones first
    written: dict[str, tuple[str, ...]] = field(default_factory=dict)  # path → the columns of the flush that wrote it
    coverage: Coverage = field(default_factory=Coverage)  # the rows that are in the directory
    files: Mapping[str, DataFile] = field(default_factory=dict)  # those that count, by path
    named: dict[str, DataFile] = field(default_factory=dict)  # all that were ever named
    # paths that count no more → number of the entry that has removed them
    replaced: dict[str, int] = field(default_factory=dict)
    # number → the files that a compaction has made
    compactions: dict[int, tuple[DataFile, ...]] = field(default_factory=dict)
    flushes: list[Entry] = field(default_factory=list)  # those since the last rebuild that came with rows
    outdated: set[str] = field(default_factory=set)  # paths that a rebuild has removed
    forgotten: list[str] = field(default_factory=list)  # paths that were removed because they were gone

    def take(self, entry: Entry, before: History) -> None:
        """Take the next entry; ``before`` is the state that it found."""
        if entry.kind == REBUILD:
            self.outdated.update(before.files)
            self.replaced.update(dict.fromkeys(before.files, entry.number))
            self.flushes.clear()
            self.forgotten.clear()
        if entry.kind == COMPACT and not entry.files:
            self.forgotten += entry.removed  # nothing took their place: one that is there again is a stranger
        elif entry.kind == COMPACT:
            self.replaced.update(dict.fromkeys(entry.removed, entry.number))
            self.compactions[entry.number] = entry.files
        if entry.kind == FLUSH and entry.files:
            self.flushes.append(entry)
            self.written.update(dict.fromkeys((file.path for file in entry.files), entry.schema))
        self.named.update((file.path, file) for file in entry.files)

    def copies(self, shown: Collection[str]) -> dict[str, int]:
        """Return for each file that was ever named how often its rows are in sight."""
        found: dict[str, int] = {}
        # Rows are where they were written, if that file is shown, and wherever compactions have taken them since. Files
        # are looked at in the reverse order of their entries, because what takes a file's place is always younger.
        for path in reversed(self.named):
            heirs = self.compactions.get(self.replaced.get(path, -1), ())
            found[path] = (path in shown) + min((found[heir.path] for heir in heirs), default=0)
        return found


def read_log(directory: Path) -> LogSide:
    """Read a directory's log, and compare it with itself and with its checkpoints."""
    # Listed before the log is read: a checkpoint is made after its entries.
    log = CommitLog(directory, checkpoints=False)
    checkpoints = _checkpoints(log.layout.checkpoints)
    entries = log.refresh()
    log.check_complete()
    side, history = LogSide(), History()
    for entry in entries:
        if contradiction := _contradiction(entry, history, side.named):
            raise SinkError(f"{log.path(entry.number)} is damaged: {contradiction}", cure=_CURE)
        side.take(entry, history)
        history.take(entry)
        if (checkpoint := checkpoints.pop(history.length, None)) is not None:
            _compare(log.checkpoint_path(history.length), checkpoint, history)
    for length in checkpoints:
        raise SinkError(
            f"{log.path(length - 1)} is missing, and {log.checkpoint_path(length)} says that it was there",
            cure=f"restore {log.folder} from a backup; without it the directory's history is unknown",
        )
    side.length, side.coverage, side.files = history.length, history.coverage, history.files
    side.topology, side.schemas = history.topology or "", history.schemas
    return side


def _checkpoints(folder: Path) -> dict[int, History]:
    """Return the checkpoints that a writer would believe, by their length. Others it ignores, and so do we."""
    found: dict[int, History] = {}
    disk = storage_of(folder)
    for name in disk.names(folder):
        made = History()
        try:
            made.restore(disk.read(folder / name))
        except (OSError, ValueError):
            continue
        if made.length and name == f"{made.length:020d}.json":
            found[made.length] = made
    return found


def _compare(path: Path, checkpoint: History, history: History) -> None:
    if checkpoint.to_bytes() != history.to_bytes():
        raise SinkError(
            f"{path} does not say what the {history.length:,} entries before it say: who writes next would believe it",
            cure=f"stop what writes there, delete {path}, and audit again: it is a cache, the entries are what counts",
        )


def _contradiction(entry: Entry, before: History, named: Mapping[str, DataFile]) -> str:
    """Return what in an entry cannot be so, after all the entries before it; nothing, if it can."""
    for what in ("topology", "component"):
        known, said = getattr(before, what), getattr(entry, what)
        if known not in (None, said):
            return f"its {what} is {said}, and that of the entries before it {known}"
    if wrong := _wrong_columns(entry, before):
        return wrong
    paths = [file.path for file in entry.files]
    if again := _first(path for path in paths if path in named):
        return f"it names {again}, which an earlier entry has named"
    if len(set(paths)) < len(paths):
        return "it names a file twice"
    if late := _first(path for path in paths if incarnation_of(path) in before.fenced):
        return f"it names {late}, whose writer was fenced before"
    if entry.kind in (FENCE, REBUILD) and (paths or entry.coverage.total):
        return f"a {entry.kind} has no files and no rows"
    if entry.kind == REBUILD and entry.rebuild <= before.rebuild:
        return f"rebuild {entry.rebuild} after rebuild {before.rebuild}"
    return _contradiction_of_compact(entry, before) if entry.kind == COMPACT else ""


def _contradiction_of_compact(entry: Entry, before: History) -> str:
    if entry.coverage.total:
        return "a compaction brings no rows"
    if absent := _first(path for path in entry.removed if path not in before.files):
        return f"it replaces {absent}, which did not count"
    removed = sum(before.files[path].rows for path in entry.removed)
    if entry.files and removed != entry.rows:
        return f"it replaces {removed:,} rows by {entry.rows:,}"
    if entry.gone_before > entry.number:
        return f"it says that what was removed before entry {entry.gone_before} is gone"
    return ""


def _wrong_columns(entry: Entry, before: History) -> str:
    """Return what in an entry's columns cannot be so: they may be those of an earlier entry, or grow."""
    if entry.kind == REBUILD:
        return ""
    try:
        why = before.refusals(entry.schema)
    except DownspoutError as error:  # words that no sink writes
        why = [error.message]
    if not why:
        return ""
    said, known = ", ".join(entry.schema), ", ".join(before.schema or ())
    return f"its schema is {said}, and that of the entries before it {known}: {'; '.join(why)}"


def _first(paths: Iterable[str]) -> str:
    return next(iter(paths), "")
