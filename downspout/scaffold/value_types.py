"""The type of a column that takes all values of one place in many JSON objects.

A type is inferred only where all values that are not null agree. The rest is said, so that a person decides.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_KINDS: dict[type, str] = {
    bool: "true or false", int: "whole numbers", float: "numbers", str: "text", dict: "objects", list: "arrays",
}  # fmt: skip
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_DECIMAL = re.compile(r"-?(\d+)\.(\d+)")
_WHOLE = re.compile(r"-?\d+")
_NAME_OF_TIME = re.compile(r"(?i)(^|[^a-z]|_)(ts|time|timestamp|at|ms|epoch|date)$|[a-z](At|Time|Timestamp|Ms|Date)$")
_EPOCHS = (("timestamp_s", 1), ("timestamp_ms", 1_000), ("timestamp_us", 1_000_000))
_YEAR_2000_S, _YEAR_2100_S = 946_684_800, 4_102_444_800
DIGITS_MAX = 38
MAP_KEYS_MIN = 12
"""So many different keys, none in half of the objects, are data and no field names."""
_IN_STRUCT = re.compile(r"[^,:<>!?\s][^,:<>!?]*(?<!\s)")
"""Names that the text of a struct's type can hold."""


@dataclass(frozen=True)
class Verdict:
    """A column's type, and what there is to say of it."""

    type: str | None  # None: no type takes all values
    remark: str = ""
    is_open: bool = False  # whether a person should look at it


def verdict(values: Iterable[Any], name: str) -> Verdict:
    """Return the type for all of these values; ``name`` is the last key on the way to them.

    >>> verdict(["12.50", "3.999", None], "price").type
    'decimal(18,3)'
    """
    known = [value for value in values if value is not None]
    kinds = Counter(map(type, known))
    match list(kinds):
        case []:
            return Verdict("string", "always null: string is a guess", is_open=True)
        case [one] if one is bool:
            return Verdict("bool")
        case [one] if one is float:
            return Verdict("float64")
        case [one] if one is int:
            return _of_ints(min(known), max(known), name)
        case [one] if one is str:
            return _of_texts(known)
        case [one] if one is dict:
            return _of_objects(known)
        case [_]:
            return _of_arrays(known, name)
        case _ if set(kinds) == {int, float}:
            return _of_numbers(known)
    parts = ", ".join(f"{_KINDS[kind]} in {count:,}" for kind, count in kinds.most_common())
    return Verdict(None, f"{parts}: no type takes all of them", is_open=True)


def _of_numbers(values: list[Any]) -> Verdict:
    if any(type(each) is int and abs(each) > 2**53 for each in values):
        return Verdict(None, "fractions, and whole numbers beyond 2^53: no type takes all of them", is_open=True)
    return Verdict("float64", "whole numbers and fractions")


def _of_ints(low: int, high: int, name: str) -> Verdict:
    if low < -(2**63) or high >= 2**63:
        digits = len(str(max(-low, high)))
        if digits <= DIGITS_MAX:
            return Verdict(f"decimal({DIGITS_MAX},0)", "beyond 64 bits")
        return Verdict(None, f"whole numbers of {digits} digits: no type takes more than {DIGITS_MAX}", is_open=True)
    unit = next((each for each, per in _EPOCHS if _YEAR_2000_S * per <= low and high < _YEAR_2100_S * per), None)
    if unit is None:
        return Verdict("int64")
    if _NAME_OF_TIME.search(name):
        return Verdict(unit, "by its name and its range; int64, if it is a number", is_open=True)
    return Verdict("int64", f"could be {unit}, by its range", is_open=True)


def _of_texts(texts: list[str]) -> Verdict:
    looks = Counter(map(_look_of, texts))
    found = set(looks)
    if found == {"date"}:
        return Verdict("date")
    if found <= {"timestamp", "naive", "date"}:
        naive = "times without a zone are taken as UTC" if found != {"timestamp"} else ""
        return Verdict("timestamp", naive, is_open=bool(naive))
    if found == {"decimal"}:
        return _of_decimals(texts)
    if found == {"decimal", "whole"}:  # the whole ones may be codes as well
        return Verdict("string", "text of numbers, some of them whole: kept as text", is_open=True)
    if found == {"whole"}:
        return Verdict("string", "whole numbers as text, kept as text: some may begin with zeros", is_open=True)
    look, count = looks.most_common(1)[0]
    others = len(texts) - count
    if look != "other" and others * 10 <= count:
        what = {"naive": "timestamp", "whole": "whole number"}.get(look, look)
        return Verdict("string", f"all but {others:,} of {len(texts):,} look like a {what}", is_open=True)
    return Verdict("string")


