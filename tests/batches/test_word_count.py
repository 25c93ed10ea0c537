"""KafkaBatches and StateBolt together, on the local engine: counts in SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.dataset as ds
import pytest
from streamparse import Grouping, Topology

from bolts.dead_letter import DeadLetterBolt
from bolts.kafka import KafkaBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from bolts.state import StateBolt
from downspout.batches import read_state
from downspout.component import Bolt
from downspout.engine import from_class, resolve
from downspout.engine import transaction_findings as findings
from downspout.errors import ComponentError, DownspoutError, TopologyError
from downspout.testing import FakeKafka, run_topology
from spouts.batches import KafkaBatches
from tests.batches.counting import LINES, Split, counted

pytestmark = pytest.mark.fake_only("the batches' reading has a twin in tests/broker/test_batches_broker.py")


class Top(Bolt):
    seen: ClassVar[list[tuple[Any, ...]]] = []

    def process(self, tup: Any) -> None:
        self.seen.append(tuple(tup.values))


def word_count(kind: str, folder: Path, state: str | None = None, **settings: Any) -> type[Topology]:
    """Return a topology whose metadata and state are in files of a folder."""
    source = KafkaBatches.spec(
        topics=["lines"], fields=["value"], emit_interval_ms=0, records_max=4, kind=kind,
        store=f"sqlite:///{folder}/batches.db", par=2, max_active=2,
    )  # fmt: skip

    class WordCount(Topology):
        coordinator, lines = source
        split = Split.spec(inputs=[lines], par=2)
        counts = StateBolt.spec(
            coordinator=coordinator, inputs={split: Grouping.fields("word")}, par=2,
            store=f"sqlite:///{folder}/counts.db", kind=state or kind, key="word", update="count", **settings,
        )  # fmt: skip
        top = Top.spec(inputs=[counts])

    return WordCount


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka("states") as kafka:
        kafka.create_topic("lines", 3)
        yield kafka


def produce(kafka: FakeKafka, lines: list[str]) -> None:
    for number, line in enumerate(lines):
        kafka.produce("lines", value=line.encode(), partition=number % 3)


def counts(folder: Path) -> dict[str, int]:
    return {key[0]: value for key, value in read_state(f"sqlite:///{folder}/counts.db", "counts").items()}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_two_runs_count_each_word_once(kafka: FakeKafka, tmp_path: Path, kind: str) -> None:
    """A second run goes on where the first one ended, and what the state emits is the new value of each key."""
    Top.seen.clear()
    config = {"kafka.bootstrap": "fake://states"}
    for part in (LINES * 3, LINES[:4]):
        produce(kafka, part)
        assert run_topology(word_count(kind, tmp_path), config=config).run.reason == "end"
    wanted = counted(LINES * 3 + LINES[:4])
    assert counts(tmp_path) == wanted
    highest = Counter[str]()
    for _, word, value in Top.seen:
        highest[word] = max(highest[word], value)
    assert highest == wanted


def test_a_pair_that_is_not_exactly_once_is_refused(kafka: FakeKafka, tmp_path: Path) -> None:
    """Opaque batches do not run into a transactional state, unless the user allows it."""
    produce(kafka, LINES)
    config = {"kafka.bootstrap": "fake://states"}
    with pytest.raises(DownspoutError, match="is not exactly once"):
        run_topology(word_count("opaque", tmp_path, "transactional"), config=config)
    allowed = word_count("opaque", tmp_path, "transactional", exactly_once=False)
    run_topology(allowed, config=config)
    assert counts(tmp_path) == counted(LINES)


def test_several_tasks_need_a_grouping_on_the_key(kafka: FakeKafka, tmp_path: Path) -> None:
    topology = word_count("opaque", tmp_path)
    counts = next(spec for spec in topology.specs if spec.name == "counts")
    split = next(source for source in counts.inputs if source.componentId == "split")
    counts.inputs[split] = Grouping.SHUFFLE
    with pytest.raises(TopologyError, match=r"of one key from 'split' may reach several.*Grouping.fields\('word'\)"):
        run_topology(topology, config={"kafka.bootstrap": "fake://states"})


class Sometimes(Bolt):
    """Hands lines on; the first attempt of each batch fails at its last line, after the others have got through."""

    outputs: ClassVar[list[str]] = ["attempt", "origin", "value"]

    def process(self, tup: Any) -> None:
        if tup.values.attempt[1] == 0 and tup.values.value in ("over", "a fox"):
            self.fail(tup)
            return
        self.emit(list(tup.values))


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_parquet_holds_each_record_of_a_batch_once(kafka: FakeKafka, tmp_path: Path, kind: str) -> None:
    """A ParquetBolt tells rows apart by their records: of attempts that fail nothing is there twice, or missing."""
    source = KafkaBatches.spec(
        topics=["lines"], fields=["origin", "value"], emit_interval_ms=0, records_max=4, kind=kind,
        store=f"sqlite:///{tmp_path}/batches.db",
    )  # fmt: skip

    class Rows(Topology):
        coordinator, lines = source
        sometimes = Sometimes.spec(inputs=[lines])
        rows = ParquetBolt.spec(
            inputs=[sometimes], directory=str(tmp_path / "out"), schema={"value": "string"}, flush_rows=1
        )

    produce(kafka, LINES * 3)
    assert run_topology(Rows, config={"kafka.bootstrap": "fake://states"}).run.reason == "end"
    found = ds.dataset(tmp_path / "out", format="parquet").to_table().to_pydict()
    assert sorted(found["value"]) == sorted(LINES * 3)
    assert len(set(zip(found["_partition"], found["_offset"], strict=True))) == len(LINES * 3)


def test_kafka_holds_each_record_of_a_batch_at_least_once(kafka: FakeKafka, tmp_path: Path) -> None:
    """A KafkaBolt's records are all there; those of attempts that failed may be there twice."""
    kafka.create_topic("copies", 1)
    source = KafkaBatches.spec(
        topics=["lines"], fields=["origin", "value"], emit_interval_ms=0, store=f"sqlite:///{tmp_path}/batches.db"
    )

    class Copies(Topology):
        coordinator, lines = source
        sometimes = Sometimes.spec(inputs=[lines])
        out = KafkaBolt.spec(inputs=[sometimes], topic="copies", fields={"message": "value"})

    produce(kafka, LINES * 2)
    assert run_topology(Copies, config={"kafka.bootstrap": "fake://states"}).run.reason == "end"
    found = Counter((record.value or b"").decode() for record in kafka.records("copies"))
    assert found.total() > len(LINES * 2)  # the first attempt had written some
    assert not Counter(LINES * 2) - found
    assert set(found) == set(LINES)


