"""Dead letters beyond the contract: failures, and records from other writers."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import errors

from downspout.component import Failure
from downspout.dead_letters import PREFIX, DeadLetters, parse_dead_letter, read_dead_letters
from downspout.errors import BrokerError
from downspout.kafka import Record
from downspout.testing import FakeKafka
from tests.sampling import examples
from tests.spout.spout_driver import Kafka

NAMES = ["topic", "partition", "offset", "attempts", "task", "exception.message", "first.failure.ms", "nonsense"]


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    return bare_kafka


def _record(kafka: Kafka, **given: object) -> Record:
    kafka.produce("orders", b"poison", **given)  # type: ignore[arg-type]
    return kafka.records("orders")[-1]


def _write(letters: DeadLetters, record: Record, failure: Failure | None = None) -> None:
    letters.write(record, attempts=1, first_failure_ms=1, last_failure_ms=2, failure=failure)


@pytest.mark.parametrize("operation", ["ensure_topic", "send", "flush"])
def test_a_write_that_fails_claims_nothing(kafka: Kafka, operation: str) -> None:
    """Whatever step fails, the error names the topic and the record, and a later write works."""
    record, letters = _record(kafka), DeadLetters(kafka, "dead")
    kafka.faults.fail_next(operation, errors.KafkaTimeoutError("gone"))
    with pytest.raises(BrokerError, match=r"orders\[0\]@0: .* topic dead: KafkaTimeoutError: gone\. Try: "):
        _write(letters, record)
    before = len(kafka.records("dead"))  # where only the flush fails, a real broker may have it all the same
    assert before <= (operation == "flush")
    _write(letters, record)
    assert len(kafka.records("dead")) == before + 1


def test_a_topic_that_is_deleted_is_made_again(kafka: Kafka) -> None:
    """A dead-letter topic that vanishes fails one write and is created by the next."""
    record, letters = _record(kafka), DeadLetters(kafka, "dead")
    _write(letters, record)
    kafka.delete_topic("dead")
    with pytest.raises(BrokerError):
        _write(letters, record)
    _write(letters, record)
    assert len(kafka.records("dead")) == 1


def test_a_letter_of_a_letter_tells_the_last_origin(kafka: Kafka) -> None:
    """A record that was a dead letter itself is told by its latest place, and keeps the older headers."""
    _write(DeadLetters(kafka, "first"), _record(kafka))
    _write(DeadLetters(kafka, "second"), kafka.records("first")[0])
    (letter,) = read_dead_letters(kafka, "second")
    assert letter.topic == "first"
    assert [value for name, value in letter.record.headers if name == PREFIX + "topic"] == [b"orders", b"first"]


def test_long_and_strange_errors_fit(kafka: Kafka) -> None:
    """Error texts are bounded, and text that is no valid Unicode is written all the same."""
    failure = Failure("exception", "parse", 1, f"ValueError: \ud800{'x' * 5000}", "y" * 50_000)
    _write(DeadLetters(kafka, "dead"), _record(kafka), failure)
    (letter,) = read_dead_letters(kafka, "dead")
    assert letter.error is not None
    assert letter.error.startswith("\\ud800xxx")
    assert len(letter.error) < 1100
    assert len(letter.stack or "") == 8000


def test_a_topic_called_unknown_is_known(kafka: Kafka) -> None:
    """The word that stands for nothing in other headers is a topic's name where it stands for the topic."""
    kafka.produce("unknown", b"v")
    _write(DeadLetters(kafka, "dead"), kafka.records("unknown")[0])
    (letter,) = read_dead_letters(kafka, "dead")
    assert letter.origin == ("unknown", "", 0, 0)


@pytest.mark.fake_only("hundreds of examples, each with a cluster of its own")
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES).map(PREFIX.__add__) | st.text(max_size=5),
            st.binary(max_size=30) | st.integers().map(lambda n: str(n).encode()) | st.none(),
        ),
        max_size=12,
    )
)
def test_strangers_headers_never_crash_the_reader(headers: list[tuple[str, bytes]]) -> None:
    """Whatever headers a record has, it is parsed: numbers are non-negative or None, and origins are whole or None."""
    with FakeKafka("garbage") as kafka:
        letter = parse_dead_letter(_record(kafka, headers=headers))
        for number in (letter.partition, letter.offset, letter.attempts, letter.task, letter.first_failure_ms):
            assert number is None or 0 <= number < 10**18
        assert letter.origin is None or (letter.topic and letter.partition is not None)
        assert len(letter.headers) == sum(not name.startswith(PREFIX) for name, _ in headers)


def test_foreign_records_are_all_yielded(kafka: Kafka) -> None:
    for _ in range(3):
        kafka.produce("dead", b"v")
    assert [letter.origin for letter in read_dead_letters(kafka, "dead")] == [None, None, None]


@pytest.mark.fake_only("the twins share one broker, which must not go away")
def test_a_broker_that_goes_away_in_the_middle_is_an_error() -> None:
    """A reader that gets nothing more though the log goes on gives up with the place, and never ends quietly."""
    with FakeKafka("stuck") as kafka:
        for _ in range(2_001):
            kafka.produce("dead", b"v")
        letters = read_dead_letters(kafka, "dead")
        assert len(list(islice(letters, 2_000))) == 2_000
        kafka.broker_down()
        with pytest.raises(BrokerError, match=r"dead\[0\]@2000: no record arrives, although the log ends at 2001"):
            next(letters)
