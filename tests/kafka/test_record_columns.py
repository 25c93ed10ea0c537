from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher

from downspout.errors import ConfigError
from downspout.kafka import ColumnRecord, RecordColumns, decoded_headers, encoded_headers
from downspout.kafka.columns import fetcher as hook

OCTETS = st.one_of(st.none(), st.binary(max_size=5))
HEADERS = st.lists(st.tuples(st.text(max_size=3), OCTETS), max_size=2)


@st.composite
def record_lists(draw: st.DrawFn, least: int = 1) -> list[ColumnRecord]:
    offsets = sorted(draw(st.sets(st.integers(0, 1 << 50), min_size=least, max_size=8)))
    times = st.integers(-1, 1 << 45)
    return [
        ColumnRecord("t", 2, at, draw(times), draw(OCTETS), draw(OCTETS), draw(HEADERS), draw(st.sampled_from([0, 1])))
        for at in offsets
    ]


@settings(deadline=None)
@given(record_lists(), st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([None, 1, 2, -1]))
def test_columns_are_a_sequence_of_their_records(
    records: list[ColumnRecord], first: int, last: int, step: int | None
) -> None:
    """Length, iteration, indexes and slices are those of a list of the same records, and slices of slices too."""
    columns = RecordColumns.of(records)
    assert len(columns) == len(records)
    assert list(columns) == records
    assert [columns[number] for number in range(-len(records), len(records))] == records * 2
    assert list(columns[first:last:step]) == records[first:last:step]
    assert list(columns[1:][first:last]) == records[1:][first:last]
    assert list(reversed(columns)) == records[::-1]
    for outside in (len(records), -len(records) - 1):
        with pytest.raises(IndexError):
            columns[outside]


@settings(deadline=None)
@given(record_lists(least=3))
def test_columns_hold_what_the_records_do(records: list[ColumnRecord]) -> None:
    """Each column has its Arrow or numpy type, nulls are kept, and joined slices are the whole again."""
    columns = RecordColumns.of(records)
    for part in (columns, RecordColumns.join([columns[:1], columns[1:2], columns[2:]])):
        assert (part.offsets.dtype, part.timestamps.dtype, part.timestamp_types.dtype) == (np.int64, np.int64, np.int8)
        assert (part.keys.type, part.values.type) == (pa.binary(), pa.binary())
        assert part.offsets.tolist() == [record.offset for record in records]
        assert part.timestamps.tolist() == [record.timestamp for record in records]
        assert part.keys.to_pylist() == [record.key for record in records]
        assert part.values.to_pylist() == [record.value for record in records]
        found = [[(pair["key"], pair["value"]) for pair in row] for row in part.headers().to_pylist()]
        assert found == [list(record.headers) for record in records]
        assert list(part) == records


def test_a_slice_copies_nothing() -> None:
    columns = RecordColumns.of([ColumnRecord("t", 0, at, 0, b"k", b"value", [("h", b"x")]) for at in range(10)])
    part = columns[3:7]
    assert np.shares_memory(part.offsets, columns.offsets)
    for ours, theirs in ((part.keys, columns.keys), (part.values, columns.values)):
        assert [buffer and buffer.address for buffer in ours.buffers()] == [
            buffer and buffer.address for buffer in theirs.buffers()
        ]
    assert (columns.nbytes, part.nbytes, columns[4:4].nbytes) == (10 * 11, 4 * 11, 0)


def test_columns_of_columns_are_themselves() -> None:
    columns = RecordColumns.of([ColumnRecord("t", 0, 1, 0, None, None, [])])
    assert RecordColumns.of(columns) is columns
    with pytest.raises(ValueError, match="no records"):
        RecordColumns.of([])
    assert (len(columns[:0]), list(columns[:0]), columns[:0].topic) == (0, [], "t")


def test_timestamps_wrap_as_in_java() -> None:
    """A timestamp of more than 64 bits, and one that there is not, have a number nevertheless."""
    records = [ColumnRecord("t", 0, at, time, None, None, []) for at, time in enumerate([(1 << 63) + 5, None])]
    assert RecordColumns.of(records).timestamps.tolist() == [-(1 << 63) + 5, -1]


