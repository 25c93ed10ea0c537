"""Infers columns from JSON records: a field for each path in the objects, with its type.

A column's type accepts all values of its path. A type is inferred only if all non-null values agree; the rest is
reported for the user to decide.
"""

from __future__ import annotations

import codecs
import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.parse.json import JSON_NAMES, JsonParser, Paths
from downspout.sink.schema import Columns

DEPTH_MAX = 8
_BARE = re.compile(r"[^.\[\]\"\s]([^.\[\]\"]*[^.\[\]\"\s])?")


@dataclass(frozen=True)
class Field:
    """One column."""

    name: str
    path: str  # of the value, as in ``parse.fields``
    type: str
    remark: str = ""
    is_open: bool = False  # whether the user should check it


@dataclass(frozen=True)
class Inferred:
    """The inferred columns, and the paths and records that do not fit."""

    fields: list[Field]
    left_out: list[tuple[str, str]]  # paths without a column: path, reason
    unfit: dict[int, str]  # index in the sample → why the record does not fit the columns


def infer(sample: RecordSample) -> Inferred:
    """Infer columns that accept the records of a sample.

    The values of nested objects become fields (``customer_id=customer.id``); arrays, and objects whose keys are data,
    become lists and maps. A path with values of several kinds has no column.

    Raises:
        ConfigError: no column could be inferred.

    >>> lines = [b'{"id": 1, "at": "2026-01-31T12:00:00Z", "customer": {"id": "c7"}}']
    >>> found = infer(RecordSample(lines, [1], [json.loads(line) for line in lines], True))
    >>> [(field.name, field.path, field.type) for field in found.fields]
    [('id', 'id', 'int64'), ('at', 'at', 'timestamp'), ('customer_id', 'customer.id', 'string')]
    """
    taken: set[str] = set()
    fields: list[Field] = []
    left_out: list[tuple[str, str]] = []
    for keys, known, found in _places(sample.objects, ()):
        path = _path(keys)
        if found.type is None or not all(map(is_text, keys)):
            left_out.append((path, found.remark if found.type is None else "its name is not UTF-8"))
            continue
        remarks = [found.remark, _absent(known, len(sample.objects))]
        name = _name(keys, taken)
        fields.append(Field(name, path, found.type, "; ".join(filter(None, remarks)), found.is_open))
    if not fields:
        raise ConfigError("the records have no field whose type is clear", cure=CURE)
    return Inferred(fields, left_out, _unfit(sample.lines, fields))


def _places(objects: Sequence[Any], keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, FieldVerdict]]:
    """Yield each path that may become a column, with its number of values and its type."""
    for key, values in by_key(objects).items():
        here, known = (*keys, key), [value for value in values if value is not None]
        is_nested = any(known) and all(type(value) is dict for value in known) and not is_map(known)
        if is_nested and len(here) < DEPTH_MAX:
            yield from _places(known, here)
        else:
            yield here, len(known), verdict(known, key)


def _absent(known: int, records: int) -> str:
    return f"null or missing in {records - known:,} of {records:,}" if 0 < known < records else ""


def _path(keys: Iterable[str]) -> str:
    """Return a path in the format of ``parse.fields``. Keys are data: unprintable characters are escaped."""
    return ".".join(
        key if key.isprintable() and _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=not is_text(key))
        for key in keys
    )


def _name(keys: Sequence[str], taken: set[str]) -> str:
    """Return a unique field name that is valid in Python, Storm and Spark.

    >>> _name(["user", "first-name"], set()), _name(["class"], set()), _name(["ID"], {"id"})
    ('user_first_name', 'class_', 'ID_2')
    """
    name = re.sub(r"\W", "_", "_".join(keys)).strip("_") or "field"
    name = f"n{name}" if name[0].isdigit() else name
    name = name if name.isidentifier() else "field"
    name = f"{name}_" if keyword.iskeyword(name) or name == "origin" else name
    found, number = name, 1
    while found.lower() in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found.lower())
    return found


def _unfit(lines: Sequence[bytes], fields: Sequence[Field]) -> dict[int, str]:
    """Return the records that JsonParseBolt would reject with these columns, normally none."""
    columns = Columns.parse([f"{field.name}:{field.type}" for field in fields])
    parser = JsonParser(Paths([field.path for field in fields]), columns)
    found: dict[int, str] = {}
    for place, line in enumerate(lines):
        try:
            parser.parse_one(line)
        except ValueError as error:
            found[place] = str(error)
    return found