def _look_of(text: str) -> str:
    if _DECIMAL.fullmatch(text):
        return "decimal"
    if _WHOLE.fullmatch(text):
        return "whole"
    if not _is_time(text):
        return "other"
    if _DATE.fullmatch(text):
        return "date"
    return "timestamp" if _ZONE.search(text, 10) else "naive"


def _of_decimals(texts: list[str]) -> Verdict:
    parts = [match.groups() for match in map(_DECIMAL.fullmatch, texts) if match is not None]
    whole, scale = (max(map(len, each)) for each in zip(*parts, strict=True))
    if whole + scale > DIGITS_MAX:
        return Verdict("string", f"text of numbers with more than {DIGITS_MAX} digits: kept as text", is_open=True)
    return Verdict(f"decimal({18 if whole + scale <= 18 else DIGITS_MAX},{scale})", "text of numbers")


def by_key(objects: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of many objects by their keys."""
    found: dict[str, list[Any]] = {}
    for each in objects:
        for key, value in each.items():
            found.setdefault(key, []).append(value)
    return found


def is_map(objects: Sequence[Any]) -> bool:
    """Return whether these objects have data for keys: many different ones, none of them in half of the objects."""
    counts = Counter(key for each in objects for key in each)
    return len(counts) >= MAP_KEYS_MIN and max(counts.values()) * 2 < len(objects)


def _of_objects(objects: list[Any]) -> Verdict:
    """Return a type for whole objects, as items of a list have it or a map."""
    fields = by_key(objects)
    if is_map(objects):
        inner = verdict([value for values in fields.values() for value in values], "")
        kind = None if inner.type is None else f"map<string,{inner.type}>"
        return Verdict(kind, inner.remark or f"{len(fields):,} different keys", is_open=inner.is_open)
    parts, remarks = [], []
    for name, values in fields.items():
        inner = verdict(values, name)
        if inner.type is None or not (_IN_STRUCT.fullmatch(name) and is_text(name)):
            remarks.append(f"{shown(name)} is left out ({inner.remark or 'its name'})")
            continue
        if inner.is_open:
            remarks.append(f"{shown(name)}: {inner.remark}")
        parts.append(f"{name}:{inner.type}")
    if not parts:
        return Verdict(None, "; ".join(remarks) or "objects that are empty", is_open=True)
    return Verdict(f"struct<{','.join(parts)}>", "; ".join(remarks), is_open=bool(remarks))


def _of_arrays(arrays: list[Any], name: str) -> Verdict:
    items = [item for each in arrays for item in each]
    if not items:
        return Verdict("list<string>", "always empty: list<string> is a guess", is_open=True)
    inner = verdict(items, name)
    return Verdict(None if inner.type is None else f"list<{inner.type}>", inner.remark, is_open=inner.is_open)


def is_text(key: str) -> bool:
    """Return whether a key can be written as UTF-8; half of a surrogate pair cannot."""
    return not any("\ud800" <= each <= "\udfff" for each in key)


def shown(name: str) -> str:
    r"""Return a key of a record as a line of text, and of Python, may hold it.

    >>> shown("größe"), shown("a\nimport b")
    ('größe', '"a\\nimport b"')
    """
    return name if name.isprintable() else json.dumps(name)


def _is_time(text: str) -> bool:
    """Return whether a text is a date or a time, and there is such a day.

    >>> _is_time("2026-02-28T12:00Z"), _is_time("2026-02-30")
    (True, False)
    """
    if not (_DATE.fullmatch(text) or _TIME.fullmatch(text)):
        return False
    try:
        return datetime.fromisoformat(text).year >= 1
    except ValueError:
        return False
