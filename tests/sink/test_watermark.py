"""Final windows: the same for all readers and for good, regardless of writers' deaths and restarts."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamparse import Topology

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.engine import from_class
from downspout.errors import ConfigError, TopologyError
from downspout.ledger import Origin
from downspout.run import findings, resolve
from downspout.sink import CommitLog, Compactor, DirectoryState, read_entries, read_table
from downspout.sink.aggregation import Watermark
from downspout.sink.log_entry import EventTimes
from downspout.testing import VirtualClock
from spouts.kafka import KafkaSpout
from tests.sink.support import sink, tup

SCHEMA = ["key:string", "at:timestamp"]
START = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
Row = tuple[int, int, str, datetime]  # partition, offset, key, time


def task(directory: Path, clock: VirtualClock, **conf: Any) -> Any:
    """Return one task of a sink that counts by key and hour."""
    settings = {"schema": SCHEMA, "keys": ["key", "window(at, 1 hour)"], "aggregates": ["count"], **conf}
    settings = {"lateness_s": 0.0, "idle_s": 60.0, **settings}
    fields = ["origin", "key", "at"]
    return sink(
        AggregateBolt, directory, fields=fields, clock=clock, **{f"parquet.{k}": v for k, v in settings.items()}
    )


def give(bolt: Any, *rows: Row) -> None:
    """Give rows to a task."""
    for partition, offset, key, at in rows:
        bolt.process(tup(("t", "id", partition, offset, ""), key, at))


def flush(bolt: Any, clock: VirtualClock, *rows: Row, after_s: float = 8.0) -> None:
    """Give rows to a task some time later, and let it flush."""
    clock.advance(after_s)
    give(bolt, *rows)
    bolt.drain()


def closed(directory: Path) -> Counter[tuple[str, datetime]]:
    """Return the counts of closed windows."""
    found: Counter[tuple[str, datetime]] = Counter()
    for row in read_table(directory, closed=True).to_pylist():
        found[row["key"], row["window_start"]] += row["count"]
    return found


def watermark(directory: Path) -> datetime | None:
    """Return the watermark, as whoever opens the directory now reads it."""
    log = CommitLog(directory)
    log.refresh()
    return None if log.watermark.value is None else START.fromtimestamp(log.watermark.value / 1e6, UTC)


def warm_up(bolt: Any, clock: VirtualClock, partitions: int = 1) -> None:
    """Write for so long that windows may be final; the offsets are below 10, the times before START."""
    for number in range(9):
        flush(bolt, clock, *((p, number, "a", START - 10 * HOUR + number * HOUR) for p in range(partitions)))


# --- the rule --------------------------------------------------------------------------------------------


def test_the_slowest_partition_counts_less_the_lateness(tmp_path: Path) -> None:
    """A window is final when every partition has passed its end by ``lateness_s``."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock, lateness_s=600.0)
    warm_up(bolt, clock, partitions=2)
    assert watermark(tmp_path) == START - 2 * HOUR - timedelta(minutes=10)
    flush(bolt, clock, (0, 10, "a", START + 5 * HOUR))
    assert watermark(tmp_path) == START - 2 * HOUR - timedelta(minutes=10)
    flush(bolt, clock, (1, 10, "a", START))
    assert watermark(tmp_path) == START - timedelta(minutes=10)
    assert max(start for _, start in closed(tmp_path)) == START - 2 * HOUR  # the hour that began then has just ended


def test_nothing_is_final_before_it_shows_which_partitions_there_are(tmp_path: Path) -> None:
    """One partition is a year ahead, and the other comes half a minute later: no row of it is late."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock)
    for number in range(4):
        flush(bolt, clock, (0, number, "a", START + number * 1_000 * HOUR))
    assert (watermark(tmp_path), closed(tmp_path)) == (None, Counter())
    for number in range(9):
        flush(bolt, clock, (1, number, "a", START + number * HOUR))
    assert watermark(tmp_path) is not None
    assert sum(read_table(tmp_path).column("late_rows").to_pylist()) == 0


def test_a_partition_without_rows_is_left_out_after_a_while_and_comes_back(tmp_path: Path) -> None:
    """It holds windows open for ``idle_s``; its later rows count again, and the watermark does not go back."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock)
    warm_up(bolt, clock, partitions=2)
    found = []
    for number in range(9):
        flush(bolt, clock, (0, 10 + number, "a", START + number * HOUR))
        found.append(watermark(tmp_path))
    assert found[:7] == [START - 2 * HOUR] * 7
    assert found[7:] == [START + 7 * HOUR, START + 8 * HOUR]
    flush(bolt, clock, (1, 10, "a", START + HOUR), (0, 30, "a", START + 20 * HOUR))
    assert watermark(tmp_path) == START + 8 * HOUR
    assert sum(read_table(tmp_path).column("late_rows").to_pylist()) == 1