def said(found: Inferred) -> list[str]:
    """Return a line for each result that the user should check."""
    lines = [f"{field.name}: {field.type}; {field.remark}" for field in found.fields if field.is_open]
    return lines + [f"{path}: left out; {reason}" for path, reason in found.left_out]


def as_paths(fields: Iterable[Field]) -> list[str]:
    """Return the value of ``parse.fields``."""
    return [field.path if field.path == field.name else f"{field.name}={field.path}" for field in fields]


# --- sample records ---

RECORDS_MAX = 10_000
"""Records read from a sample; more would add little."""
LINE_BYTES_MAX = 1 << 20
CURE = "one JSON object in each line, as `downspout kafka consume TOPIC --raw` prints them"


@dataclass(frozen=True)
class RecordSample:
    """The records of a sample."""

    lines: list[bytes]  # as in the file, without line ends
    numbers: list[int]  # their line numbers, from 1
    objects: list[dict[str, Any]]
    is_whole: bool  # whether the file has no further records


def read_sample(path: Path) -> RecordSample:
    """Read the first RECORDS_MAX records of a file, without blank lines.

    Raises:
        ConfigError: the file cannot be read or has no records, or a line (which is named) is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            found = list(islice(_records(path, file), RECORDS_MAX + 1))
    except OSError as error:
        raise ConfigError(f"--from {path}: {error.strerror}", cure="a file of JSON lines") from None
    if not found:
        raise ConfigError(f"--from {path}: no records", cure=CURE)
    kept = found[:RECORDS_MAX]
    return RecordSample(
        [line for _, line, _ in kept],
        [number for number, _, _ in kept],
        [found for _, _, found in kept],
        is_whole=len(found) <= RECORDS_MAX,
    )


def _records(path: Path, file: Any) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        where = f"--from {path}, line {number}"
        if len(line) > LINE_BYTES_MAX:
            raise ConfigError(f"{where}: longer than {LINE_BYTES_MAX:,} bytes", cure=CURE)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)  # added by Windows programs
        if line := line.strip():
            yield number, line, _object(line, where)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start + 1} is not UTF-8", cure="the file in UTF-8") from None
    except json.JSONDecodeError as error:
        cure = f"{CURE}; an array or an indented object: `jq -c` makes lines of it" if line in (b"[", b"{") else CURE
        raise ConfigError(f"{where}: not JSON at character {error.pos + 1}: {error.msg}", cure=cure) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}", cure=CURE) from None
    if type(value) is not dict:
        raise ConfigError(f"{where}: {JSON_NAMES[type(value)]}, where an object is needed", cure=CURE)
    return value


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


# --- types of values ---

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
"""This many different keys, none of them in half of the objects, are data, not field names."""
_IN_STRUCT = re.compile(r"[^,:<>!?\s][^,:<>!?]*(?<!\s)")
"""Names that a struct's type can contain."""


@dataclass(frozen=True)
class FieldVerdict:
    """A column's type, with a remark."""

    type: str | None  # None: no type accepts all values
    remark: str = ""
    is_open: bool = False  # whether the user should check it


def verdict(values: Iterable[Any], name: str) -> FieldVerdict:
    """Return a type for all of these values; ``name`` is the last key of their path.

    >>> verdict(["12.50", "3.999", None], "price").type
    'decimal(18,3)'
    """
    known = [value for value in values if value is not None]
    kinds = Counter(map(type, known))
    match list(kinds):
        case []:
            return FieldVerdict("string", "always null: string is a guess", is_open=True)
        case [one] if one is bool:
            return FieldVerdict("bool")
        case [one] if one is float:
            return FieldVerdict("float64")
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
    return FieldVerdict(None, f"{parts}: no type takes all of them", is_open=True)


def _of_numbers(values: list[Any]) -> FieldVerdict:
    if any(type(each) is int and abs(each) > 2**53 for each in values):
        return FieldVerdict(None, "fractions, and whole numbers beyond 2^53: no type takes all of them", is_open=True)
    return FieldVerdict("float64", "whole numbers and fractions")


