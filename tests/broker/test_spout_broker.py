"""The spout on a real broker: the tests whose outcome a fake could get wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from downspout.dead_letters import read_dead_letters
from downspout.ledger import decode
from tests.broker.scene import Scene, run_until
from tests.spout.spout_driver import MANY

if TYPE_CHECKING:
    from downspout.broker import EmbeddedKafka

pytestmark = pytest.mark.broker


@pytest.fixture
def real(kafka_broker: EmbeddedKafka, topic_name: str) -> Iterator[Scene]:
    with Scene(kafka_broker.bootstrap, topic_name, 2) as made:
        yield made


def test_resumes_where_it_stopped(real: Scene) -> None:
    """Stopped after acks and started again, a spout goes on behind them."""
    real.fill(100)
    first = real.member()
    run_until(lambda: len(first.emitted) == 100, first)
    first.ack(range(60))
    first.spout.close()
    assert real.committed() == 60
    second = real.member()
    run_until(lambda: len(second.emitted) >= 40, second)
    assert second.offsets == list(range(60, 100))


def test_seeks_back_to_the_lowest_failed(real: Scene) -> None:
    """Failed records come again, lowest first, and nothing else does."""
    real.fill(100)
    driver = real.member()
    run_until(lambda: len(driver.emitted) == 100, driver)
    driver.ack([n for n in range(100) if n not in (17, 42, 99)])
    driver.fail([42, 99, 17])
    run_until(lambda: len(driver.emitted) == 103, driver)
    assert driver.offsets[100:] == [17, 42, 99]
    driver.ack([17, 42, 99])
    driver.spout.close()
    assert real.committed() == 100


def test_killed_and_started_again_repeats_only_what_it_had_not_made_known(real: Scene) -> None:
    """Acked ranges beyond the commit come back from the commit's metadata."""
    real.fill(100)
    first = real.member(commit_period_ms=100)
    run_until(lambda: len(first.emitted) == 100, first)
    done = {n for n in range(100) if n % 7}
    first.ack(sorted(done))
    commits, topic_id = first.session.assignment.parts[real.tp()].commits, real.topic_id()
    run_until(lambda: len(decode(*commits.last, topic_id=topic_id).done) > 10, first)
    first.kill()
    second = real.member()
    run_until(lambda: len(second.emitted) >= 15, second)
    assert second.offsets == [n for n in range(100) if n not in done]


def test_a_planned_hand_over_repeats_nothing(real: Scene) -> None:
    """A second member joins in the middle: each record is emitted once, by one of the two."""
    for partition in range(2):
        real.fill(500, partition)
    one = real.member(poll_records_max=20, emits_per_next_max=20)
    run_until(lambda: len(one.emitted) >= 60, one, answer=True)
    two = real.member(member=2, poll_records_max=20, emits_per_next_max=20)
    run_until(lambda: len(one.emitted) + len(two.emitted) >= 1000, one, two, answer=True)
    counts = Counter(one.places + two.places)
    assert set(counts.values()) == {1}
    assert len(counts) == 1000
    assert two.emitted


def test_late_words_after_a_hand_over_change_nothing(real: Scene) -> None:
    """What was given away is not committed by its old owner, whatever it hears about it."""
    for partition in range(2):
        real.fill(50, partition)
    one = real.member(drain_ms_max=500, commit_period_ms=100)
    run_until(lambda: len(one.emitted) == 100, one)
    two = real.member(member=2, commit_period_ms=100)
    run_until(lambda: len(two.emitted) == 50, one, two)
    run_until(lambda: one.figure("partitions") == 1 and one.session.assignment.complete, one, two)
    [moved] = {partition for partition, _ in two.places}
    one.ack(range(50), moved)
    kept = 1 - moved
    one.ack(range(50), kept)
    run_until(lambda: real.committed(kept) == 50, one, two)  # a commit that came after these acks
    assert real.committed(moved) == 0
    assert one.figure("stale") == 50


def test_an_unreadable_record_goes_to_the_dead_letter_topic(real: Scene) -> None:
    real.fill(10, value=lambda n: b"\xff" if n == 4 else b"fine")
    driver = real.member()
    run_until(lambda: driver.figure("dead_lettered") == 1, driver, answer=True)
    run_until(lambda: len(driver.emitted) == 9, driver, answer=True)
    driver.spout.close()
    assert real.committed() == 10
    [letter] = read_dead_letters(real.cluster, f"{real.group}.dead-letters")
    assert (letter.topic, letter.offset, letter.error_class) == (real.topic, 4, "UnicodeDecodeError")


