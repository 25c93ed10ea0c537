"""Records that are gone, and topics that were recreated."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.errors import BrokerError, DataLossError
from downspout.kafka import consumer
from downspout.testing import FakeKafka
from tests.spout.reasons import NO_ELECTION
from tests.spout.spout_driver import FEW_AT_A_TIME, GROUP, TOPIC, Driver, Kafka, fill

TP = TopicPartition(TOPIC, 0)


def recreate(kafka: Kafka, count: int) -> None:
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC, 1)
    fill(kafka, count)
    kafka.clock.sleep(3)


def test_fail_commits_nothing_past_the_loss(kafka: Kafka) -> None:
    """After a data-loss error the spout still commits what is acked, and not beyond what is lost."""
    driver = Driver(kafka, poll_records_max=4, emits_per_next_max=4, **FEW_AT_A_TIME)
    driver.run(3)
    driver.ack_all()
    acked = len(driver.offsets)
    assert acked < 10
    kafka.delete_records(TOPIC, 0, 10)
    with pytest.raises(DataLossError):
        driver.run(10)
    driver.spout.deactivate()
    driver.spout.close()
    assert driver.committed() == acked


def test_fail_says_so_in_each_run(kafka: Kafka) -> None:
    """A run after one that ended by data loss meets the same loss, and does not go on without a word."""
    first = Driver(kafka, poll_records_max=4, emits_per_next_max=4, **FEW_AT_A_TIME)
    first.run(3)
    first.ack_all()
    kafka.delete_records(TOPIC, 0, 10)
    with pytest.raises(DataLossError):
        first.run(10)
    first.spout.deactivate()
    first.spout.close()
    for _ in range(2):
        again = Driver(kafka)
        with pytest.raises(DataLossError):
            again.run(10)
        again.spout.deactivate()
        again.spout.close()


@pytest.mark.parametrize("count", [4, 10, 15])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_topic_created_again_is_read_from_its_beginning(kafka: Kafka, policy: str, count: int) -> None:
    """Whatever its size, the new topic is read whole, under its own id, and what is committed is of it."""
    driver = Driver(kafka, on_data_loss=policy, fields=["offset", "origin"])
    driver.run()
    driver.ack_all()
    driver.commit()
    recreate(kafka, count)
    driver.emitted.clear()
    driver.run()
    assert driver.offsets == list(range(count))
    assert {values[1].topic_id for _, values in driver.emitted} == {kafka.topic_id(TOPIC)}
    driver.ack_all()
    driver.commit()
    assert driver.committed() == count


def test_a_topic_created_again_gets_no_commit_of_the_old_one(kafka: Kafka) -> None:
    driver = Driver(kafka, on_data_loss="earliest")
    driver.run()
    recreate(kafka, 15)
    driver.ack_all()
    driver.spout.deactivate()
    assert driver.committed() in (None, 0)


def test_a_topic_created_again_stops_the_run_by_default(kafka: Kafka) -> None:
    """Under ``fail`` it is an error, and the end of the run commits nothing for the new topic."""
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    driver.commit()
    recreate(kafka, 15)
    with pytest.raises(DataLossError, match=r"orders\[0\].*created again"):
        driver.run()
    driver.spout.deactivate()
    assert driver.committed() is None


def test_a_topic_created_again_during_a_rebalance_is_read_from_its_beginning(kafka: Kafka) -> None:
    driver = Driver(kafka, on_data_loss="earliest", fields=["offset", "origin"])
    driver.run()
    driver.ack_all()
    driver.commit()
    recreate(kafka, 15)
    kafka.rebalance(GROUP)
    driver.emitted.clear()
    driver.run(20)
    assert driver.offsets == list(range(15))


def test_a_topic_created_again_between_runs_does_not_honour_the_commit(kafka: Kafka) -> None:
    """A commit that is left of an earlier topic of the name is told by its metadata."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(8))
    driver.commit()
    left = kafka.committed(GROUP)[TP]
    driver.crash()
    recreate(kafka, 15)
    kafka.clock.sleep(60)
    kafka.expire_members(GROUP)
    outsider = kafka.consumer(group=GROUP)
    outsider.commit({TP: OffsetAndMetadata(left.offset, left.metadata, -1)})
    outsider.close()
    with pytest.raises(DataLossError, match="created again"):
        Driver(kafka).run()
    kafka.clock.sleep(60)
    assert Driver(kafka, on_data_loss="earliest").run() == list(range(15))


