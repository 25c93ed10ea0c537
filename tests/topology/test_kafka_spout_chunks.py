"""Chunk mode with many records in a chunk; what holds for chunks of one is tested with the record mode's own tests."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection
from math import ceil, log2
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from downspout.component import Failure
from downspout.errors import ConfigError, DataLossError, RecordError
from downspout.kafka.deadletter import DeadLetter, read_dead_letters
from downspout.kafka.replayed import identity_headers
from downspout.ledger.metadata import decode
from downspout.ledger.origin import Origin
from downspout.origins import ORIGIN, each
from downspout.testing.fake_kafka import FakeKafka
from spouts.kafka import KafkaSpout
from tests.topology.reasons import CLEANER, NO_KAFKA_YET
from tests.topology.spout_driver import GROUP, PARTITIONS, RECORDS, TOPIC, Driver, Kafka, fill, place_of
from tests.topology.test_kafka_spout_hooks import Ears, heard

LETTERS = f"{GROUP}.dead-letters"
SIZE = 40
ROOM = 1_000_000
IN_VAIN_MAX = 3


class Chunks(Driver):
    """A spout in chunk mode, and a bolt that cannot bear some records."""

    def __init__(self, kafka: Kafka, **given: Any) -> None:
        self.answered = 0
        self.acked: Counter[int] = Counter()
        super().__init__(kafka, **{"emit": "chunk", "chunk_records_max": SIZE, **given})

    def _emit(self, values: list[Any], tup_id: str | None = None, **_: Any) -> None:
        self.emitted.append((tup_id, values))

    @property
    def spans(self) -> list[str]:
        """Return the ranges emitted so far, in order."""
        return [tup_id.rpartition("/")[2] for tup_id, _ in self.emitted]

    def id_of(self, span: str) -> str:
        """Return the id under which a range of partition 0 was emitted last."""
        return next(tup_id for tup_id, _ in reversed(self.emitted) if tup_id.endswith(f"/0/{span}"))

    def answer(self, poison: Collection[int] = (), failure: Failure | None = None) -> None:
        """Ack the chunks without poison, then fail the others."""
        out, self.answered = self.emitted[self.answered :], len(self.emitted)
        failed = []
        for tup_id, chunk in out:
            offsets = chunk.column("offset").to_pylist()  # type: ignore[attr-defined]
            if set(offsets) & set(poison):
                failed.append(tup_id)
            else:
                self.spout.ack(tup_id)
                self.acked.update(offsets)
        for tup_id in failed:
            self.spout.fail_with(tup_id, failure)

    def serve(self, poison: Collection[int] = (), failure: Failure | None = None) -> None:
        """Answer all that comes, with time for the back-off, until nothing comes any more; then commit."""
        in_vain = 0
        while in_vain < IN_VAIN_MAX:
            in_vain = 0 if self.run(2) else in_vain + 1
            self.answer(poison, failure)
            self.kafka.clock.sleep(11)
        self.commit()

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return sorted(read_dead_letters(self.kafka, LETTERS), key=lambda letter: letter.offset)


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka with one topic of one partition and a hundred records, whose values are their offsets."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 100)
    return bare_kafka


# --- what leaves ---


def test_a_chunk_is_a_range_of_records_as_columns(kafka: Kafka) -> None:
    """Each chunk is a record batch of the fields in their order; its id names the range."""
    driver = Chunks(kafka)
    driver.run()
    assert driver.spans == ["0-40", "40-80", "80-100"]
    [first, *_] = [chunk for _, chunk in driver.emitted]
    assert isinstance(first, pa.RecordBatch)
    assert first.schema == pa.schema([("offset", pa.int64()), ("value", pa.string())])
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
    """As many as came are one chunk, up to the limit."""
    driver = Chunks(kafka, chunk_records_max=most)
    driver.run()
    assert driver.spans == spans


def test_a_chunk_has_so_many_bytes_at_most(kafka: Kafka) -> None:
    """The limit ends a chunk before the record that would pass it; a larger record is a chunk of its own."""
    kafka.create_topic("sizes", 1)
    for size in (400, 500, 100, 1, 5000, 1):
        kafka.produce("sizes", b"x" * size, partition=0)
    driver = Chunks(kafka, topics=["sizes"], chunk_bytes_max=1000)
    driver.run()
    assert driver.spans == ["0-3", "3-4", "4-5", "5-6"]


def test_gaps_share_the_fate_of_their_range(kafka: Kafka) -> None:
    """Offsets without a record, inside a chunk and behind the last, block no commit and count for no limit."""
    kafka.gap(TOPIC, count=300)
    fill(kafka, 10)
    kafka.gap(TOPIC, count=3)
    driver = Chunks(kafka, chunk_records_max=1000, uncommitted_max=200)
    driver.run()
    assert driver.spans[-1].endswith("-410")
    assert driver.figure("in_flight") == 110
    driver.answer()
    driver.run()
    driver.commit()
    assert driver.committed() == 413


def test_null_values_are_in_the_range_and_not_in_the_chunk(kafka: Kafka) -> None:
    """Tombstones are filtered and counted once, wherever they stand; those alone are no chunk."""
    kafka.create_topic("nulls", 1)
    for value in (None, b"1", None, b"3", None, None):
        kafka.produce("nulls", value, b"\xff" if value is None else b"k", partition=0)
    driver = Chunks(kafka, topics=["nulls"], fields=["offset", "key", "value"])
    driver.run()
    assert driver.spans == ["1-4"]
    assert [chunk.column("offset").to_pylist() for _, chunk in driver.emitted] == [[1, 3]]
    driver.spout.fail(driver.id_of("1-4"))
    driver.serve()
    assert driver.spans == ["1-4", "1-2", "3-4"]
    assert (driver.figure("filtered"), driver.figure("compacted")) == (4, 0)
    assert {tp.topic: meta.offset for tp, meta in kafka.committed(GROUP).items()} == {"nulls": 6}


def test_null_values_may_go_too(kafka: Kafka) -> None:
    """With kafka.emit_null they are nulls of the column."""
    kafka.create_topic("nulls", 1)
    for value in (None, b"1"):
        kafka.produce("nulls", value, partition=0)
    driver = Chunks(kafka, topics=["nulls"], emit_null=True)
    driver.run()
    assert [chunk.column("value").to_pylist() for _, chunk in driver.emitted] == [[None, "1"]]


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
    assert driver.spans[3:] == ["0-20", "20-40"]
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
    assert (driver.figure("dead_lettered"), driver.figure("in_flight")) == (len(poison), 0)


def test_halves_come_from_memory(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is room nothing is read again; slices are dropped when they are done."""
    driver = Chunks(kafka, retries_max=2, retry_cache_bytes=ROOM)
    driver.run()
    [part] = driver.spout._member.parts
    monkeypatch.setattr(driver.spout._member.consumer, "seek", lambda *given: pytest.fail("it is read again"))
    driver.answer({17, 85})
    assert len(part.kept) == 2
    driver.serve({17, 85})
    assert [letter.offset for letter in driver.letters()] == [17, 85]
    assert len(part.kept) == 0


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
    assert driver.spans.count("40-80") == 4
    assert [driver.figure(name) for name in ("timeouts", "failed", "splits")] == [120, 0, 0]