def _of_ints(low: int, high: int, name: str) -> FieldVerdict:
    if low < -(2**63) or high >= 2**63:
        digits = len(str(max(-low, high)))
        if digits <= DIGITS_MAX:
            return FieldVerdict(f"decimal({DIGITS_MAX},0)", "beyond 64 bits")
        return FieldVerdict(None, f"whole numbers of {digits} digits: types take {DIGITS_MAX} at most", is_open=True)
    unit = next((each for each, per in _EPOCHS if _YEAR_2000_S * per <= low and high < _YEAR_2100_S * per), None)
    if unit is None:
        return FieldVerdict("int64")
    if _NAME_OF_TIME.search(name):
        return FieldVerdict(unit, "by its name and its range; int64, if it is a number", is_open=True)
    return FieldVerdict("int64", f"could be {unit}, by its range", is_open=True)


def _of_texts(texts: list[str]) -> FieldVerdict:
    looks = Counter(map(_look_of, texts))
    found = set(looks)
    if found == {"date"}:
        return FieldVerdict("date")
    if found <= {"timestamp", "naive", "date"}:
        naive = "times without a zone are taken as UTC" if found != {"timestamp"} else ""
        return FieldVerdict("timestamp", naive, is_open=bool(naive))
    if found == {"decimal"}:
        return _of_decimals(texts)
    if found == {"decimal", "whole"}:  # the whole numbers may be codes
        return FieldVerdict("string", "text of numbers, some of them whole: kept as text", is_open=True)
    if found == {"whole"}:
        return FieldVerdict("string", "whole numbers as text, kept as text: some may begin with zeros", is_open=True)
    look, count = looks.most_common(1)[0]
    others = len(texts) - count
    if look != "other" and others * 10 <= count:
        what = {"naive": "timestamp", "whole": "whole number"}.get(look, look)
        return FieldVerdict("string", f"all but {others:,} of {len(texts):,} look like a {what}", is_open=True)
    return FieldVerdict("string")


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


def _of_decimals(texts: list[str]) -> FieldVerdict:
    parts = [match.groups() for match in map(_DECIMAL.fullmatch, texts) if match is not None]
    whole, scale = (max(map(len, each)) for each in zip(*parts, strict=True))
    if whole + scale > DIGITS_MAX:
        return FieldVerdict("string", f"text of numbers with more than {DIGITS_MAX} digits: kept as text", is_open=True)
    return FieldVerdict(f"decimal({18 if whole + scale <= 18 else DIGITS_MAX},{scale})", "text of numbers")


def by_key(objects: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Group the values of objects by key."""
    found: dict[str, list[Any]] = {}
    for each in objects:
        for key, value in each.items():
            found.setdefault(key, []).append(value)
    return found


def is_map(objects: Sequence[Any]) -> bool:
    """Return whether the keys of these objects are data: many different ones, none in half of the objects."""
    counts = Counter(key for each in objects for key in each)
    return len(counts) >= MAP_KEYS_MIN and max(counts.values()) * 2 < len(objects)


def _of_objects(objects: list[Any]) -> FieldVerdict:
    """Return a struct or map type for objects."""
    fields = by_key(objects)
    if is_map(objects):
        inner = verdict([value for values in fields.values() for value in values], "")
        kind = None if inner.type is None else f"map<string,{inner.type}>"
        return FieldVerdict(kind, inner.remark or f"{len(fields):,} different keys", is_open=inner.is_open)
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
        return FieldVerdict(None, "; ".join(remarks) or "objects that are empty", is_open=True)
    return FieldVerdict(f"struct<{','.join(parts)}>", "; ".join(remarks), is_open=bool(remarks))


def _of_arrays(arrays: list[Any], name: str) -> FieldVerdict:
    items = [item for each in arrays for item in each]
    if not items:
        return FieldVerdict("list<string>", "always empty: list<string> is a guess", is_open=True)
    inner = verdict(items, name)
    return FieldVerdict(None if inner.type is None else f"list<{inner.type}>", inner.remark, is_open=inner.is_open)


def is_text(key: str) -> bool:
    """Return whether a key can be encoded as UTF-8, which a lone surrogate cannot."""
    return not any("\ud800" <= each <= "\udfff" for each in key)


def shown(name: str) -> str:
    r"""Return a key in a form that is safe in a line of text or of Python.

    >>> shown("größe"), shown("a\nimport b")
    ('größe', '"a\\nimport b"')
    """
    return name if name.isprintable() else json.dumps(name)


def _is_time(text: str) -> bool:
    """Return whether a text is a valid date or time.

    >>> _is_time("2026-02-28T12:00Z"), _is_time("2026-02-30")
    (True, False)
    """
    if not (_DATE.fullmatch(text) or _TIME.fullmatch(text)):
        return False
    try:
        return datetime.fromisoformat(text).year >= 1
    except ValueError:
        return False
