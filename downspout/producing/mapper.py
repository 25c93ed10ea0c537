"""The Kafka record of a tuple: key, message, headers, time, partition and topic, from its fields or from a function.

No code here does I/O. A part that cannot be written raises a ValueError that names it and the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, repeat
from math import isfinite
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from downspout.errors import ConfigError
from downspout.origins import FIELD, values_of
from downspout.settings.table import load

Headers = Sequence[tuple[str, bytes | None]]
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""


class Outgoing(NamedTuple):
    """A record as it is sent; a user's function may return one."""

    key: bytes | None
    value: bytes | None
    """None: a tombstone."""
    headers: Headers = ()
    timestamp_ms: int | None = None
    """None: the time of sending."""
    partition: int | None = None
    """None: the key or the partitioner decides."""
    topic: str | None = None
    """None: the topic of the settings."""


Maker = Callable[[Any], Outgoing]
"""Makes a record of the values of a tuple."""


def _utf8(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ValueError(f"its type is {type(value).__name__}, but the format utf8 takes texts (and bytes, unchanged)")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise ValueError(f"its type is {type(value).__name__}, but the format bytes takes only bytes")


def _json(value: Any) -> bytes:
    try:
        made = orjson.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it cannot be written as JSON: {error}") from None
    if b"null" in made and (odd := _not_finite(value)) is not None:  # orjson makes a null of it
        raise ValueError(f"it cannot be written as JSON: it has {odd!r}, which JSON does not allow")
    return made


def _not_finite(value: Any) -> float | None:
    """Return a NaN or infinite float inside a value, or None.

    >>> _not_finite({"a": [1.5, float("-inf")]}), _not_finite([None, "NaN"])
    (-inf, None)
    """
    if isinstance(value, float):
        return None if isfinite(value) else value
    if is_dataclass(value):  # what is in slots is not in its __dict__, if it has one
        value = [*getattr(value, "__dict__", {}).values(), *(getattr(value, each.name, None) for each in fields(value))]
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = chain(value.keys(), value.values())
    elif isinstance(value, list | tuple):
        parts = value
    return next((odd for part in parts if (odd := _not_finite(part)) is not None), None)


FORMATS: dict[str, Callable[[Any], bytes]] = {"utf8": _utf8, "bytes": _bytes, "json": _json}
"""By the spout's names of the formats. Null stays null."""


def encoder(kind: str, what: str) -> Callable[[Any], bytes | None]:
    """Return the function that encodes a key or a message.

    >>> encode = encoder("json", "the message")
    >>> encode({"a": 1}), encode(None)
    (b'{"a":1}', None)
    >>> encode({1, 2})
    Traceback (most recent call last):
        ...
    ValueError: the message cannot be written: it cannot be written as JSON: Type is not JSON serializable: set
    """
    write = FORMATS[kind]

    def encode(value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return write(value)
        except ValueError as error:  # UnicodeEncodeError (a lone surrogate) is one
            raise ValueError(f"{what} cannot be written: {error}") from None

    return encode


def headers_of(value: Any) -> Headers:
    """Convert a mapping or pairs to Kafka headers; text becomes UTF-8.

    >>> headers_of({"trace": "7", "none": None}), headers_of([["a", b"1"], ["a", b"2"]])
    ([('trace', b'7'), ('none', None)], [('a', b'1'), ('a', b'2')])
    """
    if not value:
        return ()
    try:
        pairs = list(value.items()) if isinstance(value, Mapping) else [(name, data) for name, data in value]
    except (TypeError, ValueError):
        raise ValueError(f"the headers cannot be written: {value!r:.80} is neither a mapping nor pairs") from None
    made = []
    for name, data in pairs:
        if not isinstance(name, str) or not (data is None or isinstance(data, str | bytes)):
            raise ValueError(f"the header {name!r:.40} cannot be written: names are texts, values texts or bytes")
        made.append((name, data.encode() if isinstance(data, str) else data))
    return made


def timestamp_of(value: Any) -> int | None:
    """Convert a number or a datetime to milliseconds since the epoch.

    >>> import datetime
    >>> timestamp_of(datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)), timestamp_of(17)
    (1000, 17)
    """
    if value is None:
        return None
    if hasattr(value, "timestamp"):
        value = round(value.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TIME_MS_MAX:
        return value
    raise ValueError(f"the timestamp {value!r:.40} is not a time in milliseconds since 1970")


def checked(record: Outgoing) -> Outgoing:
    """Return a record made by a user's function, if each part has the right type.

    An invalid record must not reach the client's thread, which all records share.

    >>> checked(Outgoing(bytearray(b"k"), None, {"a": "x"}))[:3]
    (b'k', None, [('a', b'x')])
    >>> checked(Outgoing(b"k", 7))
    Traceback (most recent call last):
        ...
    ValueError: the message cannot be written: its type is int, but the format bytes takes only bytes
    """
    key, value, headers, timestamp, partition, topic = record
    return Outgoing(
        _write_key(key), _write_message(value), headers_of(headers), timestamp_of(timestamp), partition, topic_of(topic)
    )


_write_key, _write_message = encoder("bytes", "the key"), encoder("bytes", "the message")


PARTS = ("message", "key", "headers", "timestamp", "partition", "topic")
"""Parts of a record that a field of the tuple may become."""


def fields_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return ``produce.fields`` as part → field; the message is always included.

    Raises:
        ConfigError: an item is not ``part=field``, or names an unknown part.

    >>> fields_of({"fields": ["key=route", "topic=kind"]})
    {'message': 'message', 'key': 'route', 'topic': 'kind'}
    """
    found = {"message": "message"}
    for item in settings.get("fields") or ():
        part, equals, field = (each.strip() for each in item.partition("="))
        if part not in PARTS or not equals or not field:
            raise ConfigError(f"produce.fields: {item!r} is not part=field", cure=f"one of {', '.join(PARTS)}: key=id")
        found[part] = field
    return found


def field_mapper(fields: Sequence[str], settings: Mapping[str, Any], log: logging.Logger) -> Maker:
    """Return a function that makes records from the fields of a tuple.

    Args:
        fields: those of the input.
        settings: the scope ``produce``; without ``key`` in ``produce.fields``, the key is the field ``key`` or null.
        log: gets a warning if the input lacks the topic's field, since ``produce.topic`` then applies.

    Raises:
        ConfigError: the input lacks another named field, or the message's field.

    >>> settings = {"fields": [], "key_format": "utf8", "message_format": "json"}
    >>> make = field_mapper(["message", "key"], settings, logging.getLogger())
    >>> make(([1], "k"))[:2]
    (b'k', b'[1]')
    """
    names = {"key": "key"} if "key" in fields else {}
    names |= fields_of(settings)
    if names.get("topic", fields[0]) not in fields:
        log.warning(
            "produce.fields: topic=%s, but the input has the fields %s: all records go to %s",
            names.pop("topic"), ", ".join(fields), settings.get("topic") or "no topic",
        )  # fmt: skip
    for part, name in names.items():
        if name not in fields:
            raise ConfigError(
                f"produce.fields: {part}={name}, but the input has the fields {', '.join(fields)}",
                cure="name one of them",
            )
    message, key, headers, time, partition, topic = (
        list(fields).index(names[part]) if part in names else None for part in PARTS
    )
    assert message is not None
    write_key, write = encoder(settings["key_format"], "the key"), encoder(settings["message_format"], "the message")

    def make_plain(values: Any) -> Outgoing:
        return Outgoing(None if key is None else write_key(values[key]), write(values[message]))

    def make(values: Any) -> Outgoing:
        return Outgoing(
            None if key is None else write_key(values[key]),
            write(values[message]),
            () if headers is None else headers_of(values[headers]),
            None if time is None else timestamp_of(values[time]),
            None if partition is None else values[partition],
            None if topic is None else topic_of(values[topic]),
        )

    return make if {"headers", "timestamp", "partition", "topic"} & names.keys() else make_plain


def topic_of(value: Any) -> str | None:
    """Return a topic's name; None if it is None or empty: ``produce.topic`` applies."""
    if not (value is None or isinstance(value, str)):
        raise ValueError(f"the topic {value!r:.40} is not text")
    return value or None


def function_mapper(setting: str, path: str) -> Maker:
    """Return a maker that calls a user's function, which turns values into an :class:`Outgoing` or (key, message).

    Raises:
        ConfigError: there is no such function.
    """
    function = load(setting, path)

    def make(values: Any) -> Outgoing:
        made = function(values)
        if isinstance(made, tuple) and (len(made) == 2 or isinstance(made, Outgoing)):
            return checked(Outgoing(*made))
        raise ValueError(f"{path} returned {made!r:.60}: neither an Outgoing nor (key, message)")

    return make


def rows_of_chunk(chunk: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each row as its tuple holds them; the origin, which no record needs, is None.

    >>> list(rows_of_chunk(pa.RecordBatch.from_pydict({"key": ["a", None], "message": [b"x", b"y"]})))
    [('a', b'x'), (None, b'y')]
    """
    columns: list[Iterable[Any]] = [
        repeat(None) if name == FIELD else values_of(column)
        for name, column in zip(chunk.schema.names, chunk.columns, strict=True)
    ]
    if all(isinstance(column, repeat) for column in columns):
        return iter([(None,) * len(columns)] * chunk.num_rows)
    return zip(*columns, strict=False)
