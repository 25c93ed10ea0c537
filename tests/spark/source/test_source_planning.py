"""The driver's side of the source on the fake Kafka: ranges of batches, and reactions to lost data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from kafka import errors
from kafka.structs import TopicPartition

from downspout.errors import BrokerError, ConfigError, DataLossError
from downspout.spark import OffsetRange, Offsets, SourceOptions, parse_options
from downspout.spark.planning import BatchPlan, StreamPlan
from downspout.testing import FakeKafka, VirtualClock

pytestmark = pytest.mark.fake_only("through Spark, test_source_batch.py and _stream.py do it on the real broker")

_number = count()


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A Kafka with the topic t: ten records in partition 0, none in partition 1."""
    with FakeKafka(f"spark-{next(_number)}") as fake:
        fake.create_topic("t", partitions=2)
        fill(fake, 10)
        yield fake


def fill(fake: FakeKafka, records: int, topic: str = "t", partition: int = 0) -> None:
    for number in range(records):
        fake.produce(topic, b"v%d" % number, partition=partition, timestamp_ms=1000 + number)


def options_of(fake: FakeKafka, streaming: bool, **given: str) -> SourceOptions:
    """Return options; t is subscribed where nothing else is said."""
    if not {"subscribe", "subscribePattern", "assign"} & given.keys():
        given["subscribe"] = "t"
    return parse_options({"kafka.bootstrap.servers": fake.bootstrap, **given}, streaming=streaming)


def stream(fake: FakeKafka, **given: str) -> StreamPlan:
    """Return the plan of a new streaming query, or of one after a restart."""
    return StreamPlan(options_of(fake, True, **given), fake.clock)


def batch(fake: FakeKafka, **given: str) -> list[str]:
    return [str(piece) for piece in BatchPlan(options_of(fake, False, **given)).ranges()]


def at(*offsets: int, topic: str = "t") -> Offsets:
    return {TopicPartition(topic, number): offset for number, offset in enumerate(offsets)}


def read(plan: StreamPlan, start: Offsets, end: Offsets) -> list[str]:
    return [str(piece) for piece in plan.ranges(start, end)]


# --- batch queries ---


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ["t[0]@0..10"]),
        ({"minPartitions": "3"}, ["t[0]@0..3", "t[0]@3..6", "t[0]@6..10"]),
        ({"startingOffsets": '{"t": {"0": 4, "1": -2}}'}, ["t[0]@4..10"]),
        ({"endingOffsets": '{"t": {"0": 4, "1": -1}}'}, ["t[0]@0..4"]),
        ({"startingTimestamp": "1003", "endingTimestamp": "1007", "startingOffsetsByTimestampStrategy": "latest"},
         ["t[0]@3..7"]),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 1008, "1": 0}}', "startingOffsetsByTimestampStrategy": "latest"},
         ["t[0]@8..10"]),
        ({"endingTimestamp": "9999"}, ["t[0]@0..10"]),
        ({"assign": '{"t": [1]}'}, []),
        ({"assign": '{"t": [0]}'}, ["t[0]@0..10"]),
        ({"subscribePattern": "t|u.*"}, ["t[0]@0..10", "u1[0]@0..2"]),
        ({"subscribePattern": "nothing"}, []),
    ],
)  # fmt: skip
def test_batch_ranges(kafka: FakeKafka, given: dict[str, str], found: list[str]) -> None:
    """A batch query reads from its start to its end, as the options say."""
    fill(kafka, 2, "u1")
    assert batch(kafka, **given) == found


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"subscribe": "t,missing"}, BrokerError, "missing does not exist"),
        ({"assign": '{"t": [0, 7]}'}, BrokerError, r"t\[7\] does not exist"),
        ({"startingOffsets": '{"t": {"0": 4}}'}, ConfigError, r"startingOffsets leaves out t\[1\]"),
        ({"startingOffsets": '{"t": {"0": 4, "1": 0, "2": 0}}'}, ConfigError, r"names t\[2\], which is not read"),
        ({"startingTimestamp": "1003"}, ConfigError, r"no record at or after that moment in t\[1\]"),
        ({"endingOffsets": '{"t": {"0": 40, "1": 0}}'}, DataLossError, r"t\[0\]@40 is beyond the end of the log, 10"),
        ({"startingOffsets": '{"t": {"0": 40, "1": 0}}'}, DataLossError, r"t\[0\]@40 is beyond the end"),
    ],
)
def test_batch_mistakes(kafka: FakeKafka, given: dict[str, str], error: type[Exception], said: str) -> None:
    """What does not fit the topic is an error before any task runs."""
    with pytest.raises(error, match=said):
        batch(kafka, **given)


