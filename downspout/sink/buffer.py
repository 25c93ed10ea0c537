"""What a sink holds between two flushes: Arrow arrays and the ids of the tuples, but no tuples.

Rows are converted in blocks of a few hundred as they come. So a row that does not fit fails at once, memory is counted
exactly, and the garbage collector has nothing to look through, which it would do again and again with 100,000 tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.sink.columns.schema import Columns, Rejected
from downspout.sink.identity.rows import Identities, IdentityBuilder, Mask

TUPLE_BYTES = 64  # What an id and an origin cost, roughly, besides the row

Picker = Callable[[Sequence[Any]], list[Sequence[Any]]]  # From the values of tuples to one sequence per column


@dataclass(frozen=True)
class Batch:
    """The rows of one flush."""

    ids: Sequence[Any]  # of the tuple that each row is of; acked once the rows are durable
    table: pa.Table  # the declared columns
    identities: Identities  # of the rows, in their order; their paths lack the steps of the inputs
    chunked: bool = False  # whether one tuple may be of several rows
    unfinished: Collection[Any] = ()  # ids of tuples that have rows in a later part of the same flush

    @property
    def tuples(self) -> Iterable[Any]:
        """Return the ids of the tuples that end here, each once."""
        return dict.fromkeys(one for one in self.ids if one not in self.unfinished) if self.chunked else self.ids

    def only(self, good: Mask) -> Batch:
        """Return the rows that a mask leaves."""
        ids = [one for one, kept in zip(self.ids, good.tolist(), strict=True) if kept]
        return Batch(ids, self.table.filter(pa.array(good)), self.identities.only(good), self.chunked, self.unfinished)

    def split(self, numbers: NDArray[np.int64]) -> Iterator[Batch]:
        """Yield the rows of part 0, of part 1 and so on; a tuple ends with the last part that has a row of it."""
        last = dict(sorted(zip(self.ids, numbers.tolist(), strict=True), key=itemgetter(1))) if self.chunked else {}
        for number in range(int(numbers.max()) + 1):
            part = self.only(numbers == number)
            yield replace(part, unfinished={one for one in part.ids if last[one] > number} if self.chunked else ())


def picker(fields: Sequence[str], wanted: Sequence[str]) -> Picker:
    """Return the function that picks the wanted fields, column by column, out of the values of many tuples.

    >>> picker(["a", "b", "c"], ["c", "a"])([(1, 2, 3), (4, 5, 6)])
    [(3, 6), (1, 4)]
    """
    places = [fields.index(name) for name in wanted]
    if len(places) == 1 or len(places) * 2 < len(fields):
        getters = [itemgetter(place) for place in places]
        return lambda rows: [tuple(map(get, rows)) for get in getters]

    def pick(rows: Sequence[Any]) -> list[Sequence[Any]]:
        columns = list(zip(*rows, strict=True))
        return [columns[place] for place in places]

    return pick


class Buffer:
    """Collects rows until they are taken."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._clear()

    def _clear(self) -> None:
        self._ids: list[Any] = []
        self._tables: list[pa.Table] = []
        self._identities = IdentityBuilder()
        self._chunked = False
        self.bytes = 0  # what is held, in bytes

    def __len__(self) -> int:
        return len(self._ids)

    def add(
        self, ids: Sequence[Any], values: Sequence[Sequence[Any]], origins: Sequence[Any] | None, source: str = ""
    ) -> list[Rejected]:
        """Add rows; return those that do not fit, which are not held."""
        builder, count = self._identities, len(ids)
        bad: dict[int, str] = {}
        if origins is not None:
            numbers, offsets, bad = builder.encode(origins, source)
        table, invalid = self._columns.table(values)
        reasons = {reject.row: reject.reason for reject in invalid}
        if bad:  # the table lacks its own invalid rows already
            table = table.filter(pa.array([row not in bad for row in range(count) if row not in reasons]))
        if reasons := reasons | bad:
            good = np.array([row not in reasons for row in range(count)], dtype=bool)
            ids = [one for one, fits in zip(ids, good.tolist(), strict=True) if fits]
        if origins is None:
            builder.add_none(len(ids))
        elif reasons:
            builder.add(numbers[good], offsets[good])
        else:
            builder.add(numbers, offsets)
        self._ids += ids
        self._tables.append(table)
        self.bytes += table.nbytes + TUPLE_BYTES * len(ids)
        return [Rejected(row, reasons[row]) for row in sorted(reasons)]

    def add_chunk(self, tuple_id: Any, values: Sequence[Any], origins: Any, source: str = "") -> list[Rejected]:
        """Add the rows of a chunk. If some do not fit, none is held, and those are returned."""
        builder = self._identities
        bad: dict[int, str] = {}
        table, invalid = self._columns.of_chunk(values)
        if origins is not None:
            numbers, offsets, bad = builder.encode_column(origins, source)
        if invalid or bad:
            reasons = {reject.row: reject.reason for reject in invalid} | bad
            return [Rejected(row, reasons[row]) for row in sorted(reasons)]
        if origins is None:
            builder.add_none(table.num_rows)
        else:
            builder.add(numbers, offsets)
        self._ids += [tuple_id] * table.num_rows
        self._tables.append(table)
        self._chunked = True
        self.bytes += table.nbytes + TUPLE_BYTES
        return []

    def take(self) -> Batch:
        """Return all rows, and hold none any more."""
        empty = self._columns.schema.empty_table()
        table, identities = pa.concat_tables([empty, *self._tables]), self._identities.build()
        batch = Batch(self._ids, table, identities, self._chunked)
        self._clear()
        return batch
