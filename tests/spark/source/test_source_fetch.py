"""Reading one range, on the fake Kafka: every record once, for any log."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import errors

from downspout.errors import BrokerError, DataLossError, UnreadableError
from downspout.kafka import TopicPartition
from downspout.ledger import Ranges
from downspout.spark import SCHEMA, SCHEMA_WITH_HEADERS, OffsetRange, SourceOptions, data_source, parse_options
from downspout.spark.data_source import read_range
from downspout.spark.source_offsets import Skipped
from downspout.testing import FakeConsumer, FakeKafka

pytestmark = pytest.mark.fake_only("through Spark, test_source_batch.py and _stream.py do it on the real broker")

_number = count()


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(f"fetch-{next(_number)}") as fake:
        yield fake
    data_source.idle.clear()


def options_of(fake: FakeKafka, **given: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": fake.bootstrap, "subscribe": "t", **given}, streaming=True)


def offsets(fake: FakeKafka, start: int, end: int, skipped: Any = (), **given: str) -> list[int]:
    batches = read_range(options_of(fake, **given), OffsetRange("t", 0, start, end), skipped)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


STEPS = st.lists(st.sampled_from(["record", "committed", "aborted", "gap"]), max_size=25)


@settings(deadline=None)
@given(
    STEPS,
    st.sets(st.integers(0, 60)),
    st.lists(st.integers(0, 60), max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=4),
)
def test_ranges_yield_every_record_once(
    steps: list[str], removed: set[int], cuts: list[int], skips: list[tuple[int, int]]
) -> None:
    """Ranges that join up yield what one poll loop sees, but what is skipped, through markers, aborts, compaction."""
    with FakeKafka(f"fetch-{next(_number)}") as fake:
        fake.create_topic("t")
        for step in steps:
            if step == "record":
                fake.produce("t", b"v", partition=0)
            elif step == "gap":
                fake.gap("t", 0, 2)
            else:
                transaction = fake.transaction()
                transaction.send("t", b"v", partition=0)
                getattr(transaction, "commit" if step == "committed" else "abort")()
        partition = TopicPartition("t", 0)
        fake.remove_offsets("t", 0, removed)
        consumer = fake.consumer(group=None)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        seen = [record.offset for record in consumer.poll(0, 1000).get(partition, ())]
        places = sorted({0, end, *(cut for cut in cuts if cut < end)})
        skipped = tuple(Ranges((start, start + length) for start, length in skips))
        left_out = {offset for start, stop in skipped for offset in range(start, stop)}
        found = [offset for start, stop in pairwise(places) for offset in offsets(fake, start, stop, skipped)]
        assert found == [offset for offset in seen if offset not in left_out]
        data_source.idle.clear()


def test_columns_are_those_of_the_connector(kafka: FakeKafka) -> None:
    """Values, moments and headers are the record's; a record without headers has null there."""
    kafka.produce("t", b"v", b"k", partition=0, headers=[("a", b"1"), ("a", None)], timestamp_ms=1_700_000_000_123)
    kafka.produce("t", None, partition=0, timestamp_ms=0)
    (batch,) = read_range(options_of(kafka, includeHeaders="true"), OffsetRange("t", 0, 0, 2))
    assert batch.schema == SCHEMA_WITH_HEADERS
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], first["topic"], first["partition"], first["offset"]) == (
        b"k",
        b"v",
        "t",
        0,
        0,
    )
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)
    (bare,) = read_range(options_of(kafka), OffsetRange("t", 0, 0, 1))
    assert bare.schema == SCHEMA


def broken(fake: FakeKafka, start: int, end: int, skipped: Skipped = (), **given: str) -> list[tuple[Any, ...]]:
    """Return the offsets of a range; of rows that stand for others also the end, and whether a size is known."""
    batches = read_range(options_of(fake, **given), OffsetRange("t", 0, start, end), skipped)
    rows = [row for batch in batches for row in batch.to_pylist()]
    told = [(row["offset"], row["unreadable"]) for row in rows]
    return [(offset,) if note is None else (offset, note["end"], note["size"]) for offset, note in told]