def test_a_batch_beyond_the_log_reads_what_is_there(kafka: FakeKafka) -> None:
    """With failOnDataLoss=false offsets beyond the end are cut down to it."""
    ends = '{"t": {"0": 40, "1": 3}}'
    assert batch(kafka, endingOffsets=ends, failOnDataLoss="false") == ["t[0]@0..10"]


# --- streaming: starts ---


def test_a_start_at_the_end_is_a_batch_of_its_own(kafka: FakeKafka) -> None:
    """From "latest", the first batch is empty and its end is the start; what comes after is read."""
    plan = stream(kafka)
    assert plan.initial() == at(10, 0)
    fill(kafka, 5)
    assert plan.initial() == at(10, 0)
    first = plan.latest(at(10, 0), limited=False)
    assert first == at(10, 0)
    assert read(plan, at(10, 0), first) == []
    second = plan.latest(first, limited=False)
    assert read(plan, first, second) == ["t[0]@10..15"]


def test_a_crash_in_the_first_batch_loses_nothing(kafka: FakeKafka) -> None:
    """The first batch, replayed after records came, is still empty, and the next one reads them all."""
    plan = stream(kafka)
    logged = plan.latest(plan.initial(), limited=False)
    fill(kafka, 5)
    restarted = stream(kafka)
    assert restarted.initial() == at(15, 0)
    assert read(restarted, restarted.initial(), logged) == []
    assert read(restarted, logged, restarted.latest(logged, limited=False)) == ["t[0]@10..15"]


def test_other_starts_read_at_once(kafka: FakeKafka) -> None:
    """From the beginning or from offsets the first batch reads already."""
    for given, start in (
        ({"startingOffsets": "earliest"}, at(0, 0)),
        ({"startingOffsets": '{"t": {"0": 7, "1": 0}}'}, at(7, 0)),
    ):
        plan = stream(kafka, **given)
        assert plan.initial() == start
        assert plan.latest(start, limited=False) == at(10, 0)


def test_a_pattern_may_match_nothing_yet(kafka: FakeKafka) -> None:
    """A query over a pattern starts without topics, and reads each new one from its beginning."""
    plan = stream(kafka, subscribePattern="new-.*")
    assert plan.initial() == {}
    assert plan.latest({}, limited=True) == {}
    assert plan.latest({}, limited=True) == {}
    fill(kafka, 3, "new-1")
    end = plan.latest({}, limited=True)
    assert read(plan, {}, end) == ["new-1[0]@0..3"]


def test_a_topic_that_never_existed_is_an_error(kafka: FakeKafka) -> None:
    """A name in subscribe that Kafka does not know fails the query at its start."""
    with pytest.raises(BrokerError, match="missing does not exist"):
        stream(kafka, subscribe="missing").initial()


# --- streaming: limits ---


def test_new_partitions_are_found_and_share_the_limit(kafka: FakeKafka) -> None:
    """A partition that appears is read from its beginning, within maxOffsetsPerTrigger."""
    plan = stream(kafka, maxOffsetsPerTrigger="10")
    kafka.add_partitions("t", 3)
    fill(kafka, 10, partition=2)
    end = plan.latest(at(0, 0), limited=True)
    assert end == at(5, 0, 5)
    assert read(plan, at(0, 0), end) == ["t[0]@0..5", "t[2]@0..5"]
    assert plan.latest(at(0, 0), limited=False) == at(10, 0, 10)


def test_too_few_offsets_wait(kafka: FakeKafka) -> None:
    """minOffsetsPerTrigger holds batches back until enough is there or maxTriggerDelay is over; never the first."""
    clock = kafka.clock
    assert isinstance(clock, VirtualClock)
    plan = stream(kafka, minOffsetsPerTrigger="20", maxTriggerDelay="1m")
    assert plan.latest(at(0, 0), limited=True) == at(10, 0)
    fill(kafka, 19)
    assert plan.latest(at(10, 0), limited=True) == at(10, 0)
    fill(kafka, 1)
    assert plan.latest(at(10, 0), limited=True) == at(30, 0)
    fill(kafka, 1)
    assert plan.latest(at(30, 0), limited=True) == at(30, 0)
    clock.sleep(60)
    assert plan.latest(at(30, 0), limited=True) == at(31, 0)


