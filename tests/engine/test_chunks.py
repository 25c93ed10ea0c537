"""Chunks in the engine: bolts that take them get them whole, others get their records, and nothing is acked early."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamparse import Bolt, Grouping, Spout, Stream, Topology

from downspout.engine import Bounds, Engine, from_class
from downspout.errors import TopologyError
from downspout.ledger import Origin
from downspout.origins import origins
from downspout.testing import VirtualClock, run_topology
from tests.parse import support

FIELDS = ("origin", "word", "number")


def chunk(words: list[str | None], start: int = 0) -> pa.RecordBatch:
    offsets = list(range(start, start + len(words)))
    columns = [origins("words", "id", 0, offsets), pa.array(words, pa.string()), pa.array(offsets, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=list(FIELDS))


class Source(Spout):
    """Stands for a spout; the rows are the test's."""

    outputs = FIELDS


class Records(Bolt):
    """Takes records alone, and hands them on; what is damaged raises."""

    outputs = FIELDS
    exit_on_exception = False

    def process(self, tup: Any) -> None:
        if tup.values.word == "damaged":
            raise ValueError("damaged")
        self.emit(list(tup.values))


class Chunks(Bolt):
    """Takes chunks and records, and hands them on as they come."""

    outputs = FIELDS

    def initialize(self, storm_conf: Any, context: Any) -> None:
        self.seen: list[Any] = []

    def process_chunk(self, tup: Any) -> None:
        self.seen.append(tup.values)
        self.emit(tup.values)

    def process(self, tup: Any) -> None:
        self.seen.append(tup.values)
        self.emit(list(tup.values))


class Undecided(Chunks):
    """Has the method, and its settings say that it takes none."""

    process_chunk = None


def topology(*bolts: Any, grouping: Any = None, par: int = 1) -> Any:
    """Return a topology of a spout and some bolts in a row; the last one is ``last``."""
    parts: dict[str, Any] = {"source": Source.spec(name="source")}
    before = parts["source"]
    for number, bolt in enumerate(bolts):
        is_last = number == len(bolts) - 1
        name = "last" if is_last else f"bolt{number}"
        inputs = {before: grouping} if grouping and is_last else [before]
        before = parts[name] = bolt.spec(name=name, inputs=inputs, par=par if is_last else 1)
    return type("Chain", (Topology,), parts)


