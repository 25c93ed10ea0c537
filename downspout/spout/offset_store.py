"""Offset stores: where a spout's progress is kept, if that is not Kafka's own group. This is the port.

A store holds, for each partition of one consumer group, the next offset to read, the metadata of a commit
(``downspout.ledger.metadata``: what is done beyond it, and for which topic that holds), and an *epoch*. Whoever takes a
partition over claims it, which raises the epoch; who has claimed it before is *stale* from then on, and a store of its
is refused. So a process that was frozen for a minute cannot move a partition back that others have read on.

``kafka.offset_store`` names a store as a URL. Its scheme is in ``downspout.registry``, as ``embedded`` is
for ``downspout.kafka.schemes``. All implementations pass one test: ``tests/offsets/store_contract.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from downspout import registry
from downspout.errors import BrokerError, ConfigError, TakenOverError
from downspout.formatting import nearest_url
from downspout.settings.secrets import shown

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster, TopicPartition


class OffsetStoreError(BrokerError):
    """The store does not do as it is asked."""

    def __init__(self, message: str, *, cure: str | None = None, passes: bool = False) -> None:
        super().__init__(message, cure=cure)
        self.passes = passes
        """Whether it may work in a moment: the server does not answer, the file is locked."""


class StaleOwnerError(TakenOverError):
    """A partition was claimed by another owner meanwhile; nothing of the call was stored."""


class StoredOffset(NamedTuple):
    """What a store holds of a partition."""

    offset: int | None  # the next to read; None: the partition is claimed, and nothing was stored yet
    metadata: str = ""
    epoch: int = 0  # of the owner; 0: never claimed


class OffsetStore(Protocol):
    """The offsets of one consumer group.

    Any of these raises an :class:`OffsetStoreError` where the store does not answer, or its content is out of form.
    What was stored when a call returns is durable.
    """

    location: str
    """The URL, for messages; no password is in it."""

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Return what is known of these; partitions without an offset are left out."""

    def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Become the owner of these, of all or of none; return what is known of each, with the new epoch.

        The epoch is higher than any before. It goes into each :meth:`store`.
        """

    def store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store all of these or none. O(n).

        Raises:
            StaleOwnerError: one has been claimed since: its epoch in the store is higher than the one given.
        """

    def list(self) -> Mapping[TopicPartition, StoredOffset]:
        """Return all that have an offset."""

    def delete(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all of these or none; those that are not there are passed over.

        Nobody may own them: the next store of an owner would bring them back.
        """

    def close(self) -> None:
        """Release what is open."""


SETTING, PASSWORD_SETTING = "kafka.offset_store", "kafka.offset_store_password"


@dataclass(frozen=True)
class StoreContext:
    """What a store is opened with, besides its URL."""

    group: str  # the consumer group whose offsets it keeps
    topology: str = ""  # the topology's name
    topology_id: str = ""  # as in the metadata of commits; a redeploy has another one
    password: str | None = None  # resolved; None: there is none, or the library finds it itself
    cluster: Cluster | None = None  # the Kafka that is read
    setting: str = SETTING  # where the URL was given, for messages
    topic: str = ""  # the one topic that the spout reads by name; empty: several, a pattern, or it is not known


Opener = Callable[[str, StoreContext], OffsetStore]
"""Opens the store at a URL."""

KAFKA = "kafka"
"""``kafka.offset_store``: the offsets are those of the group in Kafka, and no store is opened."""


def check_location(location: str, key: str = SETTING) -> None:
    """Raise a ConfigError where a URL is of no registered scheme."""
    scheme, colon, _ = location.partition("://")
    if location == KAFKA or (colon and scheme in registry.stores):
        return
    raise ConfigError(
        f"{key} = {shown(key, location)!r} is no offset store", cure=nearest_url(scheme, registry.stores, KAFKA)
    )


def open_store(location: str, context: StoreContext) -> OffsetStore:
    """Open the store at a URL.

    Raises:
        ConfigError: there is no such scheme, or the URL is out of form.
        OffsetStoreError: the store cannot be opened.
    """
    check_location(location)
    open_it: Opener = registry.stores[location.partition("://")[0]]
    return open_it(location, context)
