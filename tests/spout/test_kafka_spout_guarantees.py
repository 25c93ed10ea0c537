"""The guarantees beside AT_LEAST_ONCE: what is committed when, what a crash loses, and that acks decide nothing."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors
from streamparse import Grouping, Topology

from downspout.component import Bolt, Failure
from downspout.ledger import decode
from downspout.spout import GUARANTEES
from downspout.testing import run_topology
from spouts.kafka import KafkaSpout
from tests.spout.reasons import CLIENT_TIMER
from tests.spout.spout_driver import GROUP, MANY, TOPIC, Driver, Kafka, fill

UNTRACKED = [name for name, guarantee in GUARANTEES.items() if not guarantee.tracks]


def emitted_before(driver: Driver) -> list[tuple[int, int | None]]:
    """Note for each tuple what was committed when it left."""
    seen: list[tuple[int, int | None]] = []
    spout: Any = driver.spout
    emit = spout.emit

    def note(values: list[Any], tup_id: str | None = None, **more: Any) -> None:
        seen.append((values[0], driver.committed()))
        emit(values, tup_id=tup_id, **more)

    spout.emit = note
    return seen


def test_at_most_once_commits_before_it_emits(kafka: Kafka) -> None:
    """When a tuple leaves, the broker already has a commit beyond its record."""
    driver = Driver(kafka, guarantee="AT_MOST_ONCE")
    seen = emitted_before(driver)
    driver.run()
    assert [offset for offset, _ in seen] == list(range(10))
    assert all(committed is not None and committed > offset for offset, committed in seen)


def test_at_most_once_repeats_nothing_after_a_crash(kafka: Kafka) -> None:
    first = Driver(kafka, guarantee="AT_MOST_ONCE", emits_per_next_max=4)
    first.run(3)
    first.crash()
    before = [values[0] for _, values in first.emitted]
    second = Driver(kafka, guarantee="AT_MOST_ONCE")
    second.run()
    assert 0 < len(before) < 10
    assert second.emitted == []


def test_at_most_once_emits_nothing_that_it_could_not_commit(kafka: Kafka) -> None:
    """While commits fail nothing leaves; when they succeed again, each record leaves once."""
    driver = Driver(kafka, guarantee="AT_MOST_ONCE")
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError("no answer"), times=3)
    driver.run(2)
    assert driver.emitted == []
    for _ in range(10):
        kafka.clock.sleep(1)
        driver.run(2)
    assert [values[0] for _, values in driver.emitted] == list(range(10))


def test_at_most_once_loses_nothing_at_a_planned_stop(kafka: Kafka) -> None:
    """What was read and not emitted when the spout is stopped is left for the next one."""
    first = Driver(kafka, guarantee="AT_MOST_ONCE", emits_per_next_max=4)
    first.run(2)
    first.spout.deactivate()
    first.spout.close()
    second = Driver(kafka, guarantee="AT_MOST_ONCE")
    second.run()
    values = [values[0] for _, values in first.emitted + second.emitted]
    assert len(first.emitted) < 10
    assert values == list(range(10))


def test_no_guarantee_commits_what_was_read_on_its_timer(kafka: Kafka) -> None:
    """With nothing acked, the commit is the position once the period is over, and not before."""
    driver = Driver(kafka, guarantee="NO_GUARANTEE")
    driver.run()
    assert driver.committed() == 0  # the start, committed at once
    driver.commit()
    assert driver.commit_becomes(10)


def test_no_guarantee_does_not_wait_for_its_commits(kafka: Kafka) -> None:
    """The commit on the timer is asynchronous: a broker that does not answer it stops nothing."""
    driver = Driver(kafka, guarantee="NO_GUARANTEE")
    driver.run()
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError("no answer"), times=100)
    driver.commit()
    fill(kafka, 3)
    driver.run()
    assert driver.commit_becomes(10)
    assert len(driver.emitted) == 13


@pytest.mark.fake_only(CLIENT_TIMER)
def test_auto_commit_loses_what_was_polled_and_not_processed(kafka: Kafka) -> None:
    """The client commits what its polls returned: what failed, what is out and what was never emitted is gone."""
    first = Driver(kafka, guarantee="AUTO_COMMIT", topology__max__spout__pending=MANY, commit_period_ms=5_000)
    first.run(4)
    first.ack(range(5))
    first.fail([5])
    kafka.clock.sleep(6)
    first.run(2)  # the client's own timer is over: it commits all ten
    first.crash()
    assert kafka.committed(GROUP)[next(iter(kafka.committed(GROUP)))].metadata == ""
    second = Driver(kafka, guarantee="AUTO_COMMIT")
    second.run()
    processed, lost = set(range(5)), set(range(5, 10))
    assert second.emitted == []
    assert processed | lost == set(range(10))

    careful = Driver(kafka, guarantee="AT_LEAST_ONCE", group="careful", commit_period_ms=5_000)
    careful.run(4)
    careful.ack(range(5))
    careful.fail([5])
    kafka.clock.sleep(6)
    careful.run(2)
    careful.crash()
    assert set(Driver(kafka, guarantee="AT_LEAST_ONCE", group="careful").run()) == lost


def test_auto_commit_repeats_what_it_had_not_committed(kafka: Kafka) -> None:
    """A crash before the client's timer is over brings back even what was processed."""
    first = Driver(kafka, guarantee="AUTO_COMMIT", topology__max__spout__pending=MANY)
    first.run(4)
    first.ack_all()
    first.crash()
    second = Driver(kafka, guarantee="AUTO_COMMIT")
    second.run()
    assert len(second.emitted) == 10