def test_available_now_ends_where_it_began(kafka: FakeKafka) -> None:
    """What comes after the query has started is left for the next run, limits and new partitions or not."""
    plan = stream(kafka, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="100")
    plan.freeze()
    fill(kafka, 50)
    kafka.add_partitions("t", 3)
    fill(kafka, 5, partition=2)
    ends = [at(0, 0)]
    while (end := plan.latest(ends[-1], limited=True)) != ends[-1]:
        ends.append(end)
    assert ends == [at(0, 0), at(6, 0), at(10, 0)]
    assert plan.latest(at(12, 0), limited=True) == at(12, 0)


def test_progress_shows_the_ends(kafka: FakeKafka) -> None:
    """What is reported as latest are the ends of the logs, whatever the limit takes of them."""
    plan = stream(kafka, maxOffsetsPerTrigger="2")
    assert plan.seen() is None
    plan.latest(at(0, 0), limited=True)
    assert plan.seen() == at(10, 0)


# --- stops and skips ---


def test_a_stop_is_never_passed(kafka: FakeKafka) -> None:
    """Batches end at what is there or at the stop, whichever is lower; at the stop the query idles."""
    plan = stream(kafka, stoppingOffsets='{"t": {"0": 14}}', maxOffsetsPerTrigger="8")
    assert plan.latest(at(0, 0), limited=True) == at(8, 0)
    assert plan.latest(at(8, 0), limited=True) == at(10, 0)
    fill(kafka, 20)
    fill(kafka, 5, partition=1)
    assert plan.latest(at(10, 0), limited=False) == at(14, 5)
    fill(kafka, 5)
    assert plan.latest(at(14, 5), limited=False) == at(14, 5)
    assert plan.seen() == at(35, 5)


def test_available_now_ends_at_the_lower_of_now_and_stop(kafka: FakeKafka) -> None:
    for stop, end in ((4, 4), (14, 10)):
        plan = stream(kafka, stoppingOffsets=f'{{"t": {{"0": {stop}}}}}')
        plan.freeze()
        fill(kafka, 1, partition=1)
        assert plan.latest(at(0, 0), limited=False)[TopicPartition("t", 0)] == end
    assert plan.latest(at(0, 0), limited=False) == at(10, 1)


def test_a_query_that_is_beyond_its_stop_reads_nothing(kafka: FakeKafka) -> None:
    """A checkpoint, or a new partition's beginning, above the stop is no loss: nothing more is read there."""
    kafka.add_partitions("t", 3)
    fill(kafka, 9, partition=2)
    kafka.delete_records("t", 2, 5)
    plan = stream(kafka, stoppingOffsets='{"t": {"0": 3, "2": 2}}', failOnDataLoss="false")
    end = plan.latest(at(7, 0), limited=False)
    assert end == at(7, 0, 5)
    assert read(plan, at(7, 0), end) == []
    assert plan.latest(end, limited=False) == end


def test_a_start_above_the_stop_is_a_mistake(kafka: FakeKafka) -> None:
    """Batch and new stream are refused where the offsets named for start and stop contradict each other."""
    given = {"startingOffsets": '{"t": {"0": 9, "1": 0}}', "stoppingOffsets": '{"t": {"0": 5}}'}
    for start in (lambda: batch(kafka, **given), stream(kafka, **given).initial):
        with pytest.raises(ConfigError, match=r"stoppingOffsets ends t\[0\] at 5, below its start at 9"):
            start()
    assert stream(kafka, **given).latest(at(9, 0), limited=False) == at(9, 0)


def test_a_batch_query_stops_too(kafka: FakeKafka) -> None:
    """In a batch query the lower of end and stop counts; a stop beyond the log or below the start is no loss."""
    for stop, found in ((4, ["t[0]@2..4"]), (40, ["t[0]@2..10"])):
        given = {"startingOffsets": '{"t": {"0": 2, "1": 0}}', "stoppingOffsets": f'{{"t": {{"0": {stop}}}}}'}
        assert batch(kafka, **given) == found
    by_time = {"startingTimestamp": "1006", "startingOffsetsByTimestampStrategy": "latest"}
    assert batch(kafka, **by_time, stoppingOffsets='{"t": {"0": 3}}') == []


def skipped(plan: StreamPlan | BatchPlan, *pieces: tuple[int, int]) -> list[tuple[tuple[int, int], ...]]:
    return plan.skips([OffsetRange("t", 0, start, end) for start, end in pieces])


def test_each_task_knows_what_it_leaves_out(kafka: FakeKafka) -> None:
    """Ranges are cut to the task's own; Kafka is not asked where nothing is left out."""
    told = '{"t": {"0": [[2, 5], [7, 8]]}}'
    for plan in (stream(kafka, skipOffsets=told), BatchPlan(options_of(kafka, False, skipOffsets=told))):
        assert skipped(plan, (0, 3), (3, 8), (8, 10)) == [((2, 3),), ((3, 5), (7, 8)), ()]
    quiet = stream(kafka, skipOffsets=f'{{"t": {{"id": "{kafka.topic_id("t")}", "0": [[2, 5]]}}}}')
    kafka.is_up = False
    assert skipped(quiet, (5, 10)) == [()]