def test_a_night_without_a_run_makes_no_partition_idle(tmp_path: Path) -> None:
    """Only the time in which somebody writes counts: the first flush in the morning closes nothing."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock)
    warm_up(bolt, clock, partitions=2)
    flush(task(tmp_path, clock), clock, (0, 10, "a", START + 50 * HOUR), after_s=12 * 3600.0)
    assert watermark(tmp_path) == START - 2 * HOUR


def test_what_another_task_holds_keeps_windows_open(tmp_path: Path) -> None:
    """Two tasks get rows of one partition. What one has flushed says nothing about what the other still holds."""
    clock = VirtualClock()
    first, second = task(tmp_path, clock), task(tmp_path, clock)
    for number in range(9):
        flush(first, clock, (0, 2 * number, "a", START + number * HOUR), after_s=4.0)
        flush(second, clock, (0, 2 * number + 1, "b", START + number * HOUR), after_s=4.0)
    before = watermark(tmp_path)
    give(second, (0, 31, "b", START + 9 * HOUR))
    flush(first, clock, (0, 40, "a", START + 30 * HOUR))
    assert watermark(tmp_path) == before == START + 8 * HOUR
    flush(second, clock, (0, 41, "b", START + 30 * HOUR))
    assert closed(tmp_path)["b", START + 9 * HOUR] == 1


def test_after_a_crash_the_old_tasks_hold_the_watermark_until_the_new_ones_have_caught_up(tmp_path: Path) -> None:
    """Three tasks take the place of two: rows that no old task had flushed are not late."""
    clock = VirtualClock()
    first, second = task(tmp_path, clock), task(tmp_path, clock)
    for number in range(9):
        flush(first, clock, (0, 2 * number, "a", START + number * HOUR), after_s=4.0)
        flush(second, clock, (0, 2 * number + 1, "b", START + number * HOUR), after_s=4.0)
    give(second, (0, 41, "b", START + 9 * HOUR))  # and is killed before it flushes
    flush(first, clock, (0, 40, "a", START + 20 * HOUR))
    again = [task(tmp_path, clock) for _ in range(3)]
    flush(again[0], clock, (0, 40, "a", START + 20 * HOUR), (0, 42, "a", START + 25 * HOUR))
    flush(again[2], clock, (0, 43, "c", START + 25 * HOUR))
    flush(again[1], clock, (0, 41, "b", START + 9 * HOUR), (0, 44, "b", START + 25 * HOUR))
    assert sum(read_table(tmp_path).column("late_rows").to_pylist()) == 0
    for number in range(10):
        for bolt in again:
            flush(bolt, clock, (0, 100 + 10 * number + again.index(bolt), "a", START + (30 + number) * HOUR))
    assert closed(tmp_path)["b", START + 9 * HOUR] == 1


def test_a_time_in_the_future_closes_nothing(tmp_path: Path) -> None:
    """One broken device says that it is the year 2999: to the watermark it is now, and rows of today are in time."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock)
    warm_up(bolt, clock)
    flush(bolt, clock, (0, 10, "a", datetime(2999, 1, 1, tzinfo=UTC)))
    now = START.fromtimestamp(clock.wall(), UTC)
    assert watermark(tmp_path) == now
    flush(bolt, clock, (0, 11, "a", now + HOUR))
    assert sum(read_table(tmp_path).column("late_rows").to_pylist()) == 0


# --- finality --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_closed_windows_never_change_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    """Disorder, late rows, replays, kills, several tasks, compactions, other settings: what was closed stays so."""
    rng, clock = random.Random(seed), VirtualClock()
    rows = [
        (partition, offset, rng.choice("ab"), START + offset * HOUR / rng.choice((2, 3)) + rng.random() * 5 * HOUR)
        for partition in range(3)
        for offset in range(120)
    ]
    tasks = [task(tmp_path, clock) for _ in range(2)]
    known: Counter[tuple[str, datetime]] = Counter()
    ends, count, given = None, 0, 0
    while given < len(rows) or rng.random() < 0.5:
        bolt = rng.choice(tasks)
        part = [row for row in sorted(rows, key=lambda row: row[1])[given : given + 12] if rng.random() < 0.9]
        again = rng.sample(rows[: given + 1], min(given, 3))
        given += 12
        flush(bolt, clock, *part, *again, after_s=rng.choice((2.0, 8.0, 20.0, 3_600.0)))
        if rng.random() < 0.2:
            tasks = [task(tmp_path, clock, lateness_s=rng.choice((0.0, 7_200.0))) for _ in range(rng.choice((1, 2, 3)))]
        if rng.random() < 0.1:
            Compactor(tmp_path, clock=clock).run()
        found, now = closed(tmp_path), watermark(tmp_path)
        assert ends is None or (now is not None and now >= ends)
        assert {key: n for key, n in found.items() if ends is not None and key[1] + HOUR <= ends} == known
        known, ends = found, now
        count += bool(found)
    flush(tasks[0], clock, *rows)
    assert count > 3
    total: Counter[tuple[str, datetime]] = Counter()
    for row in read_table(tmp_path).to_pylist():
        total[row["key"], row["window_start"]] += row["count"]
    assert total == Counter((key, at.replace(minute=0, second=0, microsecond=0)) for _, _, key, at in rows)


