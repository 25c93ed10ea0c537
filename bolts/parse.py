"""JsonParseBolt, CsvParseBolt and RegistryParseBolt: parse a value, and emit the fields that you name.

What becomes of a value:

* A JSON object becomes one tuple: ``origin``, then the named fields in order. A field whose key is missing is None.
* null (a Kafka tombstone) becomes one tuple with None for each named field. With ``on_null="filter"`` it is acked
  without a tuple, and counted as ``filtered``.
* Any other value is rejected, and emitted on the stream ``rejects``: it is no JSON object, is invalid UTF-8 or, with
  ``types``, has a field that does not fit its type. If no bolt reads that stream, the tuple fails with the record's
  coordinates, and the spout retries and dead-letters the record.

A null value means that its key was deleted. The key is not part of the value: ``carry=["key"]`` adds it to each tuple,
after ``origin``; other input fields can be carried, too. If a type is required (``int64!``), a row of nulls is
impossible: then null values are filtered, with one warning.

``field=key`` gives a field a name other than its key. A key called ``origin`` needs this, because the field ``origin``
carries the row's identity: ``fields=["carrier", "from_airport=origin"]``. The key may be a path to a nested value:
``user_id=user.id``, ``first_sku=items[0].sku`` (:mod:`downspout.parse.json`).

Without ``types`` a field keeps the type that it has in the JSON. With ``types`` each field has the type of a sink's
column (``{"dep_delay": "int16"}``), and whole chunks are parsed at once, with the same result as record by record.
Without them a chunk is taken apart into records.

CsvParseBolt does the same with one line of RFC 4180, without a header. Its ``fields`` name the line's fields, in order;
``-`` leaves a field out. Without ``types`` fields are text, and an empty field is None (``downspout/parse/csv.py``).

RegistryParseBolt does the same with values that were written with a schema registry
(``downspout/parse/registry_client.py``).
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import pyarrow as pa
from streamparse import Stream
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.component import Bolt, input_fields
from downspout.errors import USER_ERRORS, ConfigError, TopologyError, coordinates
from downspout.ledger.origin import Origin
from downspout.origins import origin_at
from downspout.parse.avro import read_schema
from downspout.parse.chunk_bolt import REJECT_FIELDS, REJECTS, Rejects
from downspout.parse.csv import SKIPPED, CsvParser, fields_of
from downspout.parse.json import JsonParser, Paths, parse_objects, parse_path, read_object
from downspout.parse.parser import ChunkParser, read_some
from downspout.parse.registry_client import Documents, Registry, RegistryParser, read_fields
from downspout.settings.options import ParseOptions
from downspout.settings.secrets import with_secrets
from downspout.settings.table import SETTINGS, parse_scope
from downspout.sink.schema import Columns

__all__ = ["CsvParseBolt", "JsonParseBolt", "RegistryParseBolt", "split_fields"]


def split_fields(fields: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the output fields, and what fills them: keys of an object, or paths into it.

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
            raise ConfigError(f"parse.fields: {field!r} names no field", cure="`field`, `field=key` or `field=key.key`")
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
    """Return the typed columns of the fields, in the order of the fields.

    Raises:
        ConfigError: a field has no type, a type belongs to no field, or a type is unknown.

    >>> typed(["carrier", "delay"], ["delay:int16", "carrier:string!"]).schema.names
    ['carrier', 'delay']
    """
    given = {column.name: column for column in Columns.parse(types, setting="parse.types").columns}
    if missing := [name for name in names if name not in given]:
        raise ConfigError(
            f"parse.types names no type for {', '.join(missing)}", cure="a type for each field, or no types at all"
        )
    if strangers := [name for name in given if name not in names]:
        raise ConfigError(f"parse.types: {', '.join(strangers)} is not a field", cure=f"one of {', '.join(names)}")
    return Columns([given[name] for name in names])


def carried(config: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return the input fields that are passed on unchanged.

    Raises:
        ConfigError: the tuple has a field of that name already.

    >>> carried({"parse.carry": ["key"]}, ["carrier"])
    ('key',)
    """
    fields = SETTINGS["parse.carry"].parse(config.get("parse.carry") or [], "spec")
    for index, field in enumerate(fields):
        if field in ("origin", *names, *fields[:index]):
            known = f"`{field}_parsed={field}` in fields" if field in names else "each field once, without origin"
            raise ConfigError(f"parse.carry: the tuple has a field {field!r} already", cure=known)
    return tuple(fields)


