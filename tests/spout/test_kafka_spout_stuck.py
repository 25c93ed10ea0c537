"""Partitions that are stuck: one warning each, with the offset that blocks and the reason."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import streamparse
from kafka import errors

from downspout.component import Failure
from downspout.outages import FULL, LOCKED, SILENT, Outages
from downspout.spout import observe
from downspout.testing import FakeKafka, run_topology
from spouts.kafka import KafkaSpout
from tests.spout.reasons import OTHERS_NEED_IT
from tests.spout.spout_driver import TOPIC, Driver, Kafka, fill

LIMIT_S = 20


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [text for text in messages if "makes no progress" in text or "makes progress again" in text]


def let_pass(driver: Driver, seconds: int) -> None:
    """Let time pass as it does for a spout that is called all the time."""
    for _ in range(seconds):
        driver.kafka.clock.sleep(1)
        driver.spout.next_tuple()


def test_a_tuple_without_an_answer_is_named_once(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the tuple that is out, twice the session timeout after the last progress; and so does its end."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1, 2, 5, 6])
    let_pass(driver, LIMIT_S // 2)  # with a broker the time that calls take is on top
    assert said(caplog) == []
    let_pass(driver, 20)
    assert len(said(caplog)) == 1
    assert f"{TOPIC}[0]@3: makes no progress for 2" in said(caplog)[0]
    assert "not acked for" in said(caplog)[0]
    assert driver.figure("stuck") == 1
    assert driver.figure("still_s") > LIMIT_S
    driver.ack([3])
    let_pass(driver, 2)
    assert f"{TOPIC}[0]@3: makes progress again, after" in said(caplog)[1]
    assert driver.figure("stuck") == 0
    assert driver.figure("still_s") < LIMIT_S


@pytest.mark.parametrize(
    ("state", "cure"),
    [(SILENT, "see whether it runs"), (FULL, "free the disk;"), (LOCKED, "let that transaction end")],
)
def test_what_does_not_answer_is_named_and_no_bolt_is_blamed(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, state: str, cure: str
) -> None:
    """Where a component of this process waits for a service, that is why tuples have no answer."""
    outages = Outages(kafka.clock)
    monkeypatch.setattr(observe, "OUTAGES", outages)
    driver = Driver(kafka)
    driver.run()
    for _ in range(LIMIT_S + 5):
        outages.waiting("broker 2 (b:9092)", "writing", state=state)
        let_pass(driver, 1)
    (line,) = said(caplog)
    assert f": broker 2 (b:9092) {state} since " in line
    assert f". Try: {cure}" in line
    assert "a bolt must" not in line


@pytest.mark.parametrize(
    ("failure", "why", "cure"),
    [
        (
            Failure("timeout", error="UnavailableError: away. Try: look at it", outage=True),
            "UnavailableError: away",
            "look at it",
        ),
        (
            Failure("timeout", error="UnavailableError: away", outage=True),
            "UnavailableError: away",
            "see whether it runs",
        ),
        (Failure("exception", error="RecordError: no JSON. Try: correct it"), "RecordError: no JSON", "correct it"),
    ],
)
def test_a_warning_has_one_cure_and_it_is_that_of_the_error(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, failure: Failure, why: str, cure: str
) -> None:
    """The error of the last try knows best what helps; bolts are not too slow where a service was away."""
    driver = Driver(kafka, retry_delay_ms=600_000, retry_delay_ms_max=600_000)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.spout.fail_with(driver.last_id(4), failure)
    let_pass(driver, LIMIT_S + 5)
    [warning] = said(caplog)
    assert f"last with {why}; its retry" in warning
    assert f". Try: {cure}" in warning
    assert warning.count("Try: ") == 1
    assert "faster bolts" not in warning


def test_a_record_whose_retry_is_due_waits_for_the_outage(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bolt has failed it; but it is not tried again because a sink, and with it the spout, waits for a disk."""
    outages = Outages(kafka.clock)
    monkeypatch.setattr(observe, "OUTAGES", outages)
    driver = Driver(kafka, retry_delay_ms=1_000, retry_delay_ms_max=1_000)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.spout.fail_with(driver.last_id(4), Failure("exception", error="RecordError: no JSON. Try: correct it"))
    for _ in range(LIMIT_S + 5):
        outages.waiting("the disk of out", "writing", state=FULL)
        kafka.clock.sleep(1)
        driver.spout.run_timers()
    assert "the disk of out has been full since " in said(caplog)[0]


