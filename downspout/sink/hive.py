"""Hive folders: ``month=7/``, spelled exactly as Spark spells and reads them.

The rules are those of Spark's ``ExternalCatalogUtils``. Every value is safe: a separator, a NUL or ``..`` in the data
cannot lead out of the directory, because the folder always begins with the column's name and separators are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX = 255  # The longest name that Linux file systems take

_ESCAPED = {chr(code): f"%{code:02X}" for code in [*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^")]}

_CODE = re.compile("%([0-9A-F]{2})")


def folder(column: str, value: Any) -> str:
    """Return the folder of a value. Null and the empty text have the same one: Spark reads both as null.

    >>> folder("month", 7), folder("path", "../a=b"), folder("x", None)
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


def values(path: str) -> dict[str, str | None]:
    """Return the values in the folders of a data file, as texts; the inverse of :func:`folder`.

    >>> values("month=7/path=..%2Fa%3Db/x=__HIVE_DEFAULT_PARTITION__/part-a-1.parquet")
    {'month': '7', 'path': '../a=b', 'x': None}
    """
    pairs = (name.partition("=") for name in path.split("/")[:-1] if "=" in name)
    return {_unescape(column): None if text == NULL_FOLDER else _unescape(text) for column, _, text in pairs}


def _unescape(text: str) -> str:
    return _CODE.sub(lambda found: chr(int(found[1], 16)), text)


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(char, char) for char in text)


def too_long(column: str, value: Any) -> bool:
    """Return whether no file system would take the folder of this value."""
    return len(folder(column, value).encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX


def numbered(table: pa.Table, columns: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the folders of a table's rows, and for each row which of them it is.

    >>> folders, numbers = numbered(pa.table({"day": ["mon", "tue", "mon"]}), ["day"])
    >>> folders, numbers.tolist()
    (['day=mon', 'day=tue'], [0, 1, 0])
    """
    names, numbers = [""], np.zeros(table.num_rows, dtype=np.int64)
    for column in columns:
        own, own_numbers = _folders(column, table.column(column))
        names, numbers = _combine(names, numbers, own, own_numbers)
    return names, numbers


def split(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (folders with ``/``, its rows without these columns), sorted, each folder once; rows keep their order.

    Without columns it is one pair with ``""``. Rows are grouped by the *folder*, not by the value, because two values
    (null and the empty text) may share one, and two files of one flush must not share a name.
    """
    if not columns:
        yield "", table
        return
    names, numbers = numbered(table, columns)
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
    of_code = [known.setdefault(folder(column, value), len(known)) for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    if encoded.indices.null_count:
        of_code.append(known.setdefault(folder(column, None), len(known)))  # code -1 is the last of the list
    return list(known), np.array(of_code, dtype=np.int64)[codes]


def _combine(
    outer: list[str], outer_numbers: NDArray[np.int64], inner: list[str], inner_numbers: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the pairs of folders that occur, and for each row which of them it is."""
    pairs, numbers = np.unique(outer_numbers * len(inner) + inner_numbers, return_inverse=True)
    names = [f"{outer[pair // len(inner)]}/{inner[pair % len(inner)]}".lstrip("/") for pair in pairs.tolist()]
    return names, numbers.astype(np.int64, copy=False)
