"""What must be there after a run, against what is there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from downspout.kafka.deadletter import read_dead_letters
from downspout.parquet.schema import ORIGIN_SCHEMA
from downspout.testing.fake_kafka import FakeKafka
from downspout.testing.simulation.sources import Sent

__all__ = ["Place", "Row", "Rows", "judge", "read_letters", "read_rows"]

Row = Mapping[str, Any]
Rows = Callable[[Sent], Sequence[Row] | None]
Place = tuple[str, str, int, int]
"""Topic, the topic's id, partition, offset."""


def read_rows(directory: Path) -> dict[Place, list[dict[str, Any]]]:
    """Return the rows that any reader of a sink's directory sees, by the record that they came from.

    Raises:
        KeyError: the rows have no origin columns.
    """
    files = [path for path in sorted(directory.rglob("*.parquet")) if _visible(path.relative_to(directory))]
    found: dict[Place, list[dict[str, Any]]] = defaultdict(list)
    if files:
        table = ds.dataset(files, partitioning="hive", partition_base_dir=str(directory)).to_table(use_threads=False)
        for row in table.to_pylist():
            topic, topic_id, partition, offset, _ = (row.pop(name) for name in ORIGIN_SCHEMA.names)
            found[topic, topic_id, partition, offset].append(row)
    return dict(found)


def read_letters(kafka: FakeKafka, topic: str) -> set[Place]:
    """Return which records have a dead letter."""
    letters = read_dead_letters(kafka, topic) if topic in kafka.topic_names() else ()
    return {letter.origin for letter in letters if letter.origin is not None}


def judge(
    sent: Sequence[Sent],
    rows: Mapping[Place, list[dict[str, Any]]],
    letters: set[Place],
    expected: Rows,
    may_have_letters: Callable[[Sent], bool] = lambda record: False,
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, each with the place of the record concerned.

    Args:
        sent: all records.
        rows: what is in the files.
        letters: which records have a dead letter.
        expected: what must be in the files of a record; None: a dead letter.
        may_have_letters: whether a record that can be processed may have been given up all the same.

    A record that retention or compaction took may have been read before, or not: its rows are there at most once.
    """
    known = set()
    for record in sent:
        place = (record.topic, record.topic_id, record.partition, record.offset)
        known.add(place)
        wanted = expected(record)
        found = _counted(rows.get(place, ()))
        if record.state != "committed":
            if found or place in letters:
                yield record.place, f"is of an aborted transaction, and became {_shown(found)}"
            continue
        want = _counted(wanted or ())
        if extra := found - want:
            yield record.place, f"{_shown(extra)} is there though it should not be, or once too often"
        if place in letters and wanted is not None:
            if may_have_letters(record):
                continue
            yield record.place, "has a dead letter, and nothing was wrong with it"
        if record.removed:
            continue
        if missing := want - found:
            yield record.place, f"{_shown(missing)} is missing"
        if wanted is None and place not in letters:
            yield record.place, "could not be processed, and has no dead letter"
    for place in sorted((rows.keys() | letters) - known):
        yield f"{place[0]}[{place[2]}]@{place[3]}", "was never written, and there are rows or a letter of it"


def _counted(rows: Sequence[Row]) -> Counter[tuple[tuple[str, str], ...]]:
    return Counter(tuple(sorted((name, repr(value)) for name, value in row.items())) for row in rows)


def _shown(rows: Counter[tuple[tuple[str, str], ...]]) -> str:
    shown = [f"{times} × ({', '.join(f'{name}={value}' for name, value in row)})" for row, times in rows.items()]
    return " and ".join(shown[:3]) or "a dead letter"


def _visible(path: Path) -> bool:
    return not any(part[0] in "_." for part in path.parts)
