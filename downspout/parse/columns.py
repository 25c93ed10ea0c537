"""Converts parsed values to declared columns, a chunk or a row at a time, whatever the parser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from downspout.origins import values_of
from downspout.sink.column_types import (
    BARE_DAY,
    DIGITS_MAX,
    EPOCH_UNITS,
    FLOAT_WHOLE_MAX,
    NUMBER,
    Kind,
    kind_of,
    moment_of,
)
from downspout.sink.schema import CONVERSION_ERRORS, Column, Columns, Rejected, failing

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MOMENT_MIN_US = int(datetime.min.replace(tzinfo=UTC).timestamp()) * 1_000_000
MOMENT_MAX_US = int(datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()) * 1_000_000 + 999_999
"""The years 1 to 9999: other moments have no ``datetime``, and so could not leave a chunk as a record's value."""
_FIRST_DAY = -719_162  # Of the year 1, in days since 1970


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of parsing a chunk."""

    rows: Ints  # of each row in ``batch``, its place among the values given; rising
    batch: pa.RecordBatch  # the columns
    rejected: list[Rejected]  # the values that are none, in order
    filtered: int  # how many values were null, and so are in neither

    def with_nulls(self, values: Any) -> Parsed:
        """Return the same with a row of nulls for each null among ``values``, in its place; no column may be required.

        >>> batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
        >>> found = Parsed(np.array([0, 2]), batch, [], filtered=1).with_nulls(pa.array([b"1", None, b"2"]))
        >>> found.rows.tolist(), found.batch.column("n").to_pylist(), found.filtered
        ([0, 1, 2], [1, None, 2], 0)
        """
        places = np.flatnonzero(np.array(values.is_null()))
        order = np.argsort(np.concatenate([self.rows, places]))
        columns: list[Any] = self.batch.columns
        arrays = [pa.concat_arrays([made, nulls(len(places), made.type)]).take(pa.array(order)) for made in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.batch.schema)
        return Parsed(np.concatenate([self.rows, places])[order], batch, self.rejected, 0)


def nulls(count: int, kind: pa.DataType) -> Any:
    """Return so many nulls of a type."""
    of_any_type: Any = pa.nulls  # its stubs know each type apart, and a declared column may have any
    return of_any_type(count, kind)


def convert(column: Column, values: list[Any], fits: Mask) -> Any:
    """Return values as an array of a column; clear ``fits`` for rows whose value does not fit."""
    if column.required:
        fits &= np.array([value is not None for value in values], dtype=bool)
    good = np.flatnonzero(fits)
    if not len(good):
        return nulls(len(values), column.type)
    # What such a row has in the array means nothing. ``values`` of rows that did not fit before are not looked at.
    filler = values[int(good[0])] if column.required else None
    if len(good) < len(values):
        values = [value if fit else filler for value, fit in zip(values, fits.tolist(), strict=True)]
    try:
        made = column.array(values)
    except CONVERSION_ERRORS:
        found = failing(lambda start, end: column.array(values[start:end]), len(values), CONVERSION_ERRORS)
        bad = [row for row, _ in found]
        # None need be bad by itself: 2**60 + 1 and 1.5 only have no type together. Then none is taken here.
        fits[bad if bad else slice(None)] = False
        return convert(column, values, fits)
    fits &= in_reach(made)
    return made


def cast_texts(texts: Any, column: Column, fits: Mask) -> Any:
    """Return texts as decimals, dates or moments, all at once; None if one cannot be converted.

    Arrow accepts the same texts as a column, with the same results, except dates before the year 1 and exponents of
    five digits.
    """
    if column.kind.startswith("decimal") and pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        return None
    try:
        made = texts.cast(column.type)
    except CONVERSION_ERRORS:
        return None
    if column.kind == "date":
        fits &= made.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False) >= _FIRST_DAY
    else:
        fits &= in_reach(made)
    return made


def joined(texts: Any, between: bytes) -> Any:
    """Return texts concatenated in one buffer."""
    lists: Any = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    whole: Any = pc.binary_join(lists, between)
    return whole.buffers()[2] or pa.py_buffer(b"")


def is_utf8(text: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def in_reach(made: Any) -> Mask | np.bool_:
    """Return which values of a column have a counterpart in Python: moments have a ``datetime``, or have not."""
    if pa.types.is_nested(made.type):
        return _nested_in_reach(made) if "timestamp" in str(made.type) else np.True_
    if not pa.types.is_timestamp(made.type):
        return np.True_
    numbers = made.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    near: Mask = (numbers >= MOMENT_MIN_US) & (numbers <= MOMENT_MAX_US)
    return near


def _nested_in_reach(made: Any) -> Mask:
    """Return the same for lists, maps and structs that hold moments."""
    near = np.ones(len(made), dtype=bool)
    found = failing(lambda start, end: made[start:end].to_pylist(), len(made), (ValueError, OverflowError))
    near[[row for row, _ in found]] = False
    return near


def put_together(columns: Columns, parts: Sequence[tuple[Ints, Sequence[Any]]]) -> tuple[Ints, pa.RecordBatch]:
    """Return rows parsed by several strategies as one batch, in order."""
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return np.empty(0, dtype=np.int64), pa.RecordBatch.from_pylist([], schema=columns.schema)
    if len(parts) == 1:
        rows, arrays = parts[0]
        return rows, pa.RecordBatch.from_arrays(list(arrays), schema=columns.schema)
    rows = np.concatenate([part[0] for part in parts])
    joined: list[Any] = [pa.concat_arrays(list(pieces)) for pieces in zip(*(part[1] for part in parts), strict=True)]
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows, kind="stable")
        rows, joined = rows[order], [array.take(pa.array(order)) for array in joined]
    return rows, pa.RecordBatch.from_arrays(joined, schema=columns.schema)


# --- one value ---
# One value as a declared column has it: what :func:`~downspout.sink.column_types.to_array` makes of it.
#
# An Arrow array of one row costs 10 to 100 microseconds, and a record has a dozen. So the values that are plainly
# right, almost all, are converted in Python, each type by a function of its own, which raises for any other. What it
# raises for is left to the column's own code: that alone decides, and says what is wrong.

Convert = Callable[[Any], Any]
_ZONE = ZoneInfo("UTC")  # that of the moments that Arrow makes
_EPOCH = datetime(1970, 1, 1, tzinfo=_ZONE)
_FLOAT32_WHOLE_MAX = 2**24


class _MissError(ValueError):
    """A value needs the exact check. Raise a new instance each time: a reused one keeps every stack it saw."""


class RowConverter:
    """Converts the values of a row, one for each column."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._quick = [_of_column(column) for column in columns]

    def row(self, found: Sequence[Any]) -> list[Any]:
        """Return the values of one row, converted to the columns.

        Raises:
            ValueError: one does not fit; the message says which, and why.

        >>> from downspout.sink import Columns
        >>> values = RowConverter(Columns.parse(["day:date", "fare:decimal(9,2)", "delay:int8"]).columns)
        >>> values.row(["2013-01-31", 49.5, None])
        [datetime.date(2013, 1, 31), Decimal('49.50'), None]
        >>> values.row(["2013-01-31", 49.5, 200])
        Traceback (most recent call last):
            ...
        ValueError: delay = 200 does not fit int8: Integer value 200 not in range: -128 to 127
        """
        try:
            return [convert(value) for convert, value in zip(self._quick, found, strict=True)]
        except CONVERSION_ERRORS:
            return [self._slowly(at, value) for at, value in enumerate(found)]

    def _slowly(self, at: int, value: Any) -> Any:
        try:
            return self._quick[at](value)
        except CONVERSION_ERRORS:
            pass
        column = self._columns[at]
        try:
            made = column.array([value])
        except CONVERSION_ERRORS as error:
            raise ValueError(column.misfit(value, error)) from error
        if not np.all(in_reach(made)):
            raise ValueError(column.misfit(value, ValueError("not in the years 1 to 9999")))
        return values_of(made)[0]


