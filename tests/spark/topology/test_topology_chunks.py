"""Topologies on Spark in chunk mode, run in process: the same tables and dead letters as in record mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamparse import Bolt, Grouping

from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.kafka import ColumnRecord, RecordColumns
from downspout.spark import ChunkPlace
from downspout.spark.topology import record_input
from downspout.spark.topology.record_input import cut
from downspout.spark.topology.stage_rows import places_of
from downspout.testing import FakeKafka, VirtualClock, run_topology
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, rows_in

pytestmark = pytest.mark.fake_only(
    "Spark itself runs the same in chunk mode in test_topology_run.py and compare's tests"
)

CHUNK = {"kafka.emit": "chunk"}
FIELDS = ["origin", "value"]


class Upper(Bolt):
    """Takes chunks alone, one Arrow call each. Raises on a chunk that has "poison" in it."""

    outputs: ClassVar[Any] = FIELDS
    exit_on_exception = False
    sizes: ClassVar[list[int]] = []

    def process(self, tup: Any) -> None:
        raise AssertionError("a record, where there are chunks")

    def process_chunk(self, tup: Any) -> None:
        chunk = tup.values
        type(self).sizes.append(chunk.num_rows)
        if pc.any(pc.equal(chunk.column("value"), "poison")).as_py():
            raise ValueError("poison")
        self.emit(pa.RecordBatch.from_arrays([chunk.column("origin"), pc.utf8_upper(chunk.column("value"))], FIELDS))


class BrittleUpper(Upper):
    exit_on_exception = True


class Numbers(Bolt):
    """Stateful: numbers the values of chunks, in the order in which they come. Raises on a chunk with "BAD" in it."""

    outputs: ClassVar[Any] = ["origin", "word", "n"]
    exit_on_exception = False
    sizes: ClassVar[list[int]] = []

    def initialize(self, conf: Any, context: Any) -> None:
        self.counts: Counter[str] = Counter()

    def process_chunk(self, tup: Any) -> None:
        type(self).sizes.append(tup.values.num_rows)
        origins, words = tup.values.column("origin"), tup.values.column("value").to_pylist()
        numbers = []
        for word in words:
            self.counts[word] += 1
            if word == "BAD":
                raise KeyError(word)
            numbers.append(self.counts[word])
        arrays = [origins, pa.array(words, pa.string()), pa.array(numbers, pa.int64())]
        self.emit(pa.RecordBatch.from_arrays(arrays, names=["origin", "word", "n"]))


class Hoarder(Bolt):
    """Stateful: holds its first chunk until another one comes, and then fails it."""

    outputs: ClassVar[Any] = FIELDS
    auto_ack = False
    stateful = True

    def initialize(self, conf: Any, context: Any) -> None:
        self.first: str | None = None

    def process_chunk(self, tup: Any) -> None:
        if self.first is None:
            self.first = tup.id
            return
        if self.first:
            self.fail(self.first)
            self.first = ""
        self.ack(tup)


class Late(Hoarder):
    """Stateful: holds its first chunk until another one comes, and hands it on then, anchored to both."""

    def process_chunk(self, tup: Any) -> None:
        if self.first is None:
            self.first, self.held = tup.id, tup.values
            return
        self.emit(self.held, anchors=[self.first, tup])
        self.ack(tup)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A Kafka with the topic that all topologies here read."""
    Upper.sizes.clear()
    Numbers.sizes.clear()
    with FakeKafka("chunks") as made:
        made.create_topic("lines", 2)
        yield made


def send(kafka: FakeKafka, *values: str | bytes | None, partition: int | None = None) -> None:
    """Write lines, in turns to both partitions or to one of them."""
    for value in values:
        how: dict[str, Any] = {} if partition is None else {"partition": partition}
        kafka.produce("lines", value.encode() if isinstance(value, str) else value, **how)


def shouting(out: Path, upper: Any = Upper, numbers: Any = Numbers) -> Any:
    """Return two bolts that take chunks alone, the second with state; and their sinks."""
    spout = b.lines()
    loud = upper.spec(inputs=[spout])
    numbered = numbers.spec(inputs={loud: Grouping.fields("value")}, par=2)
    words = b.sink([loud], out / "words", {"value": "string"})
    return b.graph_of(spout=spout, upper=loud, numbers=numbered, words=words, counts=b.sink([numbered], out / "counts"))


def numbered(*words: str) -> list[tuple[str, int]]:
    return sorted((word, n + 1) for word, count in Counter(words).items() for n in range(count))


