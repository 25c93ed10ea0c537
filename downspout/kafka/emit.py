"""From a Kafka record to the values of a tuple: fields and formats, prepared once so that a record costs little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import orjson

from downspout.errors import ConfigError
from downspout.kafka.port import Record
from downspout.kafka.replayed import origin_of
from downspout.ledger.origin import Origin

__all__ = ["FIELDS", "check_fields", "tuple_maker"]

FIELDS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers", "origin")
"""What a tuple may hold. ``origin`` is the identity that makes the sinks exactly-once."""

Decoder = Callable[[bytes], Any]

DECODERS: dict[str, Decoder | None] = {"utf8": bytes.decode, "json": orjson.loads, "bytes": None}
"""By the name of the format; None leaves the bytes alone. C functions: they run for each record."""


def check_fields(fields: Sequence[str]) -> None:
    """Raise a ConfigError where a field is unknown, comes twice, or there is none."""
    for field in fields:
        if field not in FIELDS:
            raise ConfigError(f"kafka.fields: {field!r} is not a field", cure=f"some of {', '.join(FIELDS)}")
    if len(set(fields)) != len(fields) or not fields:
        raise ConfigError("kafka.fields names a field twice or is empty", cure="each field once")


def tuple_maker(
    fields: Sequence[str], key_format: str, value_format: str, topic_id: str, honour_replays: bool = True
) -> Callable[[Record], list[Any]]:
    """Return a function that makes the values of a tuple from a record of one topic.

    It raises what the formats raise (``UnicodeDecodeError``, ``orjson.JSONDecodeError``): both are ValueErrors.
    A null key or value stays None. Headers stay a list of (name, bytes). With ``honour_replays`` the origin of a
    replayed record is that of the record it stands for (see :mod:`downspout.kafka.replayed`).

    >>> from kafka.structs import TopicPartition
    >>> from types import SimpleNamespace
    >>> record = SimpleNamespace(topic="t", partition=0, offset=7, key=None, value=b'{"a": 1}', headers=())
    >>> tuple_maker(["key", "value", "origin"], "utf8", "json", "")(record)
    [None, {'a': 1}, Origin(topic='t', topic_id='', partition=0, offset=7, path='')]
    """
    check_fields(fields)
    # All raw values by one call into C, then the few that need work are replaced in place.
    get = attrgetter(*("offset" if field == "origin" else field for field in fields))
    single = len(fields) == 1
    decoders = {"key": DECODERS[key_format], "value": DECODERS[value_format]}
    work = [(i, d) for i, field in enumerate(fields) if (d := decoders.get(field)) is not None]
    origin_at = fields.index("origin") if "origin" in fields else -1
    new_tuple = tuple.__new__

    def make(record: Record) -> list[Any]:
        values: list[Any] = [get(record)] if single else list(get(record))
        for i, decode in work:
            if (raw := values[i]) is not None:
                values[i] = decode(raw)
        if origin_at >= 0:
            # A NamedTuple's own __new__ is Python code; this is the same object for half the time.
            own = (record.topic, topic_id, record.partition, record.offset, "")
            replayed = origin_of(record, topic_id) if honour_replays and record.headers else None
            values[origin_at] = replayed or new_tuple(Origin, own)
        return values

    return make
