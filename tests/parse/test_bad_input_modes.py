"""Bad input from Kafka to Parquet: chunk mode leaves the rows, letters, commits and errors that record mode leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import errors
from streamparse import Topology

from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.errors import DownspoutError
from downspout.kafka import TopicPartition
from downspout.ledger import decode
from downspout.testing import FakeConsumer, FakeKafka, VirtualClock, run_topology
from spouts.kafka import KafkaSpout
from tests.parse.test_dead_letters import content, letters_of
from tests.sink.support import rows_of

pytestmark = [pytest.mark.fake_only("compares the two modes; the client's own input is compared in tests/kafka")]

TOPIC = "orders"
FEW = 40
"""Records of cases that are not about many."""


@dataclass
class Found:
    """What a run has left.

    Attributes:
        rows: in the files, with their origins.
        letters: by origin.
        commits: by partition: the offset, and what is done beyond it.
        error: what ended the run.
    """

    rows: list[str]
    letters: dict[Any, Any]
    commits: dict[int, Any]
    error: tuple[type, str] | None


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka("bad-input", VirtualClock()) as made:
        made.create_topic(TOPIC, 2)
        yield made


def topology(mode: Any, aside: bool, directory: Path) -> Any:
    """Return JSON into Parquet; ``aside``: a DeadLetterBolt reads the rejects."""
    given: dict[str, Any] = {"fields": ["origin", "value"], "value_format": "bytes", "retries_max": 1}

    class Orders(Topology):
        config = {"kafka.group": mode}  # noqa: RUF012 - streamparse wants a plain class attribute
        spout = KafkaSpout.spec(topics=[TOPIC], emit=mode, **given)
        parse = JsonParseBolt.spec(inputs=[spout], fields=["a", "text"], types={"a": "int32", "text": "string"})
        if aside:
            letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
        sink = ParquetBolt.spec(inputs=[parse], directory=str(directory), schema={"a": "int32", "text": "string"})

    return Orders


def outcome(kafka: FakeKafka, mode: str, aside: bool, directory: Path, config: dict[str, Any]) -> Found:
    """Run in one mode, and look at what it has left."""
    error = None
    try:
        run_topology(
            topology(mode, aside, directory),
            config={"kafka.bootstrap": kafka.bootstrap, "kafka.breaker_ratio": 0, **config},
            clock=kafka.clock,
        )
    except DownspoutError as raised:
        error = (type(raised), raised.message)
    commits = {}
    for tp, found in kafka.committed(mode).items():
        told = decode(found.offset, found.metadata, topic_id=kafka.topic_id(TOPIC))
        commits[tp.partition] = (found.offset, told.done)
    letters = {}
    if f"{mode}.dead-letters" in kafka.topic_names():
        letters = {place: content(letter) for place, letter in letters_of(kafka, f"{mode}.dead-letters").items()}
    rows = sorted(json.dumps(row) for row in rows_of(directory)) if directory.exists() else []
    return Found(rows, letters, commits, error)


def both(kafka: FakeKafka, aside: bool, root: Path, before: Any = lambda: None, **config: Any) -> tuple[Found, Found]:
    found = []
    for mode in ("record", "chunk"):
        before()
        found.append(outcome(kafka, mode, aside, root / mode, config))
    return found[0], found[1]


def good(number: int, text: str = "x") -> bytes:
    return json.dumps({"a": number, "text": text}).encode()


def produce(kafka: FakeKafka, values: list[bytes | None]) -> None:
    """Write records, to one partition and the other in turn."""
    for number, value in enumerate(values):
        kafka.produce(TOPIC, value, key=b"k%d" % number, partition=number % 2)


READ = pytest.mark.parametrize("aside", [True, False], ids=["rejects read", "rejects not read"])


@pytest.mark.slow
@READ
def test_one_corrupt_record_in_ten_thousand(kafka: FakeKafka, aside: bool, tmp_path: Path) -> None:
    """All others are rows, and the one is a letter that tells the same of it."""
    values = [good(number) for number in range(10_000)]
    values[7_777] = b'{"a": 7777, "text": '
    produce(kafka, [*values])
    record, chunk = both(kafka, aside, tmp_path)
    assert chunk == record
    assert (len(record.rows), len(record.letters), record.error) == (9_999, 1, None)


@READ
def test_a_type_that_changes_midway(kafka: FakeKafka, aside: bool, tmp_path: Path) -> None:
    """Records from the change on are letters, each, and those before it rows."""
    values = [good(number) for number in range(FEW)]
    values += [json.dumps({"a": f"{number} pieces", "text": "x"}).encode() for number in range(FEW)]
    produce(kafka, [*values])
    record, chunk = both(kafka, aside, tmp_path)
    assert chunk == record
    assert (len(record.rows), len(record.letters), record.error) == (FEW, FEW, None)


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("aside", [pytest.param(True, marks=pytest.mark.sweep, id="rejects read"), False])
def test_a_type_that_changes_for_good_stops_the_run(kafka: FakeKafka, aside: bool, tmp_path: Path) -> None:
    """With the circuit breaker the run ends with the same kind of error, and no good record was given up."""
    produce(kafka, [good(number) for number in range(FEW)])
    produce(kafka, [b'{"a": "pieces"}'] * 4_000)
    record, chunk = both(kafka, aside, tmp_path, **{"kafka.breaker_ratio": 0.5})
    assert record.error is not None
    assert chunk.error is not None
    assert chunk.error[0] is record.error[0]
    for found in (record, chunk):
        assert len(found.letters) < 4_000
        assert all(b"pieces" in told[1] for told in found.letters.values())
        assert all(offset < 2_000 + FEW // 2 for offset, _ in found.commits.values())


@READ
def test_records_of_ten_mebibytes(kafka: FakeKafka, aside: bool, tmp_path: Path) -> None:
    """A large record is a row, or a letter where it is bad; small ones beside it are rows."""
    large = "x" * (10 << 20)
    produce(kafka, [good(0), good(1, large), good(2), b"{" + large.encode(), good(4), good(5)])
    record, chunk = both(kafka, aside, tmp_path)
    assert chunk == record
    assert (len(record.rows), len(record.letters), record.error) == (5, 1, None)


@READ
def test_nothing_in_it(kafka: FakeKafka, aside: bool, tmp_path: Path) -> None:
    """Null values are rows of nulls, gaps leave nothing, and both are committed; empty values are letters."""
    produce(kafka, [None] * FEW)
    kafka.gap(TOPIC, count=7)
    produce(kafka, [b""] * 4)
    produce(kafka, [None] * FEW)
    record, chunk = both(kafka, aside, tmp_path)
    assert chunk == record
    assert (len(record.rows), len(record.letters), record.error) == (2 * FEW, 4, None)
    assert {(row["a"], row["text"]) for row in map(json.loads, record.rows)} == {(None, None)}
    assert all(record.commits[tp.partition][0] == kafka.log(tp).end for tp in kafka.partitions(TOPIC))


BAD = TopicPartition(TOPIC, 0), FEW // 4


def poll_until_bad(consumer: FakeConsumer, timeout_ms: int, max_records: int) -> dict[TopicPartition, Any]:
    """Poll as the client does: what is before a batch that it cannot decode comes first, and then the error."""
    found = dict(real_poll(consumer, timeout_ms, max_records))
    tp, bad = BAD
    records = found.get(tp, ())
    if len(records) and records[len(records) - 1].offset >= bad:
        count = sum(record.offset < bad for record in records)
        consumer.seek(tp, bad)
        if not count:
            for other in found.keys() - {tp}:
                consumer.seek(other, found[other][0].offset)
            raise errors.UnsupportedCodecError("Libraries for zstd compression codec not found")
        found[tp] = records[:count]
    return found


real_poll = FakeConsumer.poll


def test_a_codec_whose_package_is_missing(kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could be read before it is in the files, and the run ends with the same error."""
    monkeypatch.setattr(FakeConsumer, "poll", poll_until_bad)
    produce(kafka, [good(number) for number in range(FEW)])
    record, chunk = both(kafka, True, tmp_path, **{"parquet.flush_age_s": 0.0})
    assert chunk == record
    assert record.error is not None
    assert "zstd" in record.error[1]
    assert record.letters == {}
    assert record.commits[BAD[0].partition][0] <= BAD[1]
