"""The column ``origin`` of a chunk: the source record of each row, and the row's path among that record's rows.

It is a struct with the parts of :class:`~downspout.ledger.origin.Origin`. Texts (the topic, its id, the path) are
dictionaries, because they are usually the same in all rows. Arrow's filters and joins preserve the column. After Spark
or Storm's pipe, the dictionaries are plain texts; both forms are accepted.

``n`` below is the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.ledger.origin import Origin

FIELD = "origin"  # The name of the field, in tuples and in chunks
_TEXT = pa.dictionary(pa.int32(), pa.string())
ORIGIN: pa.StructType = pa.struct(
    [
        pa.field("topic", _TEXT), pa.field("topic_id", _TEXT), pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()), pa.field("path", _TEXT),
    ]
)  # fmt: skip
"""The type of the column."""
FIELDS = list(ORIGIN)
OFFSET = pa.int64()
CONSTANTS_MAX, CONSTANT_ROWS = 256, 1_000
ITSELF = -1
"""Instead of an index in :func:`under`: the row keeps its origin."""
_constants: dict[str | int, Any] = {}
"""Cache of constant columns, the longest so far, for the latest values."""


def origins(topic: str, topic_id: str, partition: int, offsets: Any, path: str | Sequence[str] = "") -> pa.StructArray:
    """Make the column for records of one partition.

    Args:
        offsets: one per row, as a numpy or Arrow array, or numbers.
        path: the same for all rows, or one per row.

    >>> column = origins("lines", "", 0, [17, 19])
    >>> Origin(**column[1].as_py())
    Origin(topic='lines', topic_id='', partition=0, offset=19, path='')
    """
    numbers = offsets if isinstance(offsets, pa.Array) else pa.array(offsets, pa.int64())
    count = len(numbers)
    paths = _constant(path, count) if isinstance(path, str) else pa.array(path, pa.string()).dictionary_encode()
    parts = [
        _constant(topic, count),
        _constant(topic_id, count),
        _first(partition, count, lambda number, most: pa.array(np.full(most, number, dtype=np.int32))),
        numbers if numbers.type == OFFSET else numbers.cast(OFFSET),
        paths,
    ]
    return pa.StructArray.from_arrays(parts, fields=FIELDS)


def column_of(values: Sequence[Any]) -> pa.StructArray:
    """Make the column from any origins.

    >>> column_of([Origin("lines", "", 0, 17), ["lines", "", 1, 3, "split.0"]]).field("offset").to_pylist()
    [17, 3]

    Raises:
        ValueError: a value is not an origin.
    """
    found = [Origin.of(value) for value in values]
    parts = [pa.array([origin[place] for origin in found], _plain(field)) for place, field in enumerate(ORIGIN)]
    made = [part.dictionary_encode() if pa.types.is_string(part.type) else part for part in parts]
    return pa.StructArray.from_arrays(made, fields=list(ORIGIN))


def is_origins(kind: Any) -> bool:
    """Return whether this is the type of an origin column.

    >>> is_origins(ORIGIN), is_origins(pa.string())
    (True, False)
    """
    return pa.types.is_struct(kind) and tuple(field.name for field in kind) == Origin._fields


def origin_at(column: Any, row: int) -> Origin:
    """Return the origin of one row."""
    return Origin(**column[row].as_py())


def common_of(column: Any) -> Origin | None:
    """Return the origin of the first row if all rows differ only in their offsets, else None.

    >>> common_of(origins("lines", "", 0, [17, 19]))
    Origin(topic='lines', topic_id='', partition=0, offset=17, path='')
    >>> common_of(origins("lines", "", 0, [17, 17], path=["split.0", "split.1"]))
    """
    if not len(column):
        return None
    for name in ("topic", "topic_id", "partition", "path"):
        part = part_of(column, name)
        if part.null_count:
            return None
        if name != "partition":
            part = as_dictionary(part)
            if len(part.dictionary) == 1:
                continue
            part = part.indices
        values = part.to_numpy()
        if not (values == values[0]).all():
            return None
    return origin_at(column, 0)


def each(column: Any) -> Iterator[Origin]:
    """Yield the origin of each row. O(n)."""
    parts = (_plainly(part_of(column, field.name)).to_pylist() for field in ORIGIN)
    return map(Origin._make, zip(*parts, strict=True))


def _plainly(part: Any) -> Any:
    """Decode a dictionary, whose items are ten times slower to read."""
    return part.dictionary_decode() if pa.types.is_dictionary(part.type) else part


def rows_of(batch: Any) -> Iterator[tuple[Any, ...]]:
    """Return the values of each row, as in tuples.

    >>> list(rows_of(pa.RecordBatch.from_pydict({"word": ["dog", None], "letters": [3, 0]})))
    [('dog', 3), (None, 0)]
    """
    return zip(*map(values_of, batch.columns), strict=True)


def values_of(column: Any) -> Sequence[Any]:
    """Return a column's values as in tuples: a map is a dict.

    >>> values_of(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())))
    [{'a': 1}]
    """
    if is_origins(column.type):
        return list(each(column))
    values: Sequence[Any] = column.to_pylist(maps_as_pydicts="strict" if pa.types.is_nested(column.type) else None)
    return values


def offsets_of(column: Any) -> NDArray[np.int64]:
    """Return the offsets as a numpy array, if possible without a copy."""
    found: NDArray[np.int64] = part_of(column, "offset").to_numpy(zero_copy_only=False)
    return found


def part_of(column: Any, name: str) -> Any:
    """Return one part of the column as an array, with slices and nulls of the struct applied."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not (column.offset or column.null_count):
        return column.field(name)
    import pyarrow.compute as pc  # takes a quarter of a second of CPU, and is rarely needed

    return pc.struct_field(column, name)


