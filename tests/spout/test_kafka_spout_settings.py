"""Settings of the spout that make no sense, or may not be meant."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.errors import ConfigError
from downspout.spout import setup_of
from tests.spout.reasons import NO_KAFKA_YET
from tests.spout.spout_driver import TOPIC, Driver, Kafka

BAD = [
    ({"topics": None}, "kafka.topics and kafka.pattern"),
    ({"pattern": "x"}, "kafka.topics and kafka.pattern"),
    ({"topics": []}, "kafka.topics and kafka.pattern"),
    ({"topics": None, "pattern": "("}, "kafka.pattern"),
    ({"topics": ["orders", "orders"]}, "kafka.topics names a topic twice"),
    ({"topics": ["or ders"]}, "kafka.topics: 'or ders'"),
    ({"topics": [".."]}, "kafka.topics: '..'"),
    ({"bootstrap": ""}, "kafka.bootstrap"),
    ({"start": "TIMESTAMP"}, "kafka.start is TIMESTAMP"),
    ({"start": "OFFSETS"}, "kafka.start is OFFSETS"),
    ({"start": "UNCOMMITTED_OFFSETS", "start_offsets": []}, "kafka.start is UNCOMMITTED_OFFSETS"),
    ({"start": "OFFSETS", "start_offsets": ["orders=1"]}, "kafka.start_offsets: 'orders=1'"),
    ({"start": "OFFSETS", "start_offsets": ["orders[0]=-1"]}, "kafka.start_offsets: 'orders[0]=-1'"),
    (
        {"start": "OFFSETS", "start_offsets": ["orders[0]=1", "orders[0]=2"]},
        "kafka.start_offsets names orders[0] twice",
    ),
    ({"start": "OFFSETS", "start_offsets": ["order[0]=1"]}, "order[0], whose topic is not in kafka.topics"),
    (
        {"start": "OFFSETS", "start_offsets": ["x[0]=1"], "topics": None, "pattern": "o.*"},
        "does not match kafka.pattern",
    ),
    ({"stop_offsets": ["orders[0]=9"]}, "kafka.stop_offsets is set, but the run has no end"),
    ({"stop_offsets": ["orders[0]"], "run__until": "end"}, "kafka.stop_offsets: 'orders[0]'"),
    ({"stop_offsets": ["order[0]=1"], "run__until": "end"}, "order[0], whose topic is not in kafka.topics"),
    (
        {"start": "OFFSETS", "start_offsets": ["orders[0]=5"], "stop_offsets": ["orders[0]=4"], "run__until": "end"},
        "kafka.stop_offsets ends orders[0] at 4, below its start at 5",
    ),
    ({"start": "EARLYEST"}, "kafka.start"),
    ({"start_timestamp_ms": 10**18}, "kafka.start_timestamp_ms"),
    ({"guarantee": "AT_LEAST"}, "kafka.guarantee"),
    ({"mode": "manual"}, "kafka.mode"),
    ({"poll_records_max": "many"}, "kafka.poll_records_max"),
    ({"session_timeout_ms": 10**7}, "kafka.session_timeout_ms"),
    ({"retry_delay_ms": 20_000}, "kafka.retry_delay_ms = 20000"),
    ({"retry_delay_ms": 20_000}, "kafka.retry_delay_ms = 20000"),
    ({"drain_ms_max": 300_000}, "kafka.drain_ms_max"),
    ({"drain_ms_max": 2_000, "client.max_poll_interval_ms": 1_000}, "kafka.drain_ms_max"),
    ({"dead_letter_topic": "orders"}, "kafka.dead_letter_topic"),
    ({"dead_letter_topic": "dead letters"}, "kafka.dead_letter_topic"),
    ({"client.group_id": "x"}, "kafka.client.group_id"),
    ({"client.enable_auto_commit": True}, "kafka.client.enable_auto_commit"),
    ({"client.enable.auto.commit": False}, "kafka.client.enable_auto_commit"),
    ({"client.session_timeout_ms": 9_000}, "kafka.session_timeout_ms"),
    ({"client.max_poll_records": 9}, "kafka.poll_records_max"),
    ({"client.auto_offset_reset": "first"}, "kafka.client.auto_offset_reset"),
    ({"enable.auto.commit": True}, "kafka.guarantee"),
    ({"topic": "orders"}, "kafka.topics"),
]


@pytest.mark.fake_only(NO_KAFKA_YET)
@pytest.mark.parametrize(("bad", "named"), BAD, ids=[str(bad) for bad, _ in BAD])
def test_bad_settings_fail_in_initialize(kafka: Kafka, bad: dict[str, Any], named: str) -> None:
    """Settings out of range, or that contradict each other, are an error before anything is read: names and cure."""
    with pytest.raises(ConfigError) as raised:
        Driver(kafka, **bad)
    assert named in str(raised.value)
    assert raised.value.cure


@pytest.mark.parametrize(
    ("doubtful", "named"),
    [
        ({"client.auto_offset_reset": "latest"}, "kafka.client.auto_offset_reset"),
        ({"start_timestamp_ms": 5}, "kafka.start_timestamp_ms"),
        ({"start_offsets": ["orders[0]=5"]}, "kafka.start_offsets"),
        ({"guarantee": "AUTO_COMMIT", "start": "EARLIEST"}, "kafka.guarantee"),
    ],
)
def test_doubtful_settings_are_warned_about(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, doubtful: dict[str, Any], named: str
) -> None:
    """What is allowed and may not be meant is named in a warning, and the spout reads on by its own settings."""
    driver = Driver(kafka, **doubtful)
    driver.run()
    assert named in caplog.text
    assert len(driver.emitted) == 10


def test_a_reset_that_agrees_is_no_matter(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """`auto_offset_reset` that says what `kafka.start` says is not warned about."""
    Driver(kafka, start="UNCOMMITTED_LATEST", kafka__client__auto_offset_reset="latest")
    assert "auto_offset_reset" not in caplog.text


@pytest.mark.parametrize(
    ("given", "fetches"),
    [
        ({}, None),
        ({"kafka.emit": "chunk"}, (524_288, 125)),
        ({"kafka.emit": "chunk", "kafka.client.fetch_min_bytes": 1}, None),
        ({"kafka.emit": "chunk", "kafka.client.fetch_max_wait_ms": 500}, None),
        ({"kafka.emit": "chunk", "kafka.client.fetch_max_bytes": 2}, (1, 125)),
    ],
)
def test_fetches_gather_for_chunks_unless_the_user_says_how(
    given: dict[str, Any], fetches: tuple[int, int] | None
) -> None:
    """Records are fetched as the client does by default; for chunks the broker waits, never for what cannot come."""
    setup = setup_of({"kafka.topics": [TOPIC], **given}, {})
    assert setup.mode.gathering(setup.settings["client"]) == fetches
