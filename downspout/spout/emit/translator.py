"""Translators: a function of the user's makes the tuples of a record. ``kafka.translator``.

Each entry of the setting says which topic (none: all others), which function, where its tuples go and what is in them::

    [topic=]module.function[(field field …)][@stream]

    orders=shop.orders.parse(origin id amount)@orders
    shop.fallback

A name without a dot is a scheme of the spout for Kafka 0.8 (``downspout.spout.emit.schemes``), with its own fields.
Without fields these are ``kafka.fields``; without a stream it is ``default``. The function gets the record, with key
and value as bytes (a null value is None), and returns None (no tuple, or with ``kafka.emit_null`` one of nulls), the
values of one tuple as a list, or a list of such lists (a list whose items are all lists is that; an empty one is no
tuple). Where ``origin`` is a field, it leaves that out and the spout fills it in, so that sinks are exactly-once: the
n-th of several tuples has ``translator.n`` as its origin's path.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from downspout.dead_letters.replayed import origin_of
from downspout.errors import ConfigError
from downspout.kafka.port import Record
from downspout.ledger.origin import Origin
from downspout.settings.import_path import load
from downspout.spout.emit import schemes
from downspout.spout.emit.schemes import SCHEMES
from downspout.spout.emit.tuple_maker import check_fields
from downspout.spout.hooks import Hooks
from downspout.spout.partition import Partition

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
            path, fields = f"{schemes.__name__}.{path}", declared if names is None else fields
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


def emit_rows(
    part: Partition, offset: int, rows: list[list[Any]], emit: Callable[..., Any], tup_id: str | None, hooks: Hooks
) -> int:
    """Emit the tuples of one record, all under one id; return how many. The record is done when each has its answer."""
    if len(rows) > 1 and tup_id is not None:
        part.shared[offset] = (len(rows), None)
    for row in rows:
        hooks.emitted(part, offset, row)
        emit(row, tup_id=tup_id, stream=part.stream)
    if not rows and part.ledger.resolve(offset):
        hooks.done(part, offset)
    return len(rows)
