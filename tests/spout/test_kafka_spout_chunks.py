"""Chunk mode with many records in a chunk; what holds for chunks of one is tested with the record mode's own tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import ceil, log2

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from downspout.component import Failure
from downspout.dead_letters import identity_headers
from downspout.errors import DataLossError, RecordError
from downspout.ledger import Breaker, Origin, decode
from downspout.origins import ORIGIN, each
from tests.spout.chunk_driver import SIZE, Chunks, with_a_hundred_records
from tests.spout.reasons import CLEANER
from tests.spout.spout_driver import GROUP, PARTITIONS, RECORDS, TOPIC, Kafka, fill, place_of

ROOM = 1_000_000


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    return with_a_hundred_records(bare_kafka)


# --- what leaves ---


def test_a_chunk_is_a_range_of_records_as_columns(kafka: Kafka) -> None:
    """Each chunk is a record batch of the fields in their order; its id names the range."""
    driver = Chunks(kafka)
    driver.run()
    assert driver.ranges == ["0-40", "40-80", "80-100"]
    [first, *_] = [chunk for _, chunk in driver.emitted]
    assert isinstance(first, pa.RecordBatch)
    assert first.schema == pa.schema([("offset", pa.int64()), ("value", pa.string())])  # type: ignore[arg-type]
    assert first.to_pydict() == {"offset": list(range(40)), "value": [str(n) for n in range(40)]}
    assert (driver.figure("records"), driver.figure("in_flight")) == (100, 100)


def test_all_fields_have_a_column(kafka: Kafka) -> None:
    """A chunk can hold whatever a record has; its values are those of the record's tuple."""
    kafka.create_topic("one", 1)
    kafka.produce("one", b'{"a":1}', b"k", headers=[("h", b"v"), ("h", b"w")], timestamp_ms=5)
    kafka.produce("one", b"\xff", None, timestamp_ms=6)
    fields = ["topic", "partition", "offset", "key", "value", "timestamp", "headers", "origin"]
    driver = Chunks(kafka, topics=["one"], fields=fields, value_format="bytes")
    driver.run()
    [(_, chunk)] = driver.emitted
    assert chunk.schema.names == fields
    assert chunk.schema.field("origin").type == ORIGIN
    first, second = chunk.drop_columns(["origin"]).to_pylist()
    assert list(first.values()) == ["one", 0, 0, "k", b'{"a":1}', 5, [("h", b"v"), ("h", b"w")]]
    assert list(second.values()) == ["one", 0, 1, None, b"\xff", 6, []]
    own = Origin("one", kafka.topic_id("one"), 0, 0, "")
    assert list(each(chunk.column("origin"))) == [own, own._replace(offset=1)]


def test_a_replayed_record_keeps_its_origin(kafka: Kafka) -> None:
    """In a chunk, too, it has that of the record it stands for, and its neighbours have their own."""
    stands_for = Origin(TOPIC, kafka.topic_id(TOPIC), 0, 7)
    kafka.produce(TOPIC, b"again", headers=identity_headers(stands_for, TOPIC), partition=0)
    driver = Chunks(kafka, fields=["origin"], chunk_records_max=1000)
    driver.run()
    [(_, chunk)] = driver.emitted
    offsets = [origin.offset for origin in each(chunk.column("origin"))]
    assert offsets == [*range(100), 7]


@pytest.mark.parametrize(("most", "spans"), [(500, ["0-100"]), (25, ["0-25", "25-50", "50-75", "75-100"])])
def test_a_chunk_has_so_many_records_at_most(kafka: Kafka, most: int, spans: list[str]) -> None:
    driver = Chunks(kafka, chunk_records_max=most)
    driver.run()
    assert driver.ranges == spans


