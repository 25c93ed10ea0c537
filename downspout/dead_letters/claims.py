"""The identity of a replayed record: the headers that ``downspout dlq replay`` writes, and when the spout trusts them.

A replayed record has its own offset, but represents an earlier record. Headers (:data:`PREFIX`) carry the original
coordinates, which the spout uses as ``origin``: a sink that has the original's rows drops the replay. Anyone may write
headers, and with a false claim, a sink would drop a record. So a claim is valid only if

* all five headers are present, well-formed, and unique;
* ``to`` names the topic of the record: a copy in another topic is a new record;
* its offset is lower, if it names the same partition of the same topic.

That excludes accidents, but not a malicious writer: if one may write to the topic, set ``kafka.honour_replays=no``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from downspout.kafka.port import TOPIC_LEGAL, Record
from downspout.ledger.origin import Origin

PREFIX = "__downspout.replay."
NAMES = ("topic", "topic.id", "partition", "offset", "to")
NO_ID = "-"  # For a topic without an id
PARTITION_MAX = 2**31 - 1

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}|-")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(slots=True)
class PlainRecord:
    """A record in memory; see :class:`~downspout.kafka.port.Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def identity_headers(origin: Origin, to: str) -> list[tuple[str, bytes]]:
    """Return the headers for a replay of ``origin`` to the topic ``to``.

    >>> identity_headers(Origin("orders", "", 0, 7), "orders")[-2:]
    [('__downspout.replay.offset', b'7'), ('__downspout.replay.to', b'orders')]
    """
    values = (origin.topic, origin.topic_id or NO_ID, origin.partition, origin.offset, to)
    return [(PREFIX + name, str(value).encode()) for name, value in zip(NAMES, values, strict=True)]


def claim(
    headers: Sequence[tuple[str, bytes]], topic: str, topic_id: str, partition: int, offset: int
) -> Origin | None:
    """Return the original of the record at these coordinates; None without a valid claim.

    >>> headers = identity_headers(Origin("orders", "", 0, 7), "orders")
    >>> claim(headers, "orders", "", 0, 500)
    Origin(topic='orders', topic_id='', partition=0, offset=7, path='')
    >>> claim(headers, "orders", "", 0, 7), claim(headers, "copy-of-orders", "", 0, 500)
    (None, None)
    """
    claimed = [(name.removeprefix(PREFIX), value) for name, value in headers if name.startswith(PREFIX)]
    if sorted(name for name, _ in claimed) != sorted(NAMES):
        return None
    try:
        by_name = {name: value.decode("ascii") for name, value in claimed}
    except (UnicodeDecodeError, AttributeError):  # not ASCII, or null
        return None
    name, name_id, number, place, to = (by_name[name] for name in NAMES)
    if to != topic or not (TOPIC_LEGAL.fullmatch(name) and _TOPIC_ID.fullmatch(name_id)):
        return None
    if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(place)) or int(number) > PARTITION_MAX:
        return None
    stands_for = Origin(name, "" if name_id == NO_ID else name_id, int(number), int(place))
    same_topic = name == topic and (stands_for.topic_id == topic_id or not (stands_for.topic_id and topic_id))
    if same_topic and stands_for.partition == partition and stands_for.offset >= offset:
        return None
    return stands_for


def origin_of(record: Record, topic_id: str) -> Origin | None:
    """Return the original of a record; None if it is no replay. ``topic_id`` is the id of the record's topic."""
    if not record.headers:
        return None
    return claim(record.headers, record.topic, topic_id, record.partition, record.offset)


def without_claim(record: Record) -> PlainRecord:
    """Return the record without our headers, so that its own coordinates are its identity."""
    headers = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    return PlainRecord(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, headers
    )