def test_two_writers_at_once_agree_on_what_is_late(tmp_path: Path) -> None:
    """A flush that finds another entry before its own looks again: what has become late meanwhile is marked."""
    clock = VirtualClock()
    bolt, other = task(tmp_path, clock), task(tmp_path, clock)
    warm_up(bolt, clock)
    give(other, (0, 50, "late", START + HOUR))
    append, did = other.writer.log.append, []

    def after_another(entry: Any) -> Any:
        if not did:
            did.append(1)
            flush(bolt, clock, (0, 51, "a", START + 5 * HOUR))
        return append(entry)

    other.writer.log.append = after_another
    other.drain()
    assert {row["key"]: row["late_rows"] for row in read_table(tmp_path).to_pylist()}["late"] == 1
    assert ("late", START + HOUR) not in closed(tmp_path)


def test_a_flush_in_parts_tells_its_times_with_the_last(tmp_path: Path) -> None:
    """Rows that wait for their part of the flush are not late by what the first part says."""

    class Parted(AggregateBolt):
        files_max = 1

    clock = VirtualClock()
    warm_up(task(tmp_path, clock, partition_by=["key"]), clock)
    conf = {"schema": SCHEMA, "keys": ["key", "window(at, 1 hour)"], "aggregates": ["count"], "partition_by": ["key"]}
    bolt = sink(
        Parted, tmp_path, fields=["origin", "key", "at"], clock=clock,
        **{f"parquet.{k}": v for k, v in {**conf, "lateness_s": 0.0, "idle_s": 60.0}.items()},
    )  # fmt: skip
    flush(bolt, clock, (0, 20, "x", START + 9 * HOUR), (0, 21, "y", START + HOUR), (0, 22, "z", START + 9 * HOUR))
    entries = read_entries(tmp_path)[-3:]
    assert [entry.times is not None for entry in entries] == [False, False, True]
    assert sum(read_table(tmp_path).column("late_rows").to_pylist()) == 0


# --- late rows ------------------------------------------------------------------------------------------


def test_a_late_row_is_added_and_counted(tmp_path: Path) -> None:
    """It is in the totals, marked; the closed window stays as it was; a replay of it changes nothing."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock)
    warm_up(bolt, clock)
    before = closed(tmp_path)
    for _ in range(2):
        flush(bolt, clock, (0, 60, "a", START - 9 * HOUR))
    assert closed(tmp_path) == before
    late = [row for row in read_table(tmp_path).to_pylist() if row["late_rows"]]
    assert [(row["window_start"], row["count"], row["late_rows"]) for row in late] == [(START - 9 * HOUR, 1, 1)]
    assert bolt.report()["late"] == 1


def test_a_late_row_goes_to_a_stream_and_one_that_comes_again_goes_there_again(tmp_path: Path) -> None:
    """It carries its origin, is acked and not in the directory; replays of rows that were in time go nowhere."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock, late="stream")
    emitted: list[tuple[Any, ...]] = []
    bolt.emit = lambda values, stream, anchors: emitted.append((stream, anchors, *values))
    warm_up(bolt, clock)
    total = read_table(tmp_path).num_rows
    for _ in range(2):
        flush(bolt, clock, (0, 60, "x", START - 9 * HOUR), (0, 1, "a", START - 9 * HOUR))
    expected = ("late", ["t-id-0-60-"], "x", START - 9 * HOUR, Origin("t", "id", 0, 60, ""))
    assert emitted == [expected, expected]
    assert bolt.acked[-2:] == ["t-id-0-60-", "t-id-0-1-"]
    assert (read_table(tmp_path).num_rows, bolt.report()["late"]) == (total, 2)