def test_a_transactional_kafka_bolt_is_refused(tmp_path: Path) -> None:
    """Kafka's own transactions hold a spout's offsets, and a coordinator of batches has none."""
    source = KafkaBatches.spec(topics=["lines"], fields=["origin", "value"], store=f"sqlite:///{tmp_path}/batches.db")

    class Copies(Topology):
        coordinator, lines = source
        out = KafkaBolt.spec(inputs=[lines], topic="copies", fields={"message": "value"}, transactional=True)

    graph = from_class(Copies, "copies")
    found = [str(finding) for finding in findings(graph, resolve(graph, environ={}))]
    assert any("it is transactional, but coordinator is not a KafkaSpout and has no offsets" in each for each in found)


@pytest.mark.parametrize("bad", [b'{"word": ["to"]}', b'{"word": {"a": 1}}'])
def test_bad_records_leave_as_rejects_and_a_bad_key_stops_the_run_by_name(
    kafka: FakeKafka, tmp_path: Path, bad: bytes
) -> None:
    """What cannot be parsed is a dead letter, and is in no batch; a key that is none is named, and no run hangs."""
    lines = [b'{"word": "to"}', b"not JSON", b'{"word": "be"}', b'{"word": "to"}']
    source = KafkaBatches.spec(
        topics=["lines"], fields=["origin", "key", "value"], emit_interval_ms=0, attempts_max=3,
        store=f"sqlite:///{tmp_path}/batches.db",
    )  # fmt: skip

    class Parsed(Topology):
        coordinator, lines = source
        parse = JsonParseBolt.spec(inputs=[lines], fields=["word"], carry=["attempt"])
        letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
        counts = StateBolt.spec(
            coordinator=coordinator, inputs=[parse], key="word", update="count",
            store=f"sqlite:///{tmp_path}/counts.db",
        )  # fmt: skip

    config = {"kafka.bootstrap": "fake://states", "kafka.dead_letter_topic": "letters"}
    for line in lines:
        kafka.produce("lines", value=line, partition=0)
    assert run_topology(Parsed, config=config).run.reason == "end"
    assert counts(tmp_path) == {"to": 2, "be": 1}
    assert [record.value for record in kafka.records("letters")] == [b"not JSON"]
    kafka.produce("lines", value=bad, partition=0)
    if b"[" in bad:
        run_topology(Parsed, config=config)
        return
    with pytest.raises(ComponentError, match=r"counts raised in 3 attempts.*'word': {'a': 1}"):
        run_topology(Parsed, config=config)


def test_a_batch_does_not_wait_for_the_age_of_a_flush(kafka: FakeKafka, tmp_path: Path) -> None:
    """While a batch holds up the next one, sinks flush what they hold of it: ten batches take no ten flush ages."""
    source = KafkaBatches.spec(
        topics=["lines"], fields=["origin", "value"], emit_interval_ms=0, records_max=1,
        store=f"sqlite:///{tmp_path}/batches.db",
    )  # fmt: skip

    class Written(Topology):
        coordinator, lines = source
        rows = ParquetBolt.spec(inputs=[lines], directory=str(tmp_path / "rows"), schema={"value": "string"})

    for line in LINES[:10]:
        kafka.produce("lines", value=line.encode(), partition=0)
    result = run_topology(Written, config={"kafka.bootstrap": "fake://states"})
    assert result.run.reason == "end"
    assert result.counts("rows").acked == len(LINES[:10])
    assert result.run.duration_s < 8.0