def test_chunks_that_time_out_while_nothing_gets_through_are_split(kafka: Kafka) -> None:
    """They may be more than a bolt can do in that time; no attempt is counted, and none is given up."""
    driver = Chunks(kafka, timeouts_max=2, retries_max=0)
    for _ in range(3):
        driver.run()
        driver.answer(range(100), Failure("timeout"))
        kafka.clock.sleep(11)
    driver.run(20)
    sizes = {int(end) - int(start) for start, end in (span.split("-") for span in driver.spans[driver.answered :])}
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
    assert [driver.spans.count(span) for span in ("0-40", "0-20", "10-20", "17-18")] == [2, 1, 1, 2]
    assert [letter.offset for letter in driver.letters()] == [17]
    assert (driver.committed(), driver.figure("failed")) == (160, 0)


def test_an_unreadable_record_is_given_up_at_once_and_the_rest_goes(kafka: Kafka) -> None:
    """As in record mode: its letter has one attempt; its neighbours are chunks."""
    for key, value in ((b"k", b"\xff"), (b"\xff", b"ok"), (b"k", b"ok")):
        kafka.produce(TOPIC, value, key, partition=0)
    fill(kafka, 5)
    driver = Chunks(kafka, fields=["offset", "key", "value"], chunk_records_max=1000)
    driver.serve()
    assert driver.spans == ["0-100", "102-108"]
    assert [(letter.offset, letter.attempts, letter.error_class) for letter in driver.letters()] == [
        (100, 1, "UnicodeDecodeError"),
        (101, 1, "UnicodeDecodeError"),
    ]
    assert driver.committed() == 108


def test_fields_that_are_not_asked_for_are_not_looked_at(kafka: Kafka) -> None:
    """A key that is no text does no harm where no key is emitted."""
    kafka.produce(TOPIC, b"ok", b"\xff", partition=0)
    driver = Chunks(kafka)
    driver.serve()
    assert driver.acked == Counter(range(101))


def test_the_breaker_goes_by_records(kafka: Kafka) -> None:
    """Half of the last records unreadable: the run stops, whatever the size of chunks."""
    for _ in range(100):
        kafka.produce(TOPIC, b"\xff", partition=0)
    driver = Chunks(kafka, breaker_ratio=0.5, breaker_window=100, chunk_records_max=1000)
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
    assert second.spans == ["0-10", "20-50", "70-100"]
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
    assert second.spans == ["0-17", "17-18", "18-58", "58-98", "98-100"]
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
        for offset in chunk.column("offset").to_pylist()  # type: ignore[attr-defined]
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
    assert all(chunk.num_rows <= 20 for _, chunk in driver.emitted[3:])  # type: ignore[attr-defined]


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
            if set(chunk.column("offset").to_pylist()) & set(poison):  # type: ignore[attr-defined]
                driver.die()
                return None
        driver.answer()
        done |= set(driver.acked)
    driver.commit()
    return driver