@pytest.mark.fake_only(CLIENT_TIMER)
def test_auto_commit_repeats_what_came_since_its_last_commit(kafka: Kafka) -> None:
    """A crash 3 s after the last commit brings back the records of those 3 s, processed or not, and no others."""
    first = Driver(kafka, guarantee="AUTO_COMMIT", topology__max__spout__pending=MANY, commit_period_ms=5_000)
    first.run(4)
    first.ack_all()
    kafka.clock.sleep(6)
    first.run(1)
    assert first.committed() == 10
    fill(kafka, 6)
    first.run(4)
    kafka.clock.sleep(3)
    first.run(1)
    first.ack(range(10, 16))
    first.crash()
    second = Driver(kafka, guarantee="AUTO_COMMIT")
    second.run()
    assert first.figure("acked") == 16
    assert [values[0] for _, values in second.emitted] == list(range(10, 16))


@pytest.mark.fake_only(CLIENT_TIMER)
@pytest.mark.parametrize("guarantee", ["AUTO_COMMIT", "AT_LEAST_ONCE"])
def test_auto_commit_skips_what_raised_before_its_batch_was_done(kafka: Kafka, guarantee: str) -> None:
    """A bolt raises in the middle of a batch, and the process ends later: what the timer covered is never done."""
    first = Driver(kafka, guarantee=guarantee, topology__max__spout__pending=MANY, commit_period_ms=5_000)
    first.run(4)
    for offset in range(10):  # one batch of ten, in order
        if offset == 6:
            first.spout.fail_with(first.last_id(offset), Failure("exception", "bolt", 7, "ValueError: no"))
            break
        first.ack([offset])
    kafka.clock.sleep(6)
    first.run(2)
    first.crash()
    second = Driver(kafka, guarantee=guarantee)
    second.run()
    again = [values[0] for _, values in second.emitted]
    assert again == ([] if guarantee == "AUTO_COMMIT" else [6, 7, 8, 9])


@pytest.mark.parametrize("guarantee", UNTRACKED)
def test_untracked_tuples_have_no_id(kafka: Kafka, guarantee: str) -> None:
    """Without max spout pending Storm need not track them."""
    driver = Driver(kafka, guarantee=guarantee)
    driver.run()
    assert [tup_id for tup_id, _ in driver.emitted] == [None] * 10


@pytest.mark.parametrize("guarantee", UNTRACKED)
def test_tracked_tuples_have_ids_that_decide_nothing(kafka: Kafka, guarantee: str) -> None:
    """With max spout pending tuples carry ids; acks and fails are counted, and nothing comes again."""
    driver = Driver(kafka, guarantee=guarantee, topology__max__spout__pending=MANY)
    assert driver.run() == list(range(10))
    before = driver.committed()
    driver.ack(range(5))
    driver.fail([5, 6])
    driver.spout.fail_with(driver.last_id(7), Failure("timeout"))
    kafka.clock.sleep(1)
    assert driver.run() == []
    assert driver.committed() == before
    assert [driver.figure(name) for name in ("acked", "failed", "timeouts", "in_flight")] == [5, 2, 1, 0]


@pytest.mark.parametrize("guarantee", UNTRACKED)
def test_the_limit_on_uncommitted_offsets_is_ignored(kafka: Kafka, guarantee: str) -> None:
    """Reading goes on although nothing is acked and more than the limit is out."""
    driver = Driver(kafka, guarantee=guarantee, uncommitted_max=2, poll_records_max=2)
    driver.run(12)
    assert len(driver.emitted) == 10


