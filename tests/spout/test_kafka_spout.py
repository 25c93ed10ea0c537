from __future__ import annotations

from typing import Any

import pytest
from kafka import errors

from downspout.errors import BrokerError, ConfigError
from downspout.ledger import Origin, decode
from downspout.metrics import METRICS
from downspout.protocols import ComponentOffers, SpoutOffers
from spouts.kafka import KafkaSpout
from tests.spout.reasons import OTHERS_NEED_IT
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, end, fill
from tests.waiting import eventually


def test_emits_all_records_in_order(kafka: Kafka) -> None:
    """Each record becomes one tuple, in offset order, with the fields asked for."""
    driver = Driver(kafka)
    driver.run()
    assert [values for _, values in driver.emitted] == [[n, str(n)] for n in range(10)]


@pytest.mark.record_only("JSON has no column of one type; the others are tested with chunks")
def test_all_fields(kafka: Kafka) -> None:
    """A tuple can hold whatever a record has, and its origin."""
    kafka.create_topic("one", 1)
    kafka.produce("one", b'{"a":1}', b"k", headers=[("h", b"v")], timestamp_ms=5)
    fields = ["topic", "partition", "offset", "key", "value", "timestamp", "headers", "origin"]
    driver = Driver(kafka, topics=["one"], fields=fields, value_format="json", key_format="bytes")
    driver.run()
    [(_, values)] = driver.emitted
    assert values[:6] == ["one", 0, 0, b"k", {"a": 1}, 5]
    assert list(values[6]) == [("h", b"v")]
    assert values[7] == Origin("one", kafka.topic_id("one"), 0, 0, "")


def test_commits_the_contiguous_acked_prefix(kafka: Kafka) -> None:
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1, 2, 4, 5])
    driver.commit()
    assert driver.committed() == 3


def test_commits_the_next_offset_to_read(kafka: Kafka) -> None:
    """With all acked, the commit is the end of the log: lag is 0."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(10))
    driver.commit()
    assert driver.committed() == 10
    assert driver.figure("lag") == 0


def test_nobody_knows_a_lag_before_partitions_are_read(kafka: Kafka) -> None:
    """A spout that has not joined yet tells no lag, and not that there is none; one that has left tells its last."""
    driver = Driver(kafka)
    assert "lag" not in driver.spout.report()
    driver.run()
    assert driver.figure("lag") == 10
    driver.spout.close()
    assert driver.figure("lag") == 10


def test_gaps_never_block(kafka: Kafka) -> None:
    """Offsets that hold no record, in the middle and at the end, are passed by the commit."""
    kafka.gap(TOPIC, count=5)
    fill(kafka, 2)
    kafka.gap(TOPIC, count=3)
    driver = Driver(kafka)
    assert driver.run() == [*range(10), 15, 16]
    driver.ack_all()
    driver.run()
    driver.commit()
    assert driver.committed() == 20


def test_aborted_records_leave_no_lag(kafka: Kafka) -> None:
    """After an aborted transaction at the end of the log, lag returns to 0."""
    transaction = kafka.transaction()
    transaction.send(TOPIC, b"never", partition=0)
    transaction.abort()
    driver = Driver(kafka)
    assert driver.run() == list(range(10))
    driver.ack_all()
    driver.run()
    driver.commit()
    assert driver.committed() == end(kafka)
    assert driver.figure("lag") == 0


def test_first_commit_comes_after_a_period_and_a_half_second(kafka: Kafka) -> None:
    """The reference's timer: first after 30.5 s, then every 30 s."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(5))
    started = len(kafka.commits(GROUP))  # the start itself
    kafka.clock.sleep(29)
    driver.run(1)
    assert len(kafka.commits(GROUP)) == started
    driver.commit()
    assert driver.committed() == 5