def test_a_chunk_has_so_many_bytes_at_most(kafka: Kafka) -> None:
    """The limit ends a chunk before the record that would pass it; a larger record is a chunk of its own."""
    kafka.create_topic("sizes", 1)
    for size in (400, 500, 100, 1, 5000, 1):
        kafka.produce("sizes", b"x" * size, partition=0)
    driver = Chunks(kafka, topics=["sizes"], chunk_bytes_max=1000)
    driver.run()
    assert driver.ranges == ["0-3", "3-4", "4-5", "5-6"]


def test_gaps_share_the_fate_of_their_range(kafka: Kafka) -> None:
    """Offsets without a record, inside a chunk and behind the last, block no commit and count for no limit."""
    kafka.gap(TOPIC, count=300)
    fill(kafka, 10)
    kafka.gap(TOPIC, count=3)
    driver = Chunks(kafka, chunk_records_max=1000, uncommitted_max=200)
    driver.run()
    assert driver.ranges[-1].endswith("-410")
    assert driver.figure("in_flight") == 110
    driver.answer()
    driver.run()
    driver.commit()
    assert driver.committed() == 413


def test_null_values_are_nulls_of_the_column(kafka: Kafka) -> None:
    """Tombstones are in the chunk, wherever they stand and however it is split; one with a bad key is given up."""
    kafka.create_topic("nulls", 1)
    for value in (None, b"1", None, b"3"):
        kafka.produce("nulls", value, b"k", partition=0)
    kafka.produce("nulls", None, b"\xff", partition=0)
    driver = Chunks(kafka, topics=["nulls"], fields=["offset", "key", "value"])
    driver.run()
    assert [
        (span, chunk.column("value").to_pylist())
        for span, (_, chunk) in zip(driver.ranges, driver.emitted, strict=True)
    ] == [("0-4", [None, "1", None, "3"])]
    driver.spout.fail(driver.id_of("0-4"))
    driver.serve()
    assert [chunk.column("value").to_pylist() for _, chunk in driver.emitted[1:]] == [[None, "1"], [None, "3"]]
    assert [driver.figure(name) for name in ("filtered", "compacted", "dead_lettered")] == [0, 0, 1]
    assert {tp.topic: meta.offset for tp, meta in kafka.committed(GROUP).items()} == {"nulls": 5}


# --- what comes back ---


def test_a_chunk_is_acked_as_a_unit(kafka: Kafka) -> None:
    """The commit goes by the contiguous acked prefix, and the figures count records."""
    driver = Chunks(kafka)
    driver.run()
    driver.spout.ack(driver.id_of("40-80"))
    driver.commit()
    assert (driver.committed(), driver.figure("acked"), driver.figure("in_flight")) == (0, 40, 60)
    driver.spout.ack(driver.id_of("0-40"))
    driver.commit()
    assert driver.committed() == 80


def test_words_about_other_ranges_change_nothing(kafka: Kafka) -> None:
    """Neither a double ack, nor an ack of a chunk that was split since, nor nonsense."""
    driver = Chunks(kafka)
    driver.run()
    whole = driver.id_of("0-40")
    driver.spout.fail(whole)
    driver.run()
    assert driver.ranges[3:] == ["0-20", "20-40"]
    for word in (whole, whole.replace("0-40", "0-39"), whole.replace("0-40", "0"), whole + "-1", "nonsense", "a/b-c"):
        driver.spout.ack(word)
        driver.spout.fail(word)
    assert driver.figure("stale") == 12
    driver.spout.ack(driver.id_of("0-20"))
    driver.spout.ack(driver.id_of("0-20"))
    driver.commit()
    assert (driver.committed(), driver.figure("stale")) == (20, 13)


