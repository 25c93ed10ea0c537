"""BatchingBolts in the engine: of a try that has failed they process nothing, if its spout tries again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from streamparse import BatchingBolt, Bolt, Spout, Topology

from downspout.clock import SYSTEM_CLOCK
from downspout.origins import origins
from downspout.testing import run_topology

FIELDS = ("origin", "word")


def chunk(*words: str, start: int = 0) -> pa.RecordBatch:
    columns = [origins("words", "id", 0, list(range(start, start + len(words)))), pa.array(words, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=list(FIELDS))


class Source(Spout):
    """Stands for a spout; the rows are the test's."""

    outputs = FIELDS


class Once(Bolt):
    """Hands records on; raises on the first try of one that says so."""

    outputs = FIELDS
    exit_on_exception = False

    def initialize(self, storm_conf: Any, context: Any) -> None:
        self.tried: set[Any] = set()

    def process(self, tup: Any) -> None:
        word = tup.values.word
        if "later" in word and word not in self.tried:
            self.tried.add(word)
            raise ValueError(word)
        self.emit(list(tup.values))


class Lot(BatchingBolt):
    """Hands a whole lot on, each record anchored to all of them."""

    outputs = FIELDS

    def initialize(self, storm_conf: Any, context: Any) -> None:
        self.lots: list[list[str]] = []

    def group_key(self, tup: Any) -> Any:
        return tup.values.word[:1]

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        self.lots.append([tup.values.word for tup in tups])
        for tup in tups:
            self.emit(list(tup.values))


class Choosy(Lot):
    """Fails the first lot of "a"; by itself, without raising."""

    auto_ack = False

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        refused = key == "a" and not self.lots
        super().process_batch(key, tups)
        for tup in tups:
            (self.fail if refused else self.ack)(tup)


class Stubborn(Lot):
    """Raises on its first lot of "a", and keeps the others."""

    exit_on_exception = False

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        super().process_batch(key, tups)
        if key == "a" and len(self.lots) == 1:
            raise ValueError(key)


def row_of(*bolts: Any, **config: Any) -> Any:
    """Return a topology of a spout and some bolts in a row: ``bolt0`` …"""
    parts: dict[str, Any] = {"source": Source.spec(name="source"), "config": config}
    before = parts["source"]
    for number, bolt in enumerate(bolts):
        before = parts[f"bolt{number}"] = bolt.spec(name=f"bolt{number}", inputs=[before])
    return type("Row", (Topology,), parts)


def words(result: Any, name: str) -> list[str]:
    return [values.word for values in result.emitted(name)]


@pytest.mark.parametrize("lots", [1, 3])
def test_a_chunk_that_failed_is_in_no_lot(lots: int) -> None:
    """What a chunk's failed try has put into a lot is left out of it; the next try is there, once, as are others'."""
    topology = row_of(Once, *[Lot] * lots)
    rows = [chunk("a", "b", "a later", "c"), chunk("aa", "bb", start=9)]
    result = run_topology(topology, spouts={"source": rows})
    for number in range(1, lots + 1):
        assert sorted(words(result, f"bolt{number}")) == ["a", "a later", "aa", "b", "bb", "c"]
    assert result.run.in_flight == 0


@pytest.mark.parametrize("bolt", [Choosy, Stubborn])
def test_a_lot_that_fails_takes_its_chunk_out_of_the_others(bolt: Any) -> None:
    rows = [chunk("a", "b"), chunk("bb", start=9)]
    result = run_topology(row_of(bolt, Lot), spouts={"source": rows})
    lots = result.components["bolt0"][0].lots
    assert lots[0] == ["a"]
    assert sorted(word for lot in lots[1:] for word in lot) == ["a", "b", "bb"]
    assert sorted(words(result, "bolt1")) == ["a", "b", "bb"]


def test_a_record_that_failed_is_processed_as_on_storm() -> None:
    """A spout of records may not send again what failed: a lot has what the failed try has put into it, as on Storm."""
    result = run_topology(row_of(Twice, Lot), spouts={"source": [[None, "a later"]]})
    assert words(result, "bolt1") == ["a later"] * 2


class Twice(Once):
    def process(self, tup: Any) -> None:
        try:
            super().process(tup)
        except ValueError:
            self.emit(list(tup.values))
            raise


def test_a_chunk_that_timed_out_is_processed_as_on_storm() -> None:
    """A bolt whose lots take longer than the message timeout gets on nevertheless, with doubles, as on Storm."""
    topology = row_of(Lot, **{"topology.message.timeout.secs": 1, "topology.tick.tuple.freq.secs": 3})
    result = run_topology(topology, spouts={"source": [chunk("a")]}, for_s=20, config={"run.drain_s": 0})
    assert "a" in words(result, "bolt0")
    assert result.failed("source")


class Timed(Spout):
    """Emits a chunk that is lost, three seconds later another one; and that again if it fails."""

    outputs = FIELDS
    clock = SYSTEM_CLOCK

    def initialize(self, storm_conf: Any, context: Any) -> None:
        now = self.clock.monotonic()
        self.due = [(now, "lost", chunk("lost")), (now + 3, "good", chunk("a", "a later", start=1))]

    def next_tuple(self) -> None:
        if self.due and self.due[0][0] <= self.clock.monotonic():
            _, name, values = self.due.pop(0)
            self.emit(values, tup_id=name)

    def fail(self, tup_id: Any) -> None:
        """Emit again what has failed, but for what was lost."""
        if tup_id == "good":
            self.due.append((0.0, "good", chunk("a", "a later", start=1)))


class Loses(Once):
    auto_ack = False

    def process(self, tup: Any) -> None:
        if tup.values.word != "lost":
            super().process(tup)
            self.ack(tup)


class Prompt(Lot):
    ticks_between_batches = 0


def test_a_timeout_of_another_chunk_changes_nothing() -> None:
    """What failed is in no lot either if something else has timed out since, and the engine has forgotten both."""
    source = Timed.spec(name="source")
    loses = Loses.spec(name="loses", inputs=[source])
    lots = Prompt.spec(name="lots", inputs=[loses], config={"topology.tick.tuple.freq.secs": 5})
    config = {"topology.message.timeout.secs": 4}
    topology = type("Late", (Topology,), {"source": source, "loses": loses, "lots": lots, "config": config})
    result = run_topology(topology, for_s=6)
    assert result.run.components["source"].failed == 2  # chunks, not their records
    assert words(result, "lots") == ["a", "a later"]