def test_no_request_when_nothing_has_changed(kafka: Kafka) -> None:
    """Neither offset nor metadata changed: the broker is not asked."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(5))
    driver.commit()
    count = len(kafka.commits(GROUP))
    driver.commit()
    assert len(kafka.commits(GROUP)) == count


def test_the_resolved_start_is_committed_at_once(kafka: Kafka) -> None:
    """Under LATEST, a crash before the first commit loses nothing that came after the first start."""
    driver = Driver(kafka, start="LATEST")
    driver.run(4)
    assert driver.committed() == 10
    driver.crash()
    fill(kafka, 3)
    assert Driver(kafka, start="LATEST").run() == [10, 11, 12]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("EARLIEST", list(range(10))),
        ("LATEST", []),
        ("UNCOMMITTED_EARLIEST", [4, 5, 6, 7, 8, 9]),
        ("UNCOMMITTED_LATEST", [4, 5, 6, 7, 8, 9]),
        ("TIMESTAMP", [7, 8, 9]),
        ("UNCOMMITTED_TIMESTAMP", [4, 5, 6, 7, 8, 9]),
    ],
)
def test_start_of_another_topology(kafka: Kafka, strategy: str, expected: list[int]) -> None:
    """A redeploy has a new topology id: its strategy decides whether the commit of the old one counts."""
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC, 1)
    for number in range(10):
        kafka.produce(TOPIC, b"x", partition=0, timestamp_ms=1000 * number)
    first = Driver(kafka)
    first.run()
    first.ack(range(4))
    first.spout.close()
    second = Driver(kafka, topology_id="orders-2", start=strategy, start_timestamp_ms=6500)
    assert second.run() == expected


def test_at_most_so_many_uncommitted(kafka: Kafka) -> None:
    """A partition at its limit is not read on until the commit gives it room; then it is, before the timer."""
    fill(kafka, 90)
    driver = Driver(kafka, uncommitted_max=20, poll_records_max=5)
    assert len(driver.run(30)) <= 20 + 5 - 1
    driver.ack(range(16))
    assert driver.run(30)


def test_at_most_so_many_tuples_in_one_call(kafka: Kafka) -> None:
    driver = Driver(kafka, emits_per_next_max=1)
    driver.run(2)
    assert all(len(driver.run(1)) <= 1 for _ in range(20))
    assert driver.offsets == list(range(10))


def test_partitions_take_turns(kafka: Kafka) -> None:
    """A partition with many records cannot keep another one from its turn."""
    kafka.create_topic("two", 2)
    for number in range(500):
        kafka.produce("two", b"x", partition=0)
        if number < 5:
            kafka.produce("two", b"x", partition=1)
    driver = Driver(kafka, topics=["two"], fields=["partition"], emits_per_next_max=10, poll_records_max=2000)
    driver.run(6)
    assert [values for _, values in driver.emitted[:10]].count([1]) in (4, 5)


def test_a_turn_ends_where_its_records_are_put_back(kafka: Kafka) -> None:
    """What a commit in the middle of a turn puts back is read again, and each record is emitted once."""
    driver = Driver(kafka)
    driver.spout._emitter._emit_many = None
    spout: Any = driver.spout
    plain = spout.emit

    def emit(values: Any, **named: Any) -> None:
        plain(values, **named)
        if len(driver.emitted) == 4:
            driver.session.put_back()

    spout.emit = emit
    driver.run()
    assert driver.offsets == list(range(10))
    assert driver.figure("skipped") == 0


@pytest.mark.parametrize("value_format", ["utf8", "bytes"])
def test_a_null_value_is_a_tuple_with_a_null_value(kafka: Kafka, value_format: str) -> None:
    """A tombstone leaves as with Storm's default translator, waits for its ack, and nothing counts as filtered."""
    kafka.produce(TOPIC, None, b"k", partition=0)
    kafka.produce(TOPIC, b"11", b"k", partition=0)
    driver = Driver(kafka, fields=["offset", "key", "value"], value_format=value_format)
    assert driver.run() == list(range(12))
    assert driver.emitted[10][1] == [10, "k", None]
    driver.ack([*range(10), 11])
    driver.commit()
    assert driver.committed() == 10
    driver.ack([10])
    driver.commit()
    assert (driver.committed(), driver.figure("filtered")) == (12, 0)


@pytest.mark.parametrize("foreign", ["", "x", "1/2", "a/b/c/d", None, 7, "99/xyz/0/3"])
def test_ids_from_elsewhere_change_nothing(kafka: Kafka, foreign: Any) -> None:
    """An ack or fail of something that was never emitted is counted and ignored."""
    driver = Driver(kafka)
    driver.run()
    driver.spout.ack(foreign)
    driver.spout.fail(foreign)
    assert driver.figure("stale") == 2
    assert driver.figure("in_flight") == 10


def test_double_acks_and_fails_change_nothing(kafka: Kafka) -> None:
    """The second word on one emit is ignored, whichever it is."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 0])
    driver.fail([0, 1, 1])
    assert (driver.figure("acked"), driver.figure("failed"), driver.figure("stale")) == (1, 1, 3)


def test_restart_emits_only_what_was_not_acked(kafka: Kafka) -> None:
    """Acked records beyond the commit travel in its metadata: a killed spout's successor skips them."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1, 3, 5, 6, 9])
    driver.commit()
    driver.crash()
    assert Driver(kafka).run() == [2, 4, 7, 8]


