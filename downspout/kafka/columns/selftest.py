"""Whether the installed kafka-python is as the hook in its fetcher expects it; asked when a consumer is made.

What counts is tried out: two batches with all that matters go the whole way, from the object that the fetcher makes of
what it has fetched up to what a poll would find.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.structs import OffsetAndMetadata, TopicPartition

CURE = '`pip install "kafka-python>=3.0.9,<3.1"`'

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
_USED = (
    "take", "drain", "_unpack_records", "_maybe_skip_record", "_is_batch_aborted", "_contains_abort_marker",
    "_consume_aborted_transactions_up_to",
)  # fmt: skip


@cache
def trouble(fetcher: type[Any], hook: Callable[[type[Any]], type[Any]]) -> str:
    """Return what is not as expected in a fetcher class; empty where all is well.

    Args:
        fetcher: the client's class.
        hook: makes our class for the records of a fetch out of the client's.
    """
    try:
        known = fetcher.PartitionRecords
        if missing := [name for name in _USED if not callable(getattr(known, name, None))]:
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
