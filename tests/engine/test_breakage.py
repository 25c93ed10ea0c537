"""Whether a bolt is broken, or some of its records are bad: by component, by first attempts, by tuple."""

from __future__ import annotations

import contextlib
import logging
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from streamparse import BatchingBolt, Bolt, Grouping, Spout, Topology

from downspout.cli.run import exit_code_of
from downspout.clock import Clock
from downspout.dead_letters import read_dead_letters
from downspout.engine import Bounds, Engine, PendingTrees, Tree, from_class, resolve
from downspout.engine.loop import BURST_CALLS
from downspout.engine.runtime import ROW_MAX, BrokenBoltDetector
from downspout.errors import ComponentError
from downspout.testing import FakeKafka, VirtualClock, run_topology
from spouts.kafka import KafkaSpout


class Words(Spout):
    outputs = ("word", "n")


class Split(Bolt):
    """Makes a tuple as the others here have it of a record."""

    outputs = ("word", "n")

    def process(self, tup: Any) -> None:
        self.emit(tup.values.value.split())


class Passing(Bolt):
    """Stands between, so that a retry is shuffled anew twice."""

    outputs = ("word", "n")

    def process(self, tup: Any) -> None:
        self.emit(list(tup.values))


class Picky(Bolt):
    """An ordinary bolt: raises on bad words and is restarted each time."""

    def process(self, tup: Any) -> None:
        if tup.values.word == "bad":
            raise ValueError("a bad word")


class Broken(Bolt):
    def process(self, tup: Any) -> None:
        raise ConnectionError("Redis is down")


def topology(bolt: type, par: int, grouping: Any, spout: type = Words) -> type:
    class Made(Topology):
        words = spout.spec()
        passing = Passing.spec(inputs=[words], par=par)
        last = bolt.spec(inputs={passing: grouping}, par=par)

    return Made


groupings = st.sampled_from(
    [Grouping.SHUFFLE, Grouping.fields("word"), Grouping.fields("n"), Grouping.LOCAL_OR_SHUFFLE]
)
pars = st.integers(1, 4)


def reading(bolt: type, par: int, grouping: Any) -> type:
    """Return a topology that reads records, with a spout that gives them up by itself."""

    class Made(Topology):
        words = KafkaSpout.spec(topics=["words"], fields=["value"], retries_max=2)
        split = Split.spec(inputs=[words], par=par)
        last = bolt.spec(inputs={split: grouping}, par=par)

    return Made


@contextlib.contextmanager
def topic(*partitions: Sequence[str]) -> Iterator[FakeKafka]:
    with FakeKafka("breakage") as kafka:
        kafka.create_topic("words", len(partitions))
        for number, values in enumerate(partitions):
            for value in values:
                kafka.produce("words", value.encode(), partition=number)
        yield kafka


def outcome(kafka: FakeKafka) -> tuple[list[str], int]:
    """Return the dead letters, and how many offsets are committed."""
    given_up = [(letter.record.value or b"").decode() for letter in read_dead_letters(kafka, "Made.dead-letters")]
    return given_up, sum(commit.offset for commit in kafka.committed("Made").values())


@settings(max_examples=15, deadline=None)
@given(pars, groupings, st.floats(0.0, 1.0), st.integers(1, 100), st.integers(1, 100), st.integers(0, 99))
@example(2, Grouping.SHUFFLE, 1.0, 4, 1, 0)
@example(1, Grouping.fields("n"), 1.0, 100, 100, 0)
def test_bad_records_never_end_a_run(
    par: int, grouping: Any, share: float, count: int, distinct: int, seed: int
) -> None:
    """Whatever the share of bad records (all of them, too), tasks, grouping and repeats: each has its dead letter."""
    rng = random.Random(seed)
    values = [f"{'bad' if rng.random() < share else 'ok'} {n % distinct}" for n in range(count)]
    bad = [value for value in values if value.startswith("bad")]
    with topic(values[::2], values[1::2]) as kafka:
        config = {"kafka.bootstrap": kafka.bootstrap}
        result = run_topology(reading(Picky, par, grouping), config=config, seed=seed, clock=kafka.clock)
        given_up, committed = outcome(kafka)
    assert (sorted(given_up), committed) == (sorted(bad), count)
    assert result.run.completed == count - len(bad)