def test_records_that_kill_are_found(kafka: Kafka) -> None:
    """Under a watch they are tried alone, chunk mode or not: each gets a letter, and nothing else does."""
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
    assert driver.spans == ["0-40", "40-55"]
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
    driver.spout.whereabouts = whereabouts  # type: ignore[method-assign]
    driver.run()
    for _ in range(30):
        kafka.clock.sleep(1)
        driver.spout.next_tuple()
    assert asked == [driver.id_of("0-40")]
    assert f"{TOPIC}[0]@0: makes no progress" in caplog.text


# --- what goes with it ---


class Listener(Ears):
    """Hears each record."""


def test_a_listener_hears_each_record(kafka: Kafka) -> None:
    """Emits, retries and acks of the records of chunks, as where each is a tuple."""
    heard.clear()
    kafka.produce(TOPIC, None, partition=0)
    driver = Chunks(kafka, listener=f"{__name__}.Listener", retries_max=0, chunk_records_max=4)
    driver.serve({17})
    assert Counter(word[1] for word in heard if word[0] == "ack") == Counter(range(101))
    emits = Counter(word[1] for word in heard if word[0] == "emit")
    assert emits == Counter({**dict.fromkeys(range(100), 1), 16: 3, 17: 3, 18: 2, 19: 2})
    assert Counter(word[1] for word in heard if word[0] == "retry") == Counter([16, 17, 18, 19, 16, 17])
    assert [word for word in heard if word[0] == "max"] == [("max", 17, b"17")]
    assert ("emit", 42, "42") in heard


@pytest.mark.fake_only(CLEANER)
@pytest.mark.parametrize("gone", [[*range(40)], [*range(30)], [*range(10, 40)], [0, 5, 20, 39], [7], [*range(1, 40)]])
def test_a_listener_hears_of_what_the_cleaner_took(kafka: Kafka, gone: list[int]) -> None:
    """Each record of a chunk that failed is done once, whether it was processed or has gone meanwhile."""
    heard.clear()
    driver = Chunks(kafka, listener=f"{__name__}.Listener")
    driver.run()
    driver.answer({17})
    kafka.remove_offsets(TOPIC, 0, gone)
    driver.serve()
    assert Counter(word[1] for word in heard if word[0] == "ack") == Counter(range(100))


@pytest.mark.fake_only(NO_KAFKA_YET)
@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"guarantee": "AT_MOST_ONCE"}, "kafka.guarantee = AT_MOST_ONCE"),
        ({"value_format": "json"}, "kafka.value_format = json"),
        ({"key_format": "json"}, "kafka.key_format = json"),
        ({"translator": ["json.loads"]}, "kafka.translator"),
    ],
)
def test_what_chunks_cannot_do_is_refused(kafka: Kafka, given: dict[str, Any], culprit: str) -> None:
    """Settings that have no meaning for chunks are an error that names them."""
    with pytest.raises(ConfigError, match=culprit):
        Chunks(kafka, **given)


@pytest.mark.fake_only(NO_KAFKA_YET)
def test_another_serializers_pipe_takes_no_chunks(kafka: Kafka) -> None:
    """Under msgpack, which cannot send columns, the setting is refused at the start, before each chunk is."""
    spout = KafkaSpout(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    spout._runs = True
    conf = {"kafka.bootstrap": kafka.bootstrap, "kafka.topics": [TOPIC], "kafka.emit": "chunk"}
    with pytest.raises(ConfigError, match="cannot send columns"):
        spout.initialize(conf, {})


# --- the same outcome as in record mode ---

VALUES = st.sampled_from([b"ok", b"", None, b"\xff"])
LOGS = st.lists(st.tuples(VALUES, st.integers(0, 3)), min_size=1, max_size=40)


def outcome(log: list[tuple[bytes | None, int]], poison: Collection[int], **given: Any) -> tuple[Any, ...]:
    """Return what becomes of each record of a log, in which gaps follow records."""
    with FakeKafka("outcome") as kafka:
        kafka.create_topic(TOPIC, 1)
        for value, gap in log:
            kafka.produce(TOPIC, value, partition=0)
            if gap:
                kafka.gap(TOPIC, count=gap)
        driver = Chunks(kafka, retries_max=1, breaker_ratio=0, fields=["offset", "value"], **given)
        driver.serve(poison)
        letters = [(letter.offset, letter.attempts, letter.error_class) for letter in driver.letters()]
        counted = [driver.figure(name) for name in ("failed", "filtered", "dead_lettered", "acked", "lag")]
        return driver.acked, letters, counted, driver.committed()


@pytest.mark.fake_only("a log of its own for each of many examples")
@settings(max_examples=60, deadline=None)
@given(LOGS, st.sets(st.integers(0, 60), max_size=4), st.integers(2, 50), st.sampled_from([0, ROOM]))
def test_chunks_of_any_size_come_to_the_same(
    log: list[tuple[bytes | None, int]], poison: set[int], size: int, room: int
) -> None:
    """Unreadable, null, failing and good records, gaps between: what is acked, lettered and committed is the same."""
    alone = outcome(log, poison, chunk_records_max=1)
    assert outcome(log, poison, chunk_records_max=size, retry_cache_bytes=room) == alone
