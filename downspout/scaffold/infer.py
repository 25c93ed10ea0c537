"""The columns of records: a field for each place in the JSON objects, with its type."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from downspout.errors import ConfigError
from downspout.parse.json import JsonParser
from downspout.parse.paths import Paths
from downspout.scaffold.sample import CURE, Sample
from downspout.scaffold.value_types import Verdict, by_key, is_map, is_text, verdict
from downspout.sink.schema import Columns

DEPTH_MAX = 8
_BARE = re.compile(r"[^.\[\]\"\s]([^.\[\]\"]*[^.\[\]\"\s])?")


@dataclass(frozen=True)
class Field:
    """One column."""

    name: str
    path: str  # where the value stands, as ``parse.fields`` has it
    type: str
    remark: str = ""
    is_open: bool = False  # whether a person should look at it


@dataclass(frozen=True)
class Inferred:
    """The columns, what has none, and which records do not fit."""

    fields: list[Field]
    left_out: list[tuple[str, str]]  # path and reason
    unfit: dict[int, str]  # place in the sample → why the record does not fit its columns


def infer(sample: Sample) -> Inferred:
    """Return columns that take the records of a sample.

    Nested objects become fields of their own (``customer_id=customer.id``); arrays, and objects whose keys are data,
    become lists and maps. A place where values of several kinds stand has no column.

    Raises:
        ConfigError: there is no column at all.

    >>> lines = [b'{"id": 1, "at": "2026-01-31T12:00:00Z", "customer": {"id": "c7"}}']
    >>> found = infer(Sample(lines, [1], [json.loads(line) for line in lines], True))
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


def _places(objects: Sequence[Any], keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, Verdict]]:
    """Yield each place that becomes a column, or could: the way to it, how many values it has, and its type."""
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
    """Return the way to a value as ``parse.fields`` has it. Keys are data: what is not printable is escaped."""
    return ".".join(
        key if key.isprintable() and _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=not is_text(key))
        for key in keys
    )


def _name(keys: Sequence[str], taken: set[str]) -> str:
    """Return a field's name that Python, Storm and Spark take, and no other field has.

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
    """Return the records that JsonParseBolt would reject with these columns: normally none."""
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
    """Return a line for each thing that a person should look at."""
    lines = [f"{field.name}: {field.type}; {field.remark}" for field in found.fields if field.is_open]
    return lines + [f"{path}: left out; {reason}" for path, reason in found.left_out]


def as_paths(fields: Iterable[Field]) -> list[str]:
    """Return the value of ``parse.fields``."""
    return [field.path if field.path == field.name else f"{field.name}={field.path}" for field in fields]


def as_types(fields: Iterable[Field]) -> Mapping[str, Any]:
    """Return the types by field."""
    return {field.name: field.type for field in fields}
