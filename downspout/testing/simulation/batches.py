"""Batch topologies in a simulated world: stores in memory, which the processes share, and what states must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kafka.structs import TopicPartition

from downspout.batches.core.protocol import committed
from downspout.batches.stores import BatchStoreError
from downspout.engine.graph import Component, Graph
from downspout.engine.settings import reads
from downspout.testing.memory_batches import MemoryBatches
from downspout.testing.simulation.store import Requester

__all__ = ["SharedBatches", "States", "is_of_batches", "states_of"]

States = Callable[[Sequence[Any]], Mapping[Any, Any]]
"""Returns what a state must hold after the records (``Sent``) that are given: by key, of several fields by a tuple."""
WITHOUT = ("join", "compaction", "retention", "killer", "bolt_raises", "dead_letters_lost")
"""What a topology of batches does not live through, and says so: one process coordinates, and batches write no dead
letters, so a record that is gone or cannot be processed ends the run."""
SHOWN = 5


def is_of_batches(graph: Graph) -> bool:
    """Return whether the topology has a coordinator of batches."""
    return any(reads(spout, "batch") for spout in graph.spouts)


def states_of(graph: Graph) -> list[Component]:
    """Return the components that keep values by key."""
    return [bolt for bolt in graph.bolts if reads(bolt, "state")]


class SharedBatches(MemoryBatches):
    """The stores of a world: what all its processes have stored."""

    def opened_by(self, process: Requester, name: str) -> str:
        """Return the URL of these stores for one process, whose writes may fail; it is good for the process's life."""
        view = _View(self, process, f"{self.name}/{name}")
        view.__enter__()
        return view.location

    def forget(self, name: str) -> None:
        """Forget the URL of a process that has ended."""
        self._known.pop(f"{self.name}/{name}", None)

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[tuple[str, int], int]:
        """Return where the first batch begins that is not committed."""
        return committed(self.coordinator, self.ranges, partitions)

    def wrong(self, wanted: Mapping[str, States], sent: Sequence[Any]) -> Iterator[str]:
        """Yield in which values a state differs from what the records make of it."""
        records = [each for each in sent if each.state == "committed"]
        for name, make in wanted.items():
            expected = {key if isinstance(key, tuple) else (key,): value for key, value in make(records).items()}
            forms = self.states[name].forms if name in self.states else {}
            found = {key: form[1] for key, (form, _) in forms.items() if form[1] is not None}
            differing = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
            for key in differing[:SHOWN]:
                shown = ", ".join(map(str, key))
                yield f"{name}: {shown} is {found.get(key)} instead of {expected.get(key)}"
            if len(differing) > SHOWN:
                yield f"{name}: {len(differing) - SHOWN} more keys differ"


class _View(MemoryBatches):
    """The same stores for one process."""

    def __init__(self, shared: SharedBatches, process: Requester, name: str) -> None:
        vars(self).update(_shared=shared, _process=process, name=name, location=f"memory://{name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._shared, name, value)

    def write(self, what: str, change: Callable[[], None]) -> None:
        """Make a change; the process may be killed, or stand still, before it and after it."""
        process: Requester = self._process
        process.effect("write")
        fault = process.store_fault("put")
        process.note(f"{what}{f' is {fault}' if fault else ''}")
        if fault in ("lost", "late"):
            process.wait_in_vain()
            raise BatchStoreError(f"{self.location} does not answer", passes=True)
        change()
        if fault == "unanswered":
            process.wait_in_vain()
            raise BatchStoreError(f"{self.location} does not answer", passes=True)
        process.effect("write")
