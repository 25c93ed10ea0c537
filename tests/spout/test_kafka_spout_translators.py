"""`kafka.translator`: a function of the user's makes the tuples of a record."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from downspout.component import Failure
from downspout.errors import ConfigError
from downspout.kafka import Record
from spouts.kafka import KafkaSpout
from tests.spout.reasons import NO_KAFKA_YET
from tests.spout.spout_driver import MANY, TOPIC, Driver, Kafka

HERE = "tests.spout.test_kafka_spout_translators"


def one(record: Record) -> list[Any] | None:
    number = int(record.value or b"0")
    return [number, number * 10] if number % 2 == 0 else None


def three(record: Record) -> list[list[Any]]:
    return [[letter] for letter in "abc"]


def two(record: Record) -> list[list[Any]]:
    return [["a"], ["b"]]


def wrong(record: Record) -> Any:
    """Too many values for 0, none at all for 1, no list for 2, an error otherwise."""
    return {b"0": [1, 2, 3], b"1": [], b"2": "text"}[record.value or b""]


def leaving(record: Record) -> list[Any]:
    """Exits on 7, as argparse does on what is not a number."""
    if record.value == b"7":
        sys.exit("boom")
    return [record.value]


twice: set[bytes | None] = set()


def leaving_later(record: Record) -> list[Any]:
    if record.value in twice:
        sys.exit("again")
    twice.add(record.value)
    return [record.value]


def test_one_or_no_tuple(kafka: Kafka) -> None:
    """What the function returns are the tuple's values; None resolves the record without a tuple."""
    driver = Driver(kafka, translator=[f"{HERE}.one(n tenfold)"])
    assert driver.run() == [0, 2, 4, 6, 8]
    assert [values for _, values in driver.emitted] == [[n, n * 10] for n in (0, 2, 4, 6, 8)]
    driver.ack_all()
    driver.commit()
    assert (driver.committed(), driver.figure("filtered")) == (10, 5)


def test_nothing_becomes_nulls_where_they_are_wanted(kafka: Kafka) -> None:
    """With `emit_null`, a record of which a translator makes None is a tuple of nulls; of an empty list, none."""
    driver = Driver(kafka, translator=[f"{HERE}.one(n tenfold)"], emit_null=True)
    driver.run()
    assert driver.emitted[1][1] == [None, None]


@pytest.mark.parametrize(("name", "count"), [("two", 2), ("three", 3)])
def test_several_tuples_share_an_id(kafka: Kafka, name: str, count: int) -> None:
    driver = Driver(kafka, translator=[f"{HERE}.{name}(letter)"])
    assert driver.run()[: 2 * count] == [0] * count + [1] * count
    for _ in range(count - 1):
        driver.ack(range(10))
    driver.commit()
    assert driver.committed() == 0
    driver.ack(range(5))
    driver.commit()
    assert driver.committed() == 5


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_one_failed_tuple_fails_its_record_once_all_have_answered(kafka: Kafka, cache_bytes: int) -> None:
    """All tuples of the record come again, and late answers of the first try are not taken for those of the second."""
    driver = Driver(kafka, translator=[f"{HERE}.three(letter)"], retry_cache_bytes=cache_bytes)
    driver.run()
    driver.ack([0])
    driver.spout.fail_with(driver.last_id(0), Failure("exception", error="ValueError"))
    assert driver.run() == []
    driver.ack([0])
    assert driver.run() == [0, 0, 0]
    assert driver.figure("failed") == 1
    for _ in range(3):
        driver.ack([0])
    driver.commit()
    assert driver.committed() == 1


def test_origins_of_several_tuples_differ(kafka: Kafka) -> None:
    """The spout fills the field `origin` in: one per tuple, so that a sink keeps each."""
    driver = Driver(kafka, translator=[f"{HERE}.three(letter origin)"])
    driver.run()
    paths = [values[1].path for _, values in driver.emitted[:3]]
    assert paths == ["translator.0", "translator.1", "translator.2"]
    assert len({values[1] for _, values in driver.emitted}) == 30