def test_a_bounded_run_ends(real: Scene) -> None:
    """At the end of the log as of the start, with everything committed; records that come later stay."""
    real.fill(50)
    driver = real.member(run__until="end")
    real.fill(5)
    run_until(driver.spout.end_reached, driver, answer=True)
    assert driver.offsets == list(range(50))
    assert real.committed() == 50


def test_latest_starts_at_the_end_and_remembers_it(real: Scene) -> None:
    """The resolved start is committed at once, so a crash before any ack loses nothing that came after."""
    real.fill(10)
    first = real.member(start="LATEST")
    run_until(lambda: real.committed() == 10, first)
    first.kill()
    real.fill(3)
    second = real.member(start="LATEST")
    run_until(lambda: len(second.emitted) >= 3, second)
    assert second.offsets == [10, 11, 12]


def test_leaves_when_idle_and_joins_again(real: Scene) -> None:
    """Deactivated with nothing out, it leaves the group; activated, it goes on where it was."""
    real.fill(10)
    driver = real.member()
    run_until(lambda: len(driver.emitted) == 10, driver, answer=True)
    driver.spout.deactivate()
    assert driver.spout.session is None
    assert real.committed() == 10
    real.fill(5)
    driver.spout.activate()
    run_until(lambda: len(driver.emitted) >= 15, driver, answer=True)
    assert driver.offsets == list(range(15))


def test_auto_commit_loses_what_was_polled_and_not_processed(real: Scene) -> None:
    """The client commits what its polls returned: killed then, half of the records are never processed."""
    real.fill(100)
    first = real.member(guarantee="AUTO_COMMIT", topology__max__spout__pending=MANY, commit_period_ms=200)
    run_until(lambda: len(first.emitted) == 100, first)
    first.ack(range(50))
    first.fail([50])
    run_until(lambda: real.committed() == 100, first)
    first.kill()
    real.fill(1)
    second = real.member(guarantee="AUTO_COMMIT", topology__max__spout__pending=MANY)
    run_until(lambda: bool(second.emitted), second)
    assert second.offsets == [100]


def test_at_most_once_repeats_nothing_after_a_kill(real: Scene) -> None:
    """Killed in the middle, a spout leaves nothing behind that comes twice."""
    real.fill(100)
    first = real.member(guarantee="AT_MOST_ONCE", topology__max__spout__pending=MANY, emits_per_next_max=30)
    run_until(lambda: len(first.emitted) == 30, first)
    first.kill()
    real.fill(1)
    second = real.member(guarantee="AT_MOST_ONCE", topology__max__spout__pending=MANY)
    run_until(lambda: 100 in second.offsets, second)
    assert set(first.offsets).isdisjoint(second.offsets)


def test_no_guarantee_commits_on_its_timer(real: Scene) -> None:
    real.fill(100)
    driver = real.member(guarantee="NO_GUARANTEE", commit_period_ms=200)
    run_until(lambda: real.committed() == 100, driver)
    assert len(driver.emitted) == 100


def test_tasks_count_the_partitions_out(real: Scene) -> None:
    """By assign, two tasks share three partitions, one of which appears while they run, and commit to the group."""
    for partition in range(2):
        real.fill(10, partition)
    one, two = (real.member(member=None, task=(task, 2), mode="assign", commit_period_ms=200) for task in range(2))
    run_until(lambda: len(one.emitted) == len(two.emitted) == 10, one, two, answer=True)
    with real.admin() as admin:
        admin.create_partitions({real.topic: 3})
    run_until(lambda: one.figure("partitions") == 2, one, two, answer=True)
    real.fill(5, 2)
    run_until(lambda: real.committed(2) == 5, one, two, answer=True)
    assert sorted(one.places) == [*((0, n) for n in range(10)), *((2, n) for n in range(5))]
    assert sorted(two.places) == [(1, n) for n in range(10)]
    assert [real.committed(partition) for partition in range(3)] == [10, 10, 5]


def test_a_topic_created_again_is_read_from_its_beginning(real: Scene) -> None:
    """A larger topic of the same name, made while the spout runs, is read whole and under its own id."""
    real.fill(5)
    driver = real.member(on_data_loss="earliest", fields=["offset", "origin"], commit_period_ms=500)
    run_until(lambda: real.committed() == 5, driver, answer=True)
    old = driver.emitted[0][1][1].topic_id
    real.recreate(2, driver)
    real.fill(12)

    def of_new() -> list[int]:
        return [values[0] for _, values in driver.emitted if values[1].topic_id != old]

    run_until(lambda: len(of_new()) >= 12 and real.committed() == 12, driver, answer=True)
    assert of_new() == list(range(12))
