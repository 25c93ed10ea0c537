"""A spout that is not called for tuples: deactivated, at its limit, about to end."""

from __future__ import annotations

import io
import os
import threading

import pytest
from kafka import errors

from downspout.testing import FakeKafka
from downspout.wire import WireSerializer
from tests.spout.spout_driver import GROUP, Driver, Kafka, fill

LOADING = "when a broker's coordinator loads is not ours to say"


def test_deactivate_commits_and_leaves_when_nothing_is_out(kafka: Kafka) -> None:
    """Acks still count after deactivate; with the last one the spout commits again and leaves; activate goes on."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(5))
    driver.spout.deactivate()
    assert driver.committed() == 5
    assert driver.run() == []
    driver.ack(range(5, 10))
    assert driver.committed() == 10
    assert not kafka.group(GROUP).members
    fill(kafka, 2)
    driver.spout.activate()
    assert driver.run() == [10, 11]


def test_the_figures_of_a_spout_that_has_left_are_its_last(kafka: Kafka) -> None:
    """After deactivate the report has the lag, the commits and the partitions that the spout left with."""
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    driver.commit()
    fill(kafka, 2)
    while len(driver.emitted) < 12:  # a broker may give one of them first
        driver.run(1)
    driver.spout.deactivate()
    driver.ack_all()
    assert not kafka.group(GROUP).members
    assert [driver.figure(name) for name in ("lag", "committed", "partitions")] == [0, 12, 1]
    driver.spout.close()
    assert [driver.figure(name) for name in ("lag", "committed", "partitions")] == [0, 12, 1]


@pytest.mark.fake_only(LOADING)
def test_a_commit_that_fails_at_once_in_deactivate_keeps_the_member(kafka: FakeKafka) -> None:
    """While the coordinator loads the spout stays in the group with what it knows, and commits when it goes on."""
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    kafka.faults.fail_next("commit", errors.CoordinatorLoadInProgressError, times=1_000)
    driver.spout.deactivate()
    assert kafka.group(GROUP).members
    assert driver.figure("uncommitted") == 10
    kafka.faults.clear()
    driver.spout.activate()
    driver.commit()
    assert (driver.committed(), driver.figure("uncommitted"), len(driver.emitted)) == (10, 0, 10)


@pytest.mark.fake_only(LOADING)
@pytest.mark.parametrize("left", [0, 3])
def test_a_commit_that_fails_at_once_in_deactivate_is_tried_for_a_moment(kafka: FakeKafka, left: int) -> None:
    """What is acked is committed though the coordinator loads for a fraction of a second, whatever is still out."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(10 - left))
    kafka.faults.fail_next("commit", errors.CoordinatorLoadInProgressError, times=5)
    driver.spout.deactivate()
    assert (driver.committed(), bool(kafka.group(GROUP).members)) == (10 - left, left > 0)


@pytest.mark.fake_only(LOADING)
@pytest.mark.parametrize("out", [0, 3])
def test_a_spout_that_rests_commits_when_it_can(kafka: FakeKafka, out: int) -> None:
    """While nobody activates it again it remains a member for an hour, and commits what it could not before."""
    driver = Driver(kafka, client__max_poll_interval_ms=300_000)
    driver.run()
    driver.ack(range(10 - out))
    kafka.faults.fail_next("commit", errors.CoordinatorLoadInProgressError, times=1_000_000)
    driver.spout.deactivate()
    driver.ack(range(10 - out, 10))
    for _ in range(720):
        kafka.clock.sleep(5)
        driver.spout.run_timers()
    assert (driver.committed(), bool(kafka.group(GROUP).members)) == (0, True)
    kafka.faults.clear()
    kafka.clock.sleep(1)
    driver.spout.run_timers()
    assert (driver.committed(), bool(kafka.group(GROUP).members), len(driver.emitted)) == (10, False, 10)


@pytest.mark.fake_only(LOADING)
def test_a_spout_that_rests_on_storm_commits_when_it_can(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storm calls nothing then: the spout looks for itself while it waits for the next command."""
    monkeypatch.setattr("spouts.kafka.UNATTENDED_MS", 0)
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    storm, ours = os.pipe()
    with os.fdopen(storm, "rb", 0) as source, os.fdopen(ours, "wb", 0) as commands:
        driver.spout.serializer = WireSerializer(source, io.BytesIO(), threading.RLock(), threading.RLock())
        kafka.faults.fail_next("commit", errors.CoordinatorLoadInProgressError, times=1_000_000)
        driver.spout.deactivate()
        kafka.faults.clear()
        threading.Timer(0.3, commands.write, [b'{"command": "activate"}\nend\n']).start()
        driver.spout.serializer.pipe.read()
    assert (driver.committed(), bool(kafka.group(GROUP).members)) == (10, False)


@pytest.mark.fake_only(LOADING)
def test_a_commit_that_fails_at_once_in_close_is_tried_for_a_moment(kafka: FakeKafka) -> None:
    """The last commit of a spout that ends outlasts a coordinator that loads for a fraction of a second."""
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    kafka.faults.fail_next("commit", errors.CoordinatorLoadInProgressError, times=9)
    driver.spout.close()
    assert (driver.committed(), driver.figure("uncommitted")) == (10, 0)


def test_deactivate_puts_back_what_was_not_emitted(kafka: Kafka) -> None:
    """Records that were polled and not emitted come after activate, none lost and none twice."""
    driver = Driver(kafka, emits_per_next_max=3)
    driver.run(3)
    driver.spout.deactivate()
    driver.spout.activate()
    driver.run(20)
    assert driver.offsets == list(range(10))


@pytest.mark.record_only("the ack of a chunk stands for many records, and each looks at the clock")
def test_acks_look_at_the_timer_while_next_is_not_called(kafka: Kafka) -> None:
    """With max spout pending reached Storm calls ack only: the commit does not wait for next_tuple."""
    fill(kafka, 90)
    driver = Driver(kafka)
    driver.run()
    kafka.clock.sleep(40)
    for offset in range(32):
        driver.spout.ack(driver.last_id(offset))
    assert driver.committed() == 16  # every 16th ack looks at the clock


def test_a_silent_engine_does_not_cost_the_membership(kafka: Kafka) -> None:
    """Acks alone keep the spout in its group for longer than the client's poll interval."""
    fill(kafka, 90)
    driver = Driver(kafka)
    driver.run()
    for number in range(20):
        kafka.clock.sleep(45)
        driver.ack(range(number * 4, number * 4 + 4))
        driver.spout._between_turns()
    assert driver.figure("partitions") == 1
    assert driver.run() == []
    driver.commit()
    assert driver.committed() == 80  # one that was thrown out would wait for the other 20, and commit nothing
