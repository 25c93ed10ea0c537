"""Kill the process at any step of its work with Kafka: a read_committed reader sees each result once."""

from __future__ import annotations

from collections import Counter

import pytest

from downspout.kafka import GroupMembership, OffsetAndMetadata, OpenTransaction, TopicPartition
from tests.producing.killing import GROUP, IN, World

pytestmark = [pytest.mark.fake_only("stops a process between any two calls of Kafka")]

LATER_S = 2_000.0
"""After so long, sessions and transactions of the dead have timed out."""


@pytest.mark.slow
def test_a_kill_at_any_step_neither_loses_nor_doubles_a_result() -> None:
    """Started again at once, or after everything has timed out; most kills hit an open transaction."""
    steps = World().moments()
    hits, wrong = Counter[bool](), []
    for point, name in enumerate(steps, 1):
        for pause_s in (0.0, LATER_S):
            world = World()
            ended = world.lives(lambda number, _, point=point: number == point)
            hits[world.is_open()] += not ended
            world.clock.advance(pause_s)
            if not ended:
                world.lives()
            wrong += [f"{point} {name} {pause_s}: {each}" for each in world.violations()]
    assert wrong == []
    assert hits[True] > len(steps) / 2
    assert {*steps} >= {"transactional_producer", "begin", "send", "send_offsets", "commit", "abort"}


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_run_says_which_transaction_it_waits_for_and_goes_on(
    is_shown: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of another name died with commits of ours in its transaction, and Kafka ends that in time."""
    world = World()
    if not is_shown:
        monkeypatch.setattr(world.kafka, "open_transactions", lambda group: [])
    other = world.kafka.transactional_producer("copies.2.out.0", client={"transaction_timeout_ms": 40_000})
    other.begin()
    other.send_offsets({TopicPartition(IN, 1): OffsetAndMetadata(3, "", -1)}, GroupMembership(GROUP))
    began = world.clock.monotonic()
    assert world.lives()
    assert world.violations() == []
    assert world.clock.monotonic() - began > 40.0
    whose, until = ("transaction of copies.2.out.0", "40 s") if is_shown else ("transaction", "its produce.")
    assert f"a {whose} is open on in[1]; Kafka ends it after at most {until}" in caplog.text


def test_a_transaction_that_kafka_has_lost_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator calls it ended, and no time-out ends it where its records are."""
    world = World()
    monkeypatch.setattr(world.kafka, "open_transactions", lambda group: [OpenTransaction("copies.1.out.0", 1, True)])
    other = world.kafka.transactional_producer("copies.2.out.0")
    other.begin()
    other.send_offsets({TopicPartition(IN, 1): OffsetAndMetadata(3, "", -1)}, GroupMembership(GROUP))
    assert world.lives()
    assert "Kafka considers a transaction of copies.1.out.0 ended, but it stays open on in[1]" in caplog.text


@pytest.mark.sweep
@pytest.mark.slow
def test_a_second_kill_in_the_recovery_changes_nothing() -> None:
    """At some steps of the first run, and some of the second."""
    steps, wrong = len(World().moments()), []
    for first in range(1, steps, steps // 12):
        for second in range(2, 60, 8):
            world = World()
            for point in (first, second):
                world.lives(lambda number, _, point=point: number == point)
            world.lives()
            wrong += [f"{first} {second}: {each}" for each in world.violations()]
    assert wrong == []


@pytest.mark.sweep
@pytest.mark.slow
def test_a_process_that_stood_still_while_another_took_over_changes_nothing() -> None:
    """At any step the first one sleeps, the second does all of the work, and the first goes on."""
    wrong = []
    for point, name in enumerate(World().moments(), 1):
        world = World()

        def sleep(number: int, _: str, point: int = point, world: World = world) -> None:
            if number == point:
                world.clock.advance(LATER_S)
                world.lives()

        world.lives(sleep)
        wrong += [f"{point} {name}: {each}" for each in world.violations()]
    assert wrong == []
