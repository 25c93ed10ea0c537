"""Interfaces between a spout and other code: offset stores, notes of commits, a listener, counters.

**Offset stores** keep a spout's progress if Kafka's own group does not. A store holds, for each partition of one
consumer group, the next offset to read, the metadata of a commit (``downspout.ledger.metadata``: what is done beyond
it, and for which topic), and an *epoch*. A new owner claims a partition, which raises the epoch and makes the previous
owner *stale*: its next ``store`` is refused. A process that was frozen for a minute therefore cannot move a partition
back that others have read on. ``kafka.offset_store`` names a store as a URL, whose scheme is in
``downspout.registry``. All implementations pass one test: ``tests/offsets/store_contract.py``.

**A listener** (``kafka.listener``) only observes: an exception that it raises is logged and has no effect. It runs on
the spout's own thread, so a slow listener slows the spout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from downspout import registry
from downspout.errors import USER_ERRORS, BrokerError, ConfigError, TakenOverError
from downspout.formatting import nearest_url
from downspout.kafka.port import OffsetAndMetadata, Record, TopicPartition
from downspout.offset_ranges import OffsetRanges
from downspout.settings.secrets import shown
from downspout.settings.table import load

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster


class OffsetStoreError(BrokerError):
    """The store cannot do what it was asked."""

    def __init__(self, message: str, *, cure: str | None = None, passes: bool = False) -> None:
        super().__init__(message, cure=cure)
        self.passes = passes
        """Whether it may work in a moment: the server does not answer, the file is locked."""


class StaleOwnerError(TakenOverError):
    """Another owner has claimed a partition meanwhile; the call stored nothing."""


class StoredOffset(NamedTuple):
    """A store's entry for a partition."""

    offset: int | None  # the next to read; None: claimed, but nothing stored yet
    metadata: str = ""
    epoch: int = 0  # of the owner; 0: never claimed


class OffsetStore(Protocol):
    """The offsets of one consumer group.

    Every method raises an :class:`OffsetStoreError` if the store does not answer, or its content is malformed. What a
    call has stored is durable when it returns.
    """

    location: str
    """The URL, for messages; no password is in it."""

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Return the entries of these; partitions without an offset are left out."""

    def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Claim all of these or none; return the entry of each, with the new epoch.

        The epoch is higher than any before. It goes into each :meth:`store`.
        """

    def store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store all of these or none. O(n).

        Raises:
            StaleOwnerError: a partition was claimed since: its epoch in the store is higher than the given one.
        """

    def list(self) -> Mapping[TopicPartition, StoredOffset]:
        """Return all entries with an offset."""

    def delete(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all of these or none; missing ones are ignored.

        They must have no owner: an owner's next store would bring them back.
        """

    def close(self) -> None:
        """Release what is open."""


SETTING, PASSWORD_SETTING = "kafka.offset_store", "kafka.offset_store_password"


@dataclass(frozen=True)
class StoreContext:
    """The arguments for opening a store, besides its URL."""

    group: str  # the consumer group whose offsets it keeps
    topology: str = ""  # the topology's name
    topology_id: str = ""  # as in the metadata of commits; a redeploy has another one
    password: str | None = None  # resolved; None: none is needed, or the library finds it itself
    cluster: Cluster | None = None  # the Kafka that is read
    setting: str = SETTING  # where the URL was given, for messages
    topic: str = ""  # the one topic that the spout reads by name; empty: several, a pattern, or unknown


Opener = Callable[[str, StoreContext], OffsetStore]
"""Opens the store at a URL."""
KAFKA = "kafka"
"""``kafka.offset_store``: the offsets are those of the group in Kafka, and no store is opened."""


def check_location(location: str, key: str = SETTING) -> None:
    """Raise a ConfigError if a URL has no registered scheme."""
    scheme, colon, _ = location.partition("://")
    if location == KAFKA or (colon and scheme in registry.stores):
        return
    raise ConfigError(
        f"{key} = {shown(key, location)!r} is not an offset store", cure=nearest_url(scheme, registry.stores, KAFKA)
    )


def open_store(location: str, context: StoreContext) -> OffsetStore:
    """Open the store at a URL.

    Raises:
        ConfigError: the scheme is unknown, or the URL is malformed.
        OffsetStoreError: the store cannot be opened.
    """
    check_location(location)
    open_it: Opener = registry.stores[location.partition("://")[0]]
    return open_it(location, context)


Commits = Mapping[TopicPartition, OffsetAndMetadata]


class CommitNotes(Protocol):
    """The commits of one group that are noted in a sink's directory. Nothing is noted before the sink has created it.

    Every method raises a :class:`~downspout.errors.DownspoutError` or an OSError if the disk fails.
    """

    directory: Path

    def read(self) -> Commits:
        """Return the highest commit that was about to be made, of each partition."""

    def note(self, commits: Commits, *, lower: bool = False) -> None:
        """Note commits that are about to be made; lower ones than noted have no effect, unless with ``lower``."""

    def without_rows(self, partition: TopicPartition, done: OffsetRanges) -> OffsetRanges:
        """Return those of these offsets that have no row and were not skipped on purpose."""

    def has_rows(self, partition: TopicPartition) -> bool:
        """Return whether there is a row of any record of a partition."""

    def cure(self) -> str:
        """Return the command that reads records again."""


