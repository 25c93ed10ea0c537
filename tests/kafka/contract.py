"""What stands behind the consumer port must do: the same tests for the fake and for a real broker.

A test module gives a fixture ``stage`` that returns a :class:`~tests.kafka.stage.Stage`, and inherits the classes.
"""

from __future__ import annotations

import pytest

from downspout.component import Failure
from downspout.dead_letters import DeadLetters, read_dead_letters
from downspout.errors import BrokerError
from downspout.kafka import Record, TopicPartition
from tests.kafka.contract_groups import CommitContract, GroupContract
from tests.kafka.contract_positions import LeaderlessContract, PositionContract
from tests.kafka.contract_producing import ProducerContract
from tests.kafka.contract_reading import ReadingContract, TopicContract
from tests.kafka.contract_transactions import TransactionContract
from tests.kafka.stage import Staged, read, unique
from tests.waiting import eventually

__all__ = [
    "CommitContract",
    "DeadLetterContract",
    "GroupContract",
    "LeaderlessContract",
    "PositionContract",
    "ProducerContract",
    "ReadingContract",
    "TopicContract",
    "TransactionContract",
]


def _wait(letters: DeadLetters) -> None:
    """Ask again and again until queued letters are durable; no flush."""
    eventually(letters.acknowledged, every_s=0.001)


class DeadLetterContract(Staged):
    """Dead letters are written whole and read back once."""

    def _record(self, value: bytes | None = b"poison") -> Record:
        tp = self.topic()
        producer = self.stage.cluster.producer(client={"max_request_size": 8_000_000})
        producer.send(tp.topic, key=b"\xff", value=value, headers=[("trace", b"7")], partition=0, timestamp_ms=1)
        producer.flush()
        producer.close()
        return read(self.reader(tp), 1)[0]

    def test_a_letter_is_the_record_with_its_reason(self) -> None:
        """A letter has the record's key, value, headers and time, and tells where it came from and why it failed."""
        record, topic = self._record(), unique("dead")
        letters = DeadLetters(self.stage.cluster, topic)
        letters.write(
            record,
            attempts=11,
            first_failure_ms=5,
            last_failure_ms=6,
            failure=Failure("exception", "parse", 4, "ValueError: no: number", "Traceback …"),
            topic_id="abc",
        )
        letters.close()
        (letter,) = read_dead_letters(self.stage.cluster, topic)
        assert letter.origin == (record.topic, "abc", 0, 0)
        assert (letter.record.key, letter.record.value, letter.record.timestamp) == (b"\xff", b"poison", 1)
        assert letter.headers == [("trace", b"7")]
        assert (letter.attempts, letter.first_failure_ms, letter.last_failure_ms) == (11, 5, 6)
        assert (letter.kind, letter.component, letter.task) == ("exception", "parse", 4)
        assert (letter.error_class, letter.error, letter.stack) == ("ValueError", "no: number", "Traceback …")

    def test_a_letter_written_twice_is_read_once(self) -> None:
        """Letters of one origin count once, and what is not known is None."""
        record, topic = self._record(value=None), unique("dead")
        for _ in range(2):
            letters = DeadLetters(self.stage.cluster, topic)
            letters.write(record, attempts=1, first_failure_ms=None, last_failure_ms=None, failure=None)
            letters.close()
        (letter,) = read_dead_letters(self.stage.cluster, topic)
        assert letter.record.value is None
        assert (letter.topic_id, letter.first_failure_ms, letter.error, letter.stack) == (None, None, None, None)

    def test_a_record_of_5_mib_fits(self) -> None:
        """The dead-letter topic takes a record that is larger than topics take by default."""
        topic = unique("dead")
        source = unique()
        self.stage.cluster.ensure_topic(source, 1, {"max.message.bytes": "8000000"})
        producer = self.stage.cluster.producer(client={"max_request_size": 8_000_000})
        producer.send(source, key=None, value=b"x" * (5 << 20), partition=0, timestamp_ms=1)
        producer.flush()
        producer.close()
        record = read(self.reader(TopicPartition(source, 0)), 1)[0]
        letters = DeadLetters(self.stage.cluster, topic)
        letters.write(record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=Failure("timeout"))
        letters.close()
        (letter,) = read_dead_letters(self.stage.cluster, topic)
        assert len(letter.record.value or b"") == 5 << 20
        assert letter.kind == "timeout"

    def test_letters_become_durable_while_nobody_waits(self) -> None:
        """Queued letters are in the topic once they are said to be acknowledged, without a flush."""
        record, topic = self._record(), unique("dead")
        letters = DeadLetters(self.stage.cluster, topic)
        for _ in range(3):
            letters.queue(record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None)
        _wait(letters)
        assert len(read(self.reader(TopicPartition(topic, 0)), 3)) == 3
        letters.close()

    def test_a_letter_that_is_refused_is_never_settled(self) -> None:
        """A queued letter that the broker does not take is an error sooner or later, and the next one is written."""
        record, topic = self._record(value=b"x" * 5000), unique("dead")
        self.stage.cluster.ensure_topic(topic, 1, {"max.message.bytes": "2000"})
        letters = DeadLetters(self.stage.cluster, topic)
        letters.queue(record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None)
        with pytest.raises(BrokerError, match="its dead letter could not be written"):
            _wait(letters)
        letters.write(self._record(), attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None)
        letters.close()
        assert [letter.record.value for letter in read_dead_letters(self.stage.cluster, topic)] == [b"poison"]

    def test_no_topic_has_no_letters(self) -> None:
        """Reading the letters of a topic that does not exist yields none."""
        assert list(read_dead_letters(self.stage.cluster, unique("dead"))) == []
