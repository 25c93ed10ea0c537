"""A broker that is unavailable for a while, or loses data: the spout stays responsive, and resumes by itself."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from downspout.broker import EmbeddedKafka
from downspout.dead_letters import read_dead_letters
from tests.broker.scene import PATIENCE_S, Member, Scene, repeated, run_until
from tests.kafka.stage import unique
from tests.spout.spout_driver import MANY

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.usefixtures("hurried")]

CALL_S_MAX = 15.0
"""Storm's patience is 30 s, and a call that waits for the client takes as long. Ours wait for 5 s
(``tests/wire/test_bounds.py``); the rest is for a busy machine."""
"""Storm asks for an answer to each call; semantics.md allows this long, broker down or not."""
SHORTEST_MS = 6000
"""The shortest session that brokers allow, unless they are told otherwise."""
AWAY_S = 9.0
"""So long is a broker away: longer than a session, and than an answer may take."""
RECORDS = 300


class Awake:
    """Tells how long something took, without the time in which this process was not let run.

    A thread that does nothing but look at the clock sees how long that was: a call that waits for a broker does not
    keep it from looking.
    """

    LOOK_S = 0.02

    def __init__(self) -> None:
        self._asleep_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Awake:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        before = time.monotonic()
        while not self._over.wait(self.LOOK_S):
            now = time.monotonic()
            self._asleep_s += max(0.0, now - before - 5 * self.LOOK_S)
            before = now

    def took(self, call: Callable[[], object]) -> float:
        began, asleep_s = time.monotonic(), self._asleep_s
        call()
        ended = time.monotonic()
        time.sleep(2 * self.LOOK_S)  # let the other thread see what was at the end
        return ended - began - (self._asleep_s - asleep_s)


def take_turns(member: Member, seconds: float, said: Callable[[], object] = lambda: True) -> float:
    """Call ``next_tuple`` until something is said and so long after it, acking what comes; return the longest call."""
    told_at, longest = None, 0.0
    patience = time.monotonic() + PATIENCE_S
    with Awake() as awake:
        while told_at is None or time.monotonic() < told_at + seconds:
            assert told_at is not None or time.monotonic() < patience, "nothing is said"
            longest = max(longest, awake.took(member.spout.next_tuple))
            member.answer(is_poison)
            if told_at is None and said():
                told_at = time.monotonic()
    return longest


FAILED = re.compile(r":\d+: commit failed, retrying: \w+Error")


def lines_of(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return what tells what the spout has said so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "tests.spout"]


@contextmanager
def stopped(kafka: EmbeddedKafka) -> Iterator[None]:
    """The broker's process ends; another one takes over its port and its data."""
    address, process = kafka.bootstrap, kafka.broker.pid
    kafka.stop()
    yield
    kafka.start()
    assert kafka.bootstrap == address
    assert kafka.broker.pid != process


