"""Consumers that record each commit elsewhere before Kafka gets it: in an offset store, or beside the sinks' rows.

:class:`StoredCommits` (``kafka.offset_store``): the store decides where reading starts. The group gets a copy, so that
lag tools work as usual; a failed copy only causes a warning. A crash between the two leaves the group behind the store
until the next commit.

:class:`NotedCommits`: each commit is noted in the directories of the topology's sinks. Suppose somebody restores an
older copy of such a directory. The group continues at its commit, and the rows in between stay missing. Kafka knows
only the commit, and the log only rows, and a record may have no row. But then, and only then, the note in the copy is
older than the commit: each commit is noted first, so no crash leaves a note behind its commit. Both also list what is
done beyond the offset: while one record waits for its retry, that may be all the progress. When partitions start, the
two are compared:

* The commit holds more than the note: an older copy was restored, or the group was moved.
* There is a commit, but neither a note nor a row: the directory was deleted, or is another one.
* There is a note, but no commit: the group's commits expired, or were deleted.

The comparison runs no component and reads no record. It works wherever the spout can read the sinks' directories: on
the local engine, and on Storm on one machine or on a mounted file system.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kafka import errors

from downspout import offset_ranges, registry
from downspout.errors import DownspoutError, coordinates
from downspout.formatting import counted
from downspout.kafka.port import Answered, ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.retry_gate import describe
from downspout.ledger.metadata import decode
from downspout.offset_ranges import OffsetRanges
from downspout.spout.ports import (
    KAFKA,
    CommitNotes,
    Commits,
    OffsetStore,
    OffsetStoreError,
    StaleOwnerError,
    StoredOffset,
)
from downspout.spout.settings import Setup
from downspout.spout.starting import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator


PLACES_MAX = 3
MaybeCommits = Mapping[TopicPartition, OffsetAndMetadata | None]


class StoreUnavailableError(errors.KafkaError):
    """The store does not answer at the moment; it is retried like a retriable error of Kafka's."""

    retriable = True


class StoredCommits:
    """A :class:`~downspout.kafka.port.ConsumerPort`; all calls except commits go to the consumer."""

    def __init__(
        self,
        consumer: ConsumerPort,
        store: OffsetStore,
        group: str,
        log: logging.Logger,
        *,
        adopt: bool,  # whether the group's offsets apply if the store has none
        joins: bool,  # whether the consumer group assigns the partitions
    ) -> None:
        self._consumer, self._store, self._group, self._log = consumer, store, group, log
        self._adopt, self._joins = adopt, joins
        self._epochs: dict[TopicPartition, int] = {}
        self._is_copied = True

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._consumer, name)
        setattr(self, name, found)  # polls come by here thousands of times
        return found

    def claim(self, partitions: Collection[TopicPartition]) -> MaybeCommits:
        """Claim these partitions; return their commits, and warn if the group's differ.

        Raises:
            KafkaError: the store does not answer, or the broker.
            OffsetStoreError: the store cannot be used.
        """
        with self._errors():
            stored = self._store.claim(partitions)
        copies = self._consumer.committed(partitions)
        self._epochs |= {tp: found.epoch for tp, found in stored.items()}
        found = {tp: _commit(stored[tp]) for tp in partitions}
        missing = {tp: copies[tp] for tp in partitions if found[tp] is None and copies.get(tp) is not None}
        self._say(found, copies, missing)
        return {**found, **missing} if self._adopt else found

    def _say(self, found: MaybeCommits, copies: MaybeCommits, missing: MaybeCommits) -> None:
        """Log where the store and the group differ."""
        location, group = self._store.location, self._group
        if missing:
            places = _named({tp: commit.offset for tp, commit in missing.items() if commit is not None})
            if self._adopt:
                self._log.warning("%s has no offsets of %s: adopting the commits of group %s", location, places, group)
            else:
                self._log.warning(
                    "%s has no offsets of %s, but group %s has committed them: kafka.start decides where reading "
                    "starts. To go on from the group's offsets: kafka.offset_store_adopt=true", location, places, group,
                )  # fmt: skip
        known = {tp: commit.offset for tp, commit in found.items() if commit is not None}
        if alone := {tp: offset for tp, offset in known.items() if copies.get(tp) is None}:
            self._log.warning(
                "group %s has committed nothing for %s; continuing from %s, and committing to the group too. To use "
                "the group alone: kafka.offset_store=%s, after a commit", group, _named(alone), location, KAFKA,
            )  # fmt: skip
        moved = {tp: copy.offset for tp, at in known.items() if (copy := copies.get(tp)) and copy.offset != at}
        if moved:
            tp = min(moved)
            self._log.warning(
                "group %s has committed %s, but %s holds %s: continuing from the store. The group's copy is older "
                "after a crash, or only the group was moved. To move the store there too, for each partition: "
                "downspout offsets seek %s --store %s --topic %s:%d --to-offset %d",
                group, _named(moved), location, _named({tp: known[tp] for tp in moved}), group, location, *tp,
                moved[tp],
            )  # fmt: skip

    def committed(self, partitions: Collection[TopicPartition]) -> MaybeCommits:
        """Return the commits in the store."""
        with self._errors():
            stored = self._store.load(partitions)
        return {tp: _commit(stored[tp]) if tp in stored else None for tp in partitions}

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store, then commit to the group.

        Raises:
            KafkaError: the store does not answer, or another member has claimed a partition.
            StaleOwnerError: another owner has claimed one, without a group: two topologies use one store.
        """
        with self._errors():
            self._store.store(
                {tp: StoredOffset(each.offset, each.metadata, self._epochs[tp]) for tp, each in offsets.items()}
            )
        try:
            try:
                self._consumer.commit(offsets)
            except errors.OffsetMetadataTooLargeError:  # a copy needs none
                self._consumer.commit({tp: OffsetAndMetadata(each.offset, "", -1) for tp, each in offsets.items()})
        except errors.KafkaError as error:
            if self._is_copied:
                self._log.warning(
                    "%s has the offsets, but the copy for lag tools was not committed to group %s: %s",
                    self._store.location, self._group, describe(error),
                )  # fmt: skip
            self._is_copied = False
        else:
            self._is_copied = True

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Store synchronously: a store has no asynchronous commit."""
        self.commit(offsets)
        if answered is not None:
            answered(None)

    def close(self, leave_group: bool = True) -> None:
        """Close both."""
        try:
            self._consumer.close(leave_group)
        finally:
            self._store.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StaleOwnerError as error:
            if not self._joins:
                raise
            # As if the group had refused the commit of a former member: the next poll learns the new assignment.
            raise errors.CommitFailedError(error.message) from error
        except OffsetStoreError as error:
            if error.passes:
                raise StoreUnavailableError(error.message) from error
            raise