def test_a_worker_with_nothing_but_bad_records_goes_on() -> None:
    """Two processes of one group, one of which is given no good record: it gets through all the same."""
    with topic([f"bad {n}" for n in range(50)], [f"ok {n}" for n in range(50)]) as kafka:
        engines = [engine(reading(Picky, 2, Grouping.SHUFFLE), kafka, member) for member in (1, 2)]
        run_together(engines, kafka.clock)
        shares = [each.result() for each in engines]
        given_up, committed = outcome(kafka)
    assert sorted((share.completed, int(share.reports["words"]["dead_lettered"])) for share in shares) == [
        (0, 50),
        (50, 0),
    ]
    assert (len(given_up), committed) == (50, 100)


@settings(max_examples=10, deadline=None)
@given(pars, groupings, st.integers(101, 300), st.integers(1, 300), st.integers(0, 99))
def test_a_broken_bolt_dead_letters_nothing(par: int, grouping: Any, count: int, distinct: int, seed: int) -> None:
    """Where more than a hundred records fail and none gets through the run ends before one is given up."""
    values = [f"word {n % distinct}" for n in range(count)]
    with topic(values[::2], values[1::2]) as kafka:
        config = {"kafka.bootstrap": kafka.bootstrap}
        with pytest.raises(ComponentError, match="on 101 different tuples in a row"):
            run_topology(reading(Broken, par, grouping), config=config, seed=seed, clock=kafka.clock)
        assert outcome(kafka) == ([], 0)


def engine(topology: type, kafka: FakeKafka, member: int) -> Engine:
    graph = from_class(topology, "Made")
    given = {"kafka.bootstrap": kafka.bootstrap, "run.until": "end", "run.member": member}
    confs = resolve(graph, given, environ={}, file=Path("/nonexistent")).confs()
    for conf in confs.values():
        conf |= {"topology.name": "Made", "storm.id": f"Made-{member}"}
    return Engine(graph, confs, bounds=Bounds("end"), clock=kafka.clock, rng=random.Random(member))


def run_together(engines: Sequence[Engine], clock: Clock) -> None:
    with contextlib.ExitStack() as stack:
        for each in engines:
            stack.enter_context(each.open())
        while not all(each.stopping for each in engines):
            for each in engines:
                if not each.stopping:
                    each.round()
            clock.sleep(0.001)


@settings(max_examples=10, deadline=None)
@given(pars, groupings, st.integers(4, 250), st.integers(1, 250), st.integers(0, 99))
def test_a_bolt_that_fails_on_everything_ends_the_run(
    par: int, grouping: Any, count: int, distinct: int, seed: int
) -> None:
    """Whatever the tasks and the grouping, and though all tuples are equal: an error, after a look at what there is."""
    rows = [["word", n % distinct] for n in range(count)]
    with pytest.raises(ComponentError, match="different tuples in a row") as caught:
        run_topology(topology(Broken, par, grouping), spouts={"words": rows}, seed=seed)
    (in_a_row,) = re.findall(r"on (\d+) different", str(caught.value))
    assert min(count, BURST_CALLS) <= int(in_a_row) <= ROW_MAX + 1


class Careless(Spout):
    """Emits one word for ever, as streamparse's own example does: without an id."""

    outputs = ("word", "n")
    tup_id: str | None = None

    def next_tuple(self) -> None:
        self.emit(["word", 1], tup_id=self.tup_id)


class Slow(Careless):
    clock: Any = None
    due = 0.0

    def next_tuple(self) -> None:
        if self.clock.monotonic() >= self.due:
            self.due = self.clock.monotonic() + 0.25
            super().next_tuple()


class Uniform(Careless):
    """Has one id for all of its tuples."""

    tup_id = "same"


@pytest.mark.parametrize("spout", [Careless, Uniform])
@pytest.mark.parametrize("par", [1, 3])
def test_tuples_without_an_identity_count_each(spout: type, par: int) -> None:
    """Tuples without an id, or with the same one, are not taken for retries of the first."""
    with pytest.raises(ComponentError, match="Redis is down"):
        run_topology(topology(Broken, par, Grouping.SHUFFLE, spout), for_s=30)


