"""How the columns of a directory may grow: a nullable column more, or a wider type.

Each entry of the log has the columns of who wrote it. The directory has those of all its entries together
(:func:`together`), in which each file can be read: a column that a file lacks is null, and a narrower number widens
without a change of value. A sink may write with columns that the directory has had before, or with more
(:func:`refusals`). So processes of the old and of the new topology may write at once, and one may go back to the old.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import pyarrow as pa

from downspout.sink.columns.schema import Column, Columns
from downspout.sink.columns.types import kind_of

_WIDER = (("int8", "int16", "int32", "int64"), ("float32", "float64"))
"""Types, each of which holds all values of those before it."""


def together(versions: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the columns in which the rows of all versions can be read, in the words of the commit log.

    >>> together([("a:int32!", "b:string", "/b"), ("b:string", "a:int64", "c:date", "/b")])
    ('a:int64', 'b:string', 'c:date', '/b')
    """
    return reduce(_join, map(tuple, versions), ())


def refusals(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return why a sink with the columns ``now`` may not write where there are those of ``before``; empty if it may.

    >>> refusals(["a:int32", "b:string"], ["a:int64", "b:string", "c:date"])
    []
    >>> refusals(["a:int64", "b:string"], ["a:int32", "c:date!"])
    ['a narrows from int64 to int32', 'b is dropped', 'c is new and required, and older rows have none']
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
        f"{name} is new and required, and older rows have none"
        for name, column in new.items()
        if name not in old and column.required
    ]


def _change(old: Column, new: Column, *, is_folder: bool) -> str | None:
    """Return what is wrong with what has become of a column."""
    if new.required and not old.required:
        return "becomes required, and older rows may have nulls"
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
