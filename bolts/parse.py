"""JsonParseBolt and CsvParseBolt: a JSON object, or a line of CSV, in; the fields you name out.

What becomes of a value:

=============================================  =================================================================
the value                                      what happens
=============================================  =================================================================
a JSON object                                  one tuple: ``origin``, then the named fields in order
an object without one of the keys              that field is None
null (a Kafka tombstone)                       no tuple; acked and counted as ``filtered``
not JSON, not UTF-8, or JSON but not an        rejected: it leaves on the stream ``rejects``; where nobody reads that,
object; with ``types`` also a field that does  the tuple fails with the record's coordinates, and the spout retries
not fit its type                               it and then writes it to the dead-letter topic
=============================================  =================================================================

A field may be named other than its key, ``field=key``. That is needed where a key is called ``origin``,
because that name carries the row's identity: ``fields=["carrier", "from_airport=origin"]``.

Without ``types`` a field is what it is in the JSON: a text, a number, a list. With ``types`` each field has the type
of a column (``{"dep_delay": "int16"}``; the same as a sink's), and whole chunks are parsed at once, into just what
their records would have been one by one. Without them a chunk is taken apart into records: no type, no column.

CsvParseBolt does the same with a value that is one line of RFC 4180, without a header. Its ``fields`` are those of the
line, in order, with ``-`` for one that nobody wants. Without ``types`` they are texts, and an empty one is None; with
them numbers are numbers (``downspout/chunks/csv.py`` says what a line is, and what a number).
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from streamparse import Stream
from streamparse.dsl.bolt import ShellBoltSpec

from downspout import config as configuration
from downspout.chunks.csv import SKIPPED, CsvParser, fields_of
from downspout.chunks.json import JsonParser, parse_object, parse_objects, read_object
from downspout.chunks.parser import ChunkParser, read_some
from downspout.chunks.rejects import REJECT_FIELDS, REJECTS, Rejects
from downspout.component import Bolt
from downspout.errors import USER_ERRORS, ConfigError
from downspout.parquet.schema import Columns

__all__ = ["CsvParseBolt", "JsonParseBolt", "parse_object", "split_fields"]


def split_fields(fields: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the output fields and the keys of the object that fill them.

    Raises:
        ConfigError: a field is named twice, has no name, or is called ``origin``.

    >>> split_fields(["carrier", "from_airport=origin"])
    (('carrier', 'from_airport'), ('carrier', 'origin'))
    """
    names, keys = [], []
    for field in fields:
        name, equals, key = field.partition("=")
        name, key = name.strip(), (key if equals else name).strip()
        if not name or not key:
            raise ConfigError(f"parse.fields: {field!r} names no field", cure="`field` or `field=key`")
        if name == "origin":
            raise ConfigError(
                "parse.fields: the field `origin` carries the row's identity",
                cure=f"another name for it: `from_{key}={key}`",
            )
        if name in names:
            raise ConfigError(f"parse.fields names {name!r} twice", cure="one name per field")
        names.append(name)
        keys.append(key)
    return tuple(names), tuple(keys)


def typed(names: Sequence[str], types: Sequence[str]) -> Columns:
    """Return the columns that the fields become, in the order of the fields.

    Raises:
        ConfigError: a field has no type, a type belongs to no field, or there is no such type.

    >>> typed(["carrier", "delay"], ["delay:int16", "carrier:string!"]).schema.names
    ['carrier', 'delay']
    """
    given = {column.name: column for column in Columns.parse(types, setting="parse.types").columns}
    if missing := [name for name in names if name not in given]:
        raise ConfigError(
            f"parse.types names no type for {', '.join(missing)}", cure="a type for each field, or no types at all"
        )
    if strangers := [name for name in given if name not in names]:
        raise ConfigError(f"parse.types: {', '.join(strangers)} is no field", cure=f"one of {', '.join(names)}")
    return Columns([given[name] for name in names])


