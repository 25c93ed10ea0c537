"""An object for each record, and no other way to what was fetched.

Wrong: the client makes a tuple, a generator's step and some more objects of each record: several times the CPU of
    all that is done with one in columns. Nothing public hands out the bytes of a fetch.
Patch: the fetcher hands the bytes of each partition to a class of its own (``PartitionRecords``), and takes records
    of its object until there are none. It gets a class that unpacks them in another way. All else stays the
    client's: groups, positions, pausing, transactions, metrics. What it relies on:

    * ``_append`` puts what ``take`` returns into a list with ``extend``, counts it with ``len``, and goes on
      reading at ``next_fetch_offset``. So what is taken iterates as one element, the columns, and is as long as it
      has records.
    * The object counts as used up when ``record_iterator`` is None, which ``drain`` sees to.
Self-test: what counts is tried out (:func:`trouble`) when a consumer is first polled: two batches with all that
    matters go the whole way, from the object that the fetcher makes of what it has fetched up to what a poll would
    find. Where that fails, polls find the client's records, and one warning says so: slower, not broken.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client hands out fetched bytes, or decodes into columns itself.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.kafka.patches.unbounded_unpacking import bytes_of

CONSUMER = {"_fetcher.config": "dict"}
OPTIONAL = {
    "Fetcher.PartitionRecords.take": "function",
    "Fetcher.PartitionRecords.drain": "function",
    "Fetcher.PartitionRecords._unpack_records": "function",
    "Fetcher.PartitionRecords._maybe_skip_record": "function",
    "Fetcher.PartitionRecords._is_batch_aborted": "function",
    "Fetcher.PartitionRecords._contains_abort_marker": "function",
    "Fetcher.PartitionRecords._consume_aborted_transactions_up_to": "function",
    "Fetcher._parse_fetched_data": "function",
    "Fetcher._append": "function",
}

_PARTITION = TopicPartition("canned", 5)
_CANNED = base64.b64decode(
    "AAAAAAAAAAcAAABYAAAAAwLxAFmFAAAAAAADAAAAAAAAA+gAAAAAAAAD7f//////////////////AAAAAxoAAAACawxiZWZvcmUADgACAgECdgAgAAoG"
    "BmtleQEEAmgCeAJpAQAAAAAAAAALAAAAWQAAAAMCvyruJgABAAAAAQAAAAAAAAfQAAAAAAAAB9D//////////////////wAAAAIfiwgAwlkCawL/e8bC"
    "AAQ3WKpGAdGAgY+BkYkpm4EBAMYXO689AQAA"
)
"""A batch with a gap, nulls and headers, whose first record lies before the start; and one that is compressed."""
_START = 8
_HOLDS = [
    (8, 1001, None, b"v", []),
    (10, 1005, b"key", None, [("h", b"x"), ("i", None)]),
    (11, 2000, b"", b"z" * 300, []),
    (12, 1999, b"k", b"", []),
]


def fetcher_of(consumer: Any) -> Any:
    """Return a consumer's fetcher, whose ``PartitionRecords`` may be replaced."""
    return consumer._fetcher


def otherwise_unpacked(known: type[Any], read: Callable[[Any, TopicPartition, bytes], Iterator[Any]]) -> type[Any]:
    """Return a class for the records of a fetch that gives what ``read`` makes of the bytes.

    It has public names for what ``read`` needs of the client: its record of transactions.
    """

    class OtherwiseUnpacked(known):
        consume_aborted_up_to = known._consume_aborted_transactions_up_to
        contains_abort_marker = known._contains_abort_marker

        def _unpack_records(self, tp: TopicPartition, records: Any, *_: Any) -> Iterator[Any]:
            return read(self, tp, bytes_of(records))

        def _maybe_skip_record(self, record: Any) -> bool:
            return False  # what is read begins at the fetch offset

        def pass_aborted(self, batch: Any) -> None:
            """Report an aborted batch to the class that notes them."""
            self._is_batch_aborted(batch)

    return OtherwiseUnpacked


@cache
def trouble(fetcher: type[Any], hook: Callable[[type[Any]], type[Any]]) -> str:
    """Return what is not as expected in a fetcher class; empty where all is well."""
    try:
        known = fetcher.PartitionRecords
        names = (path.rpartition(".")[2] for path in OPTIONAL if ".PartitionRecords." in path)
        if missing := [name for name in names if not callable(getattr(known, name, None))]:
            return f"PartitionRecords has no {missing[0]}"
        if "PartitionRecords" not in fetcher._parse_fetched_data.__code__.co_names:
            return "_parse_fetched_data makes no PartitionRecords"
        return _tried(fetcher, hook(known))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _tried(fetcher: type[Any], ours: type[Any]) -> str:
    """Return in what the canned batches differ from what they hold when a fetcher takes them."""
    drained: list[Any] = []
    part = ours(
        _START,
        _PARTITION,
        MemoryRecords(_CANNED),
        key_deserializer=None,
        value_deserializer=None,
        check_crcs=True,
        isolation_level=IsolationLevel.READ_COMMITTED,
        aborted_transactions=None,
        metric_aggregator=None,
        on_drain=drained.append,
    )
    position = OffsetAndMetadata(_START, "", -1)
    place = SimpleNamespace(position=position, highwater=None)
    subscriptions = SimpleNamespace(
        is_assigned=lambda _: True, is_fetchable=lambda _: True, assignment={_PARTITION: place}
    )
    stub = SimpleNamespace(_subscriptions=subscriptions, _sensors=None)
    found: Any = defaultdict(list)
    counts = [fetcher._append(stub, found, part, most, True) for most in (3, 100, 100)]
    records = [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for columns in found[_PARTITION]
        for record in columns
    ]
    if records != _HOLDS or counts != [3, 1, 0]:
        return "a batch that is known is decoded into something else"
    if place.position != OffsetAndMetadata(13, "", 3):
        return "the position does not follow what was taken"
    return "" if drained == [part] and not part else "what was taken whole is not used up"
