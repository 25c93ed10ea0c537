"""The columns of a sink: their declared types, how they may change between runs, and the folders that they name.

A schema is a list of ``name:type``. Every reader of Parquet, Spark above all, reads these types correctly:

============================================  ==================================================================
type                                          accepted values
============================================  ==================================================================
``string``, ``binary``                        str; bytes
``bool``                                      bool
``int8`` ``int16`` ``int32`` ``int64``        int in range; a float without a fraction
``float32`` ``float64``                       float, int
``decimal(p,s)``                              Decimal, int, the text of a number; a float of up to 15 digits
``date``                                      date, ``"2013-01-31"``
``timestamp``                                 datetime (naive means UTC), ``"2013-01-31T05:17:00+01:00"``
``timestamp_s`` ``timestamp_ms`` …``_us``     int since the epoch
``list<…>``                                   list or tuple of values that the inner type accepts
``map<…,…>``                                  mapping, pairs (one or more); the key: text, whole number, date, bool
``struct<name:…,…>``                          mapping; missing fields are null, extra fields are dropped
============================================  ==================================================================

All timestamps are written in microseconds, UTC. A type that ends in ``!`` accepts no null; any other does (and may
end in ``?`` to say so).

**Evolution.** Columns may be added if they are nullable, and number types may widen. Each log entry records the columns
of its writer. A directory has the columns of all its entries merged (:func:`merge_schemas`), and every file is readable
in these: a missing column is null, and a narrower number widens without loss. A sink may write columns that the
directory has had before, or more (:func:`refusals`). So processes of an old and a new topology may write at the same
time, and a topology may be rolled back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.errors import ConfigError
from downspout.formatting import safe_repr
from downspout.origins import values_of
from downspout.sink.column_types import EPOCH_UNITS, kind_of, to_array

_WIDER = (("int8", "int16", "int32", "int64"), ("float32", "float64"))
"""Types, each of which holds all values of those before it."""


def merge_schemas(versions: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the columns with which the rows of all versions can be read, in the words of the commit log.

    >>> merge_schemas([("a:int32!", "b:string", "/b"), ("b:string", "a:int64", "c:date", "/b")])
    ('a:int64', 'b:string', 'c:date', '/b')
    """
    return reduce(_join, map(tuple, versions), ())


def logged_folders(logged: Sequence[str]) -> list[str]:
    """Return the columns whose values are Hive folders, from the words in which a commit log holds them.

    >>> logged_folders(["word:string", "n:int16", "/word"])
    ['word']
    """
    return [text[1:] for text in logged if text.startswith("/") and ":" not in text]