class ParseBolt(Bolt):
    """What both have in common: settings, streams, records and chunks."""

    settings_scopes: ClassVar[tuple[str, ...]] = ("parse",)
    requires: ClassVar[tuple[str, ...]] = ("origin", "value")

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> ShellBoltSpec:
        """Put the bolt into a topology.

        Args:
            name: default: the name of the topology's attribute.
            inputs: streamparse's inputs; their tuples have the fields ``origin`` and ``value``.
            par: how many tasks.
            config: Storm's settings for this component, and ours by their whole names.
            settings: those of ``downspout settings parse`` without the prefix; ``types`` may be a dict
                ``{"carrier": "string", "delay": "int16"}``.

        Raises:
            ConfigError: a setting is unknown or malformed.
        """
        if isinstance(types := settings.get("types"), Mapping):
            settings["types"] = [f"{field}:{kind}" for field, kind in types.items()]
        return super().spec(name, inputs, par, config, **settings)

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Stream]:
        """Return the stream of ``origin`` and the fields that ``parse.fields`` names, and that of rejects.

        Raises:
            ConfigError: there are none, or one is malformed.
        """
        if not config.get("parse.fields"):
            raise ConfigError("parse.fields is not set", cure='fields=["carrier", "dep_delay"]')
        names = cls.names_of(configuration.SETTINGS["parse.fields"].parse(config["parse.fields"], "spec"))
        cls.columns_of(config)
        return [Stream(fields=["origin", *names]), Stream(fields=list(REJECT_FIELDS), name=REJECTS)]

    @classmethod
    @abstractmethod
    def names_of(cls, fields: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the output fields; a ConfigError says what is wrong with them."""

    @abstractmethod
    def parser_of(self, settings: Mapping[str, Any], columns: Columns) -> ChunkParser:
        """Return what parses values into columns."""

    @abstractmethod
    def read(self, value: Any) -> Sequence[Any]:
        """Return the fields of one value, without types; a ValueError says why it is none."""

    @classmethod
    def columns_of(cls, conf: Mapping[str, Any]) -> Columns | None:
        """Return the columns that a configuration declares; None where it has no types.

        Raises:
            ConfigError: they are not right.
        """
        fields, types = (
            configuration.SETTINGS[key].parse(conf.get(key), "spec") for key in ("parse.fields", "parse.types")
        )
        return typed(cls.names_of(fields or ()), types) if types else None

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings."""
        self.settings = configuration.parse_scope(storm_conf, "parse")
        columns = self.columns_of(storm_conf)
        self._parser = self.parser_of(self.settings, columns) if columns is not None else None
        if columns is None:
            self.process_chunk = None  # type: ignore[method-assign,assignment]   # the engine takes chunks apart
        self._rejects = Rejects(self, storm_conf, context)
        self._filtered = 0

    def process(self, tup: Any) -> None:
        """Emit the record's fields.

        Raises:
            RecordError: the value is not as expected, or does not fit; names its place in Kafka.
        """
        value = tup.values.value
        self._rejects.seen += 1
        if value is None:
            self._filtered += 1
            return
        try:
            fields = self.read(value) if self._parser is None else self._parser.parse_one(value)
        except ValueError as error:
            self._rejects.of_record(tup, str(error), error)
            return
        self.emit([tup.values.origin, *fields])

    def process_many(self, tups: Sequence[Any]) -> int:
        """Emit the fields of records, up to the first that has none; its fate is the business of ``process``."""
        records = [tup[4] for tup in tups]
        found = self.read_many([record.value for record in records])
        self._rejects.seen += len(found)
        rows = [(record.origin, *fields) for record, fields in zip(records, found, strict=False)]
        self.emit_many(rows, tups[: len(rows)])
        return len(rows)

    def read_many(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the fields of these values, up to the first that is null or cannot be read."""
        if self._parser is None:
            return read_some(self.read, values)
        with contextlib.suppress(*USER_ERRORS):
            return self._parser.parse_many(values)
        return []

    def process_chunk(self, tup: Any) -> None:
        """Emit the columns of a chunk's records; those that are none leave as rejects.

        Raises:
            RecordError: there are some, and nobody reads rejects; names the first.
        """
        chunk: pa.RecordBatch = tup.values
        assert self._parser is not None  # for the type checker: without types there is no process_chunk
        found = self._parser.parse(chunk.column("value"))
        self._rejects.of_chunk(chunk, found.rejected)
        self._filtered += found.filtered
        if not len(found.rows):
            return
        origins: Any = chunk.column("origin")
        if len(found.rows) < chunk.num_rows:
            origins = origins.take(pa.array(found.rows))
        schema = pa.schema([pa.field("origin", origins.type), *found.batch.schema])
        self.emit(pa.RecordBatch.from_arrays([origins, *found.batch.columns], schema=schema))

    def report(self) -> Mapping[str, float]:
        """Return how many null values were passed over, and how many records were rejected, if they may be."""
        rejected = {"rejected": self._rejects.count} if self._rejects.is_read else {}
        return {"filtered": self._filtered, **rejected}


class JsonParseBolt(ParseBolt):
    """Reads the tuple fields ``origin`` and ``value``; emits ``origin`` and the fields named in ``parse.fields``.

    >>> JsonParseBolt.spec(fields=["carrier"]).outputs["default"].output_fields
    ['origin', 'carrier']
    """

    @classmethod
    def names_of(cls, fields: Sequence[str]) -> tuple[str, ...]:
        """Return the names in ``name=key``."""
        return split_fields(fields)[0]

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings."""
        super().initialize(storm_conf, context)
        _, self._keys = split_fields(self.settings["fields"])

    def parser_of(self, settings: Mapping[str, Any], columns: Columns) -> ChunkParser:
        """Return a parser of JSON."""
        return JsonParser(split_fields(settings["fields"])[1], columns)

    def read(self, value: Any) -> Sequence[Any]:
        """Return the values of the keys."""
        return read_object(value, self._keys)

    def read_many(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the fields of these values, up to the first that is null or cannot be read."""
        if self._parser is not None or type(self).read is not JsonParseBolt.read:
            return super().read_many(values)
        return parse_objects(values, self._keys)


class CsvParseBolt(ParseBolt):
    """Reads the tuple fields ``origin`` and ``value``; emits ``origin`` and the fields of the line.

    >>> CsvParseBolt.spec(fields=["carrier", "-", "delay"]).outputs["default"].output_fields
    ['origin', 'carrier', 'delay']
    """

    @classmethod
    def names_of(cls, fields: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the fields that are wanted."""
        if wrong := [field for field in fields if "=" in field]:
            raise ConfigError(f"parse.fields: {wrong[0]!r}: a field of CSV has no key", cure="its name alone")
        names = split_fields([field for field in fields if field != SKIPPED])[0]
        if not names:
            raise ConfigError("parse.fields names no field", cure='fields=["carrier", "-", "dep_delay"]')
        return names

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings."""
        super().initialize(storm_conf, context)
        fields = self.settings["fields"]
        self._width, self._delimiter = len(fields), check_delimiter(self.settings["delimiter"])
        self._wanted = [place for place, field in enumerate(fields) if field != SKIPPED]

    def parser_of(self, settings: Mapping[str, Any], columns: Columns) -> ChunkParser:
        """Return a parser of CSV."""
        return CsvParser(settings["fields"], columns, check_delimiter(settings["delimiter"]))

    def read(self, value: Any) -> Sequence[Any]:
        """Return the texts of the wanted fields."""
        fields = fields_of(value, self._width, self._delimiter)
        return [fields[place] for place in self._wanted]


def check_delimiter(given: str) -> str:
    """Return what stands between two fields.

    Raises:
        ConfigError: it is not one character of ASCII, or one that means something else.
    """
    if len(given) != 1 or not given.isascii() or given in '"\n\r\0':
        raise ConfigError(f"parse.delimiter = {given!r} is no delimiter", cure="one character, such as ; or a tab")
    return given