@pytest.mark.parametrize("guarantee", UNTRACKED)
def test_what_cannot_be_read_goes_to_the_dead_letter_topic(kafka: Kafka, guarantee: str) -> None:
    """A value that is not in its format is no crash under any guarantee."""
    kafka.produce(TOPIC, b"\xff", partition=0)
    fill(kafka, 1)
    driver = Driver(kafka, guarantee=guarantee)
    driver.run()
    assert [values[0] for _, values in driver.emitted] == [*range(10), 11]
    assert [letter.value for letter in kafka.records(f"{GROUP}.dead-letters")] == [b"\xff"]


@pytest.mark.parametrize("guarantee", UNTRACKED)
def test_tombstones_are_emitted(kafka: Kafka, guarantee: str) -> None:
    """A null value is a tuple with a null value under each guarantee."""
    kafka.produce(TOPIC, None, partition=0)
    driver = Driver(kafka, guarantee=guarantee)
    driver.run()
    driver.spout.deactivate()
    assert driver.emitted[10][1] == [10, None]
    assert (driver.committed(), driver.figure("filtered")) == (11, 0)


@pytest.mark.parametrize("guarantee", ["AT_MOST_ONCE", "NO_GUARANTEE"])
def test_commits_say_who_made_them(kafka: Kafka, guarantee: str) -> None:
    """The metadata carries the topology's id, so that EARLIEST goes on after a restart."""
    first = Driver(kafka, guarantee=guarantee, start="EARLIEST")
    first.run()
    first.spout.close()
    (commit,) = kafka.committed(GROUP).values()
    assert decode(commit.offset, commit.metadata, topic_id=kafka.topic_id(TOPIC)).topology_id == "orders-1"
    second = Driver(kafka, guarantee=guarantee, start="EARLIEST")
    second.run()
    assert second.emitted == []


def test_progress_beyond_the_commit_survives_a_change_of_guarantee(kafka: Kafka) -> None:
    """What an AT_LEAST_ONCE run has acked beyond its commit is not emitted by an AT_MOST_ONCE run."""
    first = Driver(kafka)
    first.run()
    first.ack([0, 3, 4])
    first.commit()
    first.crash()
    second = Driver(kafka, guarantee="AT_MOST_ONCE")
    second.run()
    assert [values[0] for _, values in second.emitted] == [1, 2, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("guarantee", UNTRACKED)
def test_a_second_member_takes_over(kafka: Kafka, guarantee: str) -> None:
    """A planned hand-over in the middle neither loses nor repeats a record."""
    kafka.add_partitions(TOPIC, 2)
    fill(kafka, 10, partition=1)
    one = Driver(
        kafka, guarantee=guarantee, poll_records_max=3, emits_per_next_max=2, topology__max__spout__pending=MANY
    )
    one.run(3)
    two = Driver(
        kafka,
        member=2,
        guarantee=guarantee,
        poll_records_max=3,
        emits_per_next_max=2,
        topology__max__spout__pending=MANY,
    )
    two.ask_to_join()
    for _ in range(40):
        one.run(1)
        two.run(1)
    places = sorted(tuple(tup_id.split("/")[-2:]) for tup_id, _ in one.emitted + two.emitted)
    assert two.emitted
    assert places == sorted((str(p), str(n)) for p in range(2) for n in range(10))


class Keep(Bolt):
    def initialize(self, conf: Any, context: Any) -> None:
        self.got: list[int] = []

    def process(self, tup: Any) -> None:
        self.got.append(tup.values[0])


@pytest.mark.parametrize("tracking", [False, True])
@pytest.mark.parametrize("guarantee", UNTRACKED)
def test_a_bounded_run_ends_with_all_processed_and_committed(kafka: Kafka, guarantee: Any, tracking: bool) -> None:
    """In the local engine, `until=end` processes each record under every guarantee."""

    class Made(Topology):
        reader = KafkaSpout.spec(
            topics=[TOPIC],
            bootstrap=kafka.bootstrap,
            group=GROUP,
            fields=["offset"],
            guarantee=guarantee,
            config={"topology.max.spout.pending": MANY if tracking else None},
            poll_records_max=3,
            emits_per_next_max=2,
        )
        keep = Keep.spec(inputs={reader: Grouping.SHUFFLE})

    result = run_topology(Made, clock=kafka.clock)
    (keep,) = result.components["keep"]
    assert keep.got == list(range(10))
    assert [commit.offset for commit in kafka.committed(GROUP).values()] == [10]


def test_acks_keep_the_timer_going(kafka: Kafka) -> None:
    """While max spout pending holds `next_tuple` back, an ack looks at the commit timer."""
    driver = Driver(kafka, guarantee="NO_GUARANTEE", topology__max__spout__pending=MANY)
    driver.run()
    kafka.clock.sleep(31)
    driver.ack([0])
    assert driver.commit_becomes(10)
