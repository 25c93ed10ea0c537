"""A spout's report on each partition: the same terms as ``downspout lag``, and the sums of its report."""

from __future__ import annotations

import pytest

from downspout.metrics import PARTITION_METRICS
from downspout.offsets import Question, collect
from downspout.spout.observe import totals_by_topic
from downspout.testing import FakeKafka
from tests.spout.spout_driver import GROUP, PARTITIONS, RECORDS, TOPIC, Driver, Kafka, fill


def test_each_partition_has_its_figures(kafka: Kafka) -> None:
    """What is committed, read, done beyond the commit and out is told, and what holds the commit back."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1, 2, 5, 6])
    driver.commit()
    (figures,) = driver.spout.report_partitions().values()
    assert set(figures) == set(PARTITION_METRICS)
    assert [figures[name] for name in ("committed", "position", "end", "lag")] == [3, 10, 10, 7]
    assert [figures[name] for name in ("done", "uncommitted", "in_flight", "failed")] == [2, 7, 5, 0]
    assert figures["blocks"] == 3
    assert figures["why"].startswith("out for ")
    assert [figures[name] for name in ("emitted", "begin", "log_records", "retention_records")] == [9, 0, 10, 3]
    assert (figures["fetched"], figures["fetches"] >= 1) == (10, True)
    assert figures["fetch_max_s"] >= figures["fetch_mean_s"] >= 0


def test_retention_is_as_near_as_the_logs_beginning_is_to_the_commit(kafka: Kafka) -> None:
    """As records are deleted, fewer are left below the commit; below 0, some of the lag is gone."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(6))
    driver.commit()
    for deleted, left in ((2, 4), (6, 0), (8, -2)):
        kafka.delete_records(TOPIC, 0, deleted)
        fill(kafka, 1)
        while begin_of(driver) < deleted:
            driver.run(1)
        (figures,) = driver.spout.report_partitions().values()
        assert figures["retention_records"] == left
        assert figures["log_records"] == figures["end"] - deleted


def begin_of(driver: Driver) -> int:
    """Return where the log of the one partition begins."""
    (figures,) = driver.spout.report_partitions().values()
    return int(figures["begin"])


@pytest.mark.fake_only("minutes pass, and records have the times of the test")
def test_lag_and_retention_are_told_in_time(bare_kafka: FakeKafka) -> None:
    """By the timestamps of the next record to be committed, and of the first in the log, which is asked for."""
    bare_kafka.create_topic(TOPIC, 1)
    clock = bare_kafka.clock
    begun_ms = int(clock.wall() * 1000)
    for number in range(10):
        bare_kafka.produce(TOPIC, value=b"v", timestamp_ms=begun_ms + number * 10_000)
    driver = Driver(bare_kafka)
    driver.run()
    driver.ack([0, 1, 2, 3])
    driver.commit()
    bare_kafka.delete_records(TOPIC, 0, 1)
    driver.run(1)
    clock.sleep(70)
    driver.run(1)
    (figures,) = driver.spout.report_partitions().values()
    assert figures["lag_s"] == pytest.approx(clock.wall() - begun_ms / 1000 - 40)
    assert (figures["begin"], figures["retention_records"], figures["retention_s"]) == (1, 3, 30.0)
    driver.ack([4, 5, 6, 7, 8, 9])
    driver.commit()
    (figures,) = driver.spout.report_partitions().values()
    assert (figures["lag_s"], figures["retention_records"], figures["retention_s"]) == (0.0, 9, None)


def test_topics_are_the_sums_of_their_partitions(wide: Kafka) -> None:
    """What may be added up is; and the lag in time is the longest."""
    driver = Driver(wide)
    while len(driver.emitted) < PARTITIONS * RECORDS:
        driver.run(1)
    found = driver.spout.report_partitions()
    total = totals_by_topic(found)[TOPIC]
    assert (total["partitions"], total["lag"], total["fetched"]) == (PARTITIONS, *[PARTITIONS * RECORDS] * 2)
    assert total["lag_s"] == max(each["lag_s"] for each in found.values())