def test_a_bolt_that_breaks_later_ends_the_run_after_a_hundred() -> None:
    """Redis goes down after some tuples: a row of failures that no bad records make."""

    class Later(Bolt):
        seen = 0

        def process(self, tup: Any) -> None:
            type(self).seen += 1
            if self.seen > 50:
                raise ConnectionError("Redis is down")

    with pytest.raises(ComponentError, match="on 101 different tuples in a row"):
        run_topology(topology(Later, 2, Grouping.SHUFFLE, Careless), for_s=30)
    assert Later.seen == 151


def test_a_batch_that_always_raises_ends_the_run() -> None:
    """Taking tuples into a batch is no success: what counts are batches."""

    class Batches(BatchingBolt):
        ticks_between_batches = 1

        def process_batch(self, key: Any, tups: Any) -> None:
            raise ConnectionError("Redis is down")

    made = topology(Batches, 1, Grouping.SHUFFLE, Slow)
    with pytest.raises(ComponentError, match="Redis is down"):
        run_topology(made, for_s=20, config={"topology.tick.tuple.freq.secs": 1})


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_failed_tuple_without_an_id_is_not_complete(goes_on: bool) -> None:
    """It counts as failed and not as complete, and the exit code says so: nothing tries it again."""

    class Sometimes(Picky):
        exit_on_exception = not goes_on
        seen = 0

        def process(self, tup: Any) -> None:
            type(self).seen += 1
            if self.seen % 10 == 0:
                raise ValueError("a bad word")

    result = run_topology(topology(Sometimes, 2, Grouping.SHUFFLE, Careless), records=200).run
    assert result.not_retried == result.failed == result.components["last"].failed == Sometimes.seen // 10 > 0
    assert result.completed == result.components["words"].emitted - result.failed
    assert exit_code_of(result) == ComponentError.exit_code


def test_what_an_earlier_run_left_behind_is_no_first_attempt() -> None:
    """Bad records that are all that is left, since later ones got through in an earlier run, do not end this one."""

    class Resumed(Words):
        def load(self) -> None:
            pass

        def initialize(self, conf: Any, context: Any) -> None:
            self.left = [str(n) for n in range(8)]

        def next_tuple(self) -> None:
            if self.left:
                self.emit(["bad", 1], tup_id=self.left.pop())

        def tried_before(self, tup_id: str) -> bool:
            return True

    result = run_topology(topology(Picky, 1, Grouping.SHUFFLE, Resumed), for_s=5).run
    assert result.components["last"].restarts == 8


def test_restarts_are_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    breakage = BrokenBoltDetector("last", 3, clock, logging.getLogger("test"))
    for _ in range(180):
        breakage.restarted("last[task 2]")
        clock.sleep(1)
    assert [record.getMessage() for record in caplog.records] == [
        "last[task 2] is restarted; further restarts of last are reported once a minute",
        "last was restarted again, 60 times",
        "last was restarted again, 60 times",
    ]


def judge(clock: Clock) -> tuple[BrokenBoltDetector, PendingTrees]:
    """Return a judge of a bolt that has done nothing, with 2 restarts allowed."""
    return BrokenBoltDetector("last", 2, clock, logging.getLogger("test")), PendingTrees()


def tree(forest: PendingTrees, msg_id: Any, clock: Clock) -> Tree:
    made = Tree(forest, msg_id, clock.monotonic())
    made.pending = 1
    forest.planted(made)
    return made


def test_one_record_counts_once_however_many_of_its_tuples_fail() -> None:
    clock = VirtualClock()
    breakage, forest = judge(clock)
    line = tree(forest, ["an", "id", "as", "JSON"], clock)
    assert breakage.raised([line], in_batch=False) == 0
    line.pending = -1
    assert [breakage.raised([line], in_batch=False) for _ in range(9)] == [0] * 9
    clock.sleep(1)
    assert [breakage.raised([tree(forest, line.msg_id, clock)], in_batch=False) for _ in range(9)] == [0] * 9
    others = [breakage.raised([tree(forest, n, clock)], in_batch=False) for n in range(2)]
    assert others == [0, 3]