@pytest.mark.parametrize(
    ("start", "found"), [("UNCOMMITTED_EARLIEST", list(range(15))), ("EARLIEST", list(range(15))), ("LATEST", [])]
)
def test_a_longer_topic_whose_commits_are_gone_is_a_new_one(kafka: Kafka, start: str, found: list[int]) -> None:
    """With the topic Kafka deletes the group's commits, and with them all that a restarted spout could know of it.

    It starts as a group without commits does: nothing of the new topic is skipped but where LATEST asks for that.
    """
    driver = Driver(kafka, start=start)
    driver.run()
    driver.ack_all()
    driver.commit()
    driver.crash()
    recreate(kafka, 15)
    kafka.clock.sleep(60)
    kafka.expire_members(GROUP)
    assert kafka.committed(GROUP) == {}
    assert Driver(kafka, start=start).run() == found


def test_a_topic_created_again_bounds_the_run_anew(kafka: Kafka) -> None:
    driver = Driver(kafka, on_data_loss="earliest", run__until="end")
    driver.run(2)
    recreate(kafka, 4)
    driver.emitted.clear()
    for _ in range(10):
        kafka.clock.sleep(1)
        driver.run()
        driver.ack_all()
    assert driver.offsets == [0, 1, 2, 3]
    assert driver.spout.end_reached()


@pytest.mark.fake_only("every broker that runs here gives topics an id")
def test_acks_find_their_topic_without_topic_ids() -> None:
    """Brokers that give topics no id: the acks of one topic resolve nothing of another."""
    with FakeKafka("no-ids") as kafka:
        for topic in ("a", "b"):
            kafka.create_topic(topic, 1)
            fill(kafka, 3, topic=topic)
            kafka.topic(topic).id = ""
        driver = Driver(kafka, topics=["a", "b"], fields=["topic", "offset"])
        driver.run()
        for tup_id, values in driver.emitted:
            if values[0] == "a":
                driver.spout.ack(tup_id)
        driver.commit()
        assert {tp.topic: meta.offset for tp, meta in kafka.committed(GROUP).items()} == {"a": 3, "b": 0}


def test_a_log_truncation_error_is_data_loss(kafka: Kafka) -> None:
    """What the client learns of a cut log goes by the policy, and not as a refusal of the broker."""
    driver = Driver(kafka, on_data_loss="earliest")
    driver.run()
    driver.ack_all()
    kafka.faults.fail_next("poll", errors.LogTruncationError({TP: OffsetAndMetadata(6, "", -1)}))
    driver.emitted.clear()
    driver.run()
    assert driver.offsets == list(range(10))
    assert driver.figure("lost") == 4


def test_a_log_truncation_error_stops_the_run_by_default(kafka: Kafka) -> None:
    """Under ``fail`` it is a data-loss error, whether the place is known or not."""
    driver = Driver(kafka)
    driver.run()
    kafka.faults.fail_next("poll", errors.LogTruncationError({TP: None}))
    with pytest.raises(DataLossError):
        driver.run()


@pytest.mark.fake_only(NO_ELECTION)
def test_what_was_done_beyond_a_cut_does_not_count(kafka: Kafka) -> None:
    """A log that ends below what the commit's metadata calls done was cut, though the commit itself is within it."""
    first = Driver(kafka)
    first.run()
    first.ack([0, 1, 2, 3, 4, 7, 8, 9])
    first.commit()
    first.crash()
    kafka.truncate(TOPIC, 0, end=6)
    kafka.clock.sleep(60)
    with pytest.raises(DataLossError):
        Driver(kafka).run()
    kafka.clock.sleep(60)
    second = Driver(kafka, on_data_loss="earliest")
    second.run()
    fill(kafka, 4)
    second.run()
    assert {5, 6, 7, 8, 9} <= set(second.offsets)


@pytest.mark.fake_only(NO_ELECTION)
def test_a_question_without_answer_orphans_no_partition(kafka: Kafka) -> None:
    """A cut log is read again, though the broker does not answer the first time."""
    driver = Driver(kafka, on_data_loss="earliest")
    driver.run()
    driver.ack_all()
    driver.commit()
    kafka.truncate(TOPIC, 0, end=2)
    kafka.clock.sleep(3)
    kafka.faults.fail_next("topic_id", errors.KafkaTimeoutError, 3)
    driver.emitted.clear()
    for _ in range(10):
        kafka.clock.sleep(1)
        driver.run()
    assert driver.offsets == [0, 1]