class ParseBolt(Bolt):
    """Base of the parse bolts: settings, streams, records and chunks."""

    settings_scopes: ClassVar[tuple[str, ...]] = ("parse",)
    requires: ClassVar[tuple[str, ...]] = ("origin", "value")

    @classmethod
    def spec(  # type: ignore[override]  # the base takes any settings, so that subclasses can declare theirs
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | dict[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[ParseOptions],
    ) -> ShellBoltSpec:
        """Put the bolt into a topology.

        Args:
            name: name of the component (default: that of the topology's attribute).
            inputs: streamparse's inputs; their tuples have the fields ``origin`` and ``value``.
            par: number of tasks.
            config: Storm's settings for this component, and Downspout's with their prefix.
            settings: settings without the prefix ``parse.``; ``types`` may be a dict such as
                ``{"carrier": "string", "delay": "int16"}``.

        Raises:
            ConfigError: a setting is unknown or malformed.
        """
        if isinstance(types := settings.get("types"), Mapping):
            settings["types"] = [f"{field}:{kind}" for field, kind in types.items()]
        return super().spec(name, inputs, par, config, **settings)

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Stream]:
        """Return two streams: ``origin``, carried fields and ``parse.fields``; and the rejects.

        Raises:
            ConfigError: ``parse.fields`` is not set, or a setting is malformed.
        """
        if not config.get("parse.fields"):
            raise ConfigError("parse.fields is not set", cure='fields=["carrier", "dep_delay"]')
        names = cls.names_of(SETTINGS["parse.fields"].parse(config["parse.fields"], "spec"))
        cls.columns_of(config)
        return [
            Stream(fields=["origin", *carried(config, names), *names]),
            Stream(fields=list(REJECT_FIELDS), name=REJECTS),
        ]

    @classmethod
    def requires_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields that each input stream must have."""
        return (*cls.requires, *(field for field in carried(config, ()) if field not in cls.requires))

    @classmethod
    @abstractmethod
    def names_of(cls, fields: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the output fields; a ConfigError says what is wrong with them."""

    @abstractmethod
    def parser_of(self, settings: Mapping[str, Any], columns: Columns) -> ChunkParser:
        """Return a parser of values into columns."""

    @abstractmethod
    def read(self, value: Any) -> Sequence[Any]:
        """Return the untyped fields of one value; raise ValueError if it cannot be read."""

    @classmethod
    def columns_of(cls, conf: Mapping[str, Any]) -> Columns | None:
        """Return the columns that a configuration declares; None without types.

        Raises:
            ConfigError: a field or a type is malformed.
        """
        fields, types = (SETTINGS[key].parse(conf.get(key), "spec") for key in ("parse.fields", "parse.types"))
        return typed(cls.names_of(fields or ()), types) if types else None

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings.

        Raises:
            TopologyError: an input lacks a field that is carried.
        """
        self.settings = parse_scope(storm_conf, "parse")
        columns = self.columns_of(storm_conf)
        self._parser = self.parser_of(self.settings, columns) if columns is not None else None
        if columns is None:
            self.process_chunk = None  # type: ignore[method-assign,assignment]   # the engine takes chunks apart
        self._rejects = Rejects(self, storm_conf, context)
        names = self.names_of(self.settings["fields"])
        self._kept = ("origin", *carried(storm_conf, names))
        for (source, stream), given in input_fields(context).items():
            if lacks := [field for field in self._kept if field not in given]:
                raise TopologyError(
                    f"{self.component_name}: stream {stream!r} of {source!r} lacks {', '.join(map(repr, lacks))}, "
                    "which parse.carry names",
                    cure=f"fields={json.dumps([*given, *lacks])} of {source!r}",
                )
        self._nothing = (None,) * len(names)
        required = [column.name for column in columns.columns if column.required] if columns is not None else []
        wants_rows = self.settings["on_null"] == "row"
        self._has_null_rows = wants_rows and not required
        self._unsaid = required if wants_rows else []
        self._filtered = 0

    def process(self, tup: Any) -> None:
        """Emit the record's fields.

        Raises:
            RecordError: the value cannot be read, or does not fit its types; names the record's coordinates.
        """
        value = tup.values.value
        self._rejects.seen += 1
        if value is None and not self._has_null_rows:
            self._filter(1, tup.values.origin)
            return
        try:
            fields = self._nothing if value is None else self._read_one(value)
        except ValueError as error:
            self._rejects.of_record(tup, str(error), error)
            return
        self.emit([*self._head(tup.values), *fields])

    def _read_one(self, value: Any) -> Sequence[Any]:
        return self.read(value) if self._parser is None else self._parser.parse_one(value)

    def _head(self, values: Any) -> tuple[Any, ...]:
        """Return ``origin`` and the carried fields."""
        return (values.origin, *(getattr(values, field) for field in self._kept[1:]))

    def _filter(self, count: int, first: Any) -> None:
        """Count null values that make no row; warn once if ``parse.on_null`` is not ``filter``."""
        self._filtered += count
        if self._unsaid:
            origin, required = Origin.of(first), ", ".join(self._unsaid)
            self._unsaid = []
            self.logger.warning(
                "%s: %s: null values, which tell of deletes, are filtered from here on: no row can be null, as "
                "parse.types requires %s. Try: a type without !, or parse.on_null=filter to silence this warning",
                coordinates(origin.topic, origin.partition, origin.offset), self.component_name, required,
            )  # fmt: skip

    def process_many(self, tups: Sequence[Any]) -> int:
        """Emit the fields of records, up to the first whose tuple must fail; ``process`` handles that one."""
        records = [tup[4] for tup in tups]
        values = [record.value for record in records]
        rows: list[Sequence[Any]] = []
        anchors: list[Any] = []
        at = 0
        while at < len(tups):
            found = self._rows_of(records[at:], values[at:])
            rows += found
            anchors += tups[at : at + len(found)]
            at += len(found)
            if at == len(tups) or not self._makes_no_row(tups[at], values[at]):
                break
            at += 1
        if rows:
            self.emit_many(rows, anchors)
        return at

    def _rows_of(self, records: Sequence[Any], values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the rows to emit for records, up to the first record without fields."""
        has_nulls = None in values and self._has_null_rows
        found = self._read_around_nulls(values) if has_nulls else self.read_many(values)
        self._rejects.seen += len(found)
        if len(self._kept) == 1:
            return [(record.origin, *fields) for record, fields in zip(records, found, strict=False)]
        return [(*self._head(record), *fields) for record, fields in zip(records, found, strict=False)]

    def _makes_no_row(self, tup: Any, value: Any) -> bool:
        """Filter a null, or emit an unreadable record as a reject; return whether either was done."""
        if value is None and not self._has_null_rows:
            self._rejects.seen += 1
            self._filter(1, tup.values.origin)
            return True
        if value is None or not self._rejects.takes_another:
            return False
        try:
            self._read_one(value)
        except ValueError as error:
            self._rejects.seen += 1
            self._rejects.of_record(tup, str(error), error)
            return True
        return False

    def _read_around_nulls(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the fields of these values (all None for a null), up to the first that cannot be read."""
        read = iter(self.read_many([value for value in values if value is not None]))
        found: list[Sequence[Any]] = []
        for value in values:
            if (fields := self._nothing if value is None else next(read, None)) is None:
                break
            found.append(fields)
        return found

    def read_many(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the fields of these values, up to the first that is null or cannot be read."""
        if self._parser is None:
            return read_some(self.read, values)
        with contextlib.suppress(*USER_ERRORS):
            return self._parser.parse_many(values)
        return []

    def process_chunk(self, tup: Any) -> None:
        """Emit the columns of a chunk's records; emit unreadable records as rejects.

        Raises:
            RecordError: a record is rejected, and no bolt reads the rejects; names the first.
        """
        chunk: pa.RecordBatch = tup.values
        assert self._parser is not None  # for the type checker: without types there is no process_chunk
        self._rejects.seen += chunk.num_rows
        found = self._parser.parse(chunk.column("value"))
        self._rejects.of_chunk(chunk, found.rejected)
        if found.filtered and self._has_null_rows:
            found = found.with_nulls(chunk.column("value"))
        elif found.filtered:
            first = chunk.column("value").is_null().index(True).as_py()
            self._filter(found.filtered, origin_at(chunk.column("origin"), first))
        if not len(found.rows):
            return
        kept: list[Any] = [chunk.column(field) for field in self._kept]
        if len(found.rows) < chunk.num_rows:
            kept = [column.take(pa.array(found.rows)) for column in kept]
        fields = [pa.field(name, column.type) for name, column in zip(self._kept, kept, strict=True)]
        schema = pa.schema([*fields, *found.batch.schema])
        self.emit(pa.RecordBatch.from_arrays([*kept, *found.batch.columns], schema=schema))

    def report(self) -> Mapping[str, float]:
        """Return how many null values were filtered, and how many records were rejected, if a bolt reads them."""
        rejected = {"rejected": self._rejects.count} if self._rejects.is_read else {}
        return {"filtered": self._filtered, **rejected}


class JsonParseBolt(ParseBolt):
    """Reads the tuple fields ``origin`` and ``value``; emits ``origin`` and the fields named in ``parse.fields``.

    >>> JsonParseBolt.spec(fields=["carrier"]).outputs["default"].output_fields
    ['origin', 'carrier']
    """

    makes_floats: ClassVar[bool] = True
    """Without types a number with a fraction is a float, of 15 digits or so; `downspout check` looks at it."""

    @classmethod
    def names_of(cls, fields: Sequence[str]) -> tuple[str, ...]:
        """Return the names in ``name=path``."""
        names, paths = split_fields(fields)
        for name, path in zip(names, paths, strict=True):
            steps = parse_path(path)
            if name == path and steps != (name,):
                raise ConfigError(
                    f"parse.fields: {path!r} says where a value stands, but not what the field is called",
                    cure=f"{'_'.join(map(str, steps))}={path}",
                )
        return names

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings."""
        super().initialize(storm_conf, context)
        self._paths = Paths(split_fields(self.settings["fields"])[1])

    def parser_of(self, settings: Mapping[str, Any], columns: Columns) -> ChunkParser:
        """Return a parser of JSON."""
        return JsonParser(Paths(split_fields(settings["fields"])[1]), columns)

    def read(self, value: Any) -> Sequence[Any]:
        """Return the values of the fields."""
        return read_object(value, self._paths)

    def read_many(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the fields of these values, up to the first that is null or cannot be read."""
        if self._parser is not None or type(self).read is not JsonParseBolt.read:
            return super().read_many(values)
        return parse_objects(values, self._paths)


class RegistryParseBolt(JsonParseBolt):
    """Parses values written with a schema registry: Avro, Protobuf or JSON Schema, by the schema of each value.

    Fields are named as for :class:`JsonParseBolt`, with paths into nested records. While the registry is down, a value
    whose schema is not cached yet is retried without limit; other values go on.

    >>> RegistryParseBolt.spec(fields=["carrier"], registry="http://registry:8081").outputs["default"].output_fields
    ['origin', 'carrier']
    """

    makes_floats: ClassVar[bool] = False

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Stream]:
        """Return the streams of a parse bolt.

        Raises:
            ConfigError: there is no registry, or the fields are not right.
        """
        if not config.get("parse.registry"):
            raise ConfigError("parse.registry is not set", cure='registry="http://registry:8081"')
        return super().outputs_of(config)

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings; the first value triggers the first request to the registry."""
        conf = with_secrets(storm_conf)
        settings = parse_scope(conf, "parse")
        if (reader_schema := settings["reader_schema"]) is not None:
            read_schema(reader_schema)
        self._registry = Registry(settings["registry"], settings["registry_password"])
        self._documents = Documents(self._registry, reader_schema)
        super().initialize(conf, context)

    def parser_of(self, settings: Mapping[str, Any], columns: Columns) -> ChunkParser:
        """Return a parser of documents."""
        return RegistryParser(self._documents, Paths(split_fields(settings["fields"])[1]), columns)

    def read(self, value: Any) -> Sequence[Any]:
        """Return the values of the fields."""
        return read_fields(value, self._documents, self._paths)

    def close(self) -> None:
        """Close the connections."""
        if hasattr(self, "_registry"):
            self._registry.close()


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
    """Return the delimiter between two fields.

    Raises:
        ConfigError: it is not one ASCII character, or it has another meaning in CSV.
    """
    if len(given) != 1 or not given.isascii() or given in '"\n\r\0':
        raise ConfigError(f"parse.delimiter = {given!r} is not a delimiter", cure="one character, such as ; or a tab")
    return given