def test_nothing_is_left_out_of_another_topic(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    """After the topic was created again the same offsets are other records: by its id, or as seen, none is left out."""
    by_id = stream(kafka, skipOffsets=f'{{"t": {{"id": "{kafka.topic_id("t")}", "0": [[2, 5]]}}}}')
    as_seen = stream(kafka, skipOffsets='{"t": {"0": [[2, 5]]}}', failOnDataLoss="false")
    as_seen.latest(at(0, 0), limited=False)
    assert skipped(by_id, (0, 10)) == skipped(as_seen, (0, 10)) == [((2, 5),)]
    recreate(kafka)
    as_seen.latest(at(10, 0), limited=False)
    assert skipped(by_id, (0, 10)) == skipped(as_seen, (0, 10)) == [()]
    assert "t was created again since skipOffsets was written" in caplog.text


# --- streaming: lost data ---


def drop(fake: FakeKafka) -> None:
    fake.delete_topic("t")


def recreate(fake: FakeKafka) -> None:
    """Delete the topic and create it with more records than before."""
    drop(fake)
    fake.create_topic("t", partitions=2)
    fill(fake, 30)


def shorten(fake: FakeKafka) -> None:
    """Delete the topic and create it with fewer records than before."""
    drop(fake)
    fake.create_topic("t", partitions=2)
    fill(fake, 4)


@pytest.mark.parametrize(
    ("damage", "said", "after"),
    [
        (drop, r"t\[0\]@10 was read up to this offset, but the partition is gone", []),
        (recreate, r"t\[0\]@10: the topic was deleted and created again", ["t[0]@0..30"]),
        (shorten, r"t\[0\]@10: the topic was deleted and created again", ["t[0]@0..4"]),
    ],
)
def test_a_lost_log(kafka: FakeKafka, damage: object, said: str, after: list[str]) -> None:
    """A topic that goes fails the query; with failOnDataLoss=false what is there instead is read from its beginning."""
    assert callable(damage)
    strict, lax = stream(kafka), stream(kafka, failOnDataLoss="false")
    for plan in (strict, lax):
        plan.latest(at(10, 0), limited=False)
    damage(kafka)
    with pytest.raises(DataLossError, match=said + ".*Try: failOnDataLoss=false"):
        strict.latest(at(10, 0), limited=False)
    end = lax.latest(at(10, 0), limited=False)
    assert end == {}
    assert read(lax, at(10, 0), end) == []
    assert read(lax, end, lax.latest(end, limited=False)) == after


def test_a_shorter_log_is_noticed_after_a_restart(kafka: FakeKafka) -> None:
    """A log that ends below the checkpoint is lost data, even for a driver that has never seen the topic before."""
    shorten(kafka)
    with pytest.raises(DataLossError, match=r"t\[0\]@10 was read up to this offset, but the log ends at 4"):
        stream(kafka).latest(at(10, 0), limited=False)
    lax = stream(kafka, failOnDataLoss="false")
    end = lax.latest(at(10, 0), limited=False)
    assert end == {TopicPartition("t", 1): 0}
    assert read(lax, end, lax.latest(end, limited=False)) == ["t[0]@0..4"]


def test_available_now_ends_after_a_loss(kafka: FakeKafka) -> None:
    """A bounded run over a topic that is shorter than its checkpoint reads what there is, and ends."""
    shorten(kafka)
    plan = stream(kafka, failOnDataLoss="false")
    plan.freeze()
    start, found = at(10, 0), []
    while (end := plan.latest(start, limited=True)) != start:
        found += read(plan, start, end)
        start = end
    assert found == ["t[0]@0..4"]


def test_another_querys_checkpoint_is_named(kafka: FakeKafka) -> None:
    """A checkpoint with a topic that the options do not select is an error that says so."""
    with pytest.raises(DataLossError, match=r"is at other\[0\]@5, which is not read \(subscribe = t\)"):
        stream(kafka).latest(at(5, topic="other"), limited=False)


def test_a_new_partition_that_begins_late_is_lost_data(kafka: FakeKafka) -> None:
    """A partition whose first records were gone when it was found fails the query, or is read from where it begins."""
    kafka.add_partitions("t", 3)
    fill(kafka, 9, partition=2)
    kafka.delete_records("t", 2, 5)
    end = at(10, 0, 9)
    with pytest.raises(DataLossError, match=r"t\[2\] is new and begins at 5"):
        stream(kafka).ranges(at(10, 0), end)
    assert read(stream(kafka, failOnDataLoss="false"), at(10, 0), end) == ["t[2]@5..9"]


def test_a_replayed_batch_that_runs_backwards_is_lost_data(kafka: FakeKafka) -> None:
    """A written batch whose end lies below its start reads nothing, and is an error unless that is allowed."""
    with pytest.raises(DataLossError, match=r"t\[0\]@10\.\.4"):
        stream(kafka).ranges(at(10, 0), at(4, 0))
    assert read(stream(kafka, failOnDataLoss="false"), at(10, 0), at(4, 0)) == []


@pytest.mark.parametrize("error", [errors.NodeNotReadyError("away"), KeyError("a partition that is too new")])
def test_kafka_is_asked_again(kafka: FakeKafka, error: Exception) -> None:
    """A broker that is away for a moment delays the plan; one that stays away fails it, readably."""
    plan = stream(kafka)
    kafka.faults.fail_next("end_offsets", error, times=2)
    assert plan.latest(at(10, 0), limited=False) == at(10, 0)
    kafka.is_up = False
    with pytest.raises(BrokerError, match="could not report where its logs begin and end"):
        plan.latest(at(10, 0), limited=False)


# --- a range that begins above its end ---


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"t":{"0":7,"1":0}}', "endingOffsets": '{"t":{"0":5,"1":0}}'},
        {"startingOffsets": '{"t":{"0":7,"1":0}}', "endingTimestamp": "1003"},
        {"startingTimestamp": "1008", "endingOffsets": '{"t":{"0":3,"1":0}}'},
        {"startingTimestamp": "1008", "endingTimestamp": "1003"},
    ],
)
def test_a_batch_query_that_begins_above_its_end_is_refused(kafka: FakeKafka, given: dict[str, str]) -> None:
    """As the connector does: no rows of a partition would look as if there were none."""
    with pytest.raises(
        ConfigError, match=r"starting\w+ begins t\[0\]@?\d* at \d, above ending\w+, which ends it at \d"
    ):
        batch(kafka, **given, startingOffsetsByTimestampStrategy="latest")