@pytest.mark.fake_only(NO_ELECTION)
def test_a_bounded_run_ends_in_a_cut_log(kafka: Kafka) -> None:
    driver = Driver(kafka, on_data_loss="earliest", run__until="end", poll_records_max=6)
    driver.run(2)
    kafka.truncate(TOPIC, 0, end=4)
    for _ in range(10):
        kafka.clock.sleep(1)
        driver.run()
        driver.ack_all()
    fill(kafka, 30)
    for _ in range(5):
        kafka.clock.sleep(1)
        driver.run()
        driver.ack_all()
    assert driver.spout.exhausted()
    assert driver.spout.end_reached()
    assert max(driver.offsets) < 10
    assert driver.offsets[-4:] == [0, 1, 2, 3]


@pytest.mark.fake_only("a broker cannot be made to know a topic and not its id")
def test_a_topic_that_is_unknown_for_a_moment_gets_its_id(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [""]
    real = kafka.topic_id
    monkeypatch.setattr(kafka, "topic_id", lambda topic: answers.pop() if answers else real(topic))
    driver = Driver(kafka, fields=["origin"])
    driver.run()
    assert not answers
    assert {values[0].topic_id for _, values in driver.emitted} == {real(TOPIC)}


def cut_during_a_read_back(kafka: FakeKafka, **settings: Any) -> Driver:
    """Read ten records, go back for a retry, and lose the end of the log while it is read again."""
    driver = Driver(kafka, **settings)
    driver.run()
    driver.ack([n for n in range(10) if n != 3])
    driver.fail([3])
    kafka.truncate(TOPIC, 0, end=6)
    fill(kafka, 2)
    kafka.clock.sleep(3)
    driver.emitted.clear()
    return driver


@pytest.mark.fake_only(NO_ELECTION)
def test_a_log_cut_during_a_read_back_is_data_loss(kafka: FakeKafka) -> None:
    """The reader stands within the log again, but what it had read before lies beyond the end: that is noticed."""
    driver = cut_during_a_read_back(kafka)
    with pytest.raises(DataLossError, match=r"orders\[0\]@10: the log ends at 8"):
        driver.run(20)


@pytest.mark.fake_only(NO_ELECTION)
def test_after_a_cut_during_a_read_back_new_records_count(kafka: FakeKafka) -> None:
    """What was appended at offsets that had been read before is not taken for them."""
    driver = cut_during_a_read_back(kafka, on_data_loss="earliest")
    driver.run(20)
    assert driver.offsets[-8:] == list(range(8))
    assert driver.figure("lost") == 2


def test_a_retry_that_is_read_again_at_the_end_of_a_whole_log_is_no_loss(kafka: FakeKafka) -> None:
    """Nothing is asked of the broker for going back, as long as the log is as long as it was."""
    driver = Driver(kafka, poll_records_max=2)
    driver.run(20)
    driver.ack(range(9))
    driver.fail([9])
    kafka.faults.fail_next("end_offsets", errors.KafkaTimeoutError, times=1)
    assert driver.run(20) == [9]
    assert driver.figure("errors") == 0


def two_members(kafka: Kafka) -> list[Driver]:
    """Return the two members of a bounded run over two partitions of ten records, which have read them."""
    kafka.create_topic(TOPIC, 2)
    for partition in (0, 1):
        fill(kafka, 10, partition)
    drivers = [Driver(kafka, member=number, on_data_loss="earliest", run__until="end") for number in (1, 2)]
    for _ in range(30):
        kafka.clock.sleep(0.2)
        for driver in drivers:
            driver.run(1)
    assert [driver.figure("partitions") for driver in drivers] == [1, 1]
    return drivers


def both_end(drivers: list[Driver]) -> bool:
    """Let members ack what there is; return whether they come to their end."""
    for _ in range(60):
        drivers[0].kafka.clock.sleep(0.2)
        for driver in drivers:
            driver.run(1)
            driver.ack_all()
        if all(driver.spout.exhausted() and driver.spout.end_reached() for driver in drivers):
            return True
    return False


@pytest.mark.parametrize("by", ["topics", "pattern"])
def test_a_member_without_partitions_waits_for_the_others_to_end(kafka: Kafka, by: str) -> None:
    """A bounded run has reached its end where the group has, whether topics are named or match a pattern."""
    named = {"topics": [TOPIC]} if by == "topics" else {"topics": None, "pattern": f"{TOPIC}.*"}
    drivers = [Driver(kafka, member=number, run__until="end", **named) for number in (1, 2)]
    for _ in range(30):
        kafka.clock.sleep(0.2)
        for driver in drivers:
            driver.run(1)
    owner, idle = sorted(drivers, key=lambda driver: -driver.figure("partitions"))
    assert [owner.figure("partitions"), idle.figure("partitions")] == [1, 0]
    assert idle.spout.exhausted()
    assert not idle.spout.end_reached()
    assert both_end(drivers)


def test_members_end_though_their_topic_was_made_again_and_shorter(bare_kafka: Kafka) -> None:
    drivers = two_members(bare_kafka)
    bare_kafka.delete_topic(TOPIC)
    bare_kafka.create_topic(TOPIC, 2)
    for partition in (0, 1):
        fill(bare_kafka, 4, partition)
    assert both_end(drivers)


@pytest.mark.fake_only(NO_ELECTION)
def test_members_end_though_a_log_of_another_member_was_cut(bare_kafka: FakeKafka) -> None:
    drivers = two_members(bare_kafka)
    bare_kafka.truncate(TOPIC, 1, end=4)
    assert both_end(drivers)


@pytest.mark.fake_only(NO_ELECTION)
def test_who_takes_over_a_log_that_got_shorter_ends(kafka: FakeKafka) -> None:
    """A member that gets a partition late bounds it by the log as it is then, where that ends before its bound."""
    owner = Driver(kafka, run__until="end", on_data_loss="earliest")
    owner.run()
    late = Driver(kafka, member=2, run__until="end", on_data_loss="earliest")
    owner.ack(range(3))
    owner.commit()
    owner.crash()
    kafka.truncate(TOPIC, 0, end=4)
    for _ in range(60):
        kafka.clock.sleep(1)
        late.run(1)
        late.ack_all()
    assert late.spout.exhausted()
    assert late.spout.end_reached()


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
@pytest.mark.parametrize("read", [False, True])
def test_a_bounded_run_ends_when_its_topic_is_deleted(
    kafka: Kafka, mode: str, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever for records that nobody has: after half a minute an error names the topic."""
    driver = Driver(kafka, run__until="end", mode=mode, member=1 if mode == "subscribe" else None)
    if read:
        driver.run()
    kafka.delete_topic(TOPIC)
    monkeypatch.setattr(consumer, "REMOTE_MS_MAX", 500)  # each commit of what is not there takes all of it

    def go_on() -> None:
        for _ in range(100):
            kafka.clock.sleep(2)
            driver.run(2)
            driver.spout.end_reached()

    with pytest.raises(BrokerError, match=f"topic {TOPIC} was deleted; 1 of its partitions"):
        go_on()


def test_a_bounded_run_that_had_reached_its_end_does_not_miss_the_topic(kafka: Kafka) -> None:
    driver = Driver(kafka, run__until="end")
    driver.run()
    driver.ack_all()
    driver.run()
    assert driver.spout.end_reached()
    kafka.delete_topic(TOPIC)
    kafka.clock.sleep(60)
    driver.run()
    assert driver.spout.exhausted()
    assert driver.spout.end_reached()


def test_a_topic_that_was_deleted_is_named_once(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without an end goes on, and says that there is nothing to read; and so when the topic is there again."""

    def told() -> list[str]:
        return [text for text in caplog.messages if text.startswith(f"{TOPIC} ")]

    driver = Driver(kafka, on_data_loss="earliest")
    driver.run()
    driver.ack_all()
    kafka.delete_topic(TOPIC)
    with monkeypatch.context() as impatient:  # each commit of what is not there takes all of it
        impatient.setattr(consumer, "REMOTE_MS_MAX", 500)
        for _ in range(6):
            kafka.clock.sleep(3)
            driver.run(2)
    assert told() == [f"{TOPIC} was deleted: none of it is read until it exists again"]
    kafka.create_topic(TOPIC, 1)
    fill(kafka, 5)
    for _ in range(6):
        kafka.clock.sleep(3)
        driver.run(2)
    assert told()[1:] == [f"{TOPIC} is there again"]


@pytest.mark.fake_only("on a broker the test does not decide how many records one poll returns")
def test_a_reader_that_is_behind_a_commit_goes_on_at_it(kafka: FakeKafka) -> None:
    """After a retry the reader stands far back; what is committed by then is not read again: it may go any time."""
    driver = Driver(kafka, poll_records_max=5)
    driver.run()
    driver.ack(range(1, 10))
    driver.fail([0])
    kafka.clock.sleep(1)
    assert driver.run(1) == [0]
    driver.ack([0])
    skipped = driver.figure("skipped")
    driver.commit()
    driver.run(3)
    assert (driver.committed(), driver.figure("skipped")) == (10, skipped)
