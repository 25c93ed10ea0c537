"""LookupBolt: adds columns of a table to each tuple, by a key.

::

    flights = LookupBolt.spec(
        inputs=[parse],
        table="airlines.csv",
        key="carrier",                      # the tuple's field; carrier=code if the table's column is called code
        fields=["carrier", "dep_delay"],    # fields of the tuple to keep, besides origin
        add=["airline=name"],               # columns of the table to add, as name or field=name
    )

The table is a CSV file with a header, a Parquet file, or a folder of Parquet files. It is read once, when the bolt
starts; a new version is read after a restart. A column of CSV is text unless ``types`` says otherwise, so ``007`` stays
``007``. Empty text is null there, and so are the texts in ``nulls``. Each key may be in the table once.

A tuple whose key is null or not in the table gets nulls. With ``missing="reject"`` it leaves on the stream ``rejects``;
if no bolt reads that stream, the tuple fails, and its record is dead-lettered. Chunks are looked up column by column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import dataset
from streamparse import Stream
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.component import Bolt, input_fields
from downspout.errors import ConfigError, TopologyError
from downspout.origins import values_of
from downspout.parse.chunk_bolt import REJECT_FIELDS, REJECTS, Rejects
from downspout.settings.options import LookupOptions
from downspout.settings.table import SETTINGS, parse_scope
from downspout.sink.schema import Columns, Rejected

__all__ = ["LookupBolt", "LookupTable", "read_table"]

Values = tuple[Any, ...]


def read_table(
    path: Path, key: str, columns: Sequence[str], types: Sequence[str] = (), nulls: Sequence[str] = ()
) -> pa.Table:
    """Read the key and some columns of a table.

    Args:
        path: a CSV file with a header, a Parquet file, or a folder of Parquet files.
        key: its column; a row without it is left out.
        columns: the other columns to read.
        types: types of CSV columns, as ``column:type``; other columns are text.
        nulls: texts that mean null in CSV, besides the empty one.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or has a key twice; names it.
    """
    wanted = list(dict.fromkeys([key, *columns]))
    setting = f"lookup.table: {path}"
    try:
        if path.suffix.lower() in (".csv", ".txt", ".tsv"):
            table = _read_csv(path, wanted, types, nulls)
        else:
            found = dataset.dataset(path, format="parquet")
            _check_columns(setting, wanted, found.schema.names)
            table = found.to_table(columns=wanted)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ConfigError(f"{setting} cannot be read: {error}", cure="a CSV file with a header, or Parquet") from error
    table = table.filter(pc.is_valid(table.column(key)))
    if (twice := table.group_by(key).aggregate([([], "count_all")]).filter(pc.field("count_all") > 1)).num_rows:
        first = twice.slice(0, 1).to_pylist()[0]
        raise ConfigError(
            f"{setting}: {key} = {first[key]!r} stands in {first['count_all']} rows", cure="one row for each key"
        )
    return table


def _read_csv(path: Path, wanted: Sequence[str], types: Sequence[str], nulls: Sequence[str]) -> pa.Table:
    declared = {c.name: c.type for c in Columns.parse(types, setting="lookup.types").columns} if types else {}
    with arrow_csv.open_csv(path, parse_options=_delimiter(path)) as reader:
        _check_columns(f"lookup.table: {path}", [*wanted, *declared], reader.schema.names)
    convert = arrow_csv.ConvertOptions(
        include_columns=list(wanted),
        column_types={name: declared.get(name, pa.string()) for name in wanted},
        null_values=["", *nulls],
        strings_can_be_null=True,
    )
    return arrow_csv.read_csv(path, parse_options=_delimiter(path), convert_options=convert)


def _delimiter(path: Path) -> arrow_csv.ParseOptions:
    return arrow_csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)


def _check_columns(setting: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in names]:
        raise ConfigError(f"{setting} has no column {', '.join(missing)}", cure=f"one of {', '.join(names)}")


class LookupTable:
    """The rows of a table, by key.

    Args:
        table: see :func:`read_table`.
        key: its column.
        columns: the columns to add, in order.

    >>> airlines = pa.table({"code": ["UA", "AA"], "name": ["United", "American"]})
    >>> LookupTable(airlines, "code", ["name"]).row("UA"), LookupTable(airlines, "code", ["name"]).row("ZZ")
    (('United',), None)
    """

    def __init__(self, table: pa.Table, key: str, columns: Sequence[str]) -> None:
        self._keys: Any = table.column(key).combine_chunks()
        self.columns: list[Any] = [table.column(name).combine_chunks() for name in columns]
        self._rows = dict(zip(values_of(self._keys), zip(*map(values_of, self.columns), strict=True), strict=True))

    def row(self, key: Any) -> Values | None:
        """Return the values of the row with this key, or None. O(1)."""
        try:
            return self._rows.get(key)
        except TypeError:  # a list or an object is not a key
            return None

    def rows(self, keys: Any) -> tuple[list[Any], Any]:
        """Return the added columns for a column of keys, and which of the keys the table has. O(keys + rows)."""
        if keys.type != self._keys.type:
            found = [self.row(key) for key in values_of(keys)]
            nothing = (None,) * len(self.columns)
            values = list(zip(*(row or nothing for row in found), strict=True)) or [()] * len(self.columns)
            made = [pa.array(each, column.type) for each, column in zip(values, self.columns, strict=True)]
            return made, pa.array([row is not None for row in found], pa.bool_())
        places = pc.index_in(keys, value_set=self._keys)
        return [column.take(places) for column in self.columns], pc.is_valid(places)


class LookupBolt(Bolt):
    """Reads ``origin`` and the given fields; emits them and the columns of the table.

    >>> spec = LookupBolt.spec(table="airlines.csv", key="carrier", fields=["carrier"], add=["airline=name"])
    >>> spec.outputs["default"].output_fields
    ['origin', 'carrier', 'airline']
    """

    settings_scopes: ClassVar[tuple[str, ...]] = ("lookup",)
    requires: ClassVar[tuple[str, ...]] = ("origin",)

    @classmethod
    def spec(  # type: ignore[override]  # the base takes any settings, so that subclasses can declare theirs
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | dict[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[LookupOptions],
    ) -> ShellBoltSpec:
        """Put the bolt into a topology.

        Args:
            name: name of the component (default: that of the topology's attribute).
            inputs: streamparse's inputs; their tuples have ``origin``, the key and the fields.
            par: number of tasks; each reads the table.
            config: Storm's settings for this component, and Downspout's with their prefix.
            settings: settings without the prefix ``lookup.``; ``types`` may be a dict.

        Raises:
            ConfigError: a setting is missing, unknown or malformed.
        """
        if isinstance(types := settings.get("types"), Mapping):
            settings["types"] = [f"{column}:{kind}" for column, kind in types.items()]
        return super().spec(name, inputs, par, config, **settings)

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Stream]:
        """Return two streams: ``origin``, the kept fields and the added ones; and the rejects.

        Raises:
            ConfigError: a setting is missing, or a field is named twice.
        """
        fields, added = _names(config)
        return [Stream(fields=["origin", *fields, *added]), Stream(fields=list(REJECT_FIELDS), name=REJECTS)]

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the table, and check that the inputs have the key and the kept fields."""
        settings = parse_scope(storm_conf, "lookup")
        self._fields, names = _names(storm_conf)
        self._names = ["origin", *self._fields, *names]
        self._key, column = _pair(settings["key"])
        added = [_pair(text)[1] for text in settings["add"]]
        table = read_table(Path(settings["table"]), column, added, settings["types"] or (), settings["nulls"])
        self._table = LookupTable(table, column, added)
        self._nothing = (None,) * len(added)
        self._must_match = settings["missing"] == "reject"
        self._rejects = Rejects(self, storm_conf, context)
        self._missing = 0
        for (source, stream), fields in input_fields(context).items():
            if lacking := [name for name in dict.fromkeys([self._key, *self._fields]) if name not in fields]:
                raise TopologyError(
                    f"{self.component_name}: stream {stream!r} of {source!r} has no field {', '.join(lacking)}",
                    cure=f"one of {', '.join(fields)}",
                )

    def process(self, tup: Any) -> None:
        """Emit the tuple's fields and the added columns."""
        values = tup.values
        self._rejects.seen += 1
        found = self._table.row(key := getattr(values, self._key))
        if found is None:
            self._missing += 1
            if self._must_match:
                self._rejects.of_record(tup, self._reason(key))
                return
        self.emit([values.origin, *(getattr(values, name) for name in self._fields), *(found or self._nothing)])

    def process_chunk(self, tup: Any) -> None:
        """Emit the fields of a chunk's records and the added columns."""
        chunk: pa.RecordBatch = tup.values
        self._rejects.seen += chunk.num_rows
        keys = chunk.column(self._key)
        added, known = self._table.rows(keys)
        columns: list[Any] = [chunk.column(name) for name in ("origin", *self._fields)] + added
        missing = chunk.num_rows - (pc.sum(known).as_py() or 0)
        self._missing += missing
        if self._must_match:
            rows = pc.indices_nonzero(pc.invert(known)).to_pylist() if missing else []
            values = values_of(keys.take(pa.array(rows, pa.int64())))
            rejected = [Rejected(row, self._reason(key)) for row, key in zip(rows, values, strict=True)]
            self._rejects.of_chunk(chunk, rejected)
            if missing == chunk.num_rows:
                return
            columns = [column.filter(known) for column in columns] if missing else columns
        self.emit(pa.RecordBatch.from_arrays(columns, names=self._names))

    def _reason(self, key: Any) -> str:
        return f"{self._key} = {key!r} is not in the table"

    def report(self) -> Mapping[str, float]:
        """Return how many tuples had a key that the table does not have."""
        return {"missing": self._missing}


def _names(config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the kept fields, and the names of the added ones."""
    for name, example in (("table", '"airlines.csv"'), ("key", '"carrier"'), ("add", '["airline=name"]')):
        if not config.get(f"lookup.{name}"):
            raise ConfigError(f"lookup.{name} is not set", cure=f"{name}={example}")
    fields, add = (
        SETTINGS[f"lookup.{name}"].parse(config.get(f"lookup.{name}"), "spec") or [] for name in ("fields", "add")
    )
    added = [_pair(text)[0] for text in add]
    names = ["origin", *fields, *added]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigError(
            f"lookup.fields and lookup.add name {twice[0]!r} twice",
            cure="origin goes on by itself" if twice[0] == "origin" else f"another name: new_{twice[0]}={twice[0]}",
        )
    return list(fields), added


def _pair(text: str) -> tuple[str, str]:
    """Return the field and the table's column that ``field=column`` or ``both`` names.

    >>> _pair("airline=name"), _pair("name")
    (('airline', 'name'), ('name', 'name'))
    """
    field, equals, column = (part.strip() for part in text.partition("="))
    if not field or (equals and not column):
        raise ConfigError(f"lookup: {text!r} does not name a field and a column", cure="field=column")
    return field, column or field
