"""Compare the result of a run with the expected one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from downspout.dead_letters.dead_letter import read_dead_letters
from downspout.errors import TopologyError, coordinates
from downspout.origins import values_of
from downspout.sink.schema import ORIGIN_SCHEMA, Columns, Rejected
from downspout.testing.fake_kafka import FakeKafka
from downspout.testing.simulation.sources import ProducedRecord

__all__ = ["Place", "Row", "Rows", "SinkRows", "dead_lettered", "expected_rows", "judge", "read_rows"]

Row = Mapping[str, Any]
Rows = Callable[[ProducedRecord], Sequence[Row] | None]
Place = tuple[str, str, int, int]  # Topic, topic id, partition, offset


def read_rows(directory: Path, columns: Columns, folders: Sequence[str] = ()) -> dict[Place, list[Row]]:
    """Return the visible rows of a sink's directory by record.

    Raises:
        KeyError: the rows have no origin columns.
    """
    files = [path for path in sorted(directory.rglob("*.parquet")) if _visible(path.relative_to(directory))]
    found: dict[Place, list[Row]] = defaultdict(list)
    if files:
        hive = ds.partitioning(pa.schema([columns.schema.field(name) for name in folders]), flavor="hive")
        table = ds.dataset(files, partitioning=hive, partition_base_dir=str(directory)).to_table(use_threads=False)
        if lacking := [name for name in ORIGIN_SCHEMA.names if name not in table.column_names]:
            raise KeyError(lacking[0])
        places = zip(*(table.column(name).to_pylist() for name in ORIGIN_SCHEMA.names[:-1]), strict=True)
        rows, misfits = as_declared(columns, table.drop_columns(ORIGIN_SCHEMA.names).to_pylist())
        if misfits:
            raise TopologyError(f"{directory.name}: a row in the files is not as declared: {misfits[0].reason}")
        for place, row in zip(places, rows, strict=True):
            found[place].append(row)
    return dict(found)


def as_declared(columns: Columns, rows: Sequence[Row]) -> tuple[list[Row], list[Rejected]]:
    """Convert rows to the columns' types, so that ``"2013-01-31"`` equals that date, and 1 equals 1.0.

    The second list holds the rows that do not fit, with reasons.

    >>> as_declared(Columns.parse(["paid:decimal(5,2)"]), [{"paid": 1}, {"paid": "one"}])[0]
    [{'paid': Decimal('1.00')}]
    """
    given = [[row.get(name) for row in rows] for name in columns.names]
    table, misfits = columns.table(given)
    values = zip(*(values_of(column.combine_chunks()) for column in table.columns), strict=True)
    return [dict(zip(columns.names, row, strict=True)) for row in values], misfits


def expected_rows(sent: Sequence[ProducedRecord], rows: Rows, columns: Columns) -> dict[Place, list[Row] | None]:
    """Return the expected rows of each record, converted to the columns' types.

    Raises:
        TopologyError: a row has an undeclared column, or a value that does not fit.
    """
    wanted = {record.origin: rows(record) for record in sent}
    where = [(place, row) for place, of_record in wanted.items() for row in of_record or ()]
    for place, row in where:
        if strangers := row.keys() - set(columns.names):
            raise TopologyError(
                f"the scenario's row of {_text(place)} has {', '.join(sorted(strangers))}, and the sink does not",
                cure=f"the columns {', '.join(columns.names)}",
            )
    declared, misfits = as_declared(columns, [row for _, row in where])
    if misfits:
        place, _ = where[misfits[0].row]
        raise TopologyError(
            f"the scenario's row of {_text(place)}: {misfits[0].reason}", cure="None for what needs a dead letter"
        )
    made: dict[Place, list[Row] | None] = {place: None if found is None else [] for place, found in wanted.items()}
    for (place, _), row in zip(where, declared, strict=True):
        of_place = made[place]
        assert of_place is not None  # it has rows
        of_place.append(row)
    return made


def _text(place: Place) -> str:
    return coordinates(place[0], place[2], place[3])


def dead_lettered(kafka: FakeKafka, topic: str) -> set[Place]:
    """Return the records that have a dead letter."""
    dead_letters = read_dead_letters(kafka, topic) if topic in kafka.topic_names() else ()
    return {dead_letter.origin for dead_letter in dead_letters if dead_letter.origin is not None}


def judge(
    sent: Sequence[ProducedRecord],
    sinks: Mapping[str, SinkRows],
    dead_letters: set[Place],
    may_have_dead_letters: Callable[[ProducedRecord], bool] = lambda record: False,
) -> Iterator[tuple[str, str]]:
    """Yield problems, each with the record's name.

    A record removed by retention or compaction may or may not have been read: its rows may exist at most once. The same
    holds for a record that one sink can process and another cannot.
    """
    for record in sent:
        place = record.origin
        if record.state != "committed":
            became = [_shown(found) for sink in sinks.values() if (found := _counted(sink.found.get(place, ())))]
            if became or place in dead_letters:
                yield (
                    record.place,
                    f"is of an aborted transaction, and became {' and '.join(became) or 'a dead letter'}",
                )
            continue
        fails = any(sink.wanted(place) is None for sink in sinks.values())
        may_lack = record.removed or fails or (place in dead_letters and may_have_dead_letters(record))
        for name, sink in sinks.items():
            told = sink.compare(place, may_lack=may_lack)
            yield from ((record.place, f"{name}: {what}" if len(sinks) > 1 else what) for what in told)
        if place in dead_letters and not fails and not may_have_dead_letters(record):
            yield record.place, "has a dead letter, and nothing was wrong with it"
        if fails and not record.removed and place not in dead_letters:
            yield record.place, "could not be processed, and has no dead letter"
    known = {record.origin for record in sent}
    strangers = set(dead_letters).union(*(sink.found for sink in sinks.values())) - known
    for place in sorted(strangers):
        yield _text(place), "was never written, and there are rows or a dead letter of it"


@dataclass(frozen=True)
class SinkRows:
    """The rows of one sink, by record."""

    found: Mapping[Place, Sequence[Row]]  # in the files
    expected: Mapping[Place, Sequence[Row] | None]  # None: the record cannot be processed

    def wanted(self, place: Place) -> Sequence[Row] | None:
        """Return the expected rows of a record."""
        return self.expected[place]

    def compare(self, place: Place, *, may_lack: bool) -> Iterator[str]:
        """Yield the problems of a record's rows; with ``may_lack``, rows may be missing."""
        found, want = _counted(self.found.get(place, ())), _counted(self.wanted(place) or ())
        extra, missing = found - want, want - found
        if extra and missing and not may_lack and extra.total() == missing.total() == 1:
            yield _difference(next(iter(extra)), next(iter(missing)))
            return
        if extra:
            yield f"{_shown(extra)} is there though it should not be, or once too often"
        if missing and not may_lack:
            yield f"{_shown(missing)} is missing"


Counted = tuple[tuple[str, str], ...]


def _counted(rows: Sequence[Row]) -> Counter[Counted]:
    return Counter(tuple((name, repr(value)) for name, value in row.items()) for row in rows)


def _difference(found: Counted, wanted: Counted) -> str:
    """Describe the columns in which a row differs."""
    told = [f"{name} is {value} instead of {want}" for (name, value), (_, want) in zip(found, wanted, strict=True)
            if value != want]  # fmt: skip
    return ", ".join(told)


def _shown(rows: Counter[Counted]) -> str:
    shown = [f"{times} × ({', '.join(f'{name}={value}' for name, value in row)})" for row, times in rows.items()]
    return " and ".join(shown[:3])


def _visible(path: Path) -> bool:
    return not any(part[0] in "_." for part in path.parts)
