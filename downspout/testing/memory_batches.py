"""In-memory batch stores for tests: they outlive a topology, but not the test.

with MemoryBatches("test") as memory:
    run_topology(WordCount, config={"batch.store": memory.location, …})
    assert memory.coordinator.current == 4
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from downspout import registry
from downspout.batches.core.protocol import Attempt, BatchRange, CoordinatorState
from downspout.batches.core.state_values import StateKind
from downspout.batches.stores import (
    BatchIdInUseError,
    BatchStoreContext,
    BatchStoreError,
    Key,
    PartitionId,
    StaleAttemptError,
    StaleCoordinatorError,
    StateContext,
    check_meaning,
)

SCHEME = "memory"
NONE = Attempt(-1, -1)  # before all others
Hook = Callable[[str, str], None]
"""Called with ``"before"`` or ``"after"``, and the name of a write; it may raise, like a process killed there."""


def _nothing(when: str, what: str) -> None:
    pass


@dataclass
class Values:
    """The content of one state: the stored form of each key, and the attempt that stored it."""

    forms: dict[Key, tuple[Any, Attempt]] = field(default_factory=dict)
    newest: Attempt = NONE
    owner: str = ""
    kind: StateKind = StateKind.OPAQUE
    meaning: str = ""


class MemoryBatches:
    """The content of all stores of one name.

    Args:
        name: the URL is ``memory://name``.
    """

    _known: dict[str, MemoryBatches] = {}  # noqa: RUF012 - the registry of all

    def __init__(self, name: str = "test") -> None:
        self.name = name
        self.location = f"{SCHEME}://{name}"
        self.coordinator: CoordinatorState | None = None
        self.partitions: dict[int, Sequence[Any]] = {}
        self.ranges: dict[PartitionId, dict[int, BatchRange]] = {}
        self.states: dict[str, Values] = {}
        self.epoch, self.owner = 0, ""
        self.hook: Hook = _nothing

    def __enter__(self) -> MemoryBatches:
        self._known[self.name] = self
        return self

    def __exit__(self, *_: object) -> None:
        self._known.pop(self.name, None)

    @classmethod
    def named(cls, location: str) -> MemoryBatches:
        """Return the stores of a URL."""
        return cls._known[location.partition("://")[2]]

    def write(self, what: str, change: Callable[[], None]) -> None:
        """Make a change between two calls of the hook."""
        self.hook("before", what)
        change()
        self.hook("after", what)


class MemoryBatchStore:
    """The metadata of batches. See :class:`downspout.batches.stores.BatchStore`."""

    def __init__(self, location: str, context: BatchStoreContext) -> None:
        self.location = location
        self._memory = MemoryBatches.named(location)
        self._id, self._claimed = context.id, 0

    def _write(self, what: str, epoch: int, change: Callable[[], None]) -> None:
        if epoch != self._memory.epoch:
            raise StaleCoordinatorError(f"{self.location}: another process coordinates these batches")
        self._memory.write(what, change)

    def claim(self, owner: str) -> int:
        """Become the coordinator."""
        memory = self._memory
        if memory.owner not in ("", owner):
            raise BatchIdInUseError(f"{self.location}: {memory.owner} commits batches under {self._id}")
        memory.owner, memory.epoch = owner, memory.epoch + 1
        self._claimed = memory.epoch
        return memory.epoch

    def release(self, epoch: int) -> None:
        """Release the claim."""
        if epoch == self._memory.epoch:
            self._memory.owner = ""

    def load_coordinator(self) -> CoordinatorState | None:
        """Return the coordinator's state."""
        return self._memory.coordinator

    def save_coordinator(self, epoch: int, state: CoordinatorState) -> None:
        """Store the coordinator's state."""
        self._write("save_coordinator", epoch, lambda: setattr(self._memory, "coordinator", state))

    def load_partitions(self, txid: int) -> Sequence[Any] | None:
        """Return the partitions of a transaction."""
        return deepcopy(self._memory.partitions.get(txid))

    def save_partitions(self, epoch: int, txid: int, partitions: Sequence[Any]) -> None:
        """Store the partitions of a transaction."""
        self._write("save_partitions", epoch, lambda: self._memory.partitions.update({txid: deepcopy(partitions)}))

    def load_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Mapping[int, BatchRange]]:
        """Return the ranges of partitions."""
        ranges = self._memory.ranges
        return {name: dict(ranges[name]) for name in partitions if ranges.get(name)}

    def list_partitions(self) -> Collection[PartitionId]:
        """Return the partitions that have ranges."""
        return [name for name, ranges in self._memory.ranges.items() if ranges]

    def save_ranges(self, epoch: int, txid: int, ranges: Mapping[PartitionId, BatchRange]) -> None:
        """Store the ranges of a transaction."""

        def change() -> None:
            for name, found in ranges.items():
                self._memory.ranges.setdefault(name, {})[txid] = found

        self._write("save_ranges", epoch, change)

    def delete_ranges(self, epoch: int, from_txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete ranges from a transaction on."""
        self._write("delete_ranges", epoch, lambda: self._delete(partitions, lambda txid: txid >= from_txid))

    def delete_below(self, epoch: int, txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete everything below a transaction."""

        def change() -> None:
            for known in [each for each in self._memory.partitions if each < txid]:
                del self._memory.partitions[known]
            self._delete(partitions, lambda each: each < txid)

        self._write("delete_below", epoch, change)

    def _delete(self, partitions: Collection[PartitionId], goes: Callable[[int], bool]) -> None:
        for name in partitions:
            ranges = self._memory.ranges.get(name, {})
            for txid in [each for each in ranges if goes(each)]:
                del ranges[txid]

    def close(self) -> None:
        """End the claim."""
        self.release(self._claimed)


class MemoryState:
    """The keyed values of a state. See :class:`downspout.batches.stores.StateStore`."""

    def __init__(self, location: str, context: StateContext) -> None:
        self.location = location
        self._memory = MemoryBatches.named(location)
        found = Values(owner=context.owner, kind=context.kind, meaning=context.meaning)
        self._state = self._memory.states.setdefault(context.name, found)
        if (self._state.owner, self._state.kind) != (context.owner, context.kind):
            raise BatchStoreError(
                f"{location}: state {context.name} belongs to the batches of {self._state.owner}, and is "
                f"{self._state.kind.value}"
            )
        check_meaning(f"{location}: state {context.name}", self._state.meaning, context.meaning)

    @contextmanager
    def transaction(self, attempt: Attempt) -> Iterator[MemoryStateTransaction]:
        """Begin an attempt, and store the block's writes."""
        if attempt < self._state.newest and self._state.kind is not StateKind.NON_TRANSACTIONAL:
            raise StaleAttemptError(f"{self.location}: after {self._state.newest}, {attempt} comes too late")
        self._state.newest = attempt
        begun = MemoryStateTransaction(self._state, attempt)
        yield begun
        stored = {key: (deepcopy(value), attempt) for key, value in begun.written.items()}
        self._memory.write("write", lambda: self._state.forms.update(stored))

    def newest(self) -> int | None:
        """Return the last transaction that was applied."""
        return self._state.newest.txid if self._state.newest > NONE else None

    def read_all(self) -> Mapping[Key, Any]:
        """Return the stored form of all keys."""
        return {key: deepcopy(value) for key, (value, _) in self._state.forms.items()}

    def close(self) -> None:
        """Do nothing."""


class MemoryStateTransaction:
    """See :class:`downspout.batches.stores.StateTransaction`."""

    def __init__(self, state: Values, attempt: Attempt) -> None:
        self._state, self._attempt = state, attempt
        self.written: dict[Key, Any] = {}

    def read(self, keys: Collection[Key]) -> Mapping[Key, Any]:
        """Return the stored form of keys."""
        forms = self._state.forms
        return {key: deepcopy(forms[key][0]) for key in keys if key in forms}

    def replaced(self) -> Mapping[Key, Any]:
        """Return the values stored by earlier attempts of this transaction."""
        txid, number = self._attempt
        return {
            key: deepcopy(value)
            for key, (value, by) in self._state.forms.items()
            if by.txid == txid and by.attempt < number
        }

    def write(self, values: Mapping[Key, Any]) -> None:
        """Store the form of each key."""
        self.written.update(values)


registry.batch_stores[SCHEME] = MemoryBatchStore
registry.state_stores[SCHEME] = MemoryState
