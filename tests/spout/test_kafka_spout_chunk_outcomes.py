"""Chunks with other features: listeners, other settings, and the same outcome as in record mode."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.errors import ConfigError
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests.spout.chunk_driver import Chunks, with_a_hundred_records
from tests.spout.reasons import CLEANER, NO_KAFKA_YET
from tests.spout.spout_driver import TOPIC, Kafka
from tests.spout.test_kafka_spout_hooks import heard

EARS = "tests.spout.test_kafka_spout_hooks.Ears"


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    return with_a_hundred_records(bare_kafka)


# --- what goes with it ---


def test_a_listener_hears_each_record(kafka: Kafka) -> None:
    """Emits, retries and acks of the records of chunks, as where each is a tuple."""
    heard.clear()
    kafka.produce(TOPIC, None, partition=0)
    driver = Chunks(kafka, listener=EARS, retries_max=0, chunk_records_max=4)
    driver.serve({17})
    assert Counter(word[1] for word in heard if word[0] == "ack") == Counter(range(101))
    emits = Counter(word[1] for word in heard if word[0] == "emit")
    assert emits == Counter({**dict.fromkeys(range(101), 1), 16: 3, 17: 3, 18: 2, 19: 2})
    assert Counter(word[1] for word in heard if word[0] == "retry") == Counter([16, 17, 18, 19, 16, 17])
    assert [word for word in heard if word[0] == "max"] == [("max", 17, b"17")]
    assert ("emit", 42, "42") in heard


@pytest.mark.fake_only(CLEANER)
@pytest.mark.parametrize("gone", [[*range(40)], [*range(30)], [*range(10, 40)], [0, 5, 20, 39], [7], [*range(1, 40)]])
def test_a_listener_hears_of_what_the_cleaner_took(kafka: Kafka, gone: list[int]) -> None:
    """Each record of a chunk that failed is done once, whether it was processed or has gone meanwhile."""
    heard.clear()
    driver = Chunks(kafka, listener=EARS)
    driver.run()
    driver.answer({17})
    kafka.remove_offsets(TOPIC, 0, gone)
    driver.serve()
    assert Counter(word[1] for word in heard if word[0] == "ack") == Counter(range(100))


@pytest.mark.fake_only(NO_KAFKA_YET)
@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"guarantee": "AT_MOST_ONCE"}, "kafka.guarantee = AT_MOST_ONCE"),
        ({"value_format": "json"}, "kafka.value_format = json"),
        ({"key_format": "json"}, "kafka.key_format = json"),
        ({"translator": ["json.loads"]}, "kafka.translator"),
    ],
)
def test_what_chunks_cannot_do_is_refused(kafka: Kafka, given: dict[str, Any], culprit: str) -> None:
    """Settings that have no meaning for chunks are an error that names them."""
    with pytest.raises(ConfigError, match=culprit):
        Chunks(kafka, **given)


@pytest.mark.fake_only(NO_KAFKA_YET)
def test_another_serializers_pipe_takes_no_chunks(kafka: Kafka) -> None:
    """Under msgpack, which cannot send columns, the setting is refused at the start, before each chunk is."""
    spout = KafkaSpout(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    spout._runs = True
    conf = {"kafka.bootstrap": kafka.bootstrap, "kafka.topics": [TOPIC], "kafka.emit": "chunk"}
    with pytest.raises(ConfigError, match="cannot send columns"):
        spout.initialize(conf, {})


# --- the same outcome as in record mode ---

VALUES = st.sampled_from([b"ok", b"", None, b"\xff"])
LOGS = st.lists(st.tuples(VALUES, st.integers(0, 3)), min_size=1, max_size=40)


def outcome(log: list[tuple[bytes | None, int]], poison: Collection[int], **given: Any) -> tuple[Any, ...]:
    """Return what becomes of each record of a log, in which gaps follow records."""
    with FakeKafka("outcome") as kafka:
        kafka.create_topic(TOPIC, 1)
        for value, gap in log:
            kafka.produce(TOPIC, value, partition=0)
            if gap:
                kafka.gap(TOPIC, count=gap)
        driver = Chunks(kafka, retries_max=1, breaker_ratio=0, fields=["offset", "value"], **given)
        driver.serve(poison)
        letters = [(letter.offset, letter.attempts, letter.error_class) for letter in driver.letters()]
        counted = [driver.figure(name) for name in ("failed", "filtered", "dead_lettered", "acked", "lag")]
        return driver.acked, letters, counted, driver.committed()


@pytest.mark.fake_only("a log of its own for each of many examples")
@settings(max_examples=60, deadline=None)
@given(LOGS, st.sets(st.integers(0, 60), max_size=4), st.integers(2, 50), st.sampled_from([0, 1_000_000]))
def test_chunks_of_any_size_come_to_the_same(
    log: list[tuple[bytes | None, int]], poison: set[int], size: int, room: int
) -> None:
    """Unreadable, null, failing and good records, gaps between: what is acked, lettered and committed is the same."""
    alone = outcome(log, poison, chunk_records_max=1)
    assert outcome(log, poison, chunk_records_max=size, retry_cache_bytes=room) == alone
