"""`kafka.commit`: synchronous and asynchronous commits, and commits that fail."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.errors import ConfigError, TakenOverError
from downspout.settings import parse_scope
from downspout.spout import SpoutListener, check, is_transactional
from downspout.testing import FakeKafka
from downspout.wire import TRANSACTIONS
from tests.sampling import examples
from tests.spout.reasons import NO_KAFKA_YET
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill

HELD = "a test cannot hold back what a real client has sent"
WAYS = ["sync", "async", "combined"]
UNAWAITED = ["async", "combined"]
NO_COORDINATOR = [
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
    errors.KafkaTimeoutError,
]
HERE = "tests.spout.test_kafka_spout_commits"
heard: list[tuple[dict[int, int], type[Exception] | None]] = []


class Ears(SpoutListener):
    def on_commit(self, offsets: Any, error: Exception | None) -> None:
        heard.append(({tp.partition: offset for tp, offset in offsets.items()}, type(error) if error else None))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    heard.clear()


def started(kafka: Kafka, way: str, **given: Any) -> Driver:
    """Return a spout that has emitted ten records and committed where it starts."""
    driver = Driver(kafka, commit=way, listener=f"{HERE}.Ears", **given)
    driver.run()
    driver.commit()
    assert driver.committed() == 0
    heard.clear()
    return driver


def stored(kafka: FakeKafka, partition: int = 0) -> list[int]:
    """Return what the group's offset was, one after the other."""
    return [commit.offset for commit in kafka.commits(GROUP) if commit.partition.partition == partition]


# --- on the way ---


@pytest.mark.fake_only("how much a fetch of a broker brings is not said")
def test_a_commit_leads_a_reader_that_went_back_past_what_it_covers(kafka: Kafka) -> None:
    """After a retry it stands in the middle of what is done: none of that is read again."""
    driver = Driver(kafka, poll_records_max=4)
    driver.run()
    driver.ack(range(1, 9))
    driver.fail([0])
    assert any(driver.run(1) == [0] for _ in range(5))
    driver.ack([0])
    driver.spout.deactivate()
    assert driver.committed() == 9
    assert driver.session.consumer.position(TopicPartition(TOPIC, 0)) == 9


@pytest.mark.parametrize("way", WAYS)
def test_what_is_acked_is_committed(kafka: Kafka, way: str) -> None:
    """Each way commits the acked prefix by the timer, tells the listener, and goes on with the next one."""
    driver = started(kafka, way)
    for acked in (4, 10):
        driver.ack(range(acked))
        driver.commit()
        assert driver.commit_becomes(acked)
        driver.run()
    assert [told for told in heard if told[0][0]] == [({0: 4}, None), ({0: 10}, None)]
    assert (driver.figure("committed"), driver.figure("commits_failed")) == (10, 0)


@pytest.mark.parametrize("way", UNAWAITED)
def test_a_spout_that_runs_waits_for_no_answer(kafka: Kafka, way: str) -> None:
    """Where each commit that is waited for would fail, reading and committing go on."""
    driver = started(kafka, way)
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError("no answer"), times=100)
    driver.ack(range(5))
    driver.commit()
    assert driver.commit_becomes(5)
    fill(kafka, 3)
    driver.run()
    assert driver.offsets == list(range(13))
    kafka.faults.clear()


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("way", UNAWAITED)
def test_a_commit_counts_when_its_answer_comes(kafka: FakeKafka, way: str) -> None:
    """Until then the report says what was committed before, and a listener hears nothing."""
    driver = started(kafka, way)
    kafka.holds_commits = True
    driver.ack(range(7))
    driver.commit()
    assert (driver.figure("committed"), heard, len(kafka.sent_commits)) == (0, [], 1)
    kafka.sent_commits[0].arrive()
    assert driver.figure("committed") == 0
    driver.run(2)
    assert (driver.figure("committed"), heard) == (7, [({0: 7}, None)])


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("way", UNAWAITED)
def test_one_commit_is_on_its_way_at_most(kafka: FakeKafka, way: str) -> None:
    """While one has no answer none is sent; with its answer the next one says how far the spout is by then."""
    driver = started(kafka, way)
    kafka.holds_commits = True
    for acked in (3, 5, 8):
        driver.ack(range(acked))
        driver.commit()
        assert len(kafka.sent_commits) == 1
    kafka.sent_commits[0].arrive()
    driver.run(2)
    kafka.sent_commits[0].arrive()
    driver.run(2)
    assert stored(kafka)[-2:] == [3, 8]


