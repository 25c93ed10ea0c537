"""From a Kafka record to the values of a tuple: fields and formats, prepared once so that a record costs little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import orjson

from downspout.dead_letters.replayed import origin_of
from downspout.errors import ConfigError
from downspout.kafka.port import Record
from downspout.ledger.origin import Origin

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
    replayed record is that of the record it stands for (see :mod:`downspout.dead_letters.replayed`).

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


def rows_maker(
    fields: Sequence[str], key_format: str, value_format: str, topic_id: str, honour_replays: bool = True
) -> Callable[[Sequence[Record]], list[tuple[Any, ...]] | None]:
    """Return a function that makes for many records of one partition what :func:`tuple_maker` makes for each.

    It returns None where that takes a look at each: a null among what is to be decoded, a value that is not in its
    format, headers that may be a replay's.

    >>> from types import SimpleNamespace
    >>> records = [SimpleNamespace(topic="t", partition=0, offset=n, key=None, value=b"v", headers=()) for n in (7, 9)]
    >>> rows_maker(["offset", "value", "origin"], "utf8", "bytes", "")(records)[1]
    (9, b'v', Origin(topic='t', topic_id='', partition=0, offset=9, path=''))
    """
    decoders = {"key": DECODERS[key_format], "value": DECODERS[value_format]}
    getters = [(attrgetter("offset" if field == "origin" else field), field, decoders.get(field)) for field in fields]
    looks_at_headers = honour_replays and "origin" in fields
    headers_of, new_tuple = attrgetter("headers"), tuple.__new__

    def make(records: Sequence[Record]) -> list[tuple[Any, ...]] | None:
        if looks_at_headers and any(map(headers_of, records)):
            return None
        first = records[0]
        columns: list[Iterable[Any]] = []
        for get, field, decode in getters:
            column: Iterable[Any] = map(get, records)
            if field == "origin":
                own = zip(
                    repeat(first.topic), repeat(topic_id), repeat(first.partition), column, repeat(""), strict=False
                )
                column = map(new_tuple, repeat(Origin), own)
            elif decode is not None:
                column = map(decode, column)
            columns.append(column)
        try:
            return list(zip(*columns, strict=True))
        except (ValueError, TypeError):  # who it was, and why, is found one by one
            return None

    return make
