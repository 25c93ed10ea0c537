"""The two ports of batch transactions: a store for their metadata, and one for keyed state.

``batch.store`` and a StateBolt's ``state.store`` are URLs. Their schemes are registered in ``downspout.registry``, like
those of offset stores (``downspout.spout.ports``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
"""``topic/partition``, Trident's name for a partition's node."""
Key: TypeAlias = tuple[Any, ...]
"""The key of a value: JSON values, in the order of the fields; see :func:`key_of`."""


class _KeyWithFlag(tuple[Any, ...]):
    """A key that holds a bool: true is not the key 1, though Python calls them equal."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or tuple.__eq__(self, other) is not True:
            return False
        return [isinstance(part, bool) for part in self] == [isinstance(part, bool) for part in other]

    def __ne__(self, other: object) -> bool:
        return not self == other


def key_of(parts: Iterable[Any]) -> Key:
    """Return the key of these values; a list within is a tuple.

    >>> key_of([True]) == key_of([1]), key_of([True]) == (True,), key_of([["a", 1]])
    (False, True, (('a', 1),))
    """
    key = tuple(key_of(part) if isinstance(part, list | tuple) else part for part in parts)
    return _KeyWithFlag(key) if any(isinstance(part, bool | _KeyWithFlag) for part in key) else key


class BatchStoreError(BrokerError):
    """A store failed."""

    def __init__(self, message: str, *, cure: str | None = None, passes: bool = False) -> None:
        super().__init__(message, cure=cure)
        self.passes = passes
        """Whether a retry may help: the server does not answer, the file is locked."""


class BatchIdInUseError(BatchStoreError):
    """Another topology commits batches under this id."""


class StaleCoordinatorError(TakenOverError):
    """Another process has claimed the batch id; none of the call was stored."""


class StaleAttemptError(BatchStoreError):
    """A later attempt has begun in this state; nothing of this one was stored."""


class BatchStore(Protocol):
    """The metadata of the batches of one id.

    All methods raise a :class:`BatchStoreError` if the store does not answer or its content is malformed. Writes are
    durable when the call returns. Each takes the epoch of the coordinator's claim, and raises a
    :class:`StaleCoordinatorError` if there is a later claim.
    """

    location: str
    """The URL, for messages, without a password."""

    def claim(self, owner: str) -> int:
        """Become the coordinator; return the epoch, which is higher than all before.

        Args:
            owner: the topology's id; the same one may claim again after a restart.

        Raises:
            BatchIdInUseError: a live topology with another id holds the claim.
        """

    def release(self, epoch: int) -> None:
        """Release the claim if it is still ours; the epoch is never reused."""

    def load_coordinator(self) -> CoordinatorState | None:
        """Return the coordinator's state; None: nothing is stored."""

    def save_coordinator(self, epoch: int, state: CoordinatorState) -> None:
        """Store the coordinator's state, as a unit."""

    def load_partitions(self, txid: int) -> Sequence[Any] | None:
        """Return the partitions stored for a transaction; None: nothing is stored."""

    def save_partitions(self, epoch: int, txid: int, partitions: Sequence[Any]) -> None:
        """Store the partitions of a transaction's first attempt: JSON, as in ``core.protocol.BATCH_FIELDS``."""

    def load_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Mapping[int, BatchRange]]:
        """Return the stored ranges of these partitions, by transaction; partitions without any are left out."""

    def list_partitions(self) -> Collection[PartitionId]:
        """Return all partitions with stored ranges."""

    def save_ranges(self, epoch: int, txid: int, ranges: Mapping[PartitionId, BatchRange]) -> None:
        """Store a transaction's ranges for some partitions, all or none, replacing earlier ones.

        If a store cannot write several as a unit (ZooKeeper without multi), ``load_ranges`` must show all or none.
        """

    def delete_ranges(self, epoch: int, from_txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete the ranges of these partitions from a transaction on."""

    def delete_below(self, epoch: int, txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete the ranges of these partitions, and all stored transactions' partitions, below a transaction."""

    def close(self) -> None:
        """Close the store, which ends a claim that was not released."""


def committed_ranges(store: BatchStore) -> tuple[int, dict[TopicPartition, BatchRange]]:
    """Return the next transaction to commit, and the last committed range of each partition.

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
    """One task's changes to a state in one attempt; all are stored, or none."""

    def read(self, keys: Collection[Key]) -> Mapping[Key, Any]:
        """Return the stored form of each existing key (``downspout.batches.core.state_values``). O(keys)."""

    def replaced(self) -> Mapping[Key, Any]:
        """Return the keys that earlier attempts of this transaction have stored, with their stored forms.

        O(1) in a first attempt, otherwise O(keys of the state).
        """

    def write(self, values: Mapping[Key, Any]) -> None:
        """Store the form of each key. O(keys)."""


class StateStore(Protocol):
    """The keyed values of one state, shared by any number of tasks that each open it.

    Raises as :class:`BatchStore` does. The latest attempt fences all earlier ones: a suspended task or a presumed-dead
    process can store nothing of an attempt that has been replaced.
    """

    location: str

    def transaction(self, attempt: Attempt) -> AbstractContextManager[StateTransaction]:
        """Begin an attempt, and store the block's writes; if the block raises, nothing is stored.

        Raises:
            StaleAttemptError: some task has begun a later attempt.
        """

    def newest(self) -> int | None:
        """Return the last transaction applied by any task; None: none was."""

    def read_all(self) -> Mapping[Key, Any]:
        """Return the stored form of all keys, as readers see them. O(keys of the state)."""

    def close(self) -> None:
        """Close the store."""


@dataclass(frozen=True)
class BatchStoreContext:
    """Parameters of a metadata store besides its URL."""

    id: str  # ``batch.id``
    topology: str = ""  # the topology's name
    topology_id: str = ""  # of this submit; a redeploy has another one
    password: str | None = None  # resolved


@dataclass(frozen=True)
class StateContext:
    """Parameters of a state store besides its URL."""

    name: str  # of the state: ``state.name``, or the component
    kind: StateKind = StateKind.OPAQUE
    owner: str = ""  # ``batch.id``, to which transaction numbers belong
    password: str | None = None  # resolved
    wait_s: float = 10.0  # how long a commit waits for a lock; then its batch fails and is retried
    meaning: str = ""  # of keys and values, such as ``count by word``; empty: unknown


def check_meaning(where: str, stored: str, meaning: str) -> None:
    """Raise a ConfigError if a state's stored values have another meaning than the new ones."""
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
    """Raise a ConfigError if a URL's scheme is not registered."""
    _opener(registry.batch_stores, location, key)


def check_state_store(location: str, key: str = "state.store") -> None:
    """Raise a ConfigError if a URL's scheme is not registered."""
    _opener(registry.state_stores, location, key)


def open_batch_store(location: str, context: BatchStoreContext) -> BatchStore:
    """Open the metadata store at a URL.

    Raises:
        ConfigError: the scheme is unknown, or the URL is malformed.
        BatchStoreError: the store cannot be opened.
    """
    open_it: BatchStoreOpener = _opener(registry.batch_stores, location, "batch.store")
    return open_it(location, context)


def open_state_store(location: str, context: StateContext) -> StateStore:
    """Open the state store at a URL.

    Raises:
        ConfigError: the scheme is unknown, or the URL is malformed.
        BatchStoreError: the store cannot be opened.
    """
    open_it: StateStoreOpener = _opener(registry.state_stores, location, "state.store")
    return open_it(location, context)