@pytest.mark.fake_only(HELD)
def test_of_two_on_their_way_the_older_may_arrive_last(kafka: FakeKafka) -> None:
    """Kafka stores what arrives last: that is why there is one at most, and why none is sent again."""
    tp, consumer = TopicPartition(TOPIC, 0), kafka.consumer(group=GROUP)
    consumer.assign([tp])
    kafka.holds_commits = True
    for offset in (5, 9):
        consumer.commit_async({tp: OffsetAndMetadata(offset, "", -1)})
    for sent in reversed(list(kafka.sent_commits)):
        sent.arrive()
    assert stored(kafka) == [9, 5]


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("way", UNAWAITED)
def test_where_reading_starts_is_committed_before_anything_leaves(kafka: FakeKafka, way: str) -> None:
    """Else a crash would let LATEST start beyond what has left: that commit is waited for."""
    kafka.holds_commits = True
    driver = Driver(kafka, commit=way, start="LATEST")
    driver.run(2)
    assert (kafka.sent_commits, driver.committed(), driver.emitted) == ([], 10, [])


@pytest.mark.fake_only(HELD)
def test_the_default_sends_nothing_that_it_does_not_wait_for(kafka: FakeKafka) -> None:
    """Without the setting each commit is there when the turn is over."""
    kafka.holds_commits = True
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    driver.commit()
    assert (driver.committed(), kafka.sent_commits) == (10, [])


# --- one that fails ---


@pytest.mark.parametrize("error", NO_COORDINATOR)
@pytest.mark.parametrize("way", WAYS)
def test_a_coordinator_that_is_away_costs_no_more_than_time(
    kafka: Kafka, way: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Loading, moved, or silent: commits are tried again with back-off, under one warning, and each is counted."""
    driver = started(kafka, way)
    driver.ack_all()
    kafka.faults.fail_next("commit" if way == "sync" else "commit_async", error, times=4)
    with caplog.at_level(logging.WARNING, logger="tests.spout"):
        driver.commit()
        while kafka.faults.pending():
            driver.run(1)
            kafka.clock.sleep(0.05)
        driver.run(2)
    kafka.clock.sleep(3)
    driver.commit()
    assert driver.commit_becomes(10)
    driver.run(2)
    warned = [record.getMessage() for record in caplog.records if "commit failed" in record.getMessage()]
    assert len(warned) == 1
    assert error.__name__ in warned[0]
    assert driver.figure("commits_failed") == 4
    assert [told for told in heard if told[1]] == [({0: 10}, error)] * 4
    assert heard[-1] == ({0: 10}, None)
    assert len(driver.emitted) == 10


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("way", UNAWAITED)
def test_a_commit_that_failed_is_not_sent_again(kafka: FakeKafka, way: str, applied: bool) -> None:
    """What follows is the newest, whether the broker has the one that failed or not."""
    driver = started(kafka, way)
    kafka.holds_commits = True
    driver.ack(range(4))
    driver.commit()
    driver.ack(range(9))
    kafka.sent_commits[0].arrive(errors.NotCoordinatorError(), applied=applied)
    kafka.holds_commits = False
    driver.run(2)
    kafka.clock.sleep(3)
    driver.run(2)
    assert stored(kafka) == [0, *([4] if applied else []), 9]


@pytest.mark.parametrize("way", WAYS)
def test_too_much_metadata_is_made_less(kafka: Kafka, way: str) -> None:
    """A broker that takes less gets less with the next commit; that is no failure."""
    driver = started(kafka, way)
    driver.ack([*range(4), 6])
    operation = "commit" if way == "sync" else "commit_async"
    kafka.faults.fail_next(operation, errors.OffsetMetadataTooLargeError, times=2)
    driver.commit()
    driver.run(4)
    assert driver.commit_becomes(4)
    driver.run(2)
    assert (driver.figure("commits_failed"), heard) == (0, [({0: 4}, None)])
    assert driver.spout.services.setup.identity.metadata_limit.bytes_max == 1024


@pytest.mark.parametrize("way", WAYS)
def test_a_fenced_member_stops(kafka: Kafka, way: str) -> None:
    """The answer that another process has its place ends the spout, whichever commit hears it."""
    driver = started(kafka, way)
    driver.ack_all()
    kafka.faults.fail_next("commit" if way == "sync" else "commit_async", errors.FencedInstanceIdError)

    def turns() -> None:
        driver.commit()
        driver.run(4)

    with pytest.raises(TakenOverError):
        turns()


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("way", UNAWAITED)
def test_a_commit_that_is_never_answered_is_not_forgotten(
    kafka: FakeKafka, way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two minutes its answer is waited for: that fails as another commit does, is counted and warned of."""
    driver = started(kafka, way)
    kafka.holds_commits = True
    driver.ack(range(4))
    driver.commit()

    def silent(offsets: object) -> None:
        raise errors.KafkaTimeoutError("a commit that was sent before has no answer")

    assert driver.spout.session is not None
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, logger="tests.spout"):
        patched.setattr(driver.session.consumer, "commit", silent)
        driver.commit()
        assert driver.figure("commits_failed") == 0
        for _ in range(5):
            driver.commit()
        assert driver.figure("commits_failed") > 0
        assert "a commit that was sent before has no answer" in caplog.text
    kafka.holds_commits = False
    driver.ack(range(10))
    kafka.sent_commits[0].arrive()
    driver.run(2)
    driver.commit()
    driver.run(2)
    assert stored(kafka) == [0, 4, 10]


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("way", UNAWAITED)
def test_a_commit_of_a_former_generation_is_refused(kafka: FakeKafka, way: str) -> None:
    """A member that was thrown out meanwhile joins again, and what is not committed comes again."""
    driver = started(kafka, way)
    kafka.holds_commits = True
    driver.ack(range(6))
    driver.commit()
    kafka.expire_members(GROUP)
    kafka.sent_commits[0].arrive()
    kafka.holds_commits = False
    for _ in range(20):  # it drains first
        driver.run(1)
        kafka.clock.sleep(1)
    assert heard[0] == ({0: 6}, errors.CommitFailedError)
    assert driver.offsets == [*range(10), *range(10)]
    driver.ack_all()
    driver.commit()
    driver.run(2)
    assert driver.committed() == 10


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("way", UNAWAITED)
def test_a_commit_between_two_generations_is_made_again(wide: FakeKafka, way: str) -> None:
    """The client refuses what is sent while it joins: the offsets are committed when that is over."""
    driver = Driver(wide, commit=way)
    driver.run()
    driver.ack_all()
    for partition in range(4):
        driver.ack(range(30), partition)
    wide.faults.fail_next("commit_async", errors.RebalanceInProgressError)
    driver.commit()
    wide.rebalance(GROUP)
    driver.run(8)
    wide.clock.sleep(3)
    driver.run(8)
    assert [driver.committed(partition) for partition in range(4)] == [30] * 4