def test_a_row_stands_for_what_cannot_be_read_where_that_is_wanted(kafka: FakeKafka) -> None:
    """It has the first offset and the end, of its own range alone and without what is skipped; by default it fails."""
    for _ in range(10):
        kafka.produce("t", b"v", partition=0)
    kafka.damage("t", 0, 2, 6)
    kafka.damage("t", 0, 8, 9, size=400_000_000)
    everything: dict[str, Any] = {"includeUnreadable": "true"}
    assert broken(kafka, 0, 10, **everything) == [(0,), (1,), (2, 6, None), (6,), (7,), (8, 9, 400_000_000), (9,)]
    assert broken(kafka, 0, 4, **everything) == [(0,), (1,), (2, 4, None)]
    assert broken(kafka, 4, 7, **everything) == [(4, 6, None), (6,)]
    assert broken(kafka, 0, 7, ((1, 4),), **everything) == [(0,), (4, 6, None), (6,)]
    assert broken(kafka, 0, 7, ((1, 6),), **everything) == [(0,), (6,)]
    assert broken(kafka, 6, 10, includeUnreadable="records") == [(6,), (7,), (8, 9, 400_000_000), (9,)]
    with pytest.raises(UnreadableError, match=r"t\[0\]@2: .*checksum.*includeUnreadable=true.*on_corrupt_batch"):
        broken(kafka, 0, 10, includeUnreadable="records")
    with pytest.raises(UnreadableError, match=r"t\[0\]@8: a record of 400,000,000 bytes.*raise recordBytesMax"):
        offsets(kafka, 6, 10)
    (plain,) = read_range(options_of(kafka), OffsetRange("t", 0, 0, 1))
    assert plain.schema == SCHEMA