def stored_commits(consumer: ConsumerPort, store: OffsetStore, group: str, log: logging.Logger, **how: bool) -> Any:
    """Return the consumer with its commits in a store."""
    return cast(ConsumerPort, StoredCommits(consumer, store, group, log, **how))


def claim(
    consumer: ConsumerPort, partitions: Collection[TopicPartition], check: Callable[[MaybeCommits], None] | None = None
) -> MaybeCommits:
    """Claim partitions if their commits are in a store; return the commits.

    In a consumer group, the assignment is enough. ``check`` gets the commits before anything is claimed: it may raise
    because of a live owner, which a claim would stop.

    Raises:
        KafkaError: the broker or the store did not answer.
    """
    if not isinstance(consumer, StoredCommits):
        found = consumer.committed(partitions)
        if check is not None:
            check(found)
        return found
    if check is not None:
        check(consumer.committed(partitions))
    return consumer.claim(partitions)


def _commit(stored: StoredOffset) -> OffsetAndMetadata | None:
    return None if stored.offset is None else OffsetAndMetadata(stored.offset, stored.metadata, -1)


def _named(offsets: Mapping[TopicPartition, int]) -> str:
    shown = [coordinates(tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())[:PLACES_MAX]]
    more = len(offsets) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'partition')} more" if more else "")


Done = Mapping[TopicPartition, OffsetRanges]
"""The offsets that a commit marks as done: all below its own, and ranges beyond."""


