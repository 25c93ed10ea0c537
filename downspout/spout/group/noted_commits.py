"""A consumer whose commits are noted in the directories of the topology's sinks, before Kafka gets them.

Somebody restores an older copy of such a directory. The group goes on at its commit, and the rows in between stay
missing. Kafka knows only the commit, and the log only rows, and a record may well have no row. But the note in the copy
is older than the commit, and only then: each commit is noted first, so no crash leaves a note behind its commit.

So whoever starts partitions compares the two. It asks nothing of the sinks, and works wherever a spout sees their
directories: on the local engine, and on Storm on one machine or on a mounted file system.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from downspout import registry
from downspout.errors import DownspoutError, coordinates
from downspout.kafka.port import Answered, ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.offset_ranges import OffsetRanges

Offsets = Mapping[TopicPartition, int]


class CommitNotes(Protocol):
    """The commits of one group that a sink's directory remembers. Nothing is noted before the sink has made it.

    Any of these raises a :class:`~downspout.errors.DownspoutError` or an OSError where the disk says no.
    """

    directory: Path

    def read(self) -> Offsets:
        """Return the highest commit that was about to be made, of each partition."""

    def note(self, offsets: Offsets, *, lower: bool = False) -> None:
        """Note commits that are about to be made; those below what is noted change nothing, unless with ``lower``."""

    def without_rows(self, partition: TopicPartition, start: int, end: int) -> OffsetRanges:
        """Return what has no row, and was not skipped on purpose."""

    def cure(self) -> str:
        """Return the command that reads records again."""


class NotedCommits:
    """A :class:`~downspout.kafka.port.ConsumerPort`; what is not about commits is the consumer's own."""

    def __init__(self, consumer: ConsumerPort, notes: Sequence[CommitNotes], group: str, log: logging.Logger) -> None:
        self._consumer, self._notes, self._group, self._log = consumer, notes, group, log
        self._known: set[TopicPartition] = set()
        self._warned: set[Path] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._consumer, name)
        setattr(self, name, found)  # polls come by here thousands of times
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note, then commit."""
        self._note({tp: each.offset for tp, each in offsets.items()})
        self._consumer.commit(offsets)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Note, then send."""
        self._note({tp: each.offset for tp, each in offsets.items()})
        self._consumer.commit_async(offsets, answered)

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's commits; say where a directory is behind, once for each partition."""
        found = self._consumer.committed(partitions)
        # Other tools, and Spark, write no metadata, and no note either: nothing is known of what they did.
        ours = {tp: each.offset for tp, each in found.items() if each is not None and each.metadata}
        fresh = {tp: offset for tp, offset in ours.items() if tp not in self._known}
        self._known |= found.keys()
        for notes in self._notes if fresh else ():
            try:
                self._look(notes, fresh)
            except (DownspoutError, OSError) as error:
                self._log.warning("cannot look whether %s is behind group %s: %s", notes.directory, self._group, error)
        return found

    def _look(self, notes: CommitNotes, commits: Offsets) -> None:
        noted = notes.read()
        behind = {tp: (noted[tp], commit) for tp, commit in sorted(commits.items()) if commit > noted.get(tp, commit)}
        missing = {tp: ranges for tp, (start, end) in behind.items() if (ranges := notes.without_rows(tp, start, end))}
        if missing:
            places = [
                f"{coordinates(tp.topic, tp.partition, ranges[0][0])} to @{ranges[-1][1] - 1}"
                for tp, ranges in missing.items()
            ]
            self._log.warning(
                "%s is behind group %s: it is from a time when the group had committed less, and has no rows of %s. "
                "Was an older copy of it restored? Reading goes on at the commit, so they stay missing. "
                "To read it again before Kafka's retention takes it: %s (the sink skips rows that it already has); "
                "`downspout audit %s` names all that is missing",
                notes.directory, self._group, "; ".join(places), notes.cure(), notes.directory,
            )  # fmt: skip
        # The group was moved back, or the topic is a new one: from here on this commit is what counts.
        if lower := {tp: commit for tp, commit in commits.items() if commit < noted.get(tp, commit)}:
            notes.note(lower, lower=True)

    def _note(self, offsets: Offsets) -> None:
        """Note commits; where that fails, what was noted before is too little, and may be said to be behind."""
        for notes in self._notes if offsets else ():
            try:
                notes.note(offsets)
            except (DownspoutError, OSError) as error:
                if notes.directory not in self._warned:
                    self._warned.add(notes.directory)
                    self._log.warning(
                        "cannot note commits in %s: %s. The next start may say that it is behind the group",
                        notes.directory, error,
                    )  # fmt: skip


def noted_commits(consumer: ConsumerPort, directories: Sequence[Path], group: str, log: logging.Logger) -> ConsumerPort:
    """Return the consumer with its commits noted in directories; without any, the consumer itself."""
    notes = [open_it(directory, group) for open_it in registry.notes for directory in directories]
    return cast(ConsumerPort, NotedCommits(consumer, notes, group, log)) if notes else consumer
