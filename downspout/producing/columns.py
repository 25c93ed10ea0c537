"""The rows of a chunk as the mapper takes them: values in the order of the columns, texts and bytes as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from downspout.origins import FIELD

__all__ = ["rows_of_chunk"]


def rows_of_chunk(chunk: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each row, without its origin: no record is made of that.

    >>> list(rows_of_chunk(pa.RecordBatch.from_pydict({"key": ["a", None], "message": [b"x", b"y"]})))
    [('a', b'x'), (None, b'y')]
    """
    columns: list[Iterable[Any]] = [
        repeat(None) if name == FIELD else column.to_pylist()
        for name, column in zip(chunk.schema.names, chunk.columns, strict=True)
    ]
    if all(isinstance(column, repeat) for column in columns):
        return iter([(None,) * len(columns)] * chunk.num_rows)
    return zip(*columns, strict=False)
