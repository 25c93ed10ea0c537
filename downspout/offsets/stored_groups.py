"""A cluster whose groups keep their offsets in a store (``kafka.offset_store``), for commands that read or move them.

What a group has committed is what the store holds, and a move goes there first; the group gets its copy. A move claims
the partitions, so that a spout which owns them, and was not noticed, stops instead of storing over it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

from downspout.kafka.port import Cluster, ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.spout.commit_stores import StoredCommits
from downspout.spout.ports import StoreContext, open_store


class StoredGroups:
    """A :class:`~downspout.kafka.port.Cluster`; what is not about commits is the cluster's own."""

    def __init__(self, cluster: Cluster, location: str, setting: str, password: str | None = None) -> None:
        self._cluster, self._location, self._setting, self._password = cluster, location, setting, password

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def consumer(self, *, group: str | None, **how: Any) -> ConsumerPort:
        """Return a consumer; with a group, one that commits to the store too."""
        made = self._cluster.consumer(group=group, **how)
        if group is None:
            return made
        return cast(ConsumerPort, _Claiming(made, self._open(group), group, logging.getLogger(__name__)))

    def group_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return what the store holds of a group."""
        with closing(self._open(group)) as store:
            return {
                tp: OffsetAndMetadata(found.offset, found.metadata, -1)
                for tp, found in store.list().items()
                if found.offset is not None
            }

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete what the store holds of a group for these, and its copy."""
        with closing(self._open(group)) as store:
            store.delete(partitions)
        if copies := self._cluster.group_offsets(group).keys() & set(partitions):
            self._cluster.delete_offsets(group, copies)

    def delete_groups(self, groups: Collection[str]) -> Sequence[str]:
        """Delete what the store holds of groups, and the groups; return those that have members still, and so stay."""
        left = self._cluster.delete_groups([group for group in groups if self._cluster.group_offsets(group)])
        for group in set(groups).difference(left):
            self.delete_offsets(group, self.group_offsets(group).keys())
        return left

    def _open(self, group: str) -> Any:
        context = StoreContext(group, password=self._password, cluster=self._cluster, setting=self._setting)
        return open_store(self._location, context)


class _Claiming(StoredCommits):
    """Commits to the store as the owner of what it commits."""

    def __init__(self, consumer: ConsumerPort, store: Any, group: str, log: logging.Logger) -> None:
        super().__init__(consumer, store, group, log, adopt=False, joins=False)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Become the owner; store; then commit to the group."""
        with self._errors():
            self._epochs |= {tp: found.epoch for tp, found in self._store.claim(offsets).items()}
        super().commit(offsets)