def test_what_failed_blocks_by_its_failures(kafka: Kafka) -> None:
    """A record that failed waits for another try; how often it failed is told."""
    driver = Driver(kafka, retry_delay_ms=600_000, retry_delay_ms_max=600_000)
    driver.run()
    driver.fail([3])
    driver.ack(set(range(10)) - {3})
    driver.commit()
    (figures,) = driver.spout.report_partitions().values()
    assert (figures["done"], figures["failed"], figures["in_flight"]) == (6, 1, 0)
    assert (figures["blocks"], figures["why"]) == (3, "failed 1 time, waits for another try")
    assert figures["error"] == "fail"
    assert figures["cure"].startswith("repair the bolt, or fewer tries")


def test_nothing_blocks_where_acks_come_in_order(kafka: Kafka) -> None:
    """Records that are out, with none done or failed beyond, are no reason to name one."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1])
    (figures,) = driver.spout.report_partitions().values()
    assert (figures["blocks"], figures["why"], figures["done"]) == (None, "", 0)
    assert (figures["error"], figures["cure"]) == ("", "")


def test_partitions_add_up_to_the_report(wide: Kafka) -> None:
    driver = Driver(wide)
    while len(driver.emitted) < PARTITIONS * RECORDS:
        driver.run(1)
    found = driver.spout.report_partitions()
    assert list(found) == [f"{TOPIC}[{number}]" for number in range(PARTITIONS)]
    assert sum(each["lag"] for each in found.values()) == driver.figure("lag") == PARTITIONS * RECORDS
    assert sum(each["in_flight"] for each in found.values()) == driver.figure("in_flight")


def test_what_was_not_read_yet_is_part_of_the_lag(wide: Kafka) -> None:
    """A partition from which nothing was fetched has the end that its log had at the start: no total is too small."""
    driver = Driver(wide, poll_records_max=1)
    while not driver.emitted:
        driver.run(1)
    assert [each["lag"] for each in driver.spout.report_partitions().values()] == [RECORDS] * PARTITIONS
    assert driver.figure("lag") == PARTITIONS * RECORDS


def test_the_figures_stay_after_deactivate(kafka: Kafka) -> None:
    """A spout that has left its group still tells where it stood in each partition."""
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    driver.spout.deactivate()
    assert not kafka.group(GROUP).members
    (figures,) = driver.spout.report_partitions().values()
    assert (figures["committed"], figures["lag"]) == (10, 0)


def test_a_start_has_no_lag_before_the_assignment(kafka: Kafka) -> None:
    driver = Driver(kafka)
    assert driver.spout.report_partitions() == {}


def test_the_words_are_those_of_the_command(kafka: Kafka) -> None:
    """What a spout reports of a partition right after a commit is what ``downspout lag`` reads from Kafka."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1, 2, 5, 6])
    driver.commit()
    fill(kafka, 2)
    (row,) = collect(kafka, GROUP, Question(with_age=False)).partitions
    (figures,) = driver.spout.report_partitions().values()
    assert (row.committed, row.done, row.blocks) == tuple(figures[name] for name in ("committed", "done", "blocks"))
    assert (row.end, row.lag) == (12, 9)
    assert row.member


def test_fetches_are_counted_and_timed(kafka: Kafka) -> None:
    """Answered fetches and records that polls returned are counters that grow on after a new start; times are told."""
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    assert driver.figure("fetched") == 10
    fetches = driver.figure("fetches")
    assert fetches >= 1
    assert driver.figure("fetch_max_s") >= driver.figure("fetch_mean_s") >= 0
    driver.spout.deactivate()
    assert driver.figure("fetched") == 10
    fill(kafka, 2)
    driver.spout.activate()
    while len(driver.emitted) < 12:
        driver.run(1)
    assert driver.figure("fetched") == 12
    assert driver.figure("fetches") > fetches