def _of_column(column: Column) -> Convert:
    quick, is_needed = _quick(kind_of(column.kind)), column.required

    def convert(value: Any) -> Any:
        if value is None:
            if is_needed:
                raise _MissError
            return None
        return quick(value)

    if column.kind in _CLASSES or column.kind in _LIMITS:  # the most frequent ones, without a second call
        return _plain(column)
    return convert


def _plain(column: Column) -> Convert:
    nothing = () if column.required else (type(None),)
    if (limits := _LIMITS.get(column.kind)) is not None:
        low, high = limits

        def whole(value: Any) -> Any:
            if low <= value <= high if value.__class__ is int else value.__class__ in nothing:
                return value
            raise _MissError

        return whole
    classes = frozenset((_CLASSES[column.kind], *nothing))

    def as_it_is(value: Any) -> Any:
        if value.__class__ in classes:
            return value
        raise _MissError

    return as_it_is


_CLASSES = {"string": str, "bool": bool, "binary": bytes}
_LIMITS = {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}


def _quick(kind: Kind) -> Convert:
    """Return a fast converter for plain values other than None; it raises for others."""
    if kind.name in _CLASSES or kind.name in _LIMITS:
        return _plain(Column(kind.text, kind.text, kind.type, required=True))
    return _BY_NAME[kind.name](kind)