@settings(deadline=None)
@given(HEADERS)
def test_headers_survive_the_wire(headers: list[tuple[str, bytes | None]]) -> None:
    """Names and values, null ones too, come back as they were."""
    assert decoded_headers(encoded_headers(headers)) == headers


@settings(deadline=None)
@given(st.lists(HEADERS, min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 40))
def test_headers_as_a_column(rows: list[list[tuple[str, bytes | None]]], first: int, more: int) -> None:
    """The column of headers has what the records have, of slices too, and however many headers a record has."""
    rows = [*rows, [("many", b"%d" % number) for number in range(more)]]
    records = [ColumnRecord("t", 0, at, 0, None, None, row) for at, row in enumerate(rows)]
    column = RecordColumns.of(records)[first:].headers()
    column.validate(full=True)
    found = [[(pair["key"], pair["value"]) for pair in row] for row in column.to_pylist()]
    assert found == rows[first:]


# --- another client than we know ---


def consumer(fetcher: type[Any]) -> Any:
    made = fetcher.__new__(fetcher)
    made.config = {"key_deserializer": None, "value_deserializer": None}
    return SimpleNamespace(_fetcher=made)


class Renamed(Fetcher):
    """A client whose class for the records of a fetch has another shape."""

    class PartitionRecords:
        pass


class Elsewhere(Fetcher):
    """A client that counts what is taken in another way."""

    def _append(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        drained[part.topic_partition].append(part.take(max_records))
        return 1


class Unmoved(Fetcher):
    """A client that makes its records without the class that we replace."""

    def _parse_fetched_data(self, completed_fetch: Any) -> None:
        return None


def test_the_client_that_is_installed_is_known() -> None:
    """The self-test passes on it, and its consumers get our class."""
    ours = consumer(Fetcher)
    hook.install(ours)
    assert ours._fetcher.PartitionRecords is not Fetcher.PartitionRecords


@pytest.mark.parametrize("fetcher", [Renamed, Elsewhere, Unmoved])
def test_another_client_gives_records_with_one_warning(
    fetcher: type[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a private part is not as expected, consumers keep their own records; the log says so once, with a cure."""
    hook._warn_of.cache_clear()
    for _ in range(2):
        ours = consumer(fetcher)
        with caplog.at_level(logging.WARNING, "downspout.kafka"):
            hook.install(ours)
        assert ours._fetcher.PartitionRecords.__name__ == "BoundedRecords"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "is not as expected" in told
    assert "pip install" in told


def test_records_of_an_unknown_client_become_columns_all_the_same() -> None:
    records = [ColumnRecord("t", 0, at, 0, None, b"v", []) for at in (3, 5)]
    columns, left = hook.combined(records)
    assert (list(columns), left) == (records, None)


def test_too_much_for_one_piece_is_left_for_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are joined up to a size; where the rest begins is said, and a single large one comes alone."""
    monkeypatch.setattr(hook, "JOINED_BYTES_MAX", 100)
    parts = [RecordColumns.of([ColumnRecord("t", 0, at, 0, None, b"x" * size, [])]) for at, size in ((0, 60), (7, 60))]
    columns, left = hook.combined(parts)
    assert (columns.offsets.tolist(), left) == ([0], 7)
    columns, left = hook.combined(parts[1:])
    assert (columns.offsets.tolist(), left) == ([7], None)
    large = RecordColumns.of([ColumnRecord("t", 0, 9, 0, None, b"x" * 500, [])])
    assert hook.combined([large])[0] is large


@pytest.mark.parametrize("name", ["key_deserializer", "value_deserializer"])
def test_columns_hold_bytes_alone(name: str) -> None:
    """A client that makes something else of keys or values is refused, with the setting's name."""
    ours = consumer(Fetcher)
    ours._fetcher.config[name] = object()
    with pytest.raises(ConfigError, match=f"kafka.client.{name}"):
        hook.install(ours)
