"""Many tuples by one call: the same outcome as one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from streamparse import Spout, Topology

from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.component import Bolt
from downspout.dead_letters import read_dead_letters
from downspout.engine import Bounds, Engine, Task, bulk_calls, from_class, resolve
from downspout.testing import FakeKafka, run_topology
from spouts.kafka import KafkaSpout

RECORDS = 700


class Numbers(Topology):
    spout = KafkaSpout.spec(topics=["numbers"], fields=["origin", "key", "value"], value_format="bytes")
    parse = JsonParseBolt.spec(inputs=[spout], fields=["number", "note"])
    letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
    sink = ParquetBolt.spec(inputs=[parse], directory="", schema={"number": "int16"}, flush_rows=97)


def fill(kafka: FakeKafka, chance: random.Random, odd: float) -> None:
    """Write records, of which some are tombstones, no JSON, no text, out of range or followed by a gap."""
    kafka.create_topic("numbers", 3)
    kinds: list[Callable[[int], bytes | None]] = [
        lambda number: None,
        lambda number: b"{no json",
        lambda number: b"[1]",
        lambda number: b'{"number": %d}' % (1_000_000 + number),
        lambda number: b'{"number": "%d"}' % number,
        lambda number: b"{}",
        lambda number: b'{"number": %d}' % number,  # without a note
    ]
    for number in range(RECORDS):
        value = chance.choice(kinds)(number) if chance.random() < odd else b'{"number": %d, "note": 1}' % number
        key = b"\xff" if chance.random() < odd / 8 else b"k%d" % number
        kafka.produce("numbers", value, key, partition=chance.randrange(3))
        if chance.random() < odd / 4:
            kafka.gap("numbers", chance.randrange(3), 2)


def one_by_one(task: Task) -> None:
    """Put methods of their own into a component, as a user may: then it is called for each tuple."""

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **how: real(*args, **how)

    for name in ("process", "emit", "ack"):
        if hasattr(task.instance, name):
            setattr(task.instance, name, wrapped(getattr(task.instance, name)))


def outcome(directory: Path, seed: int, odd: float, created: Callable[[Task], None] | None) -> dict[str, Any]:
    """Run the topology to the end; return what there is then."""
    with FakeKafka(f"many-{created is None}") as kafka:
        fill(kafka, random.Random(seed), odd)
        graph = from_class(Numbers, "numbers")
        options = {"parquet.directory": str(directory), "kafka.bootstrap": kafka.bootstrap, "kafka.retries_max": 1}
        options["run.until"] = "end"
        confs = resolve(graph, options=options, environ={}, file=Path("/nonexistent")).confs()
        for conf in confs.values():
            conf |= {"topology.name": "numbers", "storm.id": "numbers-1"}
        engine = Engine(graph, confs, bounds=Bounds(until="end"), clock=kafka.clock, round_s=0.001, created=created)
        engine.run()
        rows = pq.read_table(directory).to_pylist()
        letters = read_dead_letters(kafka, "numbers.dead-letters")
        return {
            "rows": sorted((row["_partition"], row["_offset"], row["number"]) for row in rows),
            "letters": sorted((one.partition, one.offset, one.attempts) for one in letters),
            "committed": {tp.partition: at.offset for tp, at in kafka.committed("numbers").items()},
            "counts": {task.name: (task.emitted, task.executed, task.acked, task.failed) for task in engine.tasks},
        }


@pytest.mark.parametrize("odd", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_many_by_one_call_come_to_what_one_by_one_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, odd: float
) -> None:
    """Rows, dead letters, commits and all counts are the same, whatever is odd about some records."""
    called: list[int] = []
    real = bulk_calls.run_many
    monkeypatch.setattr("downspout.engine.bolt_task.run_many", lambda *a: called.append(real(*a)) or called[-1])
    found = outcome(tmp_path / "many", seed, odd, None)
    assert sum(called) > (0 if odd else 2 * RECORDS * 0.9)  # most of the two bolts' tuples
    called.clear()
    assert outcome(tmp_path / "one", seed, odd, one_by_one) == found
    assert not called
    assert len(found["rows"]) == RECORDS or odd


class Words(Spout):
    outputs = ("word",)


def test_what_is_odd_goes_to_process_alone_and_in_order() -> None:
    """process_many is asked for what is before an odd tuple and what is behind it, process for that one."""

    class Takes(Bolt):
        def initialize(self, storm_conf: Any, context: Any) -> None:
            self.seen: list[str] = []

        def process_many(self, tups: list[Any]) -> int:
            words = [tup.values.word for tup in tups]
            count = words.index("odd") if "odd" in words else len(words)
            self.seen += words[:count]
            return count

        def process(self, tup: Any) -> None:
            self.seen.append(tup.values.word.upper())

    class Taken(Topology):
        words = Words.spec()
        takes = Takes.spec(inputs=[words])

    rows = [["odd"], ["a"], ["b"], ["odd"], ["odd"], ["c"]]
    result = run_topology(Taken, spouts={"words": rows})
    assert result.components["takes"][0].seen == ["ODD", "a", "b", "ODD", "ODD", "c"]
    assert len(result.acked("words")) == len(rows)
    assert result.counts("takes").executed == len(rows)


def test_where_process_many_raises_all_that_it_had_fails_and_comes_again() -> None:
    """Nothing is acked and nothing is lost of tuples that were processed together when that raised."""

    class Raises(Bolt):
        raised = False

        def initialize(self, storm_conf: Any, context: Any) -> None:
            self.seen: list[str] = []

        def process_many(self, tups: list[Any]) -> int:
            if not self.raised:
                self.raised = True
                raise ValueError("the first time")
            self.seen += [tup.values.word for tup in tups]
            return len(tups)

        def process(self, tup: Any) -> None:
            raise AssertionError("nothing is odd")

    class Raised(Topology):
        words = Words.spec()
        raises = Raises.spec(inputs=[words])

    result = run_topology(Raised, spouts={"words": [["a"], ["b"], ["c"]]})
    assert sorted(result.components["raises"][0].seen) == ["a", "b", "c"]
    assert len(result.failed("words")) >= 1
    assert len(result.acked("words")) == 3


def test_a_subclass_that_says_what_one_tuple_is_gets_one_by_one(tmp_path: Path) -> None:
    """A bolt that overrides process, or read, of a bolt of ours is called for each tuple, or value."""

    class Doubles(JsonParseBolt):
        def read(self, value: Any) -> list[Any]:
            return [2 * field for field in super().read(value)]

    class Passes(JsonParseBolt):
        def process(self, tup: Any) -> None:
            if tup.values.value != b'{"n": 2}':
                super().process(tup)

    class Lines(Spout):
        outputs = ("origin", "value")

    class Both(Topology):
        lines = Lines.spec()
        doubles = Doubles.spec(inputs=[lines], fields=["n"])
        passes = Passes.spec(inputs=[lines], fields=["n"])

    rows = [[("t", "", 0, n, ""), b'{"n": %d}' % n] for n in range(4)]
    result = run_topology(Both, spouts={"lines": rows})
    assert [values.n for values in result.emitted("doubles")] == [0, 2, 4, 6]
    assert [values.n for values in result.emitted("passes")] == [0, 1, 3]