def test_no_more_is_open_than_max_spout_pending(kafka: Kafka) -> None:
    """A call fills up what the limit leaves, answers of all kinds make room, and a call means that there is some."""
    driver = Driver(kafka, topology__max__spout__pending=5)
    while not driver.emitted:
        driver.run(1)
    assert len(driver.emitted) == 5
    driver.spout.ack(driver.last_id(0))
    driver.fail([1])
    driver.spout.ack_many([driver.last_id(2)])
    # Storm counts a chunk as one tuple, so it calls even if the limit, which is of records, is reached.
    then = [3, 0, 0] if driver.spout.services.setup.settings["emit"] == "chunk" else [3, 1, 1]
    assert [len(driver.run(1)) for _ in range(3)] == then


def test_a_call_has_one_budget(kafka: Kafka) -> None:
    """With emits_per_next_max=1 a call emits one tuple, be it a retry from memory or a new record."""
    driver = Driver(kafka, emits_per_next_max=1, retry_cache_bytes=1 << 20)
    driver.run(4)
    driver.fail([0, 1])
    for _ in range(20):
        before = len(driver.emitted)
        driver.run(1)
        assert len(driver.emitted) - before <= 1
    assert sorted(driver.offsets) == [0, 0, 1, 1, *range(2, 10)]


def test_metadata_names_who_committed(kafka: Kafka) -> None:
    """The commit tells the topology and the task, in the reference's three keys."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(3))
    driver.commit()
    [meta] = kafka.committed(GROUP).values()
    told = decode(3, meta.metadata, topic_id=kafka.topic_id(TOPIC))
    assert (told.topology_id, told.task) == ("orders-1", 3)


def test_every_figure_is_in_the_table(kafka: Kafka) -> None:
    """What the spout reports is what downspout.metrics explains."""
    driver = Driver(kafka)
    driver.run()
    assert set(driver.spout.report()) <= set(METRICS)


def test_offers_what_the_engines_look_for() -> None:
    """All optional methods of downspout.protocols are there."""
    optional = {name for name in vars(SpoutOffers) | vars(ComponentOffers) if not name.startswith("_")}
    assert {name for name in optional if callable(getattr(KafkaSpout, name, None))} == optional


def test_a_missing_topic_is_waited_for(kafka: Kafka) -> None:
    """Without a bound, a topic that appears later is read from its beginning."""
    driver = Driver(kafka, topics=["later"])
    assert driver.run() == []
    kafka.create_topic("later", 1)
    fill(kafka, 3, topic="later")
    assert driver.run(12) == [0, 1, 2]


def test_topics_by_pattern(kafka: Kafka) -> None:
    """A pattern reads the topics whose whole name matches."""
    kafka.create_topic("orders-eu", 1)
    kafka.create_topic("old-orders", 1)
    fill(kafka, 2, topic="orders-eu")
    fill(kafka, 2, topic="old-orders")
    driver = Driver(kafka, topics=None, pattern="orders.*", fields=["topic"])
    driver.run(12)
    assert {topic for _, [topic] in driver.emitted} == {"orders", "orders-eu"}


def test_spec_names_the_fields() -> None:
    """The outputs of the component are the fields asked for; its config is plain JSON."""
    spec = KafkaSpout.spec(topics=["a", "b"], fields=["value", "origin"], par=2, client={"fetch_max_bytes": 5})
    assert spec.outputs["default"].output_fields == ["value", "origin"]
    assert '"kafka.topics": ["a", "b"]' in spec.config
    assert '"kafka.client.fetch_max_bytes": 5' in spec.config


@pytest.mark.parametrize(
    "bad",
    [
        {"topics": ["a"], "fields": ["colour"]},
        {"topics": ["a"], "fields": ["key", "key"]},
        {"topic": ["a"]},
        {"topics": ["a"], "retries_max": -2},
    ],
)
def test_bad_settings_fail_in_spec(bad: dict[str, Any]) -> None:
    """A setting that makes no sense is an error where the topology is written."""
    with pytest.raises(ConfigError):
        KafkaSpout.spec(**bad)


def test_two_tasks_have_different_static_names(kafka: Kafka) -> None:
    """The instance id tells topology, component, task and member."""
    one, two = Driver(kafka), Driver(kafka, member=2)
    assert one.spout.services.setup.instance == "shop.reader.0.1"
    assert two.spout.services.setup.instance == "shop.reader.0.2"


def test_the_same_member_twice_stops_the_older(kafka: Kafka) -> None:
    """A second process under the same static name fences the first, which says what to do."""
    older = Driver(kafka)
    older.run()
    older.ack(range(5))
    younger = Driver(kafka)
    younger.run()
    with pytest.raises(BrokerError, match="--member"):
        older.commit()


def test_the_same_member_twice_stops_the_older_though_it_has_nothing_to_commit(kafka: Kafka) -> None:
    """A heartbeat tells it, not later than a session takes."""
    older = Driver(kafka)
    older.run()
    older.ack_all()
    older.commit()
    Driver(kafka).run()
    with pytest.raises(BrokerError, match="--member"):
        eventually(older.spout.next_tuple, every_s=0.0)


@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_no_broker_at_the_start_is_an_error(kafka: Kafka) -> None:
    """A spout that cannot reach Kafka when it starts says so."""
    kafka.broker_down()
    with pytest.raises(BrokerError, match=kafka.bootstrap):
        Driver(kafka)


@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_a_broker_away_for_20_seconds_is_waited_for(kafka: Kafka) -> None:
    """Nothing raises while the broker is away, and afterwards nothing is missing or double."""
    driver = Driver(kafka, commit_period_ms=1000)
    driver.run()
    driver.ack(range(5))
    kafka.broker_down()
    for _ in range(20):
        kafka.clock.sleep(1)
        driver.run(2)
    assert driver.figure("errors") > 0
    assert driver.figure("disconnected") == 1
    kafka.broker_up()
    fill(kafka, 3)
    driver.run(20)
    assert driver.figure("disconnected") == 0
    driver.ack(range(5, 13))
    driver.commit()
    assert driver.offsets == list(range(13))
    assert driver.committed() == 13


def test_a_retriable_commit_error_is_retried(kafka: Kafka) -> None:
    """The reference dies of it; ours tries again, and counts it."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(10))
    kafka.faults.fail_next("commit", errors.CoordinatorNotAvailableError, times=2)
    driver.commit()
    for _ in range(20):
        kafka.clock.sleep(1)
        driver.run(1)
    assert driver.committed() == 10
    assert driver.figure("errors") == 2


