"""Windows in simulated worlds: kills, rebalances, replays, faults of Kafka and of the disk."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from streamparse import Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.parse import JsonParseBolt
from downspout.sink import FLUSH, Layout, read_entries
from downspout.testing import ProducedRecord, Scenario, simulate
from spouts.kafka import KafkaSpout

START, HOUR = datetime(2013, 1, 1, tzinfo=UTC), timedelta(hours=1)
TYPES = {"key": "string", "at": "timestamp"}


class Hours(Topology):
    spout = KafkaSpout.spec(topics=["events"], fields=["origin", "value"])
    parse = JsonParseBolt.spec(inputs=[spout], fields=list(TYPES), types=TYPES)
    hours = AggregateBolt.spec(
        inputs={parse: Grouping.fields("key")},
        par=2,
        directory="hours",
        schema=TYPES,
        keys=["key", "window(at, 3 hours, 1 hour)"],
        aggregates=["count"],
        lateness_s=0.0,
        idle_s=2.0,
    )


def event(rng: random.Random, number: int) -> bytes:
    """Return an event, some of them hours late."""
    at = START + number * HOUR / 20 - rng.random() * 4 * HOUR
    return json.dumps({"key": rng.choice("abc"), "at": at.isoformat()}).encode()


def check_hours(sent: Sequence[ProducedRecord], directory: Path) -> Iterator[str]:
    """Yield windows that do not hold each event once, and rows that a final window got without being marked."""
    wanted: Counter[tuple[str, datetime]] = Counter()
    for record in sent:
        if record.state == "committed":
            value = json.loads(record.value or b"")
            hour = datetime.fromisoformat(value["at"]).replace(minute=0, second=0, microsecond=0)
            wanted.update((value["key"], hour - back * HOUR) for back in range(3))
    found: Counter[tuple[str, datetime]] = Counter()
    watermark = None
    for entry in read_entries(directory):
        for file in entry.files if entry.kind == FLUSH else ():
            path = next(path for path in Layout(directory).way(file.path) if path.exists())
            for row in pq.read_table(path).to_pylist():
                found[row["key"], row["window_start"]] += row["count"]
                ends = int(row["window_end"].timestamp()) * 1_000_000
                if (watermark is not None and ends <= watermark) != bool(row["late_rows"]):
                    yield f"entry {entry.number}: {row} by the watermark {watermark}"
        if entry.times is not None:
            if watermark is not None and (entry.times.watermark is None or entry.times.watermark < watermark):
                yield f"entry {entry.number}: the watermark goes back from {watermark} to {entry.times.watermark}"
            watermark = entry.times.watermark
    if found != wanted:
        yield f"{dict(found - wanted)} are too many, {dict(wanted - found)} are missing"


@pytest.mark.sweep
def test_each_event_is_in_its_windows_once_and_late_ones_are_marked() -> None:
    """Whatever goes wrong, totals are exact, and rows are marked late by the log alone."""
    simulate(Scenario(Hours, event, check=check_hours), range(12))


@pytest.mark.slow
def test_a_few_worlds() -> None:
    """Two of those, each time."""
    simulate(Scenario(Hours, event, check=check_hours), range(2))
