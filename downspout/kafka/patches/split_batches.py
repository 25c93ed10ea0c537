"""Batches that are split, and a flush that waits for them in vain.

Wrong: a batch that a topic finds too large is split by the client. Each of its records gets another batch, half as
    large, and the old batch has no answer any more. The client's ``flush`` waits for batches, so for one that is
    split meanwhile it waits until its time is over.
Patch: our futures learn of each record that moves, as the client's own do, and of the answer of each batch; and a
    flush is begun and ended here, with a wait of ours in between.
Self-test: the futures of a batch, and the count of flushes.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: ``flush`` waits for the parts of a batch that is split, and batches enter by ``send`` (``costly_send``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from kafka import errors
from kafka.record.memory_records import MemoryRecords

PRODUCER = {
    "producer._accumulator.begin_flush": "method",
    "producer._accumulator._flushes_in_progress.decrement": "method",
    "producer._sender.wakeup": "method",
    "batch._record_futures": "list",
    "batch.produce_future._add_cb_eb": "method",
    "batch.attempts": "int",
}


def call_back(future: Any, answered: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
    """Have the answer of a batch, or its error, handed on."""
    future._add_cb_eb(answered, failed)


class Follows(Protocol):
    """Hears where records of a batch go."""

    def moved(self, place: int, future: Any) -> None:
        """A record, told by its place in the batch as it was made, is in the batch with this future now."""


class _Handle(NamedTuple):
    """What the client takes for the future of one record."""

    answer: Follows
    place: int

    def rebind(self, future: Any, index: int) -> None:
        """Called by the client: the record is in that batch now."""
        self.answer.moved(self.place, future)


class _Handles(Sequence[_Handle]):
    """One for each record, made when the client splits the batch, which is seldom."""

    def __init__(self, answer: Follows, count: int) -> None:
        self._answer, self._count = answer, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return _Handle(self._answer, place)


def report_splits(batch: Any, answer: Follows, count: int) -> None:
    """Have ``answer.moved`` called for each record of a batch that is split."""
    batch._record_futures = _Handles(answer, count)


def records_of(batch: Any) -> list[Any]:
    """Return the records of a batch that was sent, with timestamp, key, value and headers."""
    return [record for part in MemoryRecords(batch.records.buffer()) for record in part]


def retries_of(batch: Any) -> int:
    """Return how often a batch was sent again as it is."""
    found: int = batch.attempts
    return found


BYSTANDER = "it was part of a batch which had one more"


def is_bystander(error: BaseException) -> bool:
    """Return whether a record was refused for others of its batch alone, as the client words it."""
    return type(error) is errors.KafkaError and BYSTANDER in str(error)


@contextmanager
def flushing(producer: Any) -> Iterator[None]:
    """Let nothing linger while this lasts."""
    accumulator = producer._accumulator
    accumulator.begin_flush()
    try:
        producer._sender.wakeup()
        yield
    finally:
        accumulator._flushes_in_progress.decrement()