def test_a_record_that_waits_for_its_retry_is_named_with_its_failure(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """What blocks may be a failed record: then it is said how often it failed and when it is tried again."""
    driver = Driver(kafka, retry_delay_ms=600_000, retry_delay_ms_max=600_000)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    let_pass(driver, LIMIT_S + 5)
    [warning] = said(caplog)
    assert f"{TOPIC}[0]@4" in warning
    assert "it failed 1 time, last with fail; its retry is due in 5" in warning


def test_a_retry_that_is_out_is_named_with_the_failures_before_it(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that fails again and again is mostly out: not that, but how often it failed, is why it blocks."""
    driver = Driver(kafka, retry_delay_ms=1_000, retry_delay_ms_max=1_000, retries_max=-1)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    for _ in range(5):
        driver.fail([4])
        let_pass(driver, 2)
        driver.run()
    let_pass(driver, LIMIT_S)
    [warning] = said(caplog)
    assert re.search(r"it failed 5 times, last with fail; its retry is not acked for \d+ s. Try: repair", warning)


def test_a_partition_that_is_done_is_not_stuck(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """Where all is processed nothing waits, and nothing is said, however long nothing comes."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(10))
    let_pass(driver, 3 * LIMIT_S)
    assert said(caplog) == []
    assert driver.figure("still_s") == 0


def test_a_full_partition_names_what_blocks_and_not_the_limit(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """At kafka.uncommitted_max nothing is read any more; the offset that keeps it there is what has to be looked at."""
    driver = Driver(kafka, uncommitted_max=5, poll_records_max=5)
    driver.run()
    driver.ack([offset for offset in driver.offsets if offset])
    let_pass(driver, LIMIT_S + 5)
    [warning] = said(caplog)
    assert f"{TOPIC}[0]@0" in warning
    assert "not acked for" in warning


@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_records_that_do_not_arrive_are_blamed_on_the_broker(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """Where records wait in Kafka and polls fail, the warning tells what the broker says."""
    driver = Driver(kafka, poll_records_max=5)
    while not driver.emitted:
        driver.spout.next_tuple()
    assert isinstance(kafka, FakeKafka)
    kafka.faults.fail_next("poll", errors.NotLeaderForPartitionError, times=10_000)
    driver.ack_all()
    let_pass(driver, LIMIT_S + 5)
    [warning] = said(caplog)
    assert f"{TOPIC}[0]@5" in warning
    assert "do not do what is asked of them. Try: look at them: NotLeaderForPartitionError" in warning


def slow_turns(kafka: Kafka) -> None:
    """Let a topology work for eight seconds on what each poll brought, of four partitions."""
    kafka.create_topic(TOPIC, 4)
    for partition in range(4):
        fill(kafka, 100, partition)
    driver = Driver(kafka, poll_records_max=5)
    driver.run(1)
    for _ in range(15):
        before = len(driver.emitted)
        driver.spout.next_tuple()
        for tup_id, _ in driver.emitted[before:]:
            kafka.clock.sleep(8 / (len(driver.emitted) - before))
            driver.spout.ack(tup_id)


def test_slow_bolts_are_blamed_where_each_partition_has_its_turn(
    bare_kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition that waits for the others' records is not said to lack a leader, nor a limit that is not set."""
    slow_turns(bare_kafka)
    stuck = [text for text in said(caplog) if "makes no progress" in text]
    assert stuck
    assert all("faster bolts, or more of them (downspout run --workers" in text for text in stuck), stuck


def test_a_limit_of_tuples_is_blamed_where_there_is_one(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    kafka.create_topic("others", 1)
    fill(kafka, 490)  # more than are read before the other topic has its turn
    fill(kafka, 50, topic="others")
    driver = Driver(kafka, topics=[TOPIC, "others"], poll_records_max=5, topology__max__spout__pending=5)
    others = mine = 0
    while others < 5 or not mine:  # until tuples of the one topic take up the limit, and the other is known to wait
        kafka.clock.sleep(1)
        before = len(driver.emitted)
        driver.run(1)
        for tup_id, _ in driver.emitted[before:]:
            others += "/others/" in tup_id
            if f"/{TOPIC}/" in tup_id:
                mine += 1
                driver.spout.ack(tup_id)
    for _ in range(LIMIT_S // 2 + 3):
        kafka.clock.sleep(2)
        driver.spout.run_timers()
    assert any("topology.max.spout.pending = 5 tuples are out" in text for text in said(caplog)), said(caplog)


class Swallow(streamparse.Bolt):
    auto_ack = False

    def process(self, tup):
        pass


class Swallowed(streamparse.Topology):
    """A spout, and a bolt that swallows what it emits."""

    spout = KafkaSpout.spec(topics=[TOPIC], fields=["value"])
    swallow = Swallow.spec(inputs=[spout])


@pytest.mark.fake_only("the engine runs in virtual time, which the real client does not know")
def test_the_engine_tells_which_bolt_has_the_tuple(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """At max spout pending nobody asks for tuples, and nothing comes back: the warning comes, and names the bolt."""
    config = {
        "kafka.bootstrap": kafka.bootstrap,
        "topology.max.spout.pending": 5,
        "topology.enable.message.timeouts": False,
        "run.drain_s": 1,
    }
    result = run_topology(Swallowed, config=config, for_s=LIMIT_S + 10)
    [warning] = said(caplog)
    assert f"{TOPIC}[0]@0: makes no progress for 2" in warning
    assert "waiting in swallow" in warning
    assert result.run.reports["spout"]["stuck"] == 1


@pytest.mark.parametrize(("turn_s", "partitions"), [(0.3, 4), (4.0, 4), (0.3, 2)])
def test_a_partition_is_not_passed_over_while_another_has_much(
    bare_kafka: Kafka, turn_s: float, partitions: int
) -> None:
    """What the client has fetched of one partition may last for minutes; all the same each has its turn."""
    kafka, count = bare_kafka, 5_000
    kafka.create_topic(TOPIC, partitions)
    for partition in range(partitions):
        fill(kafka, count, partition)
    driver = Driver(kafka, poll_records_max=100, uncommitted_max=10_000)
    driver.run(1)
    for _ in range(40):
        driver.spout.next_tuple()
        kafka.clock.sleep(turn_s)
    seen = Counter(tup_id.rpartition("/")[0].rpartition("/")[2] for tup_id, _ in driver.emitted)
    assert len(driver.emitted) < partitions * count
    assert all(seen[str(partition)] >= 200 for partition in range(partitions)), seen