class NotedCommits:
    """A :class:`~downspout.kafka.port.ConsumerPort`; all calls except commits go to the consumer.

    Commits of another topology are not compared: their rows are in its directory. ``StartNotes`` reports them.
    """

    def __init__(
        self,
        consumer: ConsumerPort,
        notes: Sequence[CommitNotes],
        group: str,
        topology_id: str,
        log: logging.Logger,
        *,
        strict: bool,  # whether reading starts only at commits of this topology id (``kafka.start``)
    ) -> None:
        self._consumer, self._notes, self._group, self._log = consumer, notes, group, log
        self._topology_id, self._is_strict = topology_id, strict
        self._known: set[TopicPartition] = set()
        self._warned: set[Path] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._consumer, name)
        setattr(self, name, found)  # polls come by here thousands of times
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note, then commit."""
        self._note(offsets)
        self._consumer.commit(offsets)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Note, then send."""
        self._note(offsets)
        self._consumer.commit_async(offsets, answered)

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's commits; warn once per partition if a directory does not match them."""
        found = self._consumer.committed(partitions)
        fresh = {tp: commit for tp, commit in sorted(found.items()) if tp not in self._known}
        topic_ids = self._consumer.topic_ids({tp.topic for tp in fresh}) if fresh else {}
        self._known |= found.keys()

        def counts(tp: TopicPartition, commit: OffsetAndMetadata) -> bool:
            author = decode(commit.offset, commit.metadata, topic_id=topic_ids.get(tp.topic, "")).topology_id
            if self._is_strict:
                return author == self._topology_id
            return not author or name_of(author) == name_of(self._topology_id)

        # Other tools, and Spark, write neither metadata nor notes: what they did is unknown.
        ours = {tp: each for tp, each in fresh.items() if each and each.metadata and counts(tp, each)}
        absent = [tp for tp, each in fresh.items() if each is None]
        for notes in self._notes if ours or absent else ():
            try:
                self._look(notes, ours, absent, topic_ids)
            except (DownspoutError, OSError) as error:
                self._log.warning(
                    "cannot compare the notes in %s with the commits of group %s: %s",
                    notes.directory, self._group, error,
                )  # fmt: skip
        return found

    def _look(
        self, notes: CommitNotes, commits: Commits, absent: Sequence[TopicPartition], topic_ids: Mapping[str, str]
    ) -> None:
        noted = notes.read()
        done, known = _done(commits, topic_ids), _done(noted, topic_ids)
        missing = {
            tp: notes.without_rows(tp, offset_ranges.subtract(ranges, known[tp]))
            for tp, ranges in done.items()
            if tp in known
        }
        if places := [_place(tp, ranges) for tp, ranges in missing.items() if ranges]:
            self._say_behind(notes, "it has no rows of", places, "An older copy may have been restored.")
        # Each note precedes its commit. So without a note, the commit was made with another directory.
        new = {tp: ranges for tp, ranges in done.items() if ranges and tp not in known and not notes.has_rows(tp)}
        if places := [f"{coordinates(*tp)} up to @{ranges[-1][1] - 1}" for tp, ranges in new.items()]:
            self._say_behind(
                notes, "it is new, and the group is done with", places, "The directory may have been deleted."
            )
        if gone := [tp for tp in absent if known.get(tp)]:
            self._say_gone(notes, {tp: noted[tp].offset for tp in gone}, known)
        # The group was moved back, or the topic is new: from now on this commit counts.
        less = [tp for tp, ranges in done.items() if offset_ranges.subtract(known.get(tp, []), ranges)]
        if less:
            notes.note({tp: commits[tp] for tp in less}, lower=True)

    def _say_behind(self, notes: CommitNotes, what: str, places: Sequence[str], question: str) -> None:
        self._log.warning(
            "%s is behind group %s: %s %s. %s The group does not read them again, so these rows stay missing. To read "
            "the records again before Kafka's retention deletes them: %s (this sink skips rows that it has; "
            "other outputs, such as a topic, get theirs again); "
            "`downspout audit %s` names all that is missing",
            notes.directory, self._group, what, "; ".join(places), question, notes.cure(), notes.directory,
        )  # fmt: skip

    def _say_gone(self, notes: CommitNotes, noted: Mapping[TopicPartition, int], done: Done) -> None:
        """Warn that the group had committed; without the note it would look like a group that never read."""
        tp, offset = next(iter(noted.items()))
        places = [coordinates(each.topic, each.partition, done[each][-1][1] - 1) for each in noted]
        self._log.warning(
            "group %s has no commit for %s, but %s notes that it had committed up to there: its commits expired "
            "(offsets.retention.minutes of the broker) or were deleted. kafka.start decides where reading begins; rows "
            "that are there already are skipped. To go on where it was, for each partition: downspout offsets seek %s "
            "--topic %s:%d --to-offset %d --force --yes",
            self._group, ", ".join(places), notes.directory,
            shlex.quote(self._group), tp.topic, tp.partition, offset,
        )  # fmt: skip

    def _note(self, commits: Commits) -> None:
        """Note commits; if that fails, the older note may later be reported as behind."""
        for notes in self._notes if commits else ():
            try:
                notes.note(commits)
            except (DownspoutError, OSError) as error:
                if notes.directory not in self._warned:
                    self._warned.add(notes.directory)
                    self._log.warning(
                        "cannot note commits in %s: %s. The next start may say that it is behind the group",
                        notes.directory, error,
                    )  # fmt: skip


def _done(commits: Commits, topic_ids: Mapping[str, str]) -> Done:
    """Return the offsets that commits mark as done."""
    return {
        tp: offset_ranges.union(
            [(0, each.offset)], decode(each.offset, each.metadata, topic_id=topic_ids.get(tp.topic, "")).done
        )
        for tp, each in commits.items()
    }


def _place(tp: TopicPartition, ranges: OffsetRanges) -> str:
    """Format a set of offsets for messages: its ends and its size.

    >>> _place(TopicPartition("t", 0), [(3, 5), (9, 10)])
    't[0]@3 to @9 (3 offsets)'
    """
    first = coordinates(tp.topic, tp.partition, ranges[0][0])
    return f"{first} to @{ranges[-1][1] - 1} ({counted(offset_ranges.count(ranges), 'offset')})"


def noted_commits(consumer: ConsumerPort, setup: Setup, log: logging.Logger) -> ConsumerPort:
    """Return the consumer with its commits noted in the sinks' directories; without any, the consumer itself."""
    notes = [open_it(directory, setup.group) for open_it in registry.notes for directory in setup.sinks]
    if not notes:
        return consumer
    strict = not setup.settings["start"].startswith("UNCOMMITTED")
    found = NotedCommits(consumer, notes, setup.group, setup.identity.topology_id, log, strict=strict)
    return cast(ConsumerPort, found)
