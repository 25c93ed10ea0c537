"""Partial aggregates: a flush aggregates its rows, and a reader combines the results.

An aggregate is declared as ``count`` (rows), or ``function:column`` with sum, min, max or count (values that are not
null). Its column is named ``count`` or ``function_column``. Rows are folded *after* the check against the log, so each
row is aggregated in exactly one committed file. Readers combine sums and counts by adding, minima and maxima by min and
max. A mean is a sum and a count.

A key is a column, or a window of one (``windows.py``), which becomes the columns ``window_start`` and ``window_end``.
With a window, rows whose windows were already final are counted separately (``late_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from downspout.errors import ConfigError
from downspout.sink.column_types import TIMESTAMP
from downspout.sink.schema import ORIGIN_SCHEMA, Columns, logged_folders, rejoin
from downspout.sink.windows import END, LATE, START, Window

FUNCTIONS = ("sum", "min", "max", "count")
FINISHERS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""Which function finishes an aggregate's partial results."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate: ``function`` over ``column``; a column of None counts rows."""

    function: str
    column: str | None

    @property
    def name(self) -> str:
        """The column in the files."""
        return f"{self.function}_{self.column}" if self.column else self.function


ROWS = Aggregate("count", None)


@dataclass(frozen=True)
class Aggregation:
    """Which columns are aggregated, and by which keys.

    >>> columns = Columns.parse(["route:string", "delay:int16", "at:timestamp"])
    >>> made = Aggregation.parse(["route", "window(at, 1 hour)"], ["count", "sum:delay"], columns)
    >>> made.keys, [each.name for each in made.aggregates]
    (('route', 'window_start', 'window_end'), ['count', 'sum_delay'])
    """

    by: tuple[str | Window, ...]  # columns and at most one window
    aggregates: tuple[Aggregate, ...]

    @classmethod
    def parse(cls, keys: Sequence[str], aggregates: Sequence[str], columns: Columns) -> Aggregation:
        """Return what the settings ``parquet.keys`` and ``parquet.aggregates`` declare.

        Raises:
            ConfigError: a column is missing or has an unsuitable type, or two would have one name.
        """
        if not keys:
            raise ConfigError("parquet.keys is not set", cure=f"some of {', '.join(columns.names)}")
        if not aggregates:
            raise ConfigError("parquet.aggregates is not set", cure='aggregates=["count", "sum:delay"]')
        made = cls(_by(keys), tuple(_aggregate(text, columns) for text in aggregates))
        for key in made.by:
            _check_key(key, columns)
        seen: dict[str, str] = {}
        for name in [*made.keys, *(aggregate.name for aggregate in made.aggregates)]:
            if name.lower() in seen:  # to Spark case makes no difference
                raise ConfigError(
                    f"parquet.keys, parquet.aggregates: {seen[name.lower()]} and {name} would be one column of the "
                    "files",
                    cure="name each once, with at most one window; rename a key that is named like another column",
                )
            seen[name.lower()] = name
        if made.window is not None and "count" in (key.lower() for key in made.keys):
            raise ConfigError("parquet.keys: beside a window, no key can be named count", cure="another name for it")
        return made

    @classmethod
    def logged(cls, words: Sequence[str]) -> Aggregation | None:
        """Parse the words of a commit log; None if the rows are no aggregates."""
        keys = [word[4:] for word in words if word.startswith("key ") and ":" not in word]
        names = [word for word in words if ":" not in word and not word.startswith(("/", "key "))]
        parts = [name.partition("_") for name in names]
        return cls(_by(keys), tuple(Aggregate(each, column or None) for each, _, column in parts)) if keys else None

    @property
    def words(self) -> list[str]:
        """Its form in a commit log, beside the columns: partial results of different aggregations must not mix.

        >>> made = Aggregation(("route", Window("at", 60_000_000, 60_000_000)), (Aggregate("sum", "delay"),))
        >>> made.words, Aggregation.logged(made.words) == made
        (['key route', 'key window(at, 1 minute)', 'sum_delay'], True)
        """
        keys = [key.text if isinstance(key, Window) else key for key in self.by]
        return [*(f"key {key}" for key in keys), *(each.name for each in self.aggregates)]

    @property
    def window(self) -> Window | None:
        """The window among the keys."""
        return next((key for key in self.by if isinstance(key, Window)), None)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The columns of the files that are the key."""
        return tuple(name for key in self.by for name in ((START, END) if isinstance(key, Window) else (key,)))

    def fold(self, table: pa.Table, watermark: int | None = None) -> pa.Table:
        """Return one row per key; with a window the column ``late_rows`` too, by the watermark in µs.

        Types do not depend on the data: counts and sums of whole numbers are int64, of floats float64, of decimals
        ``decimal(38,s)``; minima and maxima keep their type. If a sum might overflow its type, which Arrow would not
        report, the rows are halved until it cannot: a key then has several partial aggregates.

        >>> rows = pa.table({"route": ["a", "b", "a"], "delay": [1, 2, None]})
        >>> made = Aggregation(("route",), (Aggregate("count", None), Aggregate("sum", "delay")))
        >>> made.fold(rows).sort_by("route").to_pylist()
        [{'route': 'a', 'count': 2, 'sum_delay': 1}, {'route': 'b', 'count': 1, 'sum_delay': 2}]
        """
        if any(a.function == "sum" and _may_overflow(table.column(str(a.column))) for a in self.aggregates):
            half = table.num_rows // 2
            return pa.concat_tables([self.fold(table[:half], watermark), self.fold(table[half:], watermark)])
        if self.window is None:
            return _folded(table, self.keys, self.aggregates)
        table = table.append_column(START, self.window.panes(table.column(self.window.column)))
        keys = [name for name in self.keys if name != END]
        panes = _folded(table, keys, dict.fromkeys([*self.aggregates, ROWS]))
        windows = self.window.spread(panes)
        return self._finished(self.window.mark(windows, windows.column(ROWS.name), watermark), {LATE: "sum"})

    def finish(self, partials: pa.Table) -> pa.Table:
        """Return one row per key from partial aggregates; late rows are among them.

        Raises:
            OverflowError: a sum is too large for its type.
        """
        for name in (each.name for each in self.aggregates if FINISHERS[each.function] == "sum"):
            if _may_overflow(partials.column(name)):
                self._check_sums(partials, name)
        return self._finished(partials, {})

    def _check_sums(self, partials: pa.Table, name: str) -> None:
        """Raise if a sum overflows its type: Arrow's sums wrap around."""
        column: Any = partials.column(name)
        wide = pa.decimal256(76, getattr(column.type, "scale", 0))
        keys: dict[str, Any] = {key: partials.column(key) for key in self.keys}
        grouped = pa.table({**keys, name: column.cast(wide)})
        sums: Any = grouped.group_by(list(self.keys)).aggregate([(name, "sum")]).column(f"{name}_sum")
        try:
            sums.cast(column.type)
        except pa.ArrowInvalid as error:
            raise OverflowError(f"{name}: the sum of a key does not fit {column.type}: {error}") from error

    def _finished(self, partials: pa.Table, more: Mapping[str, str]) -> pa.Table:
        wanted = {**{each.name: FINISHERS[each.function] for each in self.aggregates}, **more}
        grouped = partials.group_by(list(self.keys)).aggregate(list(wanted.items()))  # type: ignore[arg-type]
        columns = grouped.select([*self.keys, *(f"{name}_{function}" for name, function in wanted.items())])
        names = [*self.keys, *wanted]
        return columns.rename_columns(names).cast(partials.select(names).schema)

    def schema(self, columns: Columns) -> pa.Schema:
        """Return the columns of the files."""
        return self.fold(columns.schema.empty_table()).schema


