"""Attempts and ranges of batches, the messages between the components of a batch topology, and the stored forms.

::

    coordinator ──$batch──▶ emitter tasks ──▶ your bolts ──▶ state tasks
                ──$commit─▶ emitter and state tasks          (and $batch, $commit, $success)
                ──$success▶ emitter and state tasks

The coordinator emits ``$batch`` and ``$commit`` with a message id, so each opens a tuple tree, and ``$success`` without
one. All three go to all tasks (all-grouping). A bolt anchors a batch's tuples to their input, with the attempt in the
field ``attempt``. So the tree of ``$batch`` is complete when all tasks have the whole batch.

Rules for a task that holds data of batches, an emitter or a state:

* It has seen the *beginning* of an attempt once it has the tuple of ``$batch``. Earlier tuples of the attempt are kept
  and **not acked** until then: otherwise a restart in between could lose acked tuples of an attempt whose beginning the
  new process sees.
* A tuple of an older attempt than the newest of its transaction is acked and dropped; a newer attempt drops the data of
  older ones.
* A ``$commit`` of an attempt is *failed* if the task has not seen its beginning or knows a newer one.
* ``$success`` of a transaction drops all data up to it. This message may be lost.

:class:`downspout.batches.core.held.Held` implements these rules.

**JSON.** The metadata of a batch and partition has two forms. Trident's current one is ``{"firstOffset": 5,
"lastOffset": 9, "topologyId": "…"}``; that of Kafka 0.8's spout is ``{"offset": 5, "nextOffset": 10, "instanceId": "…",
"partition": 0, "broker": {…}, "topic": "…", "topology": {"name": "…", "id": "…"}}``. Both are read, the current one is
written. For a batch without records, Trident writes the offset before the position as both first and last offset. Ours
has its first offset *at* the position: Trident reads that as empty too, and it cannot be mistaken for one record.

Two fields are ours: ``topicId``, Kafka's id of the topic, since offsets mean nothing in a re-created topic; and
``records``, the number of records, since compaction may remove some of them. Trident ignores both, and its own metadata
is read without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

FIRST_TXID = 1
FIRST_ATTEMPT = 0


class Attempt(NamedTuple):
    """One attempt of a transaction. The first field of each tuple of a batch; over Storm's pipe it is a JSON list."""

    txid: int  # from 1
    attempt: int  # from 0, as in Trident; higher for later attempts of a transaction

    @classmethod
    def of(cls, value: Sequence[Any]) -> Attempt:
        """Return ``value``, which may be a list after Storm's pipe, as an Attempt.

        >>> Attempt.of([3, 0])
        Attempt(txid=3, attempt=0)

        Raises:
            ValueError: it is not an attempt.
        """
        if type(value) is cls:
            return value
        try:
            txid, attempt = value
            return cls(int(txid), int(attempt))
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is not an attempt (txid, attempt)") from None

    @staticmethod
    def may_be(value: Any) -> bool:
        """Return whether a value has the form of an attempt.

        >>> Attempt.may_be([3, 0]), Attempt.may_be("30"), Attempt.may_be(("t", "", 0, 7, ""))
        (True, False, False)
        """
        return type(value) is Attempt or (isinstance(value, list) and [*map(type, value)] == [int, int])

    def __str__(self) -> str:
        """Return the attempt as named in messages: ``transaction 3, attempt 0``."""
        return f"transaction {self.txid}, attempt {self.attempt}"


class BatchRange(NamedTuple):
    """The offsets of a batch in one partition, from ``first`` to ``last`` inclusive.

    An empty range has ``first`` at the position and ``last = first - 1``, so the next start is always ``last + 1``.
    """

    first: int
    last: int
    topology_id: str = ""  # of the topology that stored it; empty if unknown
    topic_id: str = ""  # Kafka's id of the topic; empty if unknown
    records: int | None = None  # number of records; None: unknown

    @property
    def next(self) -> int:
        """The start of the next batch.

        >>> BatchRange(5, 9).next, BatchRange.empty(10).next
        (10, 10)
        """
        return self.last + 1

    @classmethod
    def empty(cls, position: int, topology_id: str = "", topic_id: str = "") -> BatchRange:
        """Return the range of a partition without records in a batch."""
        return cls(position, position - 1, topology_id, topic_id)