def told(letter: Any) -> tuple[Any, ...]:
    """Return what a dead letter tells of its record and of what happened to it, but for when."""
    headers = {name: value for name, value in letter.headers if not name.endswith((".ms", "stacktrace"))}
    return letter.key, letter.value, {name: value for name, value in headers.items() if "time" not in name}


def test_bolts_get_whole_chunks(kafka: FakeKafka, tmp_path: Path) -> None:
    """What Spark hands over is one chunk, up to kafka.chunk_records_max; behind a fields grouping, each task's part."""
    query = InProcess(shouting(tmp_path), kafka, {**CHUNK, "kafka.chunk_records_max": 4})
    query.batch_rows = 7
    send(kafka, *"abcdefg", "h", partition=0)
    send(kafka, "a", partition=1)
    query.run()
    assert sorted(Upper.sizes) == [1, 1, 3, 4]
    assert sum(Numbers.sizes) == 9
    assert max(Numbers.sizes) > 1
    assert rows_in(tmp_path / "counts", "word", "n") == numbered(*"ABCDEFGHA")
    assert query.batches.totals.counts["upper"].executed == 9


def test_state_goes_on_and_the_order_is_one(kafka: FakeKafka, tmp_path: Path) -> None:
    """Over batches, and however a shuffle mixes rows, a stateful bolt gets chunks in the order of the records."""
    for seed in range(3):
        out = tmp_path / str(seed)
        query = InProcess(shouting(out), kafka, CHUNK, seed=seed)
        for _ in range(2):
            send(kafka, *["a"] * 10, partition=0)
            query.run()
        found = rows_in(out / "counts", "_offset", "n")
        assert [n for _, n in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize("upper", [Upper, BrittleUpper])
@pytest.mark.parametrize("rows", [2, 5, 64])
def test_a_culprit_is_found_by_halves(kafka: FakeKafka, tmp_path: Path, upper: Any, rows: int) -> None:
    """A record that a bolt raises on stands alone in the end, with the letter of record mode; the others go on."""
    lines = [f"line {number}" for number in range(60)]
    lines[7] = lines[8] = lines[20] = lines[41] = lines[58] = "poison"
    send(kafka, *lines)
    settings = {**CHUNK, "kafka.breaker_ratio": 0}
    query = InProcess(shouting(tmp_path, upper), kafka, settings)
    query.batch_rows = rows
    query.run()
    good = [line.upper() for line in lines if line != "poison"]
    assert rows_in(tmp_path / "words", "value") == sorted(good)
    assert rows_in(tmp_path / "counts", "word", "n") == numbered(*good)
    letters = query.letters()
    assert [letter.value for letter in letters] == [b"poison"] * 5
    assert {dict(letter.headers)["__downspout.errors.attempts"] for letter in letters} == {b"3"}
    assert query.batches.totals.again == 0


def test_a_culprit_is_found_without_ever_longer_waits(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each half is tried for the first time: only the retries of the record itself wait longer and longer."""
    clock = VirtualClock()
    now = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.advance, time=clock.wall)
    monkeypatch.setattr(record_input, "time", now)
    send(kafka, *["line"] * 700, "poison", *["line"] * 300)
    settings = {**CHUNK, "kafka.breaker_ratio": 0, "kafka.retry_delay_ms": 100, "kafka.retries_max": 0}
    query = InProcess(shouting(tmp_path), kafka, settings)
    query.batch_rows = 1001
    began = clock.monotonic()
    query.run()
    assert [letter.value for letter in query.letters()] == [b"poison"]
    assert clock.monotonic() - began <= 1.5  # 10 halvings and no retry; with doubled waits 102 s


def test_letters_are_those_of_record_mode(kafka: FakeKafka, tmp_path: Path) -> None:
    """Key, value, headers, attempts, component and error of a letter are the same, whatever a tuple was."""
    for number, value in enumerate([b"a b", b"poison", b"\xff no text", b"c", b"", b"longer poison"]):
        kafka.produce("lines", value, key=b"k%d" % number, headers=[("h", b"1"), ("h", b"")][: number % 3])
    found = {}
    for emit in ("record", "chunk"):
        query = InProcess(b.counting(tmp_path / emit, emit=emit), kafka, {"kafka.breaker_ratio": 0})
        before = len(query.letters())
        query.run()
        found[emit] = sorted(map(repr, map(told, query.letters()[before:])))
        assert rows_in(tmp_path / emit / "counts", "word", "n") == [("a", 1), ("b", 1), ("c", 1)]
    assert found["chunk"] == found["record"]
    assert len(found["chunk"]) == 3


def test_null_values(kafka: FakeKafka, tmp_path: Path) -> None:
    """A null value is a null of the chunk's column, and in record mode a tuple: the rows are the same."""
    send(kafka, "a", None, "b", None, partition=0)
    for mode, config in (("record", {}), ("chunk", CHUNK)):
        spout = b.lines()
        graph = b.graph_of(spout=spout, words=b.sink([spout], tmp_path / mode, {"value": "string"}))
        InProcess(graph, kafka, config).run()
        assert rows_in(tmp_path / mode, "_offset", "value") == [(0, "a"), (1, None), (2, "b"), (3, None)]


@pytest.mark.parametrize("bolt", [Numbers, b.Count])
def test_a_record_that_fails_in_a_stateful_bolt_leaves_no_trace(kafka: FakeKafka, tmp_path: Path, bolt: Any) -> None:
    """The chunk is split, and the record alone is dead-lettered after its tries: nothing else is, and the state is as
    if it had never been.
    """
    graph = shouting(tmp_path) if bolt is Numbers else b.counting(tmp_path)
    lines = [f"w{number % 7}" for number in range(250)]
    lines[111] = "bad"
    query = InProcess(graph, kafka, CHUNK)
    query.batch_rows = 1_000
    send(kafka, *lines, partition=0)
    query.run()
    send(kafka, "w1", partition=0)
    query.run()
    (letter,) = query.letters()
    assert letter.value == b"bad"
    assert dict(letter.headers)["__downspout.errors.attempts"] == b"3"
    good = [line for line in [*lines, "w1"] if line != "bad"]
    expected = numbered(*(line.upper() for line in good)) if bolt is Numbers else numbered(*good)
    assert rows_in(tmp_path / "counts", "word", "n") == expected
    # once whole, once in parts of two records, then alone, three tries
    assert query.batches.totals.again == 5
    assert query.batches.chunk_limits == {}


def test_a_chunk_that_is_failed_in_a_later_batch(kafka: FakeKafka, tmp_path: Path) -> None:
    """A chunk that a bolt fails after it has held it over the end of its batch leaves a letter for each record."""
    spout = b.lines()
    hoarder = Hoarder.spec(inputs=[spout])
    query = InProcess(b.graph_of(spout=spout, hoarder=hoarder), kafka, {**CHUNK, "kafka.breaker_ratio": 0})
    send(kafka, "a", "b", "c", partition=0)
    query.run()
    assert query.letters() == []
    send(kafka, "d", partition=0)
    query.run()
    assert [letter.value for letter in query.letters()] == [b"a", b"b", b"c"]


def test_a_record_of_a_chunk_that_is_failed_in_a_later_batch(kafka: FakeKafka, tmp_path: Path) -> None:
    """A bolt that takes records fails one late, which was in a chunk: that one alone is dead-lettered."""
    query = InProcess(b.counting(tmp_path, count=b.Pairs), kafka, CHUNK)
    send(kafka, "refused", "a", "b", partition=0)
    query.run()
    assert query.letters() == []
    send(kafka, "b", "refused", "a", partition=0)
    query.run()
    assert [(letter.value, letter.headers[0] is not None) for letter in query.letters()] == [(b"refused", True)]
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 2), ("b", 2)]


