"""Slow bolts in virtual time: every task gets a turn, and work longer than the timeout completes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import streamparse
from streamparse import Bolt, Spout

from bolts.parquet import ParquetBolt
from downspout.clock import Clock
from downspout.testing import FakeKafka, VirtualClock, run_topology
from spouts.kafka import KafkaSpout

PARTITIONS, RECORDS = 4, 2_000
EACH_S = 0.02


class Slow(Bolt):
    """Takes its time for each record; counts how many it had."""

    outputs = ("origin", "value")
    clock: ClassVar[Clock]
    done: ClassVar[int] = 0

    def process(self, tup: Any) -> None:
        self.clock.sleep(EACH_S)
        Slow.done += 1
        self.emit(list(tup.values))


class Slowly(streamparse.Topology):
    spout = KafkaSpout.spec(topics=["orders"], fields=["origin", "value"])
    slow = Slow.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[slow], schema={"value": "string"})


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """Four partitions, each of which is 40 seconds of work."""
    with FakeKafka() as kafka:
        kafka.create_topic("orders", PARTITIONS)
        for number in range(PARTITIONS * RECORDS):
            kafka.produce("orders", str(number).encode(), partition=number % PARTITIONS)
        Slow.clock, Slow.done = kafka.clock, 0
        yield kafka


@pytest.mark.slow
@pytest.mark.fake_only("the engine runs in virtual time, which the real client does not know")
@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_a_chunk_that_takes_longer_than_the_timeout_gets_done(
    kafka: FakeKafka, tmp_path: Path, emit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Chunks become small enough by themselves; little is done twice, and the warning names the slow bolt."""
    config = {"kafka.bootstrap": kafka.bootstrap, "kafka.emit": emit, "parquet.directory": str(tmp_path / "out")}
    result = run_topology(Slowly, config={**config, "topology.message.timeout.secs": 30})
    assert result.run.reports["spout"]["acked"] == PARTITIONS * RECORDS
    assert result.run.reports["sink"]["rows"] == PARTITIONS * RECORDS
    assert Slow.done < 2 * PARTITIONS * RECORDS
    timed_out = [record.getMessage() for record in caplog.records if "timed out" in record.getMessage()]
    assert bool(timed_out) == (emit == "chunk")
    assert all("4 tuples of 8,000 records timed out (6,500 in slow" in text for text in timed_out[:1])


class Numbers(Spout):
    """Stands for a spout; the rows are the test's."""

    outputs = ("number",)


class Ticking(Bolt):
    def initialize(self, storm_conf: Any, context: Any) -> None:
        self.ticks: list[float] = []

    def process(self, tup: Any) -> None:
        pass

    def process_tick(self, tup: Any) -> None:
        self.ticks.append(Slow.clock.monotonic())


class Plod(Bolt):
    def process(self, tup: Any) -> None:
        Slow.clock.sleep(EACH_S)


class Plodding(streamparse.Topology):
    """A slow bolt, and one that wants ticks."""

    config: ClassVar[dict[str, int]] = {"topology.tick.tuple.freq.secs": 1}
    numbers = Numbers.spec()
    plod = Plod.spec(inputs=[numbers])
    ticking = Ticking.spec(inputs=[numbers])


def test_a_long_queue_of_a_slow_bolt_keeps_no_timer_waiting() -> None:
    """Where a bolt has ten seconds of work in its queue, another one's ticks come each second all the same."""
    Slow.clock = VirtualClock()
    result = run_topology(Plodding, spouts={"numbers": [[number] for number in range(500)]}, clock=Slow.clock)
    (ticking,) = result.components["ticking"]
    assert len(ticking.ticks) >= 8
    assert max(after - before for before, after in zip(ticking.ticks, ticking.ticks[1:], strict=False)) < 2


class Fades(Bolt):
    """Is fast, and from one tuple to the next it is slow."""

    def process(self, tup: Any) -> None:
        if tup.values.number >= 1_500:
            Slow.clock.sleep(0.5)


class Fading(streamparse.Topology):
    """A bolt that becomes slow, and one that wants ticks."""

    config: ClassVar[dict[str, int]] = {"topology.tick.tuple.freq.secs": 1}
    numbers = Numbers.spec()
    fades = Fades.spec(inputs=[numbers])
    ticking = Ticking.spec(inputs=[numbers])


def test_a_bolt_that_becomes_slow_gives_its_turn_back() -> None:
    """A bolt that takes half a second a tuple, from one on, holds the others up for a few tuples, once."""
    Slow.clock = VirtualClock()
    rows = [[number] for number in range(1_600)]
    result = run_topology(Fading, spouts={"numbers": rows}, clock=Slow.clock)
    (ticking,) = result.components["ticking"]
    assert len(ticking.ticks) >= 8
    assert max(after - before for before, after in zip([0.0, *ticking.ticks], ticking.ticks, strict=False)) < 6


@pytest.mark.slow
@pytest.mark.fake_only("the engine runs in virtual time, which the real client does not know")
def test_what_has_timed_out_in_a_queue_is_not_processed(kafka: FakeKafka, tmp_path: Path) -> None:
    """With a timeout that is short for what a poll brings, little is done twice all the same."""
    config = {"kafka.bootstrap": kafka.bootstrap, "parquet.directory": str(tmp_path / "out")}
    config |= {"topology.message.timeout.secs": 5, "parquet.flush_age_s": 1.0}  # type: ignore[dict-item]
    result = run_topology(Slowly, config=config)
    assert result.run.reports["spout"]["acked"] == PARTITIONS * RECORDS
    assert Slow.done < 1.5 * PARTITIONS * RECORDS


@pytest.mark.fake_only("the engine runs in virtual time, which the real client does not know")
def test_a_flush_that_is_older_than_tuples_may_be_is_warned_of(
    kafka: FakeKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that time out while the sink holds them are told of at the start, with the setting and its value."""
    config = {"kafka.bootstrap": kafka.bootstrap, "parquet.directory": str(tmp_path / "out")}
    run_topology(Slowly, config={**config, "topology.message.timeout.secs": 6}, for_s=1)
    assert any("Try: parquet.flush_age_s of at most 2" in text for text in caplog.messages)


class Fragile(Bolt):
    """Raises on one record of a hundred, and so is restarted."""

    outputs = ("origin", "value")

    def process(self, tup: Any) -> None:
        if int(tup.values.value) // PARTITIONS % 100 == 0:
            raise ValueError(tup.values.value)
        self.emit(list(tup.values))


class Fragilely(streamparse.Topology):
    """A spout, a bolt that raises now and then, a sink."""

    spout = KafkaSpout.spec(topics=["orders"], fields=["origin", "value"], retries_max=2)
    fragile = Fragile.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[fragile], schema={"value": "string"})


@pytest.mark.slow
@pytest.mark.fake_only("the engine runs in virtual time, which the real client does not know")
@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_bad_records_that_meet_when_they_are_retried_end_no_run(kafka: FakeKafka, tmp_path: Path, emit: str) -> None:
    """Each is retried and gets its letter: that many are bad in a row then is no news, as all of them were before."""
    config = {"kafka.bootstrap": kafka.bootstrap, "kafka.emit": emit, "parquet.directory": str(tmp_path / "out")}
    result = run_topology(Fragilely, config={**config, "kafka.chunk_records_max": 50})
    assert result.run.reports["spout"]["dead_lettered"] == PARTITIONS * RECORDS / 100
    assert result.run.reports["sink"]["rows"] == PARTITIONS * RECORDS * 99 / 100
