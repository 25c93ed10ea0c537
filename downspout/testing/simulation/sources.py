"""Write the records of a simulated world, and track their state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from downspout.batches.core.protocol import committed
from downspout.batches.stores import BatchStoreError
from downspout.engine.graph import Component, Graph
from downspout.engine.settings import reads
from downspout.errors import TopologyError
from downspout.testing.fake_log import Transaction
from downspout.testing.memory_batches import MemoryBatches
from downspout.testing.simulation.faults import Step
from downspout.testing.simulation.store import Requester

if TYPE_CHECKING:
    from downspout.testing.simulation.world import World

__all__ = ["Maker", "Message", "ProducedRecord", "SharedBatches", "Sources", "States", "is_of_batches", "states_of"]


@dataclass(frozen=True)
class Message:
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


Maker = Callable[[random.Random, int], Message | bytes]


@dataclass
class ProducedRecord:
    """A record that was written."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    message: Message
    state: str = "committed"  # ``committed``, ``open`` (in an open transaction) or ``aborted``
    removed: bool = False  # by compaction or retention

    @property
    def place(self) -> str:
        """Its name in messages."""
        return f"{self.topic}[{self.partition}]@{self.offset}"

    @property
    def origin(self) -> tuple[str, str, int, int]:
        """Topic, topic id, partition and offset."""
        return self.topic, self.topic_id, self.partition, self.offset

    @property
    def value(self) -> bytes | None:
        """Its value."""
        return self.message.value

    @property
    def key(self) -> bytes | None:
        """Its key."""
        return self.message.key


class Sources:
    """Writes records, in bursts, some of them in transactions."""

    def __init__(self, world: World, topics: list[str], make: Maker) -> None:
        self._world, self._topics, self._make = world, topics, make
        self._chance = random.Random(f"{world.plan.seed}/records")
        self._open: list[tuple[Transaction, list[ProducedRecord]]] = []
        self.sent: list[ProducedRecord] = []

    def burst(self, step: Step) -> None:
        """Write some records now."""
        topic = self._chance.choice(self._topics)
        transaction = self._world.kafka.transaction() if step.chance < self._world.plan.transactions else None
        first = len(self.sent)
        for _ in range(int(step.size)):
            self.sent.append(self._write(topic, transaction))
        records = self.sent[first:]
        if transaction is not None:
            entry = (transaction, records)
            self._open.append(entry)
            self._world.later(self._chance.uniform(0, 15), lambda: self._end_transaction(entry))

    def _write(self, topic: str, transaction: Transaction | None) -> ProducedRecord:
        made = self._make(self._chance, len(self.sent))
        if not isinstance(made, Message | bytes):
            raise TopologyError(
                f"the scenario's function records made {made!r:.100} (a {type(made).__name__})",
                cure="bytes, or a Message with value, key and headers",
            )
        message = made if isinstance(made, Message) else Message(made)
        kafka = self._world.kafka
        partition = self._chance.randrange(len(kafka.partitions(topic)))
        stamp = int(self._world.clock.wall() * 1000)
        if transaction is None:
            offset = kafka.produce(
                topic, message.value, message.key, partition=partition, headers=message.headers, timestamp_ms=stamp
            )
        else:
            offset = transaction.send(topic, message.value, message.key, partition, stamp, message.headers)
        sent = ProducedRecord(
            topic, kafka.topic_id(topic), partition, offset, message, "open" if transaction else "committed"
        )
        self._world.trace.note("world", f"writes {sent.place}{' in a transaction' if transaction else ''}")
        return sent

    def _end_transaction(self, entry: tuple[Transaction, list[ProducedRecord]]) -> None:
        if entry not in self._open:
            return
        self._open.remove(entry)
        transaction, records = entry
        aborts = self._chance.random() < 0.4
        (transaction.abort if aborts else transaction.commit)()
        for sent in records:
            sent.state = "aborted" if aborts else "committed"
        self._world.injected["aborted"] += aborts
        self._world.trace.note("world", f"{'aborts' if aborts else 'commits'} {' '.join(one.place for one in records)}")

    def remove(self, gone: Callable[[ProducedRecord], bool]) -> list[ProducedRecord]:
        """Mark records as removed from the log, and return them."""
        found = [sent for sent in self.sent if not sent.removed and gone(sent)]
        for sent in found:
            sent.removed = True
        return found

    def stop(self) -> None:
        """End open transactions."""
        for entry in list(self._open):
            self._end_transaction(entry)

    def behind(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of partitions with uncommitted records."""
        world, found = self._world, {}
        partitions = [tp for topic in self._topics for tp in world.kafka.partitions(topic)]
        if world.batches is not None:
            done = world.batches.committed(partitions)
        else:
            done = {tp: commit.offset for tp, commit in world.kafka.committed(world.group).items()}
        for tp in partitions:
            at = done.get(tp, 0)
            if at < world.kafka.log(tp).stable_end:
                found[tp] = at
        return found


# --- Batch topologies: stores shared in memory, and the expected states ---

States = Callable[[Sequence[Any]], Mapping[Any, Any]]
"""Returns the expected values of a state after the given records; a key of several fields is a tuple."""
WITHOUT = ("join", "compaction", "retention", "killer", "bolt_raises", "dead_letters_lost")
"""Faults that end a topology of batches with an error: one process coordinates, and batches write no dead letters, so a
record that is missing or cannot be processed ends the run."""
SHOWN = 5


def is_of_batches(graph: Graph) -> bool:
    """Return whether the topology has a batch coordinator."""
    return any(reads(spout, "batch") for spout in graph.spouts)


def states_of(graph: Graph) -> list[Component]:
    """Return the stateful components."""
    return [bolt for bolt in graph.bolts if reads(bolt, "state")]


class SharedBatches(MemoryBatches):
    """The stores that all processes of a world share."""

    def opened_by(self, process: Requester, name: str) -> str:
        """Return the URL of these stores for one process, until :meth:`forget`; its writes may fail."""
        view = _View(self, process, f"{self.name}/{name}")
        view.__enter__()
        return view.location

    def forget(self, name: str) -> None:
        """Remove the URL of an ended process."""
        self._known.pop(f"{self.name}/{name}", None)

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[tuple[str, int], int]:
        """Return the beginning of the first uncommitted batch in each partition."""
        return committed(self.coordinator, self.ranges, partitions)

    def wrong(self, wanted: Mapping[str, States], sent: Sequence[Any]) -> Iterator[str]:
        """Yield the differences between states and their expected values."""
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
        """Make a change; the process may be killed or paused before or after it."""
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