def test_a_held_chunk_that_another_bolt_cannot_take(kafka: FakeKafka, tmp_path: Path) -> None:
    """A chunk of an earlier batch that fails a later one is not tried for ever: its records are dead-lettered."""
    spout = b.lines()
    late = Late.spec(inputs=[spout])
    numbers = Numbers.spec(inputs={late: Grouping.GLOBAL})
    graph = b.graph_of(spout=spout, late=late, numbers=numbers, out=b.sink([numbers], tmp_path))
    query = InProcess(graph, kafka, {**CHUNK, "kafka.breaker_ratio": 0})
    send(kafka, "a", "BAD", partition=0)
    query.run()
    send(kafka, "c", "d", partition=0)
    query.run()
    assert [letter.value for letter in query.letters()] == [b"a", b"BAD", b"c", b"d"]
    assert query.batches.totals.again == 4


def test_chunks_that_nobody_acks(kafka: FakeKafka, tmp_path: Path) -> None:
    """A bolt that forgets its acks has each record dead-lettered in the end, as timed out."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    lost = b.Forgetful.spec(inputs=[split])
    graph = b.graph_of(spout=spout, split=split, lost=lost, out=b.sink([lost], tmp_path, b.WORD))
    query = InProcess(graph, kafka, {**CHUNK, "kafka.timeouts_max": 2, "kafka.breaker_ratio": 0})
    send(kafka, "a", "b", "c", "d", "e")
    query.run()
    assert sorted(letter.value for letter in query.letters()) == [b"a", b"b", b"c", b"d", b"e"]


TYPES = {"n": "int16", "word": "string"}


def parsing(out: Path, emit: str, *, aside: bool) -> Any:
    """Return a parse bolt and its sink; ``aside``: its rejects are read."""
    spout = b.lines(emit=emit, group="parsing")
    parse = JsonParseBolt.spec(inputs=[spout], fields=list(TYPES), types=TYPES)
    specs = {"spout": spout, "parse": parse, "rows": ParquetBolt.spec(inputs=[parse], directory=str(out), schema=TYPES)}
    if aside:
        specs["letters"] = DeadLetterBolt.spec(inputs=[parse["rejects"]], group="parsing")
    return b.graph_of("parsing", **specs)


@pytest.mark.parametrize("aside", [True, False])
def test_rejects_are_those_of_record_mode(kafka: FakeKafka, tmp_path: Path, aside: bool) -> None:
    """What cannot be parsed goes to the dead letters, by their bolt or by the spout; rows are the local engine's."""
    for number in range(40):
        value = b'{"n": %d, "word": "w"}' % number if number % 9 else [b"{", b'{"n": "x"}', b"\xff"][number % 3]
        kafka.produce("lines", value)
    found, letters = {}, {}
    for emit in ("record", "chunk"):
        query = InProcess(parsing(tmp_path / emit, emit, aside=aside), kafka, {"kafka.breaker_ratio": 0})
        query.batch_rows = 11
        before = len(query.letters())
        query.run()
        found[emit] = rows_in(tmp_path / emit, "_partition", "_offset", "n", "word")
        letters[emit] = sorted(map(repr, map(told, query.letters()[before:])))
    run_topology(parsing(tmp_path / "local", "chunk", aside=aside), config={
        "kafka.bootstrap": kafka.bootstrap, "kafka.breaker_ratio": 0, "kafka.retry_delay_ms": 0,
    })  # fmt: skip
    assert found["chunk"] == found["record"] == rows_in(tmp_path / "local", "_partition", "_offset", "n", "word")
    assert letters["chunk"] == letters["record"]
    assert len(letters["chunk"]) == 5