class SpoutListener:
    """Base of listeners; override the events that you want. It is created without arguments, once per task.

    With ``kafka.emit=chunk`` it is called for each record of a chunk, which costs as much as one tuple per record.
    """

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """The task starts; ``conf`` and ``context`` are Storm's."""

    def on_emit(self, partition: TopicPartition, offset: int, values: Sequence[Any]) -> None:
        """A tuple is about to be emitted, for the first time or again."""

    def on_ack(self, partition: TopicPartition, offset: int) -> None:
        """A record is done: acked, without a tuple (a null value), compacted away, or dead-lettered."""

    def on_retry(self, partition: TopicPartition, offset: int) -> None:
        """A record failed or timed out and will be tried again."""

    def on_max_retries(self, record: Record) -> None:
        """A record has failed for good and is in the dead-letter topic now; ``on_ack`` follows."""

    def on_commit(self, offsets: Mapping[TopicPartition, int], error: Exception | None) -> None:
        """A commit was answered: these are the next offsets to read, or ``error`` says why the outcome is unknown.

        After an error the broker may have them all the same. Commits by a transactional KafkaBolt or by the client
        itself (AUTO_COMMIT), and those that NO_GUARANTEE sends, are not reported.
        """

    def on_partitions_reassigned(self, partitions: frozenset[TopicPartition]) -> None:
        """The assignment has changed: the full set of this task's partitions, each with its start decided."""


def listener_class(path: str) -> type[SpoutListener]:
    """Return the class that ``kafka.listener`` names.

    Raises:
        ConfigError: the path names no such class.
    """
    made = load("kafka.listener", path)
    if not (isinstance(made, type) and issubclass(made, SpoutListener)):
        raise ConfigError(f"kafka.listener = {path!r} is not a SpoutListener", cure="a class that inherits from it")
    return made


class Hooks:
    """Calls a listener, and survives its exceptions. It is false without a listener, so that busy code can skip it."""

    def __init__(self, listener: SpoutListener | None, log: logging.Logger) -> None:
        self._listener = listener
        self._log = log
        self._reported: frozenset[TopicPartition] = frozenset()

    @classmethod
    def of(cls, path: str | None, conf: Mapping[str, Any], context: Mapping[str, Any], log: logging.Logger) -> Hooks:
        """Make the listener that ``kafka.listener`` names.

        Raises:
            ConfigError: the path names no such class, or it does not start.
        """
        if not path:
            return cls(None, log)
        made = listener_class(path)
        try:
            listener = made()
            listener.initialize(conf, context)
        except USER_ERRORS as error:
            raise ConfigError(f"kafka.listener = {path!r} cannot start: {error!r}", cure="repair it") from error
        return cls(listener, log)

    def __bool__(self) -> bool:
        return self._listener is not None

    def emitted(self, tp: TopicPartition, offset: int, values: Sequence[Any]) -> None:
        """Notify the listener."""
        if self._listener is not None:
            self._call(self._listener.on_emit, tp, offset, values)

    def done(self, tp: TopicPartition, offset: int) -> None:
        """Notify the listener."""
        if self._listener is not None:
            self._call(self._listener.on_ack, tp, offset)

    def retried(self, tp: TopicPartition, offset: int) -> None:
        """Notify the listener."""
        if self._listener is not None:
            self._call(self._listener.on_retry, tp, offset)

    def given_up(self, tp: TopicPartition, record: Record) -> None:
        """Notify the listener."""
        if self._listener is not None:
            self._call(self._listener.on_max_retries, record)
            self.done(tp, record.offset)

    def committed(self, offsets: Mapping[TopicPartition, int], error: Exception | None) -> None:
        """Notify the listener."""
        if self._listener is not None:
            self._call(self._listener.on_commit, offsets, error)

    def reassigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Notify the listener if the partitions differ from the last ones reported."""
        if self._listener is not None and partitions != self._reported:
            self._reported = partitions
            self._call(self._listener.on_partitions_reassigned, partitions)

    def _call(self, hook: Callable[..., None], *args: Any) -> None:
        try:
            hook(*args)
        except USER_ERRORS:
            self._log.exception("kafka.listener: %s failed", hook.__name__)


@dataclass(slots=True)
class SpoutMetrics:
    """Counters of a spout's life; the names are in ``downspout.metrics``."""

    records: int = 0
    acked: int = 0
    failed: int = 0
    timeouts: int = 0
    retries: int = 0
    splits: int = 0
    dead_lettered: int = 0
    filtered: int = 0
    compacted: int = 0
    aborted: int = 0
    lost: int = 0
    left_behind: int = 0
    unreadable: int = 0
    skipped: int = 0
    stale: int = 0
    unclean: int = 0
    errors: int = 0
    commits_failed: int = 0
    uncommitted: int = 0
    retry_later: int = 0
    fetches: int = 0  # of consumers that are closed; what is open has its own
    fetched: int = 0  # likewise
