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

**Modes** (``kafka.emit``): a tuple holds one record, or a chunk of them. A third mode is a class here, and an emitter
beside ``emit_records`` and ``emit_chunks``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Any, ClassVar

import orjson

from downspout.clock import Clock
from downspout.component import WHY_RECORDS
from downspout.dead_letters.claims import origin_of
from downspout.errors import ConfigError
from downspout.kafka.port import Gathering, Record
from downspout.ledger.origin import Origin
from downspout.settings.table import SETTINGS, load, parse_scope
from downspout.spout.emit_records import RecordEmitter, UntrackedEmitter
from downspout.spout.partition import Makers
from downspout.spout.settings import EmitMode

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
    replayed record is that of the record it stands for (see :mod:`downspout.dead_letters.replay`).

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
                f"kafka.translator: {self.path} cannot be called with one record",
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
            f"kafka.translator: {', '.join(fields) or 'nothing'!r} are not fields", cure="names, each once"
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
        raise ConfigError(f"kafka.translator has no entry for topic {topic}, and no default", cure="module.function")
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
COLUMN_FORMATS = ("utf8", "bytes")
"""The formats of keys and values that have a column of one type."""
GATHER_BYTES, GATHER_MS = 512 * 1024, 125
"""How much a broker gathers for a fetch of chunks, and how long it waits for that at most. A chunk costs 1 to 2 ms
whatever it holds: with 128 KiB, a stream of 20,000 records/s came in 27 fetches a second of four chunks each, at twice
the cost of eight fetches. A spout that lags, or a faster stream, never waits."""
FETCH_BYTES_MAX = {"max_partition_fetch_bytes": 1024 * 1024, "fetch_max_bytes": 50 * 1024 * 1024}
"""The limits of a fetch, and the client's defaults."""


class RecordMode(EmitMode):
    """Each record is a tuple."""

    name: ClassVar[str] = "record"
    columns: ClassVar[bool] = False

    def room(self, settings: Mapping[str, Any], pending_max: int, out: int, in_flight: Callable[[], int]) -> int:
        """See :class:`EmitMode`. Being called says that one more may leave, whatever was counted here."""
        return max(1, pending_max - out)

    def makers(self, settings: Mapping[str, Any], topic: str, topic_id: str) -> Makers:
        """See :class:`EmitMode`."""
        replays = settings["honour_replays"]
        if translator := translator_of(settings, topic):
            return Makers(translator.maker(topic_id, settings["emit_null"], replays), stream=translator.stream)
        formats = (settings["fields"], settings["key_format"], settings["value_format"])
        return Makers(tuple_maker(*formats, topic_id, replays), rows_maker(*formats, topic_id, replays))

    def emitter(self, services: Any, component: str, clock: Clock, **parts: Any) -> RecordEmitter | UntrackedEmitter:
        """See :class:`EmitMode`; without acks to go by, another emitter."""
        if not services.setup.guarantee.tracks:
            return UntrackedEmitter(services, component, clock)
        return RecordEmitter(services, component, clock, **parts)