def refusals(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return why a sink with the columns ``now`` may not write to a directory with ``before``; empty if it may.

    >>> refusals(["a:int32", "b:string"], ["a:int64", "b:string", "c:date"])
    []
    >>> refusals(["a:int64", "b:string"], ["a:int32", "c:date!"])
    ['a narrows from int64 to int32', 'b is dropped', 'c is new and required, but older rows lack it']
    """
    if list(before) == list(now):
        return []
    if _other_words(before) != _other_words(now):
        return ["folders, keys and aggregates stay as they are"]
    if any(word.startswith("key ") for word in before):
        return ["the columns of an aggregate stay as they are"]
    folders = {word[1:] for word in _other_words(before)}
    old, new = _columns(before), _columns(now)
    found = []
    for name, column in old.items():
        if name not in new:
            found.append(f"{name} is dropped")
        elif (change := _change(column, new[name], is_folder=name in folders)) is not None:
            found.append(f"{name} {change}")
    return found + [
        f"{name} is new and required, but older rows lack it"
        for name, column in new.items()
        if name not in old and column.required
    ]


def _change(old: Column, new: Column, *, is_folder: bool) -> str | None:
    """Return why a changed column is refused."""
    if new.required and not old.required:
        return "becomes required, but older rows may have nulls"
    if new.kind == old.kind:
        return None
    if is_folder:
        return f"names folders and changes from {old.kind} to {new.kind}"
    if wider(old.kind, new.kind) == new.kind:
        return None
    if wider(old.kind, new.kind) == old.kind:
        return f"narrows from {old.kind} to {new.kind}"
    return f"changes from {old.kind} to {new.kind}"


def wider(one: str, other: str) -> str | None:
    """Return which of two types holds all values of both; None if neither does.

    >>> wider("int64", "int8"), wider("decimal(9,2)", "decimal(18,2)"), wider("decimal(9,2)", "decimal(9,3)")
    ('int64', 'decimal(18,2)', None)
    """
    if one == other:
        return one
    for types in _WIDER:
        if one in types and other in types:
            return max(one, other, key=types.index)
    a, b = kind_of(one).type, kind_of(other).type
    if isinstance(a, pa.Decimal128Type) and isinstance(b, pa.Decimal128Type) and a.scale == b.scale:
        return one if a.precision >= b.precision else other
    return None


def _join(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if not one or one == other:
        return other
    columns = _columns(one)
    for name, column in _columns(other).items():
        known = columns.get(name)
        kind = column.kind if known is None else wider(known.kind, column.kind) or known.kind
        required = column.required and (known is None or known.required)
        columns[name] = Column(name, kind, kind_of(kind).type, required)
    return (*(column.declared for column in columns.values()), *_other_words(one))


def _columns(words: Sequence[str]) -> dict[str, Column]:
    return {column.name: column for column in Columns.parse([word for word in words if ":" in word]).columns}


def _other_words(words: Sequence[str]) -> list[str]:
    """Return what names folders, keys and aggregates."""
    return [word for word in words if ":" not in word]


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
_Error = TypeVar("_Error", bound=Exception)
CONVERSION_ERRORS = (ValueError, TypeError, ArithmeticError, NotImplementedError)
"""What conversion raises for a value that does not fit; Arrow's own errors are of these kinds."""


@dataclass(frozen=True)
class Rejected:
    """A row that does not fit: its index among the given rows, and the reason."""

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
        if self.is_folder and self.kind == "string" and any(is_too_long(self.name, v) for v in set(values)):
            raise ValueError("too long for the name of a folder")
        return made

    def salvage(self, values: Values) -> tuple[Any, dict[int, str]]:
        """Return the values as an array with a null for each that does not fit, and by row why it does not."""
        parts: list[Any] = []
        reasons: dict[int, str] = {}
        # There may be none: 2**60 + 1 and 1.0 are whole numbers, but together they have no exact type.
        for row, error in failing(
            lambda start, end: parts.append(self.array(values[start:end])), len(values), CONVERSION_ERRORS
        ):
            parts.append(pa.array([None], self.type))
            reasons[row] = self.misfit(values[row], error)
        return pa.concat_arrays(parts), reasons

    def misfit(self, value: Any, error: Exception) -> str:
        """Return the sentence that says why a value does not fit."""
        shown = safe_repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"{self.name} = {shown} does not fit {self.declared.partition(':')[2]}: {why}"

    def of_chunk(self, given: Any) -> Values:
        """Return a column of a chunk as written or, if values must be checked one by one, the values.

        A column of the declared type is used unchanged, integers are widened or, if all are in range, narrowed, and a
        dictionary is decoded. Anything else is checked value by value, so that a chunk's row fits exactly if the record
        would.
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
        return not any(is_too_long(self.name, value) for value in array.unique().to_pylist())


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
                raise ConfigError(f"{setting}: {other} and {name} are the same name to Spark", cure="another name")
            if sum(c.name == name for c in columns) > 1:
                raise ConfigError(f"{setting}: {name} appears twice", cure="one column per name")
            if name in ORIGIN_SCHEMA.names or name == "origin":
                raise ConfigError(f"{setting}: {name} is written by the sink itself", cure="remove it")
        return cls(columns)

    def with_folders(self, names: Sequence[str]) -> Columns:
        """Return the same columns, with these as folder names."""
        return Columns([replace(c, is_folder=c.name in names) for c in self.columns])

    def check_folders(self, names: Sequence[str]) -> None:
        """Raise a ConfigError if one of these columns cannot name Hive folders."""
        for name in names:
            column = next((c for c in self.columns if c.name == name), None)
            if column is None:
                raise ConfigError(f"parquet.partition_by: no column {name}", cure=f"one of {', '.join(self.names)}")
            if name[0] in "_.":
                raise ConfigError(
                    f"parquet.partition_by: readers skip folders that begin with {name[0]}, as in {name}",
                    cure="another name for the column",
                )
            if column.kind not in _FOLDERS:
                raise ConfigError(
                    f"parquet.partition_by: {column.declared} cannot name folders",
                    cure=f"a column of type {', '.join(sorted(_FOLDERS))}",
                )
        if len(names) >= len(self.columns):
            raise ConfigError(
                "parquet.partition_by takes all columns, so none is left for the files", cure="leave one out"
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

        Whole columns at once; a column that does not fit is halved until its k bad values are alone: O(k log n).
        """
        arrays: list[Any] = []
        rejected: dict[int, str] = {}
        for column, column_values in zip(self.columns, values, strict=True):
            try:
                arrays.append(column.array(column_values))
            except CONVERSION_ERRORS:
                array, reasons = column.salvage(column_values)
                arrays.append(array)
                rejected = reasons | rejected
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


def failing(
    work: Callable[[int, int], object], count: int, errors: type[_Error] | tuple[type[_Error], ...]
) -> Iterator[tuple[int, _Error]]:
    """Do some work on ranges of rows, in order, halved until each of the k rows that fail is alone: O(k log n) calls.

    Yields each of these rows with its error, before the next range is begun.

    >>> [row for row, _ in failing(lambda start, end: [1 / each for each in (1, 0, 2)[start:end]], 3, ArithmeticError)]
    [1]
    """
    ahead = [(0, count)]
    while ahead:
        start, end = ahead.pop()
        try:
            work(start, end)
        except errors as error:
            if end - start > 1:
                middle = start + (end - start) // 2
                ahead += [(middle, end), (start, middle)]
            else:
                yield start, error


# --- Hive folders: ``month=7/`` ---
#
# Spelled exactly as Spark's ``ExternalCatalogUtils`` spells and reads them. Every value is safe: a separator, a NUL or
# ``..`` in the data cannot lead out of the directory, because the folder always begins with the column's name and
# separators are escaped.

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX = 255  # The longest name that Linux file systems take

_ESCAPED = {chr(code): f"%{code:02X}" for code in [*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^")]}

_CODE = re.compile("%([0-9A-F]{2})")


def hive_folder(column: str, value: Any) -> str:
    """Return the folder of a value. Null and the empty text have the same one: Spark reads both as null.

    >>> hive_folder("month", 7), hive_folder("path", "../a=b"), hive_folder("x", None)
    ('month=7', 'path=..%2Fa%3Db', 'x=__HIVE_DEFAULT_PARTITION__')
    """
    if value is None or value == "":
        text = NULL_FOLDER
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = _escape(str(value))
        if (
            text == NULL_FOLDER
        ):  # data that looks like null: Spark decodes the first letter again (to pyarrow it is null)
            text = f"%5F{text[1:]}"
    return f"{_escape(column)}={text}"


def hive_values(path: str) -> dict[str, str | None]:
    """Return the values in the folders of a data file, as texts; the inverse of :func:`hive_folder`.

    >>> hive_values("month=7/path=..%2Fa%3Db/x=__HIVE_DEFAULT_PARTITION__/part-a-1.parquet")
    {'month': '7', 'path': '../a=b', 'x': None}
    """
    pairs = (name.partition("=") for name in path.split("/")[:-1] if "=" in name)
    return {_unescape(column): None if text == NULL_FOLDER else _unescape(text) for column, _, text in pairs}


def _unescape(text: str) -> str:
    return _CODE.sub(lambda found: chr(int(found[1], 16)), text)


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(char, char) for char in text)


def is_too_long(column: str, value: Any) -> bool:
    """Return whether no file system would take the folder of this value."""
    return len(hive_folder(column, value).encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX


def hive_folders(table: pa.Table, columns: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the folders of a table's rows, and for each row which of them it is.

    >>> folders, numbers = hive_folders(pa.table({"day": ["mon", "tue", "mon"]}), ["day"])
    >>> folders, numbers.tolist()
    (['day=mon', 'day=tue'], [0, 1, 0])
    """
    names, numbers = [""], np.zeros(table.num_rows, dtype=np.int64)
    for column in columns:
        own, own_numbers = _folders(column, table.column(column))
        names, numbers = _combine(names, numbers, own, own_numbers)
    return names, numbers


def by_hive_folder(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (folders with ``/``, its rows without these columns), sorted, each folder once; rows keep their order.

    Without columns it is one pair with ``""``. Rows are grouped by the *folder*, not by the value, because two values
    (null and the empty text) may share one, and two files of one flush must not share a name.
    """
    if not columns:
        yield "", table
        return
    names, numbers = hive_folders(table, columns)
    rest = table.drop_columns(list(columns))
    if len(names) == 1:
        yield names[0], rest
        return
    order = np.argsort(numbers, kind="stable")
    grouped = rest.combine_chunks().take(pa.array(order, pa.int64()))
    bounds = np.searchsorted(numbers[order], np.arange(len(names) + 1))
    for number in sorted(range(len(names)), key=names.__getitem__):
        start, end = int(bounds[number]), int(bounds[number + 1])
        yield names[number], grouped.slice(start, end - start)


def _folders(column: str, values: Any) -> tuple[list[str], NDArray[np.int64]]:
    """Return the folders of a column's values, and for each row which of them it is."""
    encoded = values.combine_chunks().dictionary_encode()
    known: dict[str, int] = {}
    of_code = [known.setdefault(hive_folder(column, value), len(known)) for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    if encoded.indices.null_count:
        of_code.append(known.setdefault(hive_folder(column, None), len(known)))  # code -1 is the last of the list
    return list(known), np.array(of_code, dtype=np.int64)[codes]


def _combine(
    outer: list[str], outer_numbers: NDArray[np.int64], inner: list[str], inner_numbers: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the pairs of folders that occur, and for each row which of them it is."""
    pairs, numbers = np.unique(outer_numbers * len(inner) + inner_numbers, return_inverse=True)
    names = [f"{outer[pair // len(inner)]}/{inner[pair % len(inner)]}".lstrip("/") for pair in pairs.tolist()]
    return names, numbers.astype(np.int64, copy=False)