def test_an_end_before_the_log_begins_is_lost_data(kafka: FakeKafka) -> None:
    """What it names is gone: that is no mistake in the options."""
    kafka.delete_records("t", 0, 6)
    given = {"startingOffsets": "earliest", "endingOffsets": '{"t":{"0":4,"1":0}}'}
    with pytest.raises(DataLossError, match="before the log begins, at 6"):
        batch(kafka, **given)
    assert batch(kafka, **given, failOnDataLoss="false") == []


def test_a_gap_is_reported_once_however_small_the_batches_are(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """What retention took is passed in one batch, with one warning for its partition; no task reads of it.

    Offsets that the query leaves out anyway are not reported, in a batch query either.
    """
    fill(kafka, 10, partition=1)
    kafka.delete_records("t", 0, 7)
    given = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "2", "maxRecordsPerPartition": "1"}
    plan, start = stream(kafka, **given, skipOffsets='{"t": {"0": [[0, 3], [6, 7]]}}'), at(2, 9)
    found: list[str] = []
    for _ in range(4):
        end = plan.latest(start, limited=True)
        found += read(plan, start, end)
        start = end
    assert found == ["t[0]@7..8", "t[1]@9..10", "t[0]@8..9", "t[0]@9..10"]
    assert [record.getMessage() for record in caplog.records] == [
        "t[0]: offsets 3 to 5 are gone from Kafka; the query continues with what is left"
    ]
    caplog.clear()
    starting = {"startingOffsets": '{"t": {"0": 2, "1": 8}}', "failOnDataLoss": "false", "maxRecordsPerPartition": "2"}
    assert batch(kafka, **starting) == ["t[0]@7..8", "t[0]@8..10", "t[1]@8..10"]
    assert ["offsets 2 to 6 are gone" in record.getMessage() for record in caplog.records] == [True]


def test_a_log_that_begins_behind_its_stop_is_at_its_end(kafka: FakeKafka) -> None:
    """A gap is passed up to the stop and not beyond it."""
    kafka.delete_records("t", 0, 7)
    given = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "2", "stoppingOffsets": '{"t": {"0": 5}}'}
    plan = stream(kafka, **given)
    assert plan.latest(at(2, 0), limited=True) == at(5, 0)
    assert read(plan, at(2, 0), at(5, 0)) == []
