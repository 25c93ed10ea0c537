"""The columns of a sink: declared once, and what does not fit is named.

A schema is a list of ``name:type``. The types are those that every reader of Parquet, Spark above all, gets right:

============================================  ==================================================================
type                                          takes
============================================  ==================================================================
``string``, ``binary``                        str; bytes
``bool``                                      bool
``int8`` ``int16`` ``int32`` ``int64``        int in range; a float without a fraction
``float32`` ``float64``                       float, int
``decimal(p,s)``                              Decimal, int, the text of a number; a float of up to 15 digits
``date``                                      date, ``"2013-01-31"``
``timestamp``                                 datetime (naive means UTC), ``"2013-01-31T05:17:00+01:00"``
``timestamp_s`` ``timestamp_ms`` …``_us``     int since the epoch
``list<…>``                                   list or tuple of what the type inside takes
``map<…,…>``                                  mapping, pairs (one or more); the key: text, whole number, date, bool
``struct<name:…,…>``                          mapping; a field that it lacks is null, others are left out
============================================  ==================================================================

All timestamps are written in microseconds, UTC. A type that ends in ``!`` takes no null; any other does
(and may say so by ``?``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from downspout.errors import ConfigError
from downspout.origins import values_of
from downspout.sink.columns import hive
from downspout.sink.columns.convert import to_array
from downspout.sink.columns.types import EPOCH_UNITS, kind_of

ORIGIN_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("_topic", pa.string()), pa.field("_topic_id", pa.string()), pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()), pa.field("_path", pa.string()),
    ]  # type: ignore[arg-type]   # the stubs lose the field types in a list of several
)  # fmt: skip
"""What a sink writes beside the row: which record it came from, and which of that record's rows it is."""

_FOLDERS = {"string", "int8", "int16", "int32", "int64", "date", "bool"}
"""Types that may name a Hive folder: their text has one form, and readers find the type again."""
Values = Sequence[Any]
CONVERSION_ERRORS = (ValueError, TypeError, ArithmeticError, NotImplementedError)
"""What conversion raises for a value that does not fit; Arrow's own errors are of these kinds."""


@dataclass(frozen=True)
class Rejected:
    """A row that does not fit: its place among the rows given, and why."""

    row: int
    reason: str


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str  # as in the tuple and in the file
    kind: str  # the type as declared, without ``!``
    type: pa.DataType  # the Arrow type it is written as
    required: bool  # whether a null is refused
    is_folder: bool = False  # whether its values name Hive folders, which must not be too long

    @property
    def declared(self) -> str:
        """The column as it is declared."""
        return f"{self.name}:{self.kind}{'!' if self.required else ''}"

    def array(self, values: Values) -> Any:
        """Return the values as an array; what :meth:`of_chunk` has returned is one.

        Raises:
            ValueError, TypeError, OverflowError: one does not fit (Arrow's errors are of these kinds).
        """
        if not isinstance(values, list | tuple):
            return values
        made = to_array(values, self.kind)
        if self.required and made.null_count:
            raise ValueError("null where a value is required")
        if self.is_folder and self.kind == "string" and any(hive.too_long(self.name, v) for v in set(values)):
            raise ValueError("too long for the name of a folder")
        return made

    def of_chunk(self, given: Any) -> Values:
        """Return a column of a chunk as it is written, or, where single values must be looked at, these.

        A column of the declared type is taken as it is, one of whole numbers made wider or, if all are in range,
        narrower, and a dictionary written out. Anything else goes the way of single values, so that a chunk's row
        fits exactly where the record would.
        """
        if pa.types.is_dictionary(given.type):
            given = given.dictionary_decode()
        # Whole numbers since the epoch are no array of this type yet; moments are.
        is_number = self.kind in EPOCH_UNITS and given.type != self.type
        made = None if is_number else _as_declared(given, self.type)
        if made is None or (self.required and made.null_count) or not self._may_name_folders(made):
            return values_of(given)
        return made  # type: ignore[no-any-return]

    def _may_name_folders(self, array: Any) -> bool:
        if not self.is_folder or self.kind != "string":
            return True
        return not any(hive.too_long(self.name, value) for value in array.unique().to_pylist())


def _as_declared(given: Any, target: pa.DataType) -> Any:
    """Return an array as one of type ``target``; None where that depends on its values."""
    if given.type == target:
        return given
    if pa.types.is_integer(given.type) and pa.types.is_integer(target):
        try:
            return given.cast(target)
        except ValueError:
            return None
    if pa.types.is_null(given.type) or (pa.types.is_large_string(given.type) and pa.types.is_string(target)):
        return given.cast(target)
    return None


