from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from downspout.cli import main
from downspout.metrics import PARTITION_METRICS
from downspout.testing import FakeKafka, Killed, MemoryBatches, VirtualClock, run_topology
from tests.batches.counting import LINES, Split, counted, values_of, word_count

pytestmark = pytest.mark.fake_only("the emitter's reading has a twin in tests/broker/test_batches_broker.py")


CONFIG = {"kafka.bootstrap": "fake://batches", "batch.store": "memory://test"}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize(("par", "active", "most"), [(1, 1, 1000), (2, 3, 3), (4, 2, 2)])
def test_a_run_counts_each_word_once(
    kafka: FakeKafka, memory: MemoryBatches, kind: str, par: int, active: int, most: int
) -> None:
    """A bounded run commits everything up to the end, in as many batches as the limits make of it, and ends."""
    for number, line in enumerate(LINES * 5):
        kafka.produce("lines", value=line.encode(), partition=number % 3)
    topology = word_count(kind, par, max_active=active, records_max=most)
    result = run_topology(topology, config=CONFIG)
    assert result.run.reason == "end"
    assert values_of(memory.states["counts"], kind) == counted(LINES * 5)
    assert memory.coordinator is not None
    assert memory.coordinator.current - 1 >= len(LINES) * 5 / max(most, 3)  # one record of each partition at least


class SlowSplit(Split):
    """Takes a tenth of a second for each line."""

    def process(self, tup: Any) -> None:
        self.clock.sleep(0.1)
        super().process(tup)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("active", [1, 3])