# --- at a hand-over and at the end ---


def handed_over(kafka: FakeKafka, way: str) -> tuple[Driver, Driver]:
    """Let another member join while a commit is on its way and more is acked."""
    kafka.add_partitions(TOPIC, 2)
    first = started(kafka, way)
    kafka.holds_commits = True
    first.ack(range(4))
    first.commit()
    first.ack(range(10))
    second = Driver(kafka, member=2, commit=way)
    second.ask_to_join()
    return first, second


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("way", UNAWAITED)
def test_a_hand_over_waits_for_the_commit_on_its_way(kafka: FakeKafka, way: str) -> None:
    """First its answer, then the last commit: waited for with combined, and only sent with async."""
    first, second = handed_over(kafka, way)
    first.run(1)
    assert stored(kafka) == [0, 4, *([10] if way == "combined" else [])]
    assert len(kafka.sent_commits) == (way == "async")
    kafka.holds_commits = False
    for sent in list(kafka.sent_commits):
        sent.arrive()
    for _ in range(10):
        first.run(1)
        second.run(1)
    assert stored(kafka) == sorted(stored(kafka))
    assert stored(kafka)[-1] == 10
    assert second.emitted == []


@pytest.mark.fake_only(HELD)
def test_an_answer_that_comes_after_the_hand_over_changes_nothing(kafka: FakeKafka) -> None:
    """The partition is another's by then: it is heard of, and no commit is made for it."""
    first, second = handed_over(kafka, "async")
    for _ in range(10):
        first.run(1)
        second.run(1)
    kafka.holds_commits = False
    before = stored(kafka)
    for sent in list(kafka.sent_commits):
        sent.arrive(errors.RequestTimedOutError(), applied=False)
    first.run(4)
    assert stored(kafka)[: len(before)] == before
    assert stored(kafka) == sorted(stored(kafka))


@pytest.mark.fake_only(HELD)
@pytest.mark.parametrize("end", ["deactivate", "close", "before_exit"])
@pytest.mark.parametrize("way", UNAWAITED)
def test_an_orderly_end_waits_in_each_way(kafka: FakeKafka, way: str, end: str) -> None:
    """The commit on its way has its answer, then what is acked is committed; nothing is left to the next start."""
    driver = started(kafka, way)
    kafka.holds_commits = True
    driver.ack(range(4))
    driver.commit()
    driver.ack_all()
    getattr(driver.spout, end)()
    assert (stored(kafka), kafka.sent_commits) == ([0, 4, 10], [])


