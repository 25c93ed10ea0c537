"""Hive folders: ``month=7/``, spelled exactly as Spark spells and reads them.

The rules are those of Spark's ``ExternalCatalogUtils``. Every value is safe: a separator, a NUL or ``..`` in the data
cannot lead out of the directory, because the folder always begins with the column's name and separators are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX = 255
"""The longest name that Linux file systems take."""

_ESCAPED = {chr(code): f"%{code:02X}" for code in [*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^")]}


def folder(column: str, value: Any) -> str:
    """Return the folder of a value.

    >>> folder("month", 7), folder("path", "../a=b"), folder("x", None)
    ('month=7', 'path=..%2Fa%3Db', 'x=__HIVE_DEFAULT_PARTITION__')
    """
    if value is None or value == "":
        text = NULL_FOLDER
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = "".join(_ESCAPED.get(char, char) for char in str(value))
    return f"{''.join(_ESCAPED.get(char, char) for char in column)}={text}"


def too_long(column: str, value: Any) -> bool:
    """Return whether no file system would take the folder of this value."""
    return len(folder(column, value).encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX


def split(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (folders with ``/``, its rows without these columns), sorted; without columns one pair with ``""``."""
    if not columns:
        yield "", table
        return
    places = table.select(columns).append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    groups = places.group_by(list(columns)).aggregate([("_row", "list")])
    rest = table.drop_columns(list(columns))
    found = []
    for group in groups.to_pylist():
        rows = pa.array(group["_row_list"], pa.int64())
        found.append(("/".join(folder(name, group[name]) for name in columns), rows))
    for name, rows in sorted(found, key=lambda pair: pair[0]):
        yield name, rest.take(rows)