def test_a_stopped_run_commits_the_batches_that_are_active(
    kafka: FakeKafka, memory: MemoryBatches, kind: str, active: int
) -> None:
    """It ends as soon as they, and at most as many more, are committed, though there is more to read."""
    for number, line in enumerate(LINES * 50):
        kafka.produce("lines", value=line.encode(), partition=number % 3)
    topology = word_count(kind, max_active=active, records_max=6, split=SlowSplit)
    clock = VirtualClock()
    begun = clock.monotonic()
    result = run_topology(topology, config={**CONFIG, "run.drain_s": 20}, clock=clock, for_s=1.0)
    assert (result.run.reason, result.run.in_flight) == ("for", 0)
    assert 1 <= clock.monotonic() - begun < 5
    coordinator = result.components["coordinator"][0].report()
    assert coordinator["batches_succeeded"] == coordinator["batch_attempts"] >= active
    assert memory.coordinator is not None
    assert (memory.coordinator.current, memory.coordinator.attempts) == (coordinator["batches_succeeded"] + 1, {})
    assert sum(values_of(memory.states["counts"], kind).values()) < sum(counted(LINES * 50).values())


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("par", [1, 2])
def test_the_lag_is_what_no_batch_has_committed(kafka: FakeKafka, memory: MemoryBatches, kind: str, par: int) -> None:
    """Of a run that was stopped as many records are left as there are in no batch that is done, and none at the end."""
    for number, line in enumerate(LINES * 30):
        kafka.produce("lines", value=line.encode(), partition=number % 3)
    topology = word_count(kind, par, records_max=6, split=SlowSplit)
    stopped = run_topology(topology, config={**CONFIG, "run.drain_s": 20}, for_s=1.0).run.reports
    assert stopped["lines"]["lag"] == len(LINES) * 30 - 6 * stopped["coordinator"]["batches_succeeded"] > 0
    ended = run_topology(word_count(kind, par), config=CONFIG).run.reports
    assert ended["lines"]["lag"] == 0


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("par", [1, 2])
def test_each_partition_has_its_figures(kafka: FakeKafka, memory: MemoryBatches, kind: str, par: int) -> None:
    """Where batches stand is told as a spout tells it, by its names; the sums are those of the report."""
    clock = VirtualClock()
    begun = clock.monotonic()
    for number, line in enumerate(LINES * 30):
        kafka.produce("lines", value=line.encode(), partition=number % 3, timestamp_ms=int(clock.wall() * 1000))
    each = len(LINES) * 10
    topology = word_count(kind, par, records_max=6, split=SlowSplit)
    stopped = run_topology(topology, config={**CONFIG, "run.drain_s": 20}, clock=clock, for_s=1.0).run
    batches = int(stopped.reports["coordinator"]["batches_succeeded"])
    found = stopped.partitions["lines"]
    assert [*found] == ["lines[0]", "lines[1]", "lines[2]"]
    assert sum(figures["lag"] for figures in found.values()) == stopped.reports["lines"]["lag"]
    for figures in found.values():
        assert figures.keys() - {"owner"} <= PARTITION_METRICS.keys()
        names = "committed", "emitted", "begin", "end", "lag", "log_records", "retention_records", "in_flight"
        at = 2 * batches  # each partition has a third of six records
        assert [figures[name] for name in names] == [at, at - 1, 0, each, each - at, each, at, 0]
        assert 0 < figures["lag_s"] <= clock.monotonic() - begun
        assert (figures["fetched"] >= at, figures["fetches"] >= 1) == (True, True)
    ended = run_topology(word_count(kind, par), config=CONFIG).run.partitions["lines"]
    assert [(figures["committed"], figures["lag"], figures["lag_s"]) for figures in ended.values()] == [
        (each, 0, 0.0)
    ] * 3


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_the_lag_of_batches_is_told_by_a_command(
    kafka: FakeKafka, memory: MemoryBatches, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """From the store alone: what the run reported as it ended, in records and in time, and the next transaction."""
    for number, line in enumerate(LINES * 30):
        kafka.produce("lines", value=line.encode(), partition=number % 3, timestamp_ms=number)
    store = f"sqlite:///{tmp_path}/batches.db"
    topology = word_count(kind, records_max=6, split=SlowSplit)
    config = {**CONFIG, "batch.store": store, "batch.id": "wc", "run.drain_s": 20}
    ended = run_topology(topology, config=config, for_s=1.0).run
    words = ["lag", "--bootstrap", kafka.bootstrap, "--store", store]
    assert main([*words, "--batches", "wc", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["groups"]
    (topic,) = told["topics"]
    assert (told["group"], told["kind"]) == ("wc", "batches")
    assert told["state"] == f"transaction {ended.reports['coordinator']['batch_txid']:.0f} is committed next"
    reported = ended.partitions["lines"].values()
    for row, figures in zip(topic["partitions"], reported, strict=True):
        assert {name: row[name] for name in ("committed", "begin", "end", "lag")} == {
            name: figures[name] for name in ("committed", "begin", "end", "lag")
        }
        assert row["lag_s"] > 0
    assert topic["total"]["lag"] == ended.reports["lines"]["lag"]
    # A topic of the same name that was made again has nothing to do with these offsets.
    kafka.delete_topic("lines")
    kafka.create_topic("lines", 3)
    assert main([*words, "--batches", "wc", "--batches", "misspelt"]) == 1
    said = capsys.readouterr().out
    assert "batches wc: transaction" in said
    assert "lines[0]: the commit is of an earlier topic of this name" in said
    assert "batches misspelt: transaction 1 is committed next, the store holds no committed batch under this id" in said


def test_what_a_look_at_batches_lacks_is_named(
    kafka: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file is made of a store that is misspelt, and nothing named is nothing to look at."""
    path = tmp_path / "none.db"
    assert main(["lag", "--batches", "wc", "--store", f"sqlite:///{path}", "--bootstrap", kafka.bootstrap]) == 2
    assert f"--store: there is no {path}" in capsys.readouterr().err
    assert not path.exists()
    assert main(["lag", "--bootstrap", kafka.bootstrap]) == 2
    assert "lag needs a group, or --batches" in capsys.readouterr().err


def test_a_stopped_run_waits_no_longer_than_it_may(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """After ``run.drain_s`` the batch is left uncommitted, and the next run counts all of it once."""
    for number, line in enumerate(LINES * 30):
        kafka.produce("lines", value=line.encode(), partition=number % 3)
    clock = VirtualClock()
    begun = clock.monotonic()
    result = run_topology(word_count(split=SlowSplit), config={**CONFIG, "run.drain_s": 1}, clock=clock, for_s=0.5)
    assert result.run.in_flight == 1
    assert clock.monotonic() - begun < 8
    assert not memory.states["counts"].forms
    run_topology(word_count(), config=CONFIG)
    assert values_of(memory.states["counts"], "opaque") == counted(LINES * 30)


def kill_at(memory: MemoryBatches, number: int, when: str) -> None:
    """Let the process die at one write to a store, before or after it."""
    left = [number]

    def hook(at: str, what: str) -> None:
        if at == when:
            left[0] -= 1
            if left[0] < 0:
                raise Killed(f"{when} {what}")

    memory.hook = hook


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("active", [1, 3])
def test_a_kill_at_any_write_of_a_store_counts_nothing_twice(
    kafka: FakeKafka, kind: str, active: int, when: str
) -> None:
    """Whichever write of metadata or state is the last of a process, the next one makes the counts exact."""
    for number, line in enumerate(LINES):
        kafka.produce("lines", value=line.encode(), partition=number % 3)
    topology = word_count(kind, 2, max_active=active, records_max=3)
    writes = 0
    names = set()
    while True:
        with MemoryBatches("test") as memory:
            kill_at(memory, writes, when)
            try:
                run_topology(topology, config=CONFIG)
            except Killed as killed:
                names.add(str(killed))
            else:
                break
            memory.hook = lambda at, what: None
            # Another seed, other limits: an opaque batch that is tried again holds other records.
            again = word_count(kind, 2, max_active=active, records_max=6)
            assert run_topology(again, config=CONFIG, seed=writes).run.reason == "end"
            assert values_of(memory.states["counts"], kind) == counted(LINES), f"killed {names} at write {writes}"
        writes += 1
    assert writes > 10
    assert {name.partition(" ")[2] for name in names} >= {"save_coordinator", "save_ranges", "write", "delete_below"}