class CoordinatorState(NamedTuple):
    """A coordinator's stored state: the next transaction to commit, and the last attempt of each that may be active."""

    current: int = FIRST_TXID
    attempts: Mapping[int, int] = {}


BATCH: Final = "$batch"
COMMIT: Final = "$commit"
SUCCESS: Final = "$success"
CONTROL: Final = (BATCH, COMMIT, SUCCESS)
"""The coordinator's streams, with Trident's names."""

ATTEMPT: Final = "attempt"
BATCH_FIELDS: Final = (ATTEMPT, "epoch", "partitions")
"""``epoch``: of the coordinator's claim, for writes to the store. ``partitions``: of this attempt, in order, each as
``[topic, partition]``; a user's own coordinator may put anything here that its emitter understands."""
COMMIT_FIELDS: Final = (ATTEMPT, "epoch")
SUCCESS_FIELDS: Final = (ATTEMPT, "epoch")
FIELDS: Final = {BATCH: BATCH_FIELDS, COMMIT: COMMIT_FIELDS, SUCCESS: SUCCESS_FIELDS}


MICRO_BATCHES: Final = "downspout.micro_batches"
"""Configuration key of a component whose batches are made by an engine, without a coordinator."""


def message_id(stream: str, attempt: Attempt) -> str:
    """Return the message id of a coordinator's tuple.

    >>> message_id(COMMIT, Attempt(3, 1))
    '$commit/3/1'
    """
    return f"{stream}/{attempt.txid}/{attempt.attempt}"


def of_message_id(text: str) -> tuple[str, Attempt]:
    """Return the stream and attempt of a message id.

    >>> of_message_id("$commit/3/1")
    ('$commit', Attempt(txid=3, attempt=1))
    """
    stream, txid, attempt = text.split("/")
    return stream, Attempt(int(txid), int(attempt))


T = TypeVar("T")


def share(partitions: Sequence[T], task: int, tasks: int) -> list[T]:
    """Return the partitions of one task, assigned round-robin.

    >>> share(["a", "b", "c", "d", "e"], 1, 2), share(["a"], 1, 2)
    (['b', 'd'], [])
    """
    return list(partitions[task::tasks])


class ForeignMetadataError(ValueError):
    """Stored metadata has an unknown form."""


def encode_range(found: BatchRange) -> dict[str, Any]:
    """Return the metadata of a range.

    >>> encode_range(BatchRange(5, 9, "wc-1"))
    {'firstOffset': 5, 'lastOffset': 9, 'topologyId': 'wc-1'}
    >>> encode_range(BatchRange(5, 9, "wc-1", "d1Qy0fTsTiy1dHLU1Xlbvw"))["topicId"]
    'd1Qy0fTsTiy1dHLU1Xlbvw'
    """
    form = {"firstOffset": found.first, "lastOffset": found.last, "topologyId": found.topology_id}
    ours = {"topicId": found.topic_id or None, "records": found.records}
    return form | {name: value for name, value in ours.items() if value is not None}


def decode_range(value: Any) -> BatchRange:
    """Return the range of metadata in either form.

    >>> decode_range({"offset": 5, "nextOffset": 10, "instanceId": "x", "topology": {"id": "wc-1", "name": "wc"}})
    BatchRange(first=5, last=9, topology_id='wc-1', topic_id='', records=None)
    >>> decode_range({"firstOffset": 9, "lastOffset": 9, "topologyId": "wc-1"}).next
    10

    Raises:
        ForeignMetadataError: it has neither form.
    """
    if not isinstance(value, Mapping):
        raise ForeignMetadataError(f"{value!r} is not the metadata of a batch")
    if "firstOffset" in value:
        first, last, topology = value["firstOffset"], value.get("lastOffset"), value.get("topologyId")
    else:
        first, after, named = value.get("offset"), value.get("nextOffset"), value.get("topology")
        last = after - 1 if type(after) is int else None
        topology = named.get("id") if isinstance(named, Mapping) else None
    topic, count = value.get("topicId"), value.get("records")
    are_ids = isinstance(topology, str | None) and isinstance(topic, str | None)
    if count is not None and (type(count) is not int or count < 0):
        raise ForeignMetadataError(f"{dict(value)!r} is not the metadata of a batch")
    if type(first) is not int or type(last) is not int or last < first - 1 or not are_ids:
        raise ForeignMetadataError(f"{dict(value)!r} is not the metadata of a batch")
    return BatchRange(first, last, topology or "", topic or "", count)


