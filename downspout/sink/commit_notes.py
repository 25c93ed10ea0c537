"""The commits of a group as a sink's directory remembers them: see ``downspout/spout/ports.py``.

They are beside the log, in the form of an offset store in a directory (``downspout.sink.offset_store``), and are moved,
copied and restored with it: that is the point of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from downspout import offset_ranges
from downspout.kafka.port import OffsetAndMetadata, TopicPartition
from downspout.offset_ranges import OffsetRanges
from downspout.sink import skips
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.offset_store import DirectoryStore, State
from downspout.sink.runs import Run, read_runs
from downspout.sink.storage.disk import Disk
from downspout.sink.storage.layout import Layout
from downspout.spout.ports import StoredOffset


class SinkNotes:
    """See :class:`~downspout.spout.ports.CommitNotes`."""

    def __init__(self, directory: Path, group: str, disk: Disk | None = None) -> None:
        self.directory, self._group, self._disk = directory, group, disk or Disk()

    def _store(self) -> DirectoryStore | None:
        """Return where they are; None before a sink has opened the directory. It may have begun a new log meanwhile."""
        layout = Layout(self.directory)
        if not self._disk.exists(layout.log):
            return None
        folder = layout.home / "commits" / f"group-{quote(self._group, safe='')}"
        return DirectoryStore(self.directory, self._group, self._disk, folder)

    def read(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the highest commit that was about to be made, of each partition."""
        stored = store.list() if (store := self._store()) else {}
        return {
            tp: OffsetAndMetadata(each.offset, each.metadata, -1)
            for tp, each in stored.items()
            if each.offset is not None
        }

    def note(self, commits: Mapping[TopicPartition, OffsetAndMetadata], *, lower: bool = False) -> None:
        """Note commits that are about to be made."""
        if (store := self._store()) is None:
            return

        def change(state: State) -> None:
            for tp, commit in commits.items():
                if lower or tp not in state or commit.offset >= (state[tp].offset or 0):
                    state[tp] = StoredOffset(commit.offset, commit.metadata)

        store.change(change)

    def without_rows(self, partition: TopicPartition, done: OffsetRanges) -> OffsetRanges:
        """Return what of this has no row, and was not skipped on purpose; rows of an earlier topic count, too."""
        covered = self._covered(partition)
        noted = skips.noted_of(skips.read_skips(self.directory, self._disk), partition.topic, "", partition.partition)
        known = offset_ranges.union(covered, skips.still_skipped(noted, covered))
        return offset_ranges.subtract(done, known)

    def has_rows(self, partition: TopicPartition) -> bool:
        """Return whether there is a row of any record of a partition."""
        return bool(self._covered(partition))

    def _covered(self, partition: TopicPartition) -> OffsetRanges:
        log = CommitLog(self.directory, self._disk)
        log.refresh()
        return skips.covered(log, partition.topic, "", partition.partition)

    def cure(self) -> str:
        """Return the command that reads records again, with what was given to the latest run."""
        run = next(iter(read_runs(self.directory, self._disk)), Run())
        keys = re.compile(r"([^=]*:)?kafka\.(group|start\w*)=")
        given = [option for option in run.overrides() if not keys.match(option)]
        given += [f"kafka.group={self._group}.again", "kafka.start=EARLIEST"]
        options = [part for option in given for part in ("--set", option)]
        return shlex.join(["downspout", "run", run.file or "TOPOLOGY.py", *options, "--until", "end"])