class ChunkMode(RecordMode):
    """A tuple is a range of records of one partition, as columns; one that fails is split."""

    name: ClassVar[str] = "chunk"
    columns: ClassVar[bool] = True

    def check(self, settings: Mapping[str, Any]) -> None:
        """See :class:`EmitMode`."""
        if settings["guarantee"] != "AT_LEAST_ONCE":
            raise ConfigError(
                f"kafka.emit = chunk depends on acks, which kafka.guarantee = {settings['guarantee']} ignores",
                cure="kafka.guarantee=AT_LEAST_ONCE, or kafka.emit=record",
            )
        if settings["translator"]:
            raise ConfigError(
                "kafka.translator makes tuples from single records, which kafka.emit = chunk does not emit",
                cure="a bolt with process_chunk, or kafka.emit=record",
            )
        for name in ("key_format", "value_format"):
            if settings[name] not in COLUMN_FORMATS:
                raise ConfigError(
                    f"kafka.{name} = {settings[name]} has a type for each record, but a column has one type",
                    cure=f"kafka.{name}=utf8 and JsonParseBolt, or kafka.emit=record",
                )

    def check_transactional(self, settings: Mapping[str, Any], sink: str) -> None:
        """See :class:`EmitMode`."""
        if not settings["retries_max"]:
            raise ConfigError(
                f"{sink}: with chunks, retries find the record that fails",
                cure="kafka.retries_max of at least 1, or kafka.emit=record",
            )

    def fit(self, settings: dict[str, Any], pending_max: int) -> dict[str, Any]:
        """See :class:`EmitMode`."""
        if pending_max:  # which counts records; a chunk is not to be more than a part of it
            settings["chunk_records_max"] = max(1, min(settings["chunk_records_max"], pending_max // 2))
        settings["poll_records_max"] = max(settings["poll_records_max"], settings["chunk_records_max"])
        return settings

    def gathering(self, client: Mapping[str, Any]) -> Gathering | None:
        """Return how much a broker gathers for a fetch; None if the user has set the client's own properties for that.

        Never more than half of what a fetch may bring: a broker that cannot reach the number waits in vain each time.

        >>> ChunkMode().gathering({}), ChunkMode().gathering({"max_partition_fetch_bytes": 65536})
        (Gathering(min_bytes=524288, wait_ms=125), Gathering(min_bytes=32768, wait_ms=125))
        """
        if "fetch_min_bytes" in client or "fetch_max_wait_ms" in client:
            return None
        most = min(int(client.get(name, default)) for name, default in FETCH_BYTES_MAX.items())
        return Gathering(max(1, min(GATHER_BYTES, most // 2)), GATHER_MS)

    def room(self, settings: Mapping[str, Any], pending_max: int, out: int, in_flight: Callable[[], int]) -> int:
        """See :class:`EmitMode`. Storm counts each chunk as one tuple; here, their records count."""
        chunk: int = settings["chunk_records_max"]
        return max(0, -((in_flight() - pending_max) // chunk))

    def makers(self, settings: Mapping[str, Any], topic: str, topic_id: str) -> Makers:
        """See :class:`EmitMode`."""
        from downspout.spout.emit_chunks import ChunkMaker  # which loads Arrow

        formats = (settings["fields"], settings["key_format"], settings["value_format"])
        make_chunk = ChunkMaker(*formats, topic_id, settings["honour_replays"])
        return super().makers(settings, topic, topic_id)._replace(make_chunk=make_chunk)

    def emitter(self, services: Any, component: str, clock: Clock, **parts: Any) -> RecordEmitter:
        """See :class:`EmitMode`."""
        from downspout.spout.emit_chunks import ChunkEmitter

        return ChunkEmitter(services, component, clock, **parts)


RECORDS, CHUNKS = RecordMode(), ChunkMode()
MODES: dict[str, EmitMode] = {mode.name: mode for mode in (RECORDS, CHUNKS)}


def mode_of(settings: Mapping[str, Any]) -> EmitMode:
    """Return the mode that settings of the scope ``kafka`` name; ``auto`` that nobody has resolved means records."""
    return MODES.get(settings["emit"], RECORDS)


def choose_mode(conf: Mapping[str, Any], component: str, foreign_serializer: str) -> tuple[EmitMode, str]:
    """Return the mode of a spout by its configuration; and the reason, if ``auto`` means records.

    On Storm the topology was looked at when it was submitted (``downspout.wire.specs``). A spout that nothing has
    looked at emits records.

    Raises:
        ConfigError: chunks are asked for, on a pipe of Storm's whose serializer is not ours.
    """
    wanted: str = SETTINGS["kafka.emit"].parse(conf.get("kafka.emit"), "topology")
    if wanted in MODES:
        mode = MODES[wanted]
        if mode.columns and foreign_serializer:
            raise ConfigError(
                f"kafka.emit = {wanted}: {foreign_serializer} cannot send columns",
                cure="streamparse's JSON serializer, or kafka.emit=record",
            )
        return mode, ""
    if foreign_serializer:
        return RECORDS, f"{foreign_serializer} cannot send columns"
    why = (conf.get(WHY_RECORDS) or {}).get(component)
    if why is None:
        return RECORDS, ""
    why = why or why_records(parse_scope(conf, "kafka"), conf.get("run.records"))
    return (RECORDS, why) if why else (CHUNKS, "")


def why_records(settings: Mapping[str, Any], run_records: object = None) -> str:
    """Return which of its settings makes a spout emit records; empty: it may emit chunks.

    Args:
        settings: those of the scope ``kafka``, parsed.
        run_records: the value of ``run.records``.
    """
    try:
        CHUNKS.check(settings)
    except ConfigError as error:
        return error.message.replace("kafka.emit = chunk", "a chunk")
    if settings["retries_max"] == 0:
        return "with kafka.retries_max = 0 the failing record of a chunk cannot be found"
    return "run.records counts tuples" if run_records else ""