def test_a_consumer_is_used_again(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges with the same options share one consumer; other options, and an abandoned range, do no harm."""
    for _ in range(20):
        kafka.produce("t", b"v", partition=0)
    made = []
    connect = data_source.connect
    monkeypatch.setattr(
        data_source, "connect", lambda options, **more: made.append(options) or connect(options, **more)
    )
    assert offsets(kafka, 0, 5) == [0, 1, 2, 3, 4]
    assert offsets(kafka, 5, 7) == [5, 6]
    assert offsets(kafka, 2, 4) == [2, 3]
    abandoned = read_range(options_of(kafka), OffsetRange("t", 0, 0, 20))
    next(abandoned)
    abandoned.close()
    assert offsets(kafka, 9, 11) == [9, 10]
    assert len(made) == 1
    assert offsets(kafka, 0, 1, **{"kafka.fetch.min.bytes": "7"}) == [0]
    assert len(made) == 2


def test_a_consumer_that_failed_is_not_used_again(kafka: FakeKafka) -> None:
    """An error of the client names the range, and the next range has a consumer of its own."""
    kafka.produce("t", b"v", partition=0)
    kafka.faults.fail_next("poll", errors.TopicAuthorizationFailedError("t"))
    with pytest.raises(BrokerError, match=r"t\[0\]@0\.\.1: TopicAuthorizationFailedError"):
        offsets(kafka, 0, 1)
    assert not data_source.idle
    assert offsets(kafka, 0, 1) == [0]


def test_what_is_gone_from_the_front(kafka: FakeKafka) -> None:
    """Offsets that retention took fail the task, or are left out with failOnDataLoss=false."""
    for _ in range(10):
        kafka.produce("t", b"v", partition=0)
    kafka.delete_records("t", 0, 6)
    with pytest.raises(DataLossError, match=r"t\[0\]@3\.\.8: offsets 3 to 5 are gone"):
        offsets(kafka, 3, 8)
    assert offsets(kafka, 3, 8, failOnDataLoss="false") == [6, 7]
    assert offsets(kafka, 1, 5, failOnDataLoss="false") == []


def test_what_is_skipped_may_be_gone(kafka: FakeKafka) -> None:
    """Offsets that are left out are no loss where retention took them; others beside them still are."""
    for _ in range(10):
        kafka.produce("t", b"v", partition=0)
    kafka.delete_records("t", 0, 6)
    assert offsets(kafka, 3, 8, ((3, 6),)) == [6, 7]
    assert offsets(kafka, 3, 8, ((2, 7),)) == [7]
    assert offsets(kafka, 0, 6, ((0, 9),)) == []
    with pytest.raises(DataLossError, match=r"t\[0\]@3\.\.8: offsets 3 to 3 are gone"):
        offsets(kafka, 3, 8, ((4, 6),))
    assert offsets(kafka, 8, 12, ((10, 12),)) == [8, 9]


def test_what_is_gone_from_the_end(kafka: FakeKafka) -> None:
    """A log that ends below the range fails the task instead of holding it up, or gives what there is."""
    for _ in range(4):
        kafka.produce("t", b"v", partition=0)
    with pytest.raises(DataLossError, match=r"t\[0\]@2\.\.9: the log ends at 4"):
        offsets(kafka, 2, 9)
    assert offsets(kafka, 2, 9, failOnDataLoss="false") == [2, 3]


def test_a_log_that_was_cut_off(kafka: FakeKafka) -> None:
    """Where an unclean election took the end of the log, the rest of the range is lost data."""
    kafka.produce("t", b"v", partition=0)
    kafka.faults.fail_next("poll", errors.LogTruncationError({}), times=2)
    with pytest.raises(DataLossError, match=r"t\[0\]@0\.\.1: offsets 0 to 0 are gone"):
        offsets(kafka, 0, 1)
    assert offsets(kafka, 0, 1, failOnDataLoss="false") == []


def test_a_cancelled_task_stops_reading(kafka: FakeKafka) -> None:
    """A worker whose JVM has gone waits no longer for records; one that still has it goes on."""
    kafka.produce("t", b"v", partition=0)
    options = options_of(kafka, **{"kafkaConsumer.pollTimeoutMs": "100"})
    jvm, worker = socket.socketpair()

    def main(infile: Any) -> list[Any]:  # as PySpark's worker calls what reads
        return list(read_range(options, OffsetRange("t", 0, 0, 1)))

    kafka.is_up = False
    with jvm, worker, worker.makefile("rb") as stream:
        jvm.sendall(b"the rest of what the task was given")
        with pytest.raises(BrokerError, match="nothing arrived after 0 for 100 ms"):
            main(stream)
        jvm.close()
        assert main(stream) == []


def test_a_silent_broker_is_named(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where records must be and none come, the task fails after kafkaConsumer.pollTimeoutMs."""
    kafka.produce("t", b"v", partition=0)
    ticks = count(0, 1000)
    monkeypatch.setattr(data_source.time, "monotonic", lambda: next(ticks))
    read_all = options_of(kafka, **{"kafkaConsumer.pollTimeoutMs": "100"})
    kafka.is_up = False
    with pytest.raises(BrokerError, match=r"t\[0\]@0\.\.1: nothing arrived after 0 for 100 ms"):
        list(read_range(read_all, OffsetRange("t", 0, 0, 1)))


def test_an_offset_that_is_in_the_log_is_tried_again(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just become the leader says out of range of an offset that it has: nothing is gone."""
    kafka.create_topic("t")
    for number in range(10):
        kafka.produce("t", b"%d" % number, partition=0)
    poll, refused = FakeConsumer.poll, iter([False, True, True])

    def hasty(consumer: FakeConsumer, *given: Any) -> Any:
        if next(refused, False):
            raise errors.OffsetOutOfRangeError()
        return poll(consumer, *given)

    monkeypatch.setattr(data_source, "RETRY_S", 0.0)
    monkeypatch.setattr(FakeConsumer, "poll", hasty)
    assert offsets(kafka, 2, 8) == [2, 3, 4, 5, 6, 7]
    monkeypatch.setattr(FakeConsumer, "poll", lambda *_: (_ for _ in ()).throw(errors.OffsetOutOfRangeError()))
    with pytest.raises(BrokerError, match="OffsetOutOfRangeError"):
        offsets(kafka, 2, 8, **{"kafkaConsumer.pollTimeoutMs": "1"})
