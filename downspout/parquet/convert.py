"""From Python values to Arrow arrays of a declared type, whole columns at once, and never silently wrong.

Given a type, Arrow takes some values for what they are not: 1.5 becomes 1 in a column of whole numbers, 5 a day in
1970, a text a list of its letters. So the type is first found from the values alone, compared with the declared one,
and only then cast; a cast checks ranges and fractions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["EPOCH_UNITS", "TIMESTAMP", "to_array"]

TIMESTAMP = pa.timestamp("us", "UTC")
EPOCH_UNITS = {"timestamp_s": 1_000_000, "timestamp_ms": 1_000, "timestamp_us": 1}
"""Kinds of columns that take whole numbers since the epoch, with the microseconds in one."""

_BARE_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
Values = Sequence[Any]


def to_array(values: Values, kind: str, target: pa.DataType) -> Any:
    """Return the values as an array of type ``target``.

    Args:
        values: None is null.
        kind: the type as declared; it tells ``timestamp`` from ``timestamp_ms``.
        target: what is written.

    Raises:
        ValueError, TypeError, OverflowError: a value does not fit (Arrow's errors are of these kinds).

    >>> to_array([1, 2.0, None], "int8", pa.int8()).to_pylist()
    [1, 2, None]
    >>> to_array([1.5], "int8", pa.int8())
    Traceback (most recent call last):
        ...
    ValueError: 1.5 has a fraction
    """
    if kind in ("string", "binary", "bool"):
        return pa.array(values, target)  # Arrow is strict about these, and about the UTF-8 in bytes
    if kind.startswith("decimal"):
        return _decimals(values, target)
    if kind == "timestamp":
        return _moments(values)
    if kind == "date":
        return _days(values)
    found: Any = pa.array(values)
    if found.type == target:
        _check_alone(values, found.type, target)
        return found
    if kind in EPOCH_UNITS:
        _check(found.type, pa.int64())
        return pc.multiply_checked(found.cast(pa.int64()), EPOCH_UNITS[kind]).cast(TIMESTAMP)
    if pa.types.is_integer(target) and pa.types.is_floating(found.type):
        found = pa.array([None if value is None else _whole(value) for value in values])
    _check(found.type, target)
    _check_alone(values, found.type, target)
    made = found.cast(target)
    _check_finite(found, made)
    return made


def _check(found: pa.DataType, target: pa.DataType) -> None:
    """Raise a TypeError unless values of the type ``found`` may become ``target``, if they are in range."""
    types = pa.types
    if types.is_list(target):
        if types.is_list(found):
            _check(found.value_type, target.value_type)
        fits = types.is_list(found)
    elif types.is_integer(target):
        fits = types.is_integer(found)
    elif types.is_floating(target):
        fits = types.is_integer(found) or types.is_floating(found)
    elif types.is_decimal(target):
        fits = types.is_decimal(found)
    elif types.is_timestamp(target):
        fits = types.is_timestamp(found)
    else:
        fits = found == target
    if not (fits or types.is_null(found)):
        raise TypeError(f"{found} instead of {target}")


def _check_alone(values: Values, found: pa.DataType, target: pa.DataType) -> None:
    """Raise where floats lend their type to a neighbour that would not fit alone: True, or 2**24 + 1 as float32."""
    if pa.types.is_list(found) and pa.types.is_list(target):
        for items in values:
            if items is not None:
                _check_alone(items, found.value_type, target.value_type)
    elif pa.types.is_floating(found) and not {float, type(None)}.issuperset(map(type, values)):
        if any(isinstance(value, bool) for value in values):
            raise TypeError("bool instead of a number")
        if target == pa.float32() and any(isinstance(value, int) and abs(value) > 2**24 for value in values):
            raise ValueError("a whole number that float32 has not: beyond 2**24")


def _check_finite(found: Any, made: Any) -> None:
    """Raise a ValueError where a finite number became infinite; a cast from float64 to float32 does not say so."""
    while pa.types.is_list(made.type) and pa.types.is_list(found.type):
        found, made = found.flatten(), made.flatten()
    if made.type != pa.float32() or found.type != pa.float64():
        return
    lost = pc.and_not(pc.is_inf(made), pc.is_inf(found))
    if pc.any(lost).as_py():
        raise ValueError("a number out of the range of float32: ±3.4e38")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{value} is no whole number")
    if int(value) != value:
        raise ValueError(f"{value} has a fraction")
    return int(value)


def _decimals(values: Values, target: pa.DataType) -> Any:
    if any(isinstance(value, bool) for value in values):
        raise TypeError("a bool is no decimal")
    return pa.array(values, target)


def _moments(values: Values) -> Any:
    """Take datetimes (without a zone: UTC) and ISO texts."""
    try:
        found: Any = pa.array(values)
    except (TypeError, ValueError):  # datetimes among texts
        found = None
    if found is not None and pa.types.is_timestamp(found.type):
        return pa.array(values, TIMESTAMP)
    if found is not None and pa.types.is_string(found.type):
        try:
            return found.cast(TIMESTAMP)  # ten times as fast as Python; texts without a zone are no moments to it
        except ValueError:
            pass
    return pa.array([None if value is None else _moment(value) for value in values], TIMESTAMP)


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise TypeError(f"a {type(value).__name__} is no datetime and no ISO text")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _days(values: Values) -> Any:
    """Take dates and texts such as 2013-01-31; a datetime is no date, because its hour would be lost."""
    days: list[date | None] = []
    for value in values:
        if isinstance(value, str) and _BARE_DAY.fullmatch(value):
            days.append(date.fromisoformat(value))
        elif value is None or (isinstance(value, date) and not isinstance(value, datetime)):
            days.append(value)
        else:
            raise TypeError(f"a {type(value).__name__} is no date and no text such as 2013-01-31")
    return pa.array(days, pa.date32())