def as_dictionary(part: Any) -> Any:
    """Encode a part of the column as a dictionary."""
    return part if pa.types.is_dictionary(part.type) else part.dictionary_encode()


def under(column: Any, component: str, indexes: Any, stream: str = "default") -> pa.StructArray:
    """Extend each path as :meth:`Origin.child` does, for bolts that emit several rows per input.

    Args:
        column: the origins of the inputs, one per emitted row.
        component: the name of the bolt.
        indexes: the index of each row among those of its input; ``ITSELF`` for a row that keeps its origin.
        stream: the stream of the rows.

    Raises:
        ValueError: a row has no origin.

    >>> lines = origins("lines", "", 0, [17, 17])
    >>> [origin.path for origin in each(under(lines, "split", [0, 1]))]
    ['split.0', 'split.1']
    """
    paths, places = as_dictionary(part_of(column, "path")), np.asarray(indexes, dtype=np.int64) - ITSELF
    if paths.null_count:
        raise ValueError("a row has no origin, so what is made of it can have none")
    # Few of the paths differ, so each is made once.
    most = int(places.max(initial=0)) + 1
    pairs, codes = np.unique(paths.indices.to_numpy().astype(np.int64) * most + places, return_inverse=True)
    known, names = paths.dictionary.to_pylist(), []
    for code, place in zip(*np.divmod(pairs, most), strict=True):
        parent = Origin("", "", 0, 0, known[code])
        names.append((parent.child(component, place + ITSELF, stream) if place else parent).path)
    made = pa.DictionaryArray.from_arrays(codes.astype(np.int32), pa.array(names, pa.string()))
    rest = [part_of(column, field.name) for field in FIELDS[:-1]]
    parts = [as_dictionary(part) if pa.types.is_string(part.type) else part for part in rest]
    return pa.StructArray.from_arrays([*parts, made], fields=FIELDS)


def places_among_equals(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each number how many equal ones precede it: the index of each row among those of its record.

    >>> places_among_equals(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    begins = np.maximum.accumulate(np.where(first, np.arange(len(numbers)), 0))
    places = np.empty(len(numbers), dtype=np.int64)
    places[order] = np.arange(len(numbers)) - begins
    return places


def _plain(field: Any) -> Any:
    return field.type.value_type if pa.types.is_dictionary(field.type) else field.type


def _constant(text: str, count: int) -> Any:
    return _first(
        text,
        count,
        lambda same, most: pa.DictionaryArray.from_arrays(np.zeros(most, np.int32), pa.array([same], pa.string())),
    )


def _first(value: str | int, count: int, make: Callable[[Any, int], Any]) -> Any:
    """Return a constant column, a slice of a longer cached one, so that small chunks cost little."""
    known = _constants.get(value)
    if known is None or len(known) < count:
        while len(_constants) >= CONSTANTS_MAX:
            _constants.pop(next(iter(_constants)))
        known = _constants[value] = make(value, max(count, CONSTANT_ROWS))
    return known if len(known) == count else known.slice(0, count)