def rows(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return the records of chunks, as they are in tuples."""
    return [
        (Origin("words", "id", 0, number), word, number)
        for batch in batches
        for word, number in zip(batch["word"].to_pylist(), batch["number"].to_pylist(), strict=True)
    ]


def test_a_bolt_that_takes_chunks_gets_them_as_they_are() -> None:
    """A chunk goes from the spout through bolts without a copy, and is one tuple to the spout."""
    given = [chunk(["dog", "cat"]), chunk(["cow"], 2)]
    result = run_topology(topology(Chunks, Chunks), spouts={"source": given})
    (last,) = result.components["last"]
    assert all(seen is batch for seen, batch in zip(last.seen, given, strict=True))
    assert len(result.acked("source")) == 2


@pytest.mark.parametrize("bolt", [Records, Undecided])
def test_any_other_bolt_gets_the_records(bolt: Any) -> None:
    """A bolt without process_chunk gets each record with its fields, as if the spout had emitted it."""
    given = [chunk(["dog", None]), chunk([]), chunk(["cow"], 2)]
    result = run_topology(topology(bolt), spouts={"source": given})
    assert [tuple(values) for values in result.emitted("last")] == rows(given)
    assert [type(values.origin) for values in result.emitted("last")] == [Origin] * 3
    assert len(result.acked("source")) == 3


def test_records_follow_chunks_through_either_kind() -> None:
    """Behind a bolt that takes records alone, records go on, to bolts that take either."""
    given = [chunk(["dog", "cat"])]
    result = run_topology(topology(Chunks, Records, Chunks), spouts={"source": given})
    assert [tuple(values) for values in result.emitted("last")] == rows(given)


def test_a_chunk_fails_whole() -> None:
    """If one record of a chunk fails, the chunk fails, and so often as it comes again; others are not touched."""
    bad, good = chunk(["dog", "damaged", "cow"]), chunk(["cat"], 3)
    result = run_topology(topology(Records), spouts={"source": [bad, good]})
    assert result.acked("source") == [good]
    assert set(map(id, result.failed("source"))) == {id(bad)}
    assert result.run.failed == len(result.failed("source"))  # chunks, not their records
    assert result.run.in_flight == 0


@pytest.mark.slow
@pytest.mark.parametrize("fields", [["word", "number"], ["word"], ["number"], ["origin"]], ids=",".join)
@pytest.mark.parametrize("par", [2, 3])
@given(words=st.lists(st.sampled_from(["dog", "cat", "cow", None, ""]), max_size=30))
def test_a_fields_grouping_sends_each_key_where_its_records_go(
    par: int, fields: list[str], words: list[str | None]
) -> None:
    """Each word of a chunk reaches the task that it would reach as a record, in order, once."""
    given = [chunk(words), chunk(words, len(words))]
    grouped = topology(Chunks, grouping=Grouping.fields(*fields), par=par)
    by_chunk = run_topology(grouped, spouts={"source": given}).components["last"]
    by_record = run_topology(grouped, spouts={"source": rows(given)}).components["last"]
    for chunks, records in zip(by_chunk, by_record, strict=True):
        assert rows(chunks.seen) == [tuple(seen) for seen in records.seen]


@pytest.mark.parametrize("grouping", [Grouping.SHUFFLE, Grouping.GLOBAL, Grouping.ALL, Grouping.fields("word")])
def test_every_grouping_takes_chunks(grouping: Any) -> None:
    given = [chunk(["dog", "cat"], 2 * number) for number in range(5)]
    result = run_topology(topology(Chunks, grouping=grouping, par=2), spouts={"source": given})
    found = [row for task in result.components["last"] for row in rows(task.seen)]
    assert sorted(found) == sorted(rows(given) * (2 if grouping is Grouping.ALL else 1))
    assert len(result.acked("source")) == 5


def test_a_fields_grouping_takes_keys_that_arrow_cannot_encode() -> None:
    """Arrow has no dictionary of UUIDs; each reaches the task that it would reach as a record."""
    keys = [bytes([number % 4] * 16) for number in range(12)]
    batch = chunk([None] * 12).set_column(1, "word", pa.array(keys, pa.uuid()))
    grouped = topology(Chunks, grouping=Grouping.fields("word"), par=3)
    by_chunk = run_topology(grouped, spouts={"source": [batch]}).components["last"]
    by_record = run_topology(grouped, spouts={"source": rows([batch])}).components["last"]
    for chunks, records in zip(by_chunk, by_record, strict=True):
        assert rows(chunks.seen) == [tuple(seen) for seen in records.seen]
    assert sum(len(rows(chunks.seen)) for chunks in by_chunk) == 12


class Brittle(Bolt):
    """Dies of a chunk in which something is damaged."""

    outputs = ("origin", "key", "value")

    def process_chunk(self, tup: Any) -> None:
        if b"damaged" in tup.values.column("value").to_pylist():
            raise ValueError("damaged")
        self.emit(tup.values)


def test_chunks_with_one_bad_record_each_do_not_end_the_run() -> None:
    """A bolt that dies of one chunk after the other is restarted until the records that it dies of stand alone."""
    given = [support.chunk([b"dog", b"damaged", b"cow", b"cat"], 4 * number) for number in range(8)]
    result = support.run_chunks(Brittle.spec(), given, config={"run.restarts_max": 3})
    (spout,) = result.components["source"]
    assert sorted(spout.given_up) == [4 * number + 1 for number in range(8)]
    assert sorted(spout.acked) == [number for number in range(32) if number % 4 != 1]


def test_figures_count_records() -> None:
    result = run_topology(topology(Chunks, Records), spouts={"source": [chunk(["dog", "cat", "cow"])]})
    assert (result.counts("source").emitted, result.counts("source").acked) == (3, 3)
    for name in ("bolt0", "last"):
        counts = result.counts(name)
        assert (counts.executed, counts.acked, counts.failed) == (3, 3, 0)


def test_columns_that_are_not_the_fields_are_refused() -> None:
    """A chunk whose columns are not its stream's fields ends the run, with both named."""
    wrong = chunk(["dog"]).select(["word", "origin", "number"])
    with pytest.raises(TopologyError, match=r"columns word, origin, number .* fields are origin, word, number"):
        run_topology(topology(Chunks), spouts={"source": [wrong]})


class Raises(Bolt):
    outputs = [Stream(["word"], name="other")]  # noqa: RUF012 - as users write it
    exit_on_exception = False

    def process_chunk(self, tup: Any) -> None:
        raise ValueError("no")

    def process(self, tup: Any) -> None:
        pass


def test_an_error_names_the_range() -> None:
    """An error in process_chunk is reported with topic, partition and first and last offset of the chunk."""
    result = run_topology(topology(Raises), spouts={"source": [chunk(["dog", "cat"], 7)]})
    assert "words[0]@7 to 8 (2 records)" in result.errors[0]
    assert "ValueError: no" in result.errors[0]


class Some(Bolt):
    """Acks chunks of words, fails those of "bad", and never settles those of "lost"; each of them twice."""

    auto_ack = False

    def process_chunk(self, tup: Any) -> None:
        first = tup.values["word"][0].as_py()
        for settle in [] if first == "lost" else [self.fail if first == "bad" else self.ack] * 2:
            settle(tup)

    def process(self, tup: Any) -> None:
        raise AssertionError


def run_once(bolt: Any, *chunks: pa.RecordBatch) -> list[Any]:
    """Run a bolt behind a spout that emits each chunk once, and return the bolt's tasks."""

    class Once(Source):
        def initialize(self, conf: Any, context: Any) -> None:
            self.left = list(enumerate(chunks))

        def next_tuple(self) -> None:
            if self.left:
                number, batch = self.left.pop(0)
                self.emit(batch, tup_id=number)

    class Made(Topology):
        once = Once.spec()
        last = bolt.spec(inputs=[once])

    bounds = Bounds(for_s=60, drain_s=1)
    confs: dict[str, dict[str, Any]] = {"once": {}, "last": {}}
    engine = Engine(from_class(Made, "Made"), confs, bounds=bounds, clock=VirtualClock(), round_s=0.01)
    engine.run()
    return engine.bolts


@pytest.mark.parametrize("lost", [0, 5], ids=["all are settled", "one times out"])
def test_the_books_on_chunks_are_in_records_and_end_empty(lost: int) -> None:
    """A bolt's figures count the records of chunks, once; what is settled or timed out leaves nothing behind."""

    (some,) = run_once(Some, chunk(["dog", "cat", "cow"]), chunk(["bad"] * 4, 3), *[chunk(["lost"] * lost, 9)][:lost])
    assert (some.executed, some.acked, some.failed) == (7 + lost, 3, 4)
    assert (some.held, some.sizes) == ({}, {})


class Keeps(Some):
    """Keeps chunks, and raises on what is damaged: then its process ends, as Storm would have it."""

    def process_chunk(self, tup: Any) -> None:
        if tup.values["word"][0].as_py() == "damaged":
            raise ValueError("damaged")


def test_a_restart_forgets_the_sizes_of_chunks_that_were_held() -> None:
    """A restart fails what the task held, record by record in its figures, and nothing of it stays in its books."""
    (keeps,) = run_once(Keeps, chunk(["dog", "cat"]), chunk(["damaged"], 2))
    assert (keeps.restarts, keeps.failed) == (1, 3)
    assert (keeps.held, keeps.sizes) == ({}, {})