@pytest.mark.parametrize("room", [0, ROOM])
@pytest.mark.parametrize("poison", [{0}, {17}, {39}, {17, 18, 85}])
def test_culprits_are_found_by_halves(kafka: Kafka, poison: set[int], room: int) -> None:
    """Each gets one letter, with the attempts of a record; all others are acked, each once, after few chunks."""
    driver = Chunks(kafka, retries_max=2, retry_cache_bytes=room)
    driver.serve(poison, Failure("exception", "parse", 7, "ValueError: no"))
    assert [(letter.offset, letter.attempts, letter.error_class) for letter in driver.letters()] == [
        (offset, 3, "ValueError") for offset in sorted(poison)
    ]
    assert driver.acked == Counter({*range(100)} - poison)
    assert driver.committed() == 100
    assert len(driver.emitted) <= 3 + len(poison) * (2 * ceil(log2(SIZE)) + 3)
    assert driver.figure("failed") == 3 * len(poison)
    assert driver.figure("retries") == sum(len(columns[0]) for _, columns in driver.emitted) - 100
    assert (driver.figure("dead_lettered"), driver.figure("in_flight")) == (len(poison), 0)


def test_halves_come_from_memory(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is room nothing is read again; slices are dropped when they are done."""
    driver = Chunks(kafka, retries_max=2, retry_cache_bytes=ROOM)
    driver.run()
    [part] = driver.session.parts
    monkeypatch.setattr(driver.session.consumer, "seek", lambda *given: pytest.fail("it is read again"))
    driver.answer({17, 85})
    assert len(part.retry_cache) == 2
    driver.serve({17, 85})
    assert [letter.offset for letter in driver.letters()] == [17, 85]
    assert len(part.retry_cache) == 0


def test_without_a_dead_letter_topic_the_run_stops(kafka: Kafka) -> None:
    """The error names the culprit alone, not its chunk."""
    driver = Chunks(kafka, retries_max=0, dead_letter_topic="")
    with pytest.raises(RecordError, match=r"orders\[0\]@17: failed 1 time"):
        driver.serve({17})
    driver.commit()
    assert driver.committed() == 17


def test_a_chunk_that_times_out_while_others_get_through_is_tried_again_whole(kafka: Kafka) -> None:
    """Where its partition goes on it may have been lost; no attempt is counted."""
    driver = Chunks(kafka, timeouts_max=5)
    for _ in range(3):
        driver.run()
        driver.answer(range(40, 80), Failure("timeout"))
        kafka.clock.sleep(11)
        fill(kafka, 5)
    driver.run()
    assert driver.ranges.count("40-80") == 4
    assert [driver.figure(name) for name in ("timeouts", "failed", "splits")] == [120, 0, 0]


def test_chunks_that_time_out_while_nothing_gets_through_are_split(kafka: Kafka) -> None:
    """They may be more than a bolt can do in that time; no attempt is counted, and none is given up."""
    driver = Chunks(kafka, timeouts_max=2, retries_max=0)
    for _ in range(3):
        driver.run()
        driver.answer(range(100), Failure("timeout"))
        kafka.clock.sleep(11)
    driver.run(20)
    sizes = {int(end) - int(start) for start, end in (span.split("-") for span in driver.ranges[driver.answered :])}
    assert sizes == {5, 3, 2}
    assert [driver.figure(name) for name in ("timeouts", "failed")] == [300, 0]
    driver.serve()
    assert (driver.committed(), driver.letters()) == (100, [])


def test_a_chunk_whose_ack_is_forgotten_is_split_in_the_end(kafka: Kafka) -> None:
    """After so many timeouts while others get through it is split, and the record without an ack is given up."""
    driver = Chunks(kafka, timeouts_max=2)
    for _ in range(12):
        driver.run()
        driver.answer({17}, Failure("timeout"))
        kafka.clock.sleep(11)
        fill(kafka, 5)
    driver.serve({17})
    assert [driver.ranges.count(span) for span in ("0-40", "0-20", "10-20", "17-18")] == [2, 1, 1, 2]
    assert [letter.offset for letter in driver.letters()] == [17]
    assert (driver.committed(), driver.figure("failed")) == (160, 0)


def test_an_unreadable_record_is_given_up_at_once_and_the_rest_goes(kafka: Kafka) -> None:
    """As in record mode: its letter has one attempt; its neighbours are chunks."""
    for key, value in ((b"k", b"\xff"), (b"\xff", b"ok"), (b"k", b"ok")):
        kafka.produce(TOPIC, value, key, partition=0)
    fill(kafka, 5)
    driver = Chunks(kafka, fields=["offset", "key", "value"], chunk_records_max=1000)
    driver.serve()
    assert driver.ranges == ["0-100", "102-108"]
    assert [(letter.offset, letter.attempts, letter.error_class) for letter in driver.letters()] == [
        (100, 1, "UnicodeDecodeError"),
        (101, 1, "UnicodeDecodeError"),
    ]
    assert driver.committed() == 108


def test_fields_that_are_not_asked_for_are_not_looked_at(kafka: Kafka) -> None:
    """A key that is not text does no harm where no key is emitted."""
    kafka.produce(TOPIC, b"ok", b"\xff", partition=0)
    driver = Chunks(kafka)
    driver.serve()
    assert driver.acked == Counter(range(101))


def test_the_breaker_goes_by_records(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the last records unreadable: the run stops, whatever the size of chunks."""
    for _ in range(100):
        kafka.produce(TOPIC, b"\xff", partition=0)
    monkeypatch.setattr(Breaker, "WINDOW", 100)
    driver = Chunks(kafka, breaker_ratio=0.5, chunk_records_max=1000)
    with pytest.raises(RecordError, match=r"records failed for good, most often with UnicodeDecodeError"):
        driver.serve()
    assert driver.letters() == []


# --- lives ---


def test_what_an_earlier_owner_has_done_cuts_chunks(kafka: Kafka) -> None:
    """Ranges beyond the commit travel in its metadata: the next owner emits what lies between, and nothing twice."""
    first = Chunks(kafka, chunk_records_max=10)
    first.run()
    for span in ("10-20", "50-60", "60-70"):
        first.spout.ack(first.id_of(span))
    first.spout.close()
    second = Chunks(kafka)
    second.serve()
    assert second.ranges == ["0-10", "20-50", "70-100"]
    assert second.committed() == 100


def test_a_record_that_failed_in_an_earlier_life_goes_alone(kafka: Kafka) -> None:
    """Its attempts are counted on; a chunk that failed is whole again, since nothing was counted."""
    first = Chunks(kafka, retries_max=2, chunk_records_max=2)
    first.run()
    for span in ("16-18", "40-42"):
        first.spout.fail(first.id_of(span))
    first.run()
    first.spout.fail(first.id_of("17-18"))
    first.commit()
    first.die()
    second = Chunks(kafka, retries_max=2)
    second.run()
    assert second.ranges == ["0-17", "17-18", "18-58", "58-98", "98-100"]
    second.serve({17})
    assert [(letter.offset, letter.attempts) for letter in second.letters()] == [(17, 3)]
    assert second.committed() == 100


def test_a_hand_over_waits_for_chunks(wide_kafka: Kafka) -> None:
    """The old owner drains before it lets go: no record is emitted twice, none is missing."""
    wide_kafka.create_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        fill(wide_kafka, RECORDS, partition)
    old = Chunks(wide_kafka, poll_records_max=20, chunk_records_max=7, emits_per_next_max=3)
    old.run(3)
    new = Chunks(wide_kafka, member=2, chunk_records_max=7)
    new.ask_to_join()
    for _ in range(60):
        for driver in (old, new):
            driver.run(1)
            driver.answer()
    rows = Counter(
        (place_of(tup_id)[0], offset)
        for tup_id, chunk in old.emitted + new.emitted
        for offset in chunk.column("offset").to_pylist()
    )
    assert rows == Counter((p, o) for p in range(PARTITIONS) for o in range(RECORDS))
    assert new.emitted


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_range_whose_beginning_is_lost(kafka: Kafka, policy: str) -> None:
    """Retention that overtakes a retry takes what it takes: the rest of the range is tried again."""
    driver = Chunks(kafka, on_data_loss=policy)
    driver.run()
    driver.answer({17})
    kafka.delete_records(TOPIC, 0, before=15)
    if policy == "fail":
        with pytest.raises(DataLossError, match="15 offsets below 15"):
            driver.run()
        return
    driver.serve()
    assert (driver.figure("lost"), driver.committed()) == (15, 100)
    assert driver.acked == Counter(range(15, 100))
    assert all(chunk.num_rows <= 20 for _, chunk in driver.emitted[3:])


@pytest.mark.fake_only(CLEANER)
@pytest.mark.parametrize("gone", [[*range(40)], [*range(30)], [*range(10, 40)], [0, 5, 20, 39], [7], [*range(1, 40)]])
def test_what_is_compacted_in_a_range_that_failed_is_counted(kafka: Kafka, gone: list[int]) -> None:
    """The cleaner may take all of it or any part: what is left is tried again, what is gone is counted once."""
    driver = Chunks(kafka)
    driver.run()
    driver.answer({17})
    kafka.remove_offsets(TOPIC, 0, gone)
    driver.serve()
    assert driver.figure("compacted") == len(gone)
    assert driver.acked == Counter({*range(100)} - {*gone})
    assert (driver.committed(), driver.figure("retry_waiting")) == (100, 0)


def live(kafka: Kafka, poison: Collection[int], done: set[int]) -> Chunks | None:
    """Run a process that dies when a chunk with poison comes out; return None then, else the process at its end."""
    driver = Chunks(kafka, retries_max=2, chunk_records_max=30)
    in_vain = 0
    while in_vain < 12:
        in_vain = 0 if driver.run(1) else in_vain + 1
        for _, chunk in driver.emitted[driver.answered :]:
            if set(chunk.column("offset").to_pylist()) & set(poison):
                driver.die()
                return None
        driver.answer()
        done |= set(driver.acked)
    driver.commit()
    return driver


@pytest.mark.sweep
def test_records_that_kill_are_found(kafka: Kafka) -> None:
    """Under crash isolation they are tried alone, chunk mode or not: each gets a letter, and nothing else does."""
    fill(kafka, 400)
    poison, done = {3, 300, 301}, set[int]()
    for _ in range(30):
        if (driver := live(kafka, poison, done)) is not None:
            break
    else:
        raise AssertionError("still dying")
    assert {letter.offset for letter in driver.letters()} == poison
    assert done == {*range(500)} - poison
    assert driver.committed() == 500


def test_a_bounded_run_ends_where_it_should(kafka: Kafka) -> None:
    """A stop inside a poll cuts the chunk; halves that wait keep the run from its end."""
    driver = Chunks(kafka, run__until="end", stop_offsets=[f"{TOPIC}[0]=55"])
    driver.run()
    assert driver.ranges == ["0-40", "40-55"]
    driver.answer({17})
    assert not driver.spout.exhausted()
    driver.serve()
    assert driver.spout.exhausted()
    assert (driver.committed(), driver.acked) == (55, Counter(range(55)))


def test_progress_beyond_the_commit_is_told_as_ranges(kafka: Kafka) -> None:
    """Chunks that are done beyond one that is not make few ranges, gaps of null values included."""
    driver = Chunks(kafka)
    driver.run()
    driver.spout.ack(driver.id_of("40-80"))
    driver.commit()
    meta = kafka.committed(GROUP)[TopicPartition(TOPIC, 0)]
    told = decode(meta.offset, meta.metadata, topic_id=kafka.topic_id(TOPIC))
    assert (meta.offset, told.done, dict(told.failures)) == (0, ((40, 80),), {})


def test_a_stuck_chunk_is_named_by_its_id(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """The warning says where the partition stands still, and asks who has that very tuple."""
    asked: list[str] = []

    def whereabouts(tup_id: str) -> str:
        asked.append(tup_id)
        return "sink"

    driver = Chunks(kafka)
    driver.spout.whereabouts = whereabouts
    driver.run()
    for _ in range(30):
        kafka.clock.sleep(1)
        driver.spout.next_tuple()
    assert asked == [driver.id_of("0-40")]
    assert f"{TOPIC}[0]@0: makes no progress" in caplog.text