class Columns:
    """The columns of a sink.

    >>> columns = Columns.parse(["carrier:string!", "delay:int16"])
    >>> table, rejected = columns.table([["UA", None, "AA"], [2, 3, 99_999]])
    >>> table.to_pylist()
    [{'carrier': 'UA', 'delay': 2}]
    >>> [r.row for r in rejected], rejected[1].reason
    ([1, 2], 'delay = 99999 does not fit int16: Integer value 99999 not in range: -32768 to 32767')
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.names = tuple(column.name for column in columns)
        self.schema = pa.schema([pa.field(c.name, c.type, nullable=not c.required) for c in columns])

    @classmethod
    def parse(cls, declared: Sequence[str], setting: str = "parquet.schema") -> Columns:
        """Return the columns that a list of ``name:type`` declares."""
        columns = [_column(text, setting) for text in rejoin(declared)]
        if not columns:
            raise ConfigError(f"{setting} is empty", cure='schema={"carrier": "string", "delay": "int16"}')
        seen: dict[str, str] = {}
        for column in columns:
            name = column.name
            if (other := seen.setdefault(name.lower(), name)) != name:
                raise ConfigError(f"{setting}: {other} and {name} are one name to Spark", cure="another name")
            if sum(c.name == name for c in columns) > 1:
                raise ConfigError(f"{setting}: {name} appears twice", cure="one column per name")
            if name in ORIGIN_SCHEMA.names or name == "origin":
                raise ConfigError(f"{setting}: {name} is written by the sink itself", cure="remove it")
        return cls(columns)

    def with_folders(self, names: Sequence[str]) -> Columns:
        """Return the same columns, of which these name folders."""
        return Columns([replace(c, is_folder=c.name in names) for c in self.columns])

    def check_folders(self, names: Sequence[str]) -> None:
        """Raise a ConfigError if one of these columns cannot name Hive folders."""
        for name in names:
            column = next((c for c in self.columns if c.name == name), None)
            if column is None:
                raise ConfigError(f"parquet.partition_by: no column {name}", cure=f"one of {', '.join(self.names)}")
            if name[0] in "_.":
                raise ConfigError(
                    f"parquet.partition_by: readers do not look into folders that begin with {name[0]}, as in {name}",
                    cure="another name for the column",
                )
            if column.kind not in _FOLDERS:
                raise ConfigError(
                    f"parquet.partition_by: {column.declared} cannot name folders",
                    cure=f"a column of type {', '.join(sorted(_FOLDERS))}",
                )
        if len(names) >= len(self.columns):
            raise ConfigError(
                "parquet.partition_by takes all columns, none is left for the files", cure="leave one out"
            )

    def of_chunk(self, given: Sequence[Any]) -> tuple[pa.Table, list[Rejected]]:
        """Return the rows of a chunk that fit as a table, and those that do not, as :meth:`table` does.

        >>> columns = Columns.parse(["carrier:string!", "delay:int16"])
        >>> table, rejected = columns.of_chunk([pa.array(["UA", None]), pa.array([2, 99_999])])
        >>> table.schema.types, [r.row for r in rejected]
        ([DataType(string), DataType(int16)], [1])
        """
        return self.table([column.of_chunk(array) for column, array in zip(self.columns, given, strict=True)])

    def table(self, values: Sequence[Values]) -> tuple[pa.Table, list[Rejected]]:
        """Return the rows that fit as a table, and those that do not.

        Whole columns at once; one that does not fit is halved until its k culprits stand alone: O(k log n).
        """
        arrays: list[Any] = []
        rejected: dict[int, str] = {}
        for column, column_values in zip(self.columns, values, strict=True):
            try:
                arrays.append(column.array(column_values))
            except CONVERSION_ERRORS:
                parts: list[Any] = []
                for row, reason in _salvage(column, column_values, 0, parts):
                    rejected.setdefault(row, reason)
                arrays.append(pa.concat_arrays(parts))
        if rejected:
            good = pa.array([row not in rejected for row in range(len(values[0]))])
            arrays = [array.filter(good) for array in arrays]
        invalid = [Rejected(row, rejected[row]) for row in sorted(rejected)]
        return pa.Table.from_arrays(arrays, schema=self.schema), invalid


def rejoin(declared: Sequence[str]) -> list[str]:
    """Put together what a list in the environment or a file lost at a comma inside of brackets.

    >>> rejoin(["a:decimal(10", "2)", "b:map<string", "int8>"])
    ['a:decimal(10,2)', 'b:map<string,int8>']
    """
    whole: list[str] = []
    for text in declared:
        if whole and any(whole[-1].count(left) > whole[-1].count(right) for left, right in ("()", "<>")):
            whole[-1] += f",{text}"
        else:
            whole.append(text)
    return whole


def _column(text: str, setting: str) -> Column:
    name, colon, kind = text.partition(":")
    name, kind = name.strip(), kind.strip()
    required = kind.endswith("!")
    kind = kind.removesuffix("!" if required else "?").strip()
    if not name or not colon or not kind:
        raise ConfigError(f"{setting}: {text!r} is not name:type", cure='"carrier:string"')
    try:
        found = kind_of(kind)
    except ValueError as error:
        wrong, cure = error.args
        raise ConfigError(f"{setting}: {text}: {wrong}", cure=cure) from None
    return Column(name, kind, found.type, required)


def _salvage(column: Column, values: Values, first: int, parts: list[Any]) -> list[tuple[int, str]]:
    """Convert what can be, by halving; return the rows whose value does not fit, with the reason."""
    try:
        parts.append(column.array(values))
        return []
    except CONVERSION_ERRORS as error:
        if len(values) == 1:
            parts.append(pa.array([None], column.type))
            shown = repr(values[0])
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            return [(first, f"{column.name} = {shown} does not fit {column.declared.partition(':')[2]}: {why}")]
    # What was converted goes to ``parts``, in order, with a null for each culprit. There may be no culprit: 2**60 + 1
    # and 1.0 are whole numbers, but together they have no exact type.
    half = len(values) // 2
    culprits = _salvage(column, values[:half], first, parts)
    return culprits + _salvage(column, values[half:], first + half, parts)