def after(found: BatchRange, previous: BatchRange | None) -> BatchRange:
    """Return a stored range, with Trident's form of an empty batch recognised by comparison with the previous batch.

    >>> after(BatchRange(9, 9), BatchRange(5, 9)) == BatchRange.empty(10)
    True
    >>> after(BatchRange(9, 9), BatchRange(5, 8)) == BatchRange(9, 9)
    True

    A range with a topic id is ours, and returned unchanged.

    >>> after(BatchRange(9, 9, topic_id="new"), BatchRange(5, 9, topic_id="old")).first
    9
    """
    if found.topic_id or found.first != found.last:
        return found
    if found.last < 0 or (previous is not None and previous.last == found.last):
        return BatchRange.empty(found.next, found.topology_id)
    return found


def encode_attempts(state: CoordinatorState) -> dict[str, int]:
    """Return the attempt ids for JSON, with text keys.

    >>> encode_attempts(CoordinatorState(3, {3: 1, 4: 0}))
    {'3': 1, '4': 0}
    """
    return {str(txid): attempt for txid, attempt in state.attempts.items()}


def decode_state(current: Any, attempts: Any) -> CoordinatorState:
    """Return the coordinator's state.

    >>> decode_state(3, {"2": 5, "3": 1})
    CoordinatorState(current=3, attempts={2: 5, 3: 1})

    Args:
        current: the content of ``currtx``, if any.
        attempts: the content of ``currattempts``, if any.

    Raises:
        ForeignMetadataError: one of them has another form.
    """
    if type(current) is not int and current is not None:
        raise ForeignMetadataError(f"currtx is {current!r}, not a number")
    try:
        known = {int(txid): attempt for txid, attempt in (attempts or {}).items()}
    except (AttributeError, TypeError, ValueError):
        known = {0: None}
    if any(type(attempt) is not int for attempt in known.values()):
        raise ForeignMetadataError(f"currattempts is {attempts!r}, not attempts by transaction")
    return CoordinatorState(1 if current is None else max(1, current), known)


def encode_partitions(partitions: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the coordinator's metadata of a transaction, in the form of Trident's Kafka spout.

    >>> encode_partitions([["orders", 0]])
    [{'topic': 'orders', 'partition': 0}]
    """
    return [{"topic": topic, "partition": partition} for topic, partition in partitions]


def decode_partitions(value: Any) -> list[list[Any]]:
    """Return the partitions of a coordinator's metadata.

    >>> decode_partitions([{"topic": "orders", "partition": 0}])
    [['orders', 0]]

    Raises:
        ForeignMetadataError: it has another form.
    """
    try:
        found = [[each["topic"], each["partition"]] for each in value]
    except (TypeError, KeyError):
        raise ForeignMetadataError(f"{value!r} does not name partitions") from None
    if not all(isinstance(topic, str) and type(number) is int for topic, number in found):
        raise ForeignMetadataError(f"{value!r} does not name partitions")
    return found


def partition_id(topic: str, partition: int) -> str:
    """Return the name of a partition's metadata, as in Trident's Kafka spout.

    >>> partition_id("orders", 3)
    'orders/3'
    """
    return f"{topic}/{partition}"


def committed(
    state: CoordinatorState | None,
    ranges: Mapping[str, Mapping[int, BatchRange]],
    partitions: Iterable[tuple[str, int]],
) -> dict[tuple[str, int], int]:
    """Return the next offset after the committed batches, by partition; without partitions that have no batch.

    >>> ranges = {"orders/0": {1: BatchRange(0, 4), 2: BatchRange(5, 9), 3: BatchRange(10, 12)}}
    >>> committed(CoordinatorState(current=3), ranges, [("orders", 0), ("orders", 1)])
    {('orders', 0): 10}
    """
    current = (state or CoordinatorState()).current
    found = {}
    for topic, number in partitions:
        done = {txid: each for txid, each in ranges.get(partition_id(topic, number), {}).items() if txid < current}
        if done:
            found[topic, number] = done[max(done)].next
    return found
