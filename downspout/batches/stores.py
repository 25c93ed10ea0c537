"""The two ports of batch transactions: where their metadata is kept, and where keyed state is.

``batch.store`` and a StateBolt's ``state.store`` name a store as a URL. Its scheme is in
``downspout.registry``, as those of offset stores are (``downspout.spout.ports``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from downspout import registry
from downspout.batches.core.protocol import Attempt, BatchRange, CoordinatorState
from downspout.batches.core.state_values import StateKind
from downspout.errors import BrokerError, ConfigError, TakenOverError
from downspout.formatting import nearest_url
from downspout.kafka.port import TopicPartition
from downspout.settings.secrets import shown

PartitionId: TypeAlias = str
"""``topic/partition``, as Trident names the nodes of partitions."""
Key: TypeAlias = tuple[Any, ...]
"""The key of a value: JSON values, in the order of the fields."""


class BatchStoreError(BrokerError):
    """A store does not do as it is asked."""

    def __init__(self, message: str, *, cure: str | None = None, passes: bool = False) -> None:
        super().__init__(message, cure=cure)
        self.passes = passes
        """Whether it may work in a moment: the server does not answer, the file is locked."""


class BatchIdInUseError(BatchStoreError):
    """Another topology commits batches under this id."""


class StaleCoordinatorError(TakenOverError):
    """Another process has claimed the batch id; nothing of the call was stored."""


class StaleAttemptError(BatchStoreError):
    """A later attempt was begun in a state since; nothing of this one was stored."""


class BatchStore(Protocol):
    """The metadata of the batches of one id.

    Any of these raises a :class:`BatchStoreError` where the store does not answer, or its content is out of form. What
    was stored when a call returns is durable. Each write is given the epoch of the coordinator's claim, and raises a
    :class:`StaleCoordinatorError` where there is a later one.
    """

    location: str
    """The URL, for messages; no password is in it."""

    def claim(self, owner: str) -> int:
        """Become the coordinator; return the epoch, which is higher than any before.

        Args:
            owner: the topology's id; the same one may claim again, after a restart.

        Raises:
            BatchIdInUseError: a topology of another id holds the claim, and lives.
        """

    def release(self, epoch: int) -> None:
        """Give the claim back, if it is still ours; the epoch is never given out again."""

    def load_coordinator(self) -> CoordinatorState | None:
        """Return the coordinator's state; None: nothing is stored."""

    def save_coordinator(self, epoch: int, state: CoordinatorState) -> None:
        """Store the coordinator's state, as a unit."""

    def load_partitions(self, txid: int) -> Sequence[Any] | None:
        """Return what ``save_partitions`` stored for a transaction; None: nothing."""

    def save_partitions(self, epoch: int, txid: int, partitions: Sequence[Any]) -> None:
        """Store the partitions of a transaction's first attempt: JSON, as in ``streams.BATCH_FIELDS``."""

    def load_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Mapping[int, BatchRange]]:
        """Return the ranges that are stored of these, by transaction; a partition without any is left out."""

    def list_partitions(self) -> Collection[PartitionId]:
        """Return all partitions of which ranges are stored."""

    def save_ranges(self, epoch: int, txid: int, ranges: Mapping[PartitionId, BatchRange]) -> None:
        """Store the ranges of a transaction for some partitions, all of them or none; those stored for it are replaced.

        Where a store cannot write several as a unit (ZooKeeper without multi), ``load_ranges`` must show all or none.
        """

    def delete_ranges(self, epoch: int, from_txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete the ranges of these partitions from a transaction on; those below stay."""

    def delete_below(self, epoch: int, txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete the ranges of these partitions, and the partitions of transactions, below a transaction."""

    def close(self) -> None:
        """Release what is open; a claim that was not given back ends with it, or with the process."""


def committed_ranges(store: BatchStore) -> tuple[int, dict[TopicPartition, BatchRange]]:
    """Return the transaction that is committed next, and the last range that is committed of each partition.

    Raises:
        BatchStoreError: the store does not answer.
    """
    current = (store.load_coordinator() or CoordinatorState()).current
    found = {}
    for name, ranges in store.load_ranges(store.list_partitions()).items():
        topic, _, number = name.rpartition("/")
        done = {txid: each for txid, each in ranges.items() if txid < current}
        if done and number.isdecimal():
            found[TopicPartition(topic, int(number))] = done[max(done)]
    return current, found


class StateTransaction(Protocol):
    """What one task does to a state in one attempt: all of it is stored, or nothing."""

    def read(self, keys: Collection[Key]) -> Mapping[Key, Any]:
        """Return the stored form of each key that is there (``downspout.batches.core.state_values``). O(keys)."""

    def replaced(self) -> Mapping[Key, Any]:
        """Return the keys that earlier attempts of this transaction have stored, with their stored forms.

        O(1) in a first attempt, else O(keys of the state).
        """

    def write(self, values: Mapping[Key, Any]) -> None:
        """Store the form of each key. O(keys)."""


class StateStore(Protocol):
    """The keyed values of one state; any number of tasks share it, each of which has opened it for itself.

    Raises as :class:`BatchStore` does. The latest attempt of all fences those before it: a task that was frozen, or a
    process that should be dead, stores nothing of an attempt that another has replaced since.
    """

    location: str

    def transaction(self, attempt: Attempt) -> AbstractContextManager[StateTransaction]:
        """Begin an attempt, and store what the block writes; if the block raises, nothing is stored.

        Raises:
            StaleAttemptError: a later attempt was begun before, by whichever task.
        """

    def newest(self) -> int | None:
        """Return the last transaction that was applied, by whichever task; None: none was."""

    def read_all(self) -> Mapping[Key, Any]:
        """Return the stored form of all keys, as any reader sees them. O(keys of the state)."""

    def close(self) -> None:
        """Release what is open."""


@dataclass(frozen=True)
class BatchStoreContext:
    """What a store of metadata is opened with, besides its URL."""

    id: str  # ``batch.id``
    topology: str = ""  # the topology's name
    topology_id: str = ""  # of this submit; a redeploy has another one
    password: str | None = None  # resolved


@dataclass(frozen=True)
class StateContext:
    """What a store of state is opened with, besides its URL."""

    name: str  # of the state: ``state.name``, or the component
    kind: StateKind = StateKind.OPAQUE
    owner: str = ""  # whose transactions are numbered: ``batch.id``
    password: str | None = None  # resolved
    wait_s: float = 10.0  # how long a commit waits for a lock; then its batch fails and is tried again
    meaning: str = ""  # what keys and values are, as ``count by word``; empty: it is not known


def check_meaning(where: str, stored: str, meaning: str) -> None:
    """Raise a ConfigError where the values of a state are others than those that are to be added to them."""
    if stored and meaning and stored != meaning:
        raise ConfigError(
            f"{where} holds {stored}, but is now to hold {meaning}: its values would be mixed",
            cure="another state.name, which starts empty with another batch.id; or the old settings",
        )


BatchStoreOpener = Callable[[str, BatchStoreContext], BatchStore]
StateStoreOpener = Callable[[str, StateContext], StateStore]
Opener = TypeVar("Opener")


def _opener(openers: Mapping[str, Opener], location: str, key: str) -> Opener:
    scheme, colon, _ = location.partition("://")
    if colon and scheme in openers:
        return openers[scheme]
    raise ConfigError(f"{key} = {shown(key, location)!r} is not a store for this", cure=nearest_url(scheme, openers))


def check_batch_store(location: str, key: str = "batch.store") -> None:
    """Raise a ConfigError where a URL is of no registered scheme."""
    _opener(registry.batch_stores, location, key)


def check_state_store(location: str, key: str = "state.store") -> None:
    """Raise a ConfigError where a URL is of no registered scheme."""
    _opener(registry.state_stores, location, key)


def open_batch_store(location: str, context: BatchStoreContext) -> BatchStore:
    """Open the store of metadata at a URL.

    Raises:
        ConfigError: there is no such scheme, or the URL is out of form.
        BatchStoreError: the store cannot be opened.
    """
    open_it: BatchStoreOpener = _opener(registry.batch_stores, location, "batch.store")
    return open_it(location, context)


def open_state_store(location: str, context: StateContext) -> StateStore:
    """Open the store of state at a URL.

    Raises:
        ConfigError: there is no such scheme, or the URL is out of form.
        BatchStoreError: the store cannot be opened.
    """
    open_it: StateStoreOpener = _opener(registry.state_stores, location, "state.store")
    return open_it(location, context)