def test_the_stream_of_late_rows_is_declared_and_needs_origins(tmp_path: Path) -> None:
    """Its fields are those of the sink's input; without a window or an origin it is refused."""
    settings: dict[str, Any] = {"directory": "x", "schema": SCHEMA, "aggregates": ["count"], "late": "stream"}
    spec = AggregateBolt.spec(keys=["window(at, 1 hour)"], **settings)
    assert spec.outputs["late"].output_fields == ["key", "at", "origin"]
    with pytest.raises(ConfigError, match="without a window"):
        AggregateBolt.spec(keys=["key"], **settings)
    conf = {f"parquet.{name}": value for name, value in settings.items()} | {"parquet.keys": ["window(at, 1 hour)"]}
    with pytest.raises(TopologyError, match="no field origin"):
        sink(AggregateBolt, tmp_path, fields=["key", "at"], **{**conf, "parquet.directory": str(tmp_path)})


def test_a_stream_of_late_rows_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Late rows would be acked and be nowhere: check and run say so before anything is read."""
    schema = {"key": "string", "timestamp": "timestamp_ms"}
    settings: dict[str, Any] = {"schema": schema, "keys": ["window(timestamp, 1 hour)"], "aggregates": ["count"]}

    class Unread(Topology):
        spout = KafkaSpout.spec(topics=["t"], group="g", fields=["origin", "key", "timestamp"])
        hours = AggregateBolt.spec(inputs=[spout], directory=str(tmp_path / "hours"), late="stream", **settings)

    class Read(Topology):
        spout = KafkaSpout.spec(topics=["t"], group="g", fields=["origin", "key", "timestamp"])
        hours = AggregateBolt.spec(inputs=[spout], directory=str(tmp_path / "hours"), late="stream", **settings)
        late = ParquetBolt.spec(inputs=[hours["late"]], directory=str(tmp_path / "late"), schema=schema)

    def refusals(topology: type[Topology]) -> list[str]:
        graph = from_class(topology, "hours")
        found = map(str, findings(graph, resolve(graph, environ={})))
        return [text for text in found if "no bolt reads its stream 'late'" in text]

    assert len(refusals(Unread)) == 1
    assert refusals(Read) == []


# --- in the log -----------------------------------------------------------------------------------------


def test_a_checkpoint_and_a_compaction_keep_the_watermark_and_a_rebuild_forgets_it(tmp_path: Path) -> None:
    """A checkpoint is what the entries say; a compaction moves no time; after a rebuild nothing is final."""
    clock = VirtualClock()
    bolt = task(tmp_path, clock)
    warm_up(bolt, clock, partitions=2)
    before = watermark(tmp_path)
    Compactor(tmp_path, clock=clock).run()
    clock.advance(86_400.0)
    assert watermark(tmp_path) == before is not None
    log = CommitLog(tmp_path)
    log.refresh()
    restored = DirectoryState()
    restored.restore(log.to_bytes())
    assert vars(restored.watermark) == vars(log.watermark)
    task(tmp_path, clock, rebuild=1)
    assert watermark(tmp_path) is None


def test_rows_without_windows_have_no_times_and_are_not_closed(tmp_path: Path) -> None:
    """The log of other sinks is as it was, and whoever asks them for closed windows is told."""
    bolt = task(tmp_path, VirtualClock(), keys=["key"])
    give(bolt, (0, 0, "a", START))
    bolt.drain()
    assert [entry.times for entry in read_entries(tmp_path)] == [None]
    assert b"event_times" not in read_entries(tmp_path)[0].to_bytes()
    with pytest.raises(ConfigError, match="has no windows"):
        read_table(tmp_path, closed=True)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("uvw"), st.dictionaries(st.tuples(st.just("t"), st.integers(0, 2)), st.integers(-50, 50)),
            st.integers(0, 3_000), st.integers(0, 20), st.sampled_from((1_000, 4_000)),
        ),
        max_size=25,
    )
)  # fmt: skip
def test_the_watermark_never_goes_back_and_survives_its_json(steps: list[Any]) -> None:
    """Whatever writers say, with whatever settings; and the state is the same from entries and from a checkpoint."""
    known, now_ms, last = Watermark(), 1_000_000, None
    for writer, latest, pause_ms, lateness_us, idle_ms in steps:
        now_ms += pause_ms
        told = known.next(writer, latest, now_ms=now_ms, lateness_us=lateness_us, idle_ms=idle_ms)
        known.take(EventTimes.from_json(told.to_json()) if told else None, now_ms)
        assert last is None or (known.value is not None and known.value >= last)
        last = known.value
        assert vars(Watermark.from_json(known.to_json())) == vars(known)
        assert all(time <= 50 for time, _ in known.seen.values())


@pytest.mark.parametrize(
    "damage", [[1], ["w", [["t", -1, 5]], 1, None], ["w", [], 1, "x"], ["w", [["t", 0, 2**63]], 1, 0]]
)
def test_times_out_of_form_are_refused(damage: Any) -> None:
    """What was not written by a sink is damage."""
    with pytest.raises(ValueError, match=r"is not|unpack"):
        EventTimes.from_json(damage)
