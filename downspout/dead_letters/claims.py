"""The identity of a replayed record: the headers that ``downspout dlq replay`` writes, and when they are believed.

A replayed record is a new record with an offset of its own, but it stands for an old one. Headers (:data:`PREFIX`)
carry the old coordinates, and the spout makes them its ``origin``: a sink that has the old record's rows drops it.
Anybody may write headers, and a wrong identity makes a sink drop the record that it belongs to. So a claim holds only
if

* all five headers are there, well-formed, and each once;
* ``to`` names the topic that the record is in: a copy that was carried elsewhere is a record of its own;
* it names a lower offset, if it names the same partition of the same topic.

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
NO_ID = "-"  # Stands for the topic's id where the broker had none
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
    """Return the headers of a replay of ``origin`` that is written to the topic ``to``.

    >>> identity_headers(Origin("orders", "", 0, 7), "orders")[-2:]
    [('__downspout.replay.offset', b'7'), ('__downspout.replay.to', b'orders')]
    """
    values = (origin.topic, origin.topic_id or NO_ID, origin.partition, origin.offset, to)
    return [(PREFIX + name, str(value).encode()) for name, value in zip(NAMES, values, strict=True)]


def claim(
    headers: Sequence[tuple[str, bytes]], topic: str, topic_id: str, partition: int, offset: int
) -> Origin | None:
    """Return the record that the one at these coordinates stands for; None where it makes no valid claim.

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
    """Return the record that this one stands for, None for an ordinary one. ``topic_id`` is of the record's topic."""
    if not record.headers:
        return None
    return claim(record.headers, record.topic, topic_id, record.partition, record.offset)


def without_claim(record: Record) -> PlainRecord:
    """Return the record as it was before it was replayed: without our headers, at its own place."""
    headers = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    return PlainRecord(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, headers
    )