@contextmanager
def frozen(kafka: EmbeddedKafka) -> Iterator[None]:
    """Connections stay, and nothing is answered: each question takes as long as its asker is willing to wait."""
    os.kill(kafka.broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(kafka.broker.pid, signal.SIGCONT)


def is_poison(place: tuple[int, int]) -> bool:
    return place[1] % 10 == 3


FORGETFUL = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "500"}
"""As soon as Kafka can: there are no shorter retentions."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that may be stopped; meanwhile the client logs more than anybody wants to read."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    with EmbeddedKafka(tmp_path_factory.mktemp("outage"), properties=FORGETFUL) as made:
        yield made
    logging.getLogger("kafka").setLevel(logging.NOTSET)


@pytest.fixture
def scene(broker: EmbeddedKafka) -> Iterator[Scene]:
    with Scene(broker.bootstrap, unique("outage"), 2) as made:
        for partition in range(2):
            made.fill(RECORDS, partition, batch=20)
        yield made


EVERYTHING = {(partition, offset) for partition in range(2) for offset in range(RECORDS)}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("away", "way"),
    [
        pytest.param(stopped, "sync", marks=pytest.mark.sweep),
        pytest.param(frozen, "sync", marks=pytest.mark.sweep),
        (frozen, "combined"),
    ],
)
def test_a_broker_that_is_away_costs_neither_records_nor_answers(
    away: Callable[[EmbeddedKafka], Any],
    way: str,
    broker: EmbeddedKafka,
    scene: Scene,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under a spout with letters to write no call outlasts 5 s, it says what fails since when; nothing is lost."""
    caplog.set_level(logging.INFO, "tests.spout")
    said = lines_of(caplog)
    member = scene.member(
        session_timeout_ms=SHORTEST_MS,
        commit=way,
        commit_period_ms=300,
        poll_records_max=20,
        emits_per_next_max=20,
        retries_max=0,
        retry_cache_bytes=10**6,
    )
    run_until(lambda: member.figure("dead_lettered") >= 1, member, answer=True, fails=is_poison)
    begun = len(member.emitted)  # letters take their time, and so all there was may have left by now
    for partition in range(2):
        scene.fill(RECORDS, partition, batch=20)
    everything = {(partition, offset) for partition in range(2) for offset in range(2 * RECORDS)}
    run_until(lambda: len(member.emitted) >= begun + 150, member)
    before = len(member.emitted)
    with away(broker):
        # What was out is answered while nobody can be told.
        longest = take_turns(member, AWAY_S, lambda: any(FAILED.search(line) for line in said()))
        assert member.figure("disconnected") == 1
    run_until(lambda: all(scene.committed(p) == 2 * RECORDS for p in range(2)), member, answer=True, fails=is_poison)
    assert before < len(everything)
    assert set(member.places) == everything
    letters = read_dead_letters(scene.cluster, f"{scene.group}.dead-letters")
    assert {(letter.partition, letter.offset) for letter in letters} == set(filter(is_poison, everything))
    scene.fill(5, 1)
    run_until(lambda: scene.committed(1) == 2 * RECORDS + 5, member, answer=True)
    assert member.figure("disconnected") == 0
    assert longest < CALL_S_MAX
    assert any(FAILED.search(line) for line in said())
    lasted = [float(found[1]) for line in said() if (found := re.search(r"commit works again, after ([\d.]+) s", line))]
    assert max(lasted) > AWAY_S / 2  # a coordinator that has just come back may fail once more


def test_at_most_once_waits_for_a_silent_broker_in_short_calls(broker: EmbeddedKafka, scene: Scene) -> None:
    """Nothing leaves that is not committed, no call outlasts 5 s, and nothing comes twice."""
    member = scene.member(
        session_timeout_ms=SHORTEST_MS, guarantee="AT_MOST_ONCE", topology__max__spout__pending=MANY,
        poll_records_max=20, emits_per_next_max=20,
    )  # fmt: skip
    run_until(lambda: len(member.emitted) >= 100, member)
    with frozen(broker):
        longest = take_turns(member, 8.0)
        held = len(member.emitted)
    run_until(lambda: len(member.emitted) >= len(EVERYTHING), member)
    assert longest < CALL_S_MAX
    assert held < len(EVERYTHING)
    assert sorted(member.places) == sorted(EVERYTHING)


def test_deactivate_does_not_wait_for_a_silent_broker(broker: EmbeddedKafka, scene: Scene) -> None:
    """It answers within 5 s and forgets nothing: activated again, the spout goes on where it was."""
    member = scene.member()
    run_until(lambda: set(member.places) == EVERYTHING, member)
    member.answer()
    with frozen(broker), Awake() as awake:
        took = awake.took(member.spout.deactivate)
    member.spout.activate()
    scene.commit_all(member, p0=RECORDS, p1=RECORDS)
    assert took < CALL_S_MAX
    assert not repeated(member)


def expire(left_alone: Scene) -> None:
    """Wait until Kafka has forgotten what an empty group has committed: a minute at least."""


def delete(left_alone: Scene) -> None:
    with left_alone.admin() as admin:
        admin.delete_groups([left_alone.group])


@pytest.mark.parametrize("forget", [delete, pytest.param(expire, marks=pytest.mark.sweep)])
def test_forgotten_commits_cost_repeats_and_no_record(broker: EmbeddedKafka, forget: Callable[[Scene], None]) -> None:
    """A group whose commits are no longer kept begins anew: nothing that is there is missed."""
    with Scene(broker.bootstrap, unique("forgotten")) as left_alone:
        left_alone.fill(15)
        member = left_alone.member()
        run_until(lambda: len(member.emitted) == 15, member)
        member.ack(range(10))
        member.spout.close()
        assert left_alone.committed() == 10
        forget(left_alone)
        run_until(lambda: left_alone.committed() is None, patience_s=200)
        member = left_alone.member()
        run_until(lambda: len(member.emitted) >= 15, member, answer=True)
        assert member.offsets == list(range(15))
        left_alone.commit_all(member, p0=15)