def test_a_commit_that_was_applied_but_not_answered_is_said_again(kafka: Kafka) -> None:
    """Not knowing is not an error: the commit never goes back, and ends right."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(4))
    kafka.faults.fail_next("commit", errors.RequestTimedOutError, applied=True)
    driver.commit()
    driver.ack(range(4, 10))
    driver.commit()
    offsets = [commit.offset for commit in kafka.commits(GROUP)]
    assert offsets == sorted(offsets)
    assert offsets[-1] == 10


def test_a_retriable_poll_error_is_retried(kafka: Kafka) -> None:
    driver = Driver(kafka)
    kafka.faults.fail_next("poll", errors.KafkaConnectionError, times=3)
    for _ in range(10):
        kafka.clock.sleep(1)
        driver.run(1)
    assert driver.offsets == list(range(10))


def test_a_fatal_error_names_the_work(kafka: Kafka) -> None:
    """Missing rights stop the run with what was attempted."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(10))
    kafka.faults.fail_next("commit", errors.GroupAuthorizationFailedError)
    with pytest.raises(BrokerError, match=r"commit failed: .*GroupAuthorizationFailed"):
        driver.commit()


def test_a_pattern_leaves_the_spouts_own_dead_letters_out(bare_kafka: Kafka) -> None:
    """A pattern that matches everything does not read what the spout itself has given up, which would never end."""
    cluster = bare_kafka
    cluster.create_topic(TOPIC, 1)
    fill(cluster, 2)
    driver = Driver(cluster, topics=None, pattern=".*", retries_max=0)
    for _ in range(20):
        before = len(driver.emitted)
        cluster.clock.sleep(60)
        driver.run(4)
        for tuple_id, _ in driver.emitted[before:]:
            driver.spout.fail(tuple_id)
    (letters,) = [name for name in cluster.topic_names() if name != TOPIC]
    assert len(cluster.records(letters)) == 2


def test_a_bounded_run_reads_nothing_before_its_end_is_known(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not tell the end of a new partition delays a bounded run, and does not unbind it."""
    driver = Driver(kafka, topics=None, pattern="ord.*", run__until="end")
    real, calls = driver.session.consumer.end_offsets, []

    def end_offsets(partitions):
        calls.append(partitions)
        if len(calls) == 2:
            raise errors.KafkaTimeoutError("no answer")
        return real(partitions)

    monkeypatch.setattr(driver.session.consumer, "end_offsets", end_offsets)
    for _ in range(2):
        for _ in range(10):
            kafka.clock.sleep(1)
            driver.run(5)
            driver.ack_all()
        fill(kafka, 10)
    assert len(calls) > 2
    assert driver.offsets == list(range(10))
    assert driver.spout.exhausted()
    assert driver.spout.end_reached()