def _inside(kind: Kind) -> Convert:
    quick = _quick(kind)
    return lambda value: None if value is None else quick(value)


def _epochs(kind: Kind) -> Convert:
    unit = EPOCH_UNITS[kind.name]

    def convert(value: Any) -> datetime:
        if value.__class__ is not int:
            raise _MissError
        return _EPOCH + timedelta(microseconds=value * unit)

    return convert


def _moments(kind: Kind) -> Convert:
    def convert(value: Any) -> datetime:
        moment = moment_of(value) if value.__class__ is str else value
        if moment.__class__ is not datetime:
            raise _MissError
        return moment.replace(tzinfo=_ZONE) if moment.tzinfo is None else moment.astimezone(_ZONE)

    return convert


def _days(kind: Kind) -> Convert:
    def convert(value: Any) -> date:
        if value.__class__ is date:
            return value
        if value.__class__ is not str or not BARE_DAY.fullmatch(value):
            raise _MissError
        return date.fromisoformat(value)

    return convert


def _floats(kind: Kind) -> Convert:
    is_short, whole_max = kind.name == "float32", _FLOAT32_WHOLE_MAX if kind.name == "float32" else FLOAT_WHOLE_MAX

    def convert(value: Any) -> float:
        if value.__class__ is int:
            if not -whole_max <= value <= whole_max:
                raise _MissError
        elif value.__class__ is not float or (is_short and not -1e38 < value < 1e38):
            raise _MissError
        return float(np.float32(value)) if is_short else float(value)

    return convert


def _decimals(kind: Kind) -> Convert:
    decimal: Any = kind.type
    context = Context(prec=decimal.precision, traps=[Inexact, InvalidOperation])
    last = Decimal(1).scaleb(-decimal.scale)

    def convert(value: Any) -> Decimal:
        if value.__class__ is float:
            number = Decimal(float.__repr__(value))
            if not number.is_finite() or len(number.as_tuple().digits) > DIGITS_MAX:
                raise _MissError
        elif value.__class__ is str:
            if not NUMBER.fullmatch(value):
                raise _MissError
            number = Decimal(value)
        elif value.__class__ is int or (value.__class__ is Decimal and value.is_finite()):
            number = Decimal(value)
        else:
            raise _MissError
        return abs(found) if not (found := number.quantize(last, context=context)) else found

    return convert


def _lists(kind: Kind) -> Convert:
    item = _inside(kind.parts[0])

    def convert(value: Any) -> list[Any]:
        if value.__class__ is not list:
            raise _MissError
        return [item(each) for each in value]

    return convert


def _maps(kind: Kind) -> Convert:
    key, item = _quick(kind.parts[0]), _inside(kind.parts[1])

    def convert(value: Any) -> dict[Any, Any]:
        if value.__class__ is not dict:
            raise _MissError
        return {key(name): item(each) for name, each in value.items()}

    return convert


def _structs(kind: Kind) -> Convert:
    parts = [(name, _inside(part)) for name, part in zip(kind.names, kind.parts, strict=True)]

    def convert(value: Any) -> dict[str, Any]:
        if value.__class__ is not dict:
            raise _MissError
        return {name: part(value.get(name)) for name, part in parts}

    return convert


_BY_NAME: dict[str, Callable[[Kind], Convert]] = {
    **dict.fromkeys(EPOCH_UNITS, _epochs), **dict.fromkeys(("float32", "float64"), _floats),
    "timestamp": _moments, "date": _days, "decimal": _decimals, "list": _lists, "map": _maps, "struct": _structs,
}  # fmt: skip