@pytest.mark.parametrize("way", WAYS)
def test_nothing_comes_twice_after_an_orderly_end(kafka: Kafka, way: str) -> None:
    """The next start goes on behind what was acked, right after a commit that was not waited for."""
    first = started(kafka, way)
    first.ack(range(4))
    first.commit()
    first.ack(range(7))
    first.spout.close()
    assert Driver(kafka, commit=way).run() == [7, 8, 9]


# --- the stored offset never falls ---

ACTIONS = ["produce", "run", "ack", "fail", "commit", "arrive", "lose", "pretend", "fault", "rebalance", "crash"]
LIKELY = [*ACTIONS, *["ack", "commit", "commit", "arrive"] * 5]


def act(kafka: FakeKafka, driver: Driver, action: str, number: int, way: str) -> Driver:
    if action == "produce":
        fill(kafka, number % 4 + 1)
    elif action == "run":
        driver.run(number % 3 + 1)
    elif action == "ack":
        for tup_id, _ in driver.emitted[: len(driver.emitted) * (number + 1) // 10]:
            driver.spout.ack(tup_id)
    elif action == "fail":
        for tup_id, _ in driver.emitted[number::5]:
            driver.spout.fail(tup_id)
    elif action == "commit":
        driver.commit()
    elif action in ("arrive", "lose", "pretend") and kafka.sent_commits:
        sent = kafka.sent_commits[number % len(kafka.sent_commits)]
        sent.arrive(None if action == "arrive" else errors.RequestTimedOutError(), applied=action != "lose")
    elif action == "fault":
        kafka.faults.fail_next("commit", errors.CoordinatorLoadInProgressError, times=number % 3, applied=number > 5)
    elif action == "rebalance":
        kafka.rebalance(GROUP)
    elif action == "crash":
        driver.crash()
        driver = Driver(kafka, commit=way)
    kafka.clock.sleep(0.5)
    return driver


@pytest.mark.fake_only(HELD)
@settings(max_examples=examples(240), deadline=None)
@given(
    way=st.sampled_from(WAYS),
    plan=st.lists(st.tuples(st.sampled_from(LIKELY), st.integers(0, 9)), min_size=40, max_size=80),
)
def test_the_stored_offset_never_falls(way: str, plan: list[tuple[str, int]]) -> None:
    """Whatever is acked, fails, is lost or late, and in whichever order commits arrive."""
    with FakeKafka("never-falls") as kafka:
        kafka.create_topic(TOPIC, 1)
        fill(kafka, 10)
        kafka.holds_commits = True
        driver = Driver(kafka, commit=way, retries_max=-1)
        driver.run()
        driver.commit()
        for action, number in plan:
            driver = act(kafka, driver, action, number, way)
        kafka.faults.clear()
        driver.spout.close()
        while kafka.sent_commits:
            kafka.sent_commits[-1].arrive()
        assert stored(kafka) == sorted(stored(kafka))


# --- what makes no sense ---


@pytest.mark.fake_only(NO_KAFKA_YET)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"guarantee": "AT_MOST_ONCE"}, "kafka.guarantee = AT_MOST_ONCE decides by itself how to commit"),
        ({"guarantee": "NO_GUARANTEE"}, "kafka.guarantee = NO_GUARANTEE decides"),
        ({"guarantee": "AUTO_COMMIT"}, "kafka.guarantee = AUTO_COMMIT decides"),
        ({"offset_store": "sqlite:///offsets.db"}, "a kafka.offset_store answers at once"),
    ],
)
@pytest.mark.parametrize("way", UNAWAITED)
def test_a_way_that_makes_no_sense_is_refused(way: str, more: dict[str, str], said: str) -> None:
    """The error names both settings, and says what to leave out."""
    conf = {"topics": [TOPIC], "bootstrap": "one:9092", "commit": way, **more}
    with pytest.raises(ConfigError, match=r"leave kafka\.commit out") as refused:
        check(parse_scope({f"kafka.{name}": value for name, value in conf.items()}, "kafka"))
    assert f"kafka.commit = {way}" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.fake_only(NO_KAFKA_YET)
def test_a_transaction_commits_by_itself() -> None:
    """With a transactional KafkaBolt the spout makes no commits that could be waited for, or not."""
    parsed = parse_scope({"kafka.topics": [TOPIC], "kafka.commit": "async"}, "kafka")
    context = {"stream->outputfields": {TRANSACTIONS: []}, "stream->target->grouping": {TRANSACTIONS: {"bolt": {}}}}
    with pytest.raises(ConfigError, match=r"the transaction commits the offsets, but kafka\.commit = async"):
        is_transactional(parsed, context, "spout")