def _folded(table: pa.Table, keys: Sequence[str], aggregates: Iterable[Aggregate]) -> pa.Table:
    """Return one row per key."""
    wanted: list[Any] = [([], "count_all") if a.column is None else (a.column, a.function) for a in aggregates]
    grouped = table.group_by(list(keys)).aggregate(wanted)
    columns: dict[str, Any] = {name: grouped.column(name) for name in keys}
    for each in aggregates:
        made = grouped.column("count_all" if each.column is None else f"{each.column}_{each.function}")
        columns[each.name] = made.cast(pa.int64()) if each.function == "count" else made
    return pa.table(columns)


def _by(keys: Sequence[str]) -> tuple[str | Window, ...]:
    return tuple(Window.parse(text) or text for text in rejoin(keys))


def _check_key(key: str | Window, columns: Columns) -> None:
    name = key.column if isinstance(key, Window) else key
    column = next((column for column in columns.columns if column.name == name), None)
    if column is None:
        raise ConfigError(f"parquet.keys: no column {name}", cure=f"some of {', '.join(columns.names)}")
    if isinstance(key, Window):
        if column.type != TIMESTAMP:
            raise ConfigError(
                f"parquet.keys: {key.text}: {column.declared} is not a timestamp", cure=f"{name}:timestamp"
            )
        if taken := {START, END, LATE}.intersection(columns.names):
            raise ConfigError(
                f"parquet.keys: {key.text}: a window brings the column {min(taken)} itself", cure="another name for it"
            )


def _aggregate(text: str, columns: Columns) -> Aggregate:
    function, colon, column = text.partition(":")
    if text == "count":
        return Aggregate("count", None)
    if function not in FUNCTIONS or not colon:
        raise ConfigError(
            f"parquet.aggregates: {text!r} is not an aggregate", cure="count, sum:x, min:x, max:x or count:x"
        )
    kind = next((c.kind for c in columns.columns if c.name == column), None)
    if kind is None:
        raise ConfigError(f"parquet.aggregates: {text}: no column {column}", cure=f"one of {', '.join(columns.names)}")
    if function == "sum" and not kind.startswith(("int", "float", "decimal")):
        raise ConfigError(f"parquet.aggregates: {text}: a {kind} cannot be added up", cure="min, max or count")
    return Aggregate(function, column)


def logged_schema(logged: Sequence[str]) -> pa.Schema:
    """Return the columns of the rows, from the words in which a commit log holds them. Those of folders are last.

    >>> logged_schema(["word:string", "n:int16", "key word", "count", "sum_n"]).names
    ['word', 'count', 'sum_n']
    >>> logged_schema(["word:string", "n:int16", "/word"]).names
    ['n', '_topic', '_topic_id', '_partition', '_offset', '_path', 'word']
    """
    columns = Columns.parse([text for text in logged if ":" in text])
    folders = logged_folders(logged)
    aggregation = Aggregation.logged(logged)
    rows = aggregation.schema(columns) if aggregation else pa.schema([*columns.schema, *ORIGIN_SCHEMA])
    ends = [columns.schema.field(name) for name in folders]
    return pa.schema([field for field in rows if field.name not in folders] + ends)


def _may_overflow(column: Any) -> bool:
    if len(column) < 2:
        return False
    if pa.types.is_decimal(column.type):
        limit, unit = 10**38 - 10**12, 10**column.type.scale  # Python's products are right to 28 digits
    elif column.type == pa.int64():
        limit, unit = 2**63, 1
    else:  # sums of smaller whole numbers do not get there in one flush; those of floats are inf
        return False
    bounds: Any = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    return bool(largest * unit * len(column) >= limit)
