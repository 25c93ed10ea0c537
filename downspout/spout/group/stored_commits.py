"""A consumer whose commits are in an offset store: what the spout commits goes there first, and then to the group.

The store decides where reading starts. The group gets a copy, so that lag tools show what they always show; a copy that
fails is only warned about. A crash between the two leaves the group behind the store, and the next commit mends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from kafka import errors

from downspout.errors import coordinates
from downspout.formatting import counted
from downspout.kafka.port import Answered, ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.retry_gate import describe
from downspout.spout.offset_store import KAFKA, OffsetStore, OffsetStoreError, StaleOwnerError, StoredOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOWN_MAX = 3
Commits = Mapping[TopicPartition, OffsetAndMetadata | None]


class StoreUnavailableError(errors.KafkaError):
    """The store does not answer at the moment: what waits for errors of Kafka's that pass waits for it too."""

    retriable = True


class StoredCommits:
    """A :class:`~downspout.kafka.port.ConsumerPort`; what is not about commits is the consumer's own."""

    def __init__(
        self,
        consumer: ConsumerPort,
        store: OffsetStore,
        group: str,
        log: logging.Logger,
        *,
        adopt: bool,  # whether the group's offsets hold where the store has none
        joins: bool,  # whether the consumer group gives out the partitions
    ) -> None:
        self._consumer, self._store, self._group, self._log = consumer, store, group, log
        self._adopt, self._joins = adopt, joins
        self._epochs: dict[TopicPartition, int] = {}
        self._is_copied = True

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._consumer, name)
        setattr(self, name, found)  # polls come by here thousands of times
        return found

    def claim(self, partitions: Collection[TopicPartition]) -> Commits:
        """Become the owner of these; return where they stand, and say where the group stands otherwise.

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

    def _say(self, found: Commits, copies: Commits, missing: Commits) -> None:
        """Say where store and group do not know the same."""
        location, group = self._store.location, self._group
        if missing:
            places = _some({tp: commit.offset for tp, commit in missing.items() if commit is not None})
            if self._adopt:
                self._log.warning("%s holds nothing of %s: adopts what group %s has committed", location, places, group)
            else:
                self._log.warning(
                    "%s holds nothing of %s, which group %s has committed: kafka.start decides where reading starts. "
                    "To go on from the group's offsets: kafka.offset_store_adopt=true", location, places, group,
                )  # fmt: skip
        known = {tp: commit.offset for tp, commit in found.items() if commit is not None}
        if alone := {tp: offset for tp, offset in known.items() if copies.get(tp) is None}:
            self._log.warning(
                "group %s has committed nothing for %s; goes on from %s, and commits to the group too. To go by the "
                "group alone: kafka.offset_store=%s, after a commit", group, _some(alone), location, KAFKA,
            )  # fmt: skip
        moved = {tp: copy.offset for tp, at in known.items() if (copy := copies.get(tp)) and copy.offset != at}
        if moved:
            tp = min(moved)
            self._log.warning(
                "group %s has committed %s, and %s holds %s: goes on from what it holds. The copy is older after a "
                "crash; or the group alone was moved. To move the store there too, for each partition: "
                "downspout offsets seek %s --store %s --topic %s:%d --to-offset %d",
                group, _some(moved), location, _some({tp: known[tp] for tp in moved}), group, location, *tp, moved[tp],
            )  # fmt: skip

    def committed(self, partitions: Collection[TopicPartition]) -> Commits:
        """Return what the store holds."""
        with self._errors():
            stored = self._store.load(partitions)
        return {tp: _commit(stored[tp]) if tp in stored else None for tp in partitions}

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store, then commit to the group.

        Raises:
            KafkaError: the store does not answer, or the group goes on without us: others have claimed a partition.
            StaleOwnerError: without a group nobody will tell us so; two topologies use one store.
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
        """Store: a store is asked and answers."""
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
            # As where a commit is refused because the group goes on without us: the next poll learns who has what.
            raise errors.CommitFailedError(error.message) from error
        except OffsetStoreError as error:
            if error.passes:
                raise StoreUnavailableError(error.message) from error
            raise


def stored_commits(consumer: ConsumerPort, store: OffsetStore, group: str, log: logging.Logger, **how: bool) -> Any:
    """Return the consumer with its commits in a store."""
    return cast(ConsumerPort, StoredCommits(consumer, store, group, log, **how))


def claim(
    consumer: ConsumerPort, partitions: Collection[TopicPartition], check: Callable[[Commits], None] | None = None
) -> Commits:
    """Become the owner of partitions where commits are in a store; return where they stand.

    In a consumer group, being given a partition is all that it takes. ``check`` sees the commits before anything is
    claimed: a claim would stop the owner because of which it raises.

    Raises:
        KafkaError: there was no answer.
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


def _some(offsets: Mapping[TopicPartition, int]) -> str:
    shown = [coordinates(tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())[:SHOWN_MAX]]
    more = len(offsets) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'partition')} more" if more else "")
