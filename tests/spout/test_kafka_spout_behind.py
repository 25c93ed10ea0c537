"""`kafka.behind_max`: records too far behind are dropped and counted; and the end from which a spout continues."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.errors import DataLossError, RecordError
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill


def start_after(kafka: Kafka, committed: int, **settings: Any) -> Driver:
    """Commit so many of ten records, add ten more, and return the spout that comes next, after its first turns."""
    first = Driver(kafka)
    first.run()
    first.ack(range(committed))
    first.commit()
    first.spout.close()
    fill(kafka, 10)
    later = Driver(kafka, **settings)
    later.run()
    return later


def test_a_start_too_far_behind_begins_where_a_new_group_would(kafka: Kafka) -> None:
    """The commit at 4 is 16 behind the end: what lies between is left out, counted, and committed past."""
    driver = start_after(kafka, 4, start="UNCOMMITTED_LATEST", behind_max=15)
    assert driver.offsets == []
    assert driver.figure("left_behind") == 16
    driver.commit()
    assert driver.committed() == 20


def test_a_start_that_is_near_enough_goes_on_at_the_commit(kafka: Kafka) -> None:
    """Exactly as far behind as allowed is not too far."""
    driver = start_after(kafka, 4, start="UNCOMMITTED_LATEST", behind_max=16)
    assert driver.offsets == list(range(4, 20))
    assert driver.figure("left_behind") == 0


def test_what_is_done_beyond_the_commit_is_not_counted_as_left_out(kafka: Kafka) -> None:
    first = Driver(kafka)
    first.run()
    first.ack([0, 1, 4, 5, 6])
    first.commit()
    first.spout.close()
    driver = Driver(kafka, start="UNCOMMITTED_LATEST", behind_max=1)
    driver.run()
    assert driver.figure("left_behind") == 10 - 5


def test_by_the_beginning_of_the_log_nothing_is_too_far_behind(kafka: Kafka) -> None:
    """Under EARLIEST a commit below the log is lost data, as ever, and no reason to leave anything out."""
    driver = start_after(kafka, 4, start="UNCOMMITTED_EARLIEST", behind_max=0)
    assert driver.offsets == list(range(4, 20))
    driver.spout.close()
    kafka.delete_records(TOPIC, 0, 15)
    with pytest.raises(DataLossError):
        Driver(kafka, start="UNCOMMITTED_EARLIEST", behind_max=0).run()


def test_a_record_that_fails_too_far_behind_is_not_tried_again(kafka: Kafka) -> None:
    """Fails at 0 and 4, with 9 emitted and 5 allowed: 4 is left out, 5 comes again."""
    driver = Driver(kafka, behind_max=5)
    driver.run()
    driver.fail([4, 5])
    assert driver.run() == [5]
    assert driver.figure("left_behind") == 1
    driver.ack([0, 1, 2, 3, 5, 6, 7, 8, 9])
    driver.commit()
    assert driver.committed() == 10


def test_a_timeout_too_far_behind_is_left_out_too(kafka: Kafka) -> None:
    """Storm says no reason, and for the record it makes no difference."""
    driver = Driver(kafka, behind_max=5)
    driver.run()
    driver.ack(range(1, 10))
    driver.kafka.clock.sleep(31)
    driver.spout.fail(driver.last_id(0))
    driver.run()
    driver.commit()
    assert (driver.committed(), driver.figure("left_behind")) == (10, 1)


def test_what_is_out_too_far_behind_the_newest_ack_is_waited_for_no_longer(kafka: Kafka) -> None:
    """With 9 acked and 4 allowed, 0 to 4 hold back no commit any more; late answers to them change nothing."""
    driver = Driver(kafka, behind_max=4)
    driver.run()
    driver.fail([8])  # it waits, and is near enough
    driver.ack([9])
    assert driver.run() == [8]
    assert driver.figure("left_behind") == 5
    driver.commit()
    assert driver.committed() == 5
    driver.ack(range(10))
    driver.commit()
    assert (driver.committed(), driver.figure("acked"), driver.figure("stale")) == (10, 1 + 4, 5 + 1)


def test_many_fails_without_an_ack_end_the_run(kafka: Kafka) -> None:
    """The 8th failed attempt is one more than allowed; the error names the record and the setting."""
    driver = Driver(kafka, behind_max=7)
    driver.run()
    driver.fail([5, 6, 7, 8, 9])
    assert driver.run() == [5, 6, 7, 8, 9]
    driver.fail([5, 6])
    driver.run()
    driver.fail([5])
    with pytest.raises(RecordError, match=rf"{TOPIC}\[0\]@5: 8 attempts failed.*kafka\.behind_max = 7"):
        driver.run()


def test_after_an_ack_fails_are_not_counted_any_more(kafka: Kafka) -> None:
    """Something gets through, so nothing ends the run."""
    driver = Driver(kafka, behind_max=7)
    driver.run()
    driver.ack([9])
    for _ in range(4):
        driver.fail([5, 6, 7])
        driver.kafka.clock.sleep(1)
        assert driver.run() == [5, 6, 7]


def test_without_the_setting_nothing_is_left_out(kafka: Kafka) -> None:
    """A record at the very bottom is tried again, whatever else is done."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(1, 10))
    driver.fail([0])
    assert driver.run() == [0]
    assert driver.figure("left_behind") == 0


@pytest.mark.parametrize(
    ("start", "found"), [("UNCOMMITTED_LATEST", []), ("UNCOMMITTED_EARLIEST", [15, 16, 17, 18, 19])]
)
def test_out_of_range_goes_on_where_the_start_says(kafka: Kafka, start: str, found: list[int]) -> None:
    """With kafka.on_data_loss=start a commit below the log goes on at the end that kafka.start names."""
    first = Driver(kafka)
    first.run()
    first.ack(range(4))
    first.commit()
    first.spout.close()
    fill(kafka, 10)
    kafka.delete_records(TOPIC, 0, 15)
    driver = Driver(kafka, start=start, on_data_loss="start")
    assert driver.run() == found
    assert driver.figure("lost") == 16 - len(found)


@pytest.mark.record_only("how many partitions there are is the same for chunks")
def test_a_task_without_partitions_says_so_once(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """With two tasks and one partition, the second warns when it has had none for a session timeout."""
    drivers = [Driver(kafka, member=None, task=(task, 2), mode="assign", session_timeout_ms=1_000) for task in range(2)]
    for _ in range(3):
        kafka.clock.sleep(1.1)
        for driver in drivers:
            driver.run(2)
    said = [record.getMessage() for record in caplog.records if "reads nothing" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"task 2 of 2 reads nothing: group {GROUP} has no partition of {TOPIC} left for it")
