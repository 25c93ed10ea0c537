"""From a Kafka record to the values of a tuple: fields and formats, or a user's translator.

**Fields and formats** (``kafka.fields``, ``kafka.key_format``, ``kafka.value_format``) are prepared once, so that a
record costs little.

**A translator** (``kafka.translator``) is a user's function that makes the tuples of a record. Each entry of the
setting names a topic (none: all others), a function, the fields and the stream of its tuples::

    [topic=]module.function[(field field …)][@stream]

    orders=shop.orders.parse(origin id amount)@orders
    shop.fallback

A name without a dot is a scheme of the spout for Kafka 0.8, such as ``string``, with its own fields. Without fields,
``kafka.fields`` holds; without a stream, ``default``. The function gets the record, with key and value as bytes (a
null value is None). It returns None (no tuple, or with ``kafka.emit_null`` one of nulls), the values of one tuple as a
list, or a list of such lists (a list whose items are all lists is that; an empty one is no tuple). If ``origin`` is a
field, the function leaves it out and the spout fills it in, so that sinks are exactly-once: the n-th of several tuples
gets ``translator.n`` as its origin's path.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Any

import orjson

from downspout.dead_letters.replayed import origin_of
from downspout.errors import ConfigError
from downspout.kafka.port import Record
from downspout.ledger.origin import Origin
from downspout.settings.import_path import load

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


ENTRY = re.compile(r"(?:([^=()@]+)=)?([\w.]+)(?:\(([^()]*)\))?(?:@([\w-]+))?")
STEP = "translator"


@dataclass(frozen=True, slots=True)
class Translator:
    """One entry of the setting; ``topic`` is empty where it is the default."""

    topic: str
    path: str
    fields: tuple[str, ...]
    stream: str

    def function(self) -> Callable[[Record], Any]:
        """Return the user's function."""
        function = load("kafka.translator", self.path)
        if not callable(function):
            raise ConfigError(
                f"kafka.translator: {self.path} is not a function", cure="record -> list of values, or None"
            )
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            raise ConfigError(
                f"kafka.translator: {self.path} cannot be called with a record alone",
                cure="record -> list of values, or None",
            ) from None
        except ValueError:  # some functions that are written in C do not say what they take
            pass
        return function  # type: ignore[no-any-return]

    def maker(self, topic_id: str, emit_null: bool, honour_replays: bool) -> Callable[[Record], list[list[Any]]]:
        """Return a function that makes the tuples of a record of a topic.

        It raises what the user's function raises, and a ValueError where a tuple has another length than its fields.

        Raises:
            ConfigError: there is no such function.
        """
        function = self.function()
        at = self.fields.index("origin") if "origin" in self.fields else -1
        count = len(self.fields) - (at >= 0)

        def make(record: Record) -> list[list[Any]]:
            made = function(record)
            rows: list[list[Any]] = [[None] * count] if made is None and emit_null else _rows(made)
            for row in rows:
                if len(row) != count:
                    raise ValueError(f"{self.path} returned {len(row)} values for {count} fields: {row!r}"[:500])
            if at >= 0:
                own = Origin(record.topic, topic_id, record.partition, record.offset)
                origin = (origin_of(record, topic_id) if honour_replays and record.headers else None) or own
                for index, row in enumerate(rows):
                    row.insert(at, origin if len(rows) == 1 else origin.child(STEP, index))
            return rows

        return make


def _rows(made: Any) -> list[list[Any]]:
    """Return the tuples, whichever way the function said them, as lists of our own.

    >>> _rows(None), _rows([1, "a"]), _rows([[1], [2]]), _rows([])
    ([], [[1, 'a']], [[1], [2]], [])
    """
    if made is None:
        return []
    if not isinstance(made, list | tuple):
        raise ValueError(f"a translator returned {type(made).__name__}, not a list of values")
    if made and all(isinstance(row, list | tuple) for row in made):
        return [list(row) for row in made]
    return [list(made)] if made else []


def check_translators(settings: Mapping[str, Any]) -> tuple[Translator, ...]:
    """Return the entries of ``kafka.translator``; there are none where it is not set."""
    found: list[Translator] = []
    for entry in settings["translator"] or ():
        if (match := ENTRY.fullmatch(entry.strip())) is None:
            raise ConfigError(
                f"kafka.translator: {entry!r} is malformed", cure="[topic=]module.function[(a b)][@stream]"
            )
        topic, path, names, stream = match.groups()
        fields = settings["fields"] if names is None else re.split(r"[\s,]+", names.strip())
        if (declared := SCHEMES.get(path)) is not None:
            path, fields = f"{__name__}.{path}", declared if names is None else fields
        check_names(fields)
        made = Translator((topic or "").strip(), path, tuple(fields), stream or "default")
        if any(other.topic == made.topic for other in found):
            which = f"topic {made.topic}" if made.topic else "the default"
            raise ConfigError(f"kafka.translator names {which} twice", cure="one entry for each topic")
        if any(other.stream == made.stream and other.fields != made.fields for other in found):
            raise ConfigError(
                f"kafka.translator gives stream {made.stream} two lists of fields", cure="one list for each stream"
            )
        found.append(made)
    if not found:
        check_fields(settings["fields"])
    return tuple(found)


def check_names(fields: Sequence[str]) -> None:
    """Raise a ConfigError where a field of a translator is no name, or comes twice."""
    if not fields or len(set(fields)) < len(fields) or not all(field.isidentifier() for field in fields):
        raise ConfigError(
            f"kafka.translator: {', '.join(fields) or 'nothing'!r} are no fields", cure="names, each once"
        )


def streams(settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the fields of each stream that the spout emits on."""
    translators = check_translators(settings)
    return {made.stream: made.fields for made in translators} or {"default": tuple(settings["fields"])}


def translator_of(settings: Mapping[str, Any], topic: str) -> Translator | None:
    """Return what translates a topic; None where ``kafka.fields`` and the formats do."""
    translators = check_translators(settings)
    by_topic = {made.topic: made for made in translators}
    found = by_topic.get(topic) or by_topic.get("")
    if found is None and translators:
        raise ConfigError(f"kafka.translator has nothing for topic {topic}, and no default", cure="module.function")
    return found


def raw(record: Record) -> list[Any]:
    """``RawMultiScheme``: the value as it is."""
    return [record.value]


def string(record: Record) -> list[Any]:
    """``StringScheme``: the value as text."""
    return [_text(record.value)]


def string_with_topic(record: Record) -> list[Any]:
    """``StringMultiSchemeWithTopic``: the value as text, and the topic."""
    return [_text(record.value), record.topic]


def string_key_value(record: Record) -> list[Any]:
    """``StringKeyValueScheme``: a mapping of the key to the value, both as text; without a key the value alone."""
    text = _text(record.value)
    return [text if record.key is None else {_text(record.key): text}]


def string_with_metadata(record: Record) -> list[Any]:
    """``StringMessageAndMetadataScheme``: the value as text, the partition and the offset."""
    return [_text(record.value), record.partition, record.offset]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


SCHEMES: dict[str, tuple[str, ...]] = {
    "raw": ("bytes",),
    "string": ("str",),
    "string_with_topic": ("str", "topic"),
    "string_key_value": ("str",),
    "string_with_metadata": ("str", "partition", "offset"),
}
"""The fields that each declares."""