SETTINGS = {"chunk_records_max": 10, "chunk_bytes_max": 1_000}


def records(offsets: list[int], size: int = 1) -> RecordColumns:
    return RecordColumns.of([ColumnRecord("t", 0, offset, 0, None, b"x" * size, []) for offset in offsets])


@given(
    offsets=st.lists(st.integers(0, 200), min_size=1, unique=True).map(sorted),
    spans=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 50)), max_size=3),
    size=st.integers(0, 400),
)
def test_what_is_cut_is_all_there_and_small_enough(offsets: list[int], spans: list[tuple[int, int]], size: int) -> None:
    """Portions hold each record once, in order, are no larger than allowed, and within what is apart smaller still."""
    chunk_limits, inner = {}, 8
    for start, length in spans:
        chunk_limits[ChunkPlace("t", "", 0, start, ((start, start + length),))] = inner
    found = list(cut(records(offsets, size), "", SETTINGS, chunk_limits))
    assert [offset for part in found for offset in part.offsets.tolist()] == offsets
    for part in found:
        assert 1 <= len(part) <= 10
        assert len(part) == 1 or part.nbytes <= 1_000
        if any(start <= offset < start + length for offset in part.offsets.tolist() for start, length in spans):
            assert len(part) <= inner


def test_of_two_limits_the_smaller_holds() -> None:
    """Records that failed together in parts go alone, and the others of the first chunk go on in those parts."""
    chunk_limits = {
        ChunkPlace("t", "", 0, 0, ((0, 10),)): 4,
        ChunkPlace("t", "", 0, 4, ((4, 8),)): 1,
        ChunkPlace("u", "", 0, 0, ((0, 9),)): 1,
    }
    found = [part.offsets.tolist() for part in cut(records(list(range(16))), "", SETTINGS, chunk_limits)]
    assert found == [[0, 1, 2, 3], [4], [5], [6], [7], [8, 9], [10, 11, 12, 13, 14, 15]]


def test_a_chunks_place_knows_its_gaps(kafka: FakeKafka, tmp_path: Path) -> None:
    chunk = ChunkPlace("t", "", 0, 3, ((3, 5), (9, 10)))
    assert (chunk.size, chunk.end) == (3, 10)
    assert [place.offset for place in places_of([chunk])] == [3, 4, 9]
    assert np.array_equal([3, 4, 9], records([3, 4, 9]).offsets)