def test_each_topic_has_its_function_fields_and_stream(kafka: Kafka) -> None:
    """A topic's own translator comes before the default, and both streams are declared with their fields."""
    kafka.create_topic("eu", 1)
    kafka.produce("eu", b"4", partition=0)
    entries = [f"eu={HERE}.one(n tenfold)@numbers", f"{HERE}.three(letter)"]
    spec = KafkaSpout.spec(topics=[TOPIC, "eu"], translator=entries)
    assert {name: stream.output_fields for name, stream in spec.outputs.items()} == {
        "numbers": ["n", "tenfold"],
        "default": ["letter"],
    }
    driver = Driver(kafka, topics=[TOPIC, "eu"], translator=entries)
    driver.run()
    assert [4, 40] in [values for _, values in driver.emitted]
    assert len(driver.emitted) == 31


def test_what_a_translator_does_wrong_is_the_records_failure(kafka: Kafka) -> None:
    """A wrong number of values, no list, or an error: the record is dead-lettered with the reason, and others go on."""
    driver = Driver(kafka, translator=[f"{HERE}.wrong(a b)"])
    assert driver.run() == []
    letters = kafka.records("readers.dead-letters")
    assert [letter.value for letter in letters] == [b"%d" % n for n in range(10) if n != 1]
    assert any(b"3 values for 2 fields" in value for _, value in letters[0].headers)


@pytest.mark.parametrize("guarantee", ["AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT"])
def test_a_translator_that_exits_is_the_records_failure(kafka: Kafka, guarantee: str) -> None:
    """sys.exit in a translator: that record is dead-lettered with the exit, and the others are emitted."""
    driver = Driver(kafka, translator=[f"{HERE}.leaving(value)"], guarantee=guarantee)
    driver.run()
    assert [values for _, values in driver.emitted] == [[b"%d" % n] for n in range(10) if n != 7]
    (letter,) = kafka.records("readers.dead-letters")
    assert letter.value == b"7"
    assert {b"SystemExit", b"boom"} <= {value for _, value in letter.headers}


def test_a_translator_may_exit_on_a_retry(kafka: Kafka) -> None:
    """A record that is kept in memory for its retry is translated anew; an exit then dead-letters it too."""
    twice.clear()
    driver = Driver(kafka, translator=[f"{HERE}.leaving_later(value)"], retry_cache_bytes=1 << 20)
    driver.run()
    driver.fail([3])
    assert driver.run() == []
    (letter,) = kafka.records("readers.dead-letters")
    assert letter.value == b"3"
    assert {b"SystemExit", b"again"} <= {value for _, value in letter.headers}


@pytest.mark.parametrize("guarantee", ["AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT"])
def test_untracked_tuples_are_translated(kafka: Kafka, guarantee: str) -> None:
    """Translators work under each guarantee, with ids that decide nothing."""
    driver = Driver(
        kafka, translator=[f"{HERE}.three(letter)"], guarantee=guarantee, topology__max__spout__pending=MANY
    )
    driver.run()
    driver.ack_all()
    assert len(driver.emitted) == 30


@pytest.mark.parametrize(
    "entries",
    [
        [f"{HERE}.one(a b)", f"{HERE}.three(c)@other"],
        [f"t={HERE}.one(a b)", f"t={HERE}.three(c)@other"],
        [f"{HERE}.one(a b)", f"t={HERE}.three(c)"],
        [f"{HERE}.one(a a)"],
        [f"{HERE}.one()"],
        ["two words"],
    ],
    ids=["default twice", "topic twice", "stream twice", "field twice", "no field", "malformed"],
)
def test_entries_that_contradict_each_other_fail_in_spec(entries: list[str]) -> None:
    """Twice the same topic, or one stream with two lists of fields, is an error where the topology is written."""
    with pytest.raises(ConfigError, match=r"kafka\.translator.*Try: [a-z[]"):
        KafkaSpout.spec(topics=["t"], translator=entries)


@pytest.mark.fake_only(NO_KAFKA_YET)
def test_a_topic_without_a_translator_is_an_error(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match=TOPIC):
        Driver(kafka, translator=[f"other={HERE}.one(a b)"])


def test_spec_tells_storms_ui_where_lag_is() -> None:
    """The component's configuration has the three keys that Storm's UI looks for, and no secret under them."""
    secret = {"sasl_plain_password": "hunter2"}
    spec = KafkaSpout.spec(topics=["a", "b"], group="g", bootstrap="one:9092", client=secret)
    config = {key: value for key, value in json.loads(spec.config).items() if key.startswith("config.")}
    assert config == {"config.topics": "a,b", "config.groupid": "g", "config.bootstrap.servers": "one:9092"}
