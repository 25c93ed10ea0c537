"""What a tuple becomes in Kafka: key, message, headers, time and partition, by the names of fields or by a function.

Nothing here does I/O. What cannot be written is a ValueError that says which part and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

import orjson

from downspout.errors import ConfigError
from downspout.settings.import_path import load

__all__ = ["FORMATS", "Maker", "Outgoing", "encoder", "field_mapper", "function_mapper"]

Headers = Sequence[tuple[str, bytes | None]]
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""


class Outgoing(NamedTuple):
    """A record as it is sent, without its topic; a user's function may return one."""

    key: bytes | None
    value: bytes | None
    """None: a tombstone."""
    headers: Headers = ()
    timestamp_ms: int | None = None
    """Not set: the time at which it is sent."""
    partition: int | None = None
    """Not set: the key decides, or the partitioner."""
    topic: str | None = None
    """Not set: the topic that the settings say."""


Maker = Callable[[Any], Outgoing]
"""Makes a record of the values of a tuple."""


def _utf8(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ValueError(f"its type is {type(value).__name__}, and the format utf8 takes texts (and bytes, as they are)")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise ValueError(f"its type is {type(value).__name__}, and the format bytes takes bytes alone")


def _json(value: Any) -> bytes:
    try:
        made = orjson.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it does not go into JSON: {error}") from None
    if b"null" in made and (odd := _not_finite(value)) is not None:  # orjson makes a null of it
        raise ValueError(f"it does not go into JSON: it has {odd!r}, which is no number there")
    return made


def _not_finite(value: Any) -> float | None:
    """Return a float within a value that is NaN or infinite, if there is one.

    >>> _not_finite({"a": [1.5, float("-inf")]}), _not_finite([None, "NaN"])
    (-inf, None)
    """
    if isinstance(value, float):
        return None if isfinite(value) else value
    if is_dataclass(value):
        value = vars(value)
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = chain(value.keys(), value.values())
    elif isinstance(value, list | tuple):
        parts = value
    return next((odd for part in parts if (odd := _not_finite(part)) is not None), None)


FORMATS: dict[str, Callable[[Any], bytes]] = {"utf8": _utf8, "bytes": _bytes, "json": _json}
"""By the names that the spout has for them. Null stays null."""


def encoder(kind: str, what: str) -> Callable[[Any], bytes | None]:
    """Return the function that encodes a key or a message.

    >>> encode = encoder("json", "the message")
    >>> encode({"a": 1}), encode(None)
    (b'{"a":1}', None)
    >>> encode({1, 2})
    Traceback (most recent call last):
        ...
    ValueError: the message cannot be written: it does not go into JSON: Type is not JSON serializable: set
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
    """Return headers as Kafka has them, of a mapping or of pairs; a text is written as UTF-8.

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
    """Return a time in milliseconds since the epoch, of a number or of a datetime.

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
    """Return a record that a user's function has made, if each part is what it must be.

    A wrong one must not get as far as the client's thread, which all records share.

    >>> checked(Outgoing(bytearray(b"k"), None, {"a": "x"}))[:3]
    (b'k', None, [('a', b'x')])
    >>> checked(Outgoing(b"k", 7))
    Traceback (most recent call last):
        ...
    ValueError: the message cannot be written: its type is int, and the format bytes takes bytes alone
    """
    key, value, headers, timestamp, partition, topic = record
    if not (topic is None or isinstance(topic, str)):
        raise ValueError(f"the topic {topic!r:.40} is not text")
    return Outgoing(
        _write_key(key), _write_message(value), headers_of(headers), timestamp_of(timestamp), partition, topic
    )


_write_key, _write_message = encoder("bytes", "the key"), encoder("bytes", "the message")


def field_mapper(fields: Sequence[str], settings: Mapping[str, Any]) -> Maker:
    """Return what makes records by the names of fields.

    Args:
        fields: those of the input.
        settings: the scope ``produce``; a field of the key that the input does not have means null keys.

    Raises:
        ConfigError: a field is missing that the settings name, or that of the message.

    >>> names = {"message_field": "message", "key_field": "key", "key_format": "utf8", "message_format": "json"}
    >>> make = field_mapper(["message", "key"], names)
    >>> make(([1], "k"))[:2]
    (b'k', b'[1]')
    """
    places = {name: place for place, name in enumerate(fields)}

    def place_of(setting: str) -> int | None:
        name = settings.get(setting)
        if name is None:
            return None
        if name not in places:
            raise ConfigError(
                f"produce.{setting} = {name!r}, and the input has the fields {', '.join(fields)}",
                cure="name one of them",
            )
        return places[name]

    message = place_of("message_field")
    if message is None:
        raise ConfigError("produce.message_field is not set", cure="message_field='value', say")
    key_name = settings["key_field"]
    key = places.get(key_name) if key_name == "key" else place_of("key_field")
    headers, time, partition = place_of("headers_field"), place_of("timestamp_field"), place_of("partition_field")
    write_key, write = encoder(settings["key_format"], "the key"), encoder(settings["message_format"], "the message")
    is_plain = headers is None and time is None and partition is None

    def make_plain(values: Any) -> Outgoing:
        return Outgoing(None if key is None else write_key(values[key]), write(values[message]))

    def make(values: Any) -> Outgoing:
        return Outgoing(
            None if key is None else write_key(values[key]),
            write(values[message]),
            () if headers is None else headers_of(values[headers]),
            None if time is None else timestamp_of(values[time]),
            None if partition is None else values[partition],
        )

    return make_plain if is_plain else make


def function_mapper(setting: str, path: str) -> Maker:
    """Return what makes records by a user's function: of a tuple's values an :class:`Outgoing`, or (key, message).

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
