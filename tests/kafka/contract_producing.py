"""The contract of producers: each record's outcome is reported once, and a refused record fails alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import errors

from downspout.errors import ConfigError
from downspout.kafka import Partitions, ProducerPort, Record, Sent, TopicPartition, partition_of_key
from tests.kafka.stage import PATIENCE_S, Staged, read, unique

HOUR_MS = 3_600_000


class ProducerContract(Staged):
    @pytest.fixture(autouse=True)
    def _producers(self) -> Iterator[None]:
        self._made: list[ProducerPort] = []
        yield
        for each in self._made:
            each.close()

    def producer(self, partitioner: Any = "sticky", **client: Any) -> ProducerPort:
        """Return a producer that is closed at the end of the test."""
        made = self.stage.cluster.producer(client={"max_block_ms": 5_000} | client, partitioner=partitioner)
        self._made.append(made)
        return made

    def new(self, partitions: int = 1, **config: str) -> str:
        name = unique()
        self.stage.create(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return name

    def fates(self, producer: ProducerPort, count: int) -> dict[Any, Sent]:
        """Wait for the fates of so many records, by their tokens; each is told once, with its own offset."""
        found: dict[Any, Sent] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            for sent in producer.results():
                for number, token in enumerate(sent.tokens):
                    if token is None:
                        continue
                    assert token not in found
                    offset = sent.offset + number if sent.offset >= 0 else -1
                    found[token] = sent._replace(offset=offset, tokens=[token])
            assert time.monotonic() < deadline, f"only {len(found)} of {count}: {found}"
            self.stage.wait(0.01)
        assert producer.results() == []
        return found

    def log(self, topic: str, count: int, partition: int = 0) -> list[Record]:
        return read(self.reader(TopicPartition(topic, partition)), count)

    def send(self, producer: ProducerPort, topic: str, *values: bytes, **more: Any) -> None:
        for value in values:
            producer.send(topic, **{"key": None, "value": value, "token": value, **more})

    def test_each_token_comes_back_with_its_offset(self) -> None:
        """Offsets follow one another, and a batch is one entry."""
        topic, producer = self.new(), self.producer()
        values = [b"%d" % number for number in range(500)]
        self.send(producer, topic, *values)
        assert producer.buffered_bytes > 1000
        producer.flush()
        entries = list(producer.results())
        assert len(entries) == 1
        assert list(entries[0].tokens) == values
        assert entries[0][1:5] == (topic, 0, 0, None)
        assert producer.buffered_bytes == 0
        assert producer.oldest_s() == 0
        assert [record.value for record in self.log(topic, 500)] == values

    def test_all_of_a_record_arrives(self) -> None:
        """Key, value, headers with nulls, time and the partition that was asked for."""
        topic, producer = self.new(3), self.producer()
        headers: list[tuple[str, Any]] = [("trace", b"7"), ("none", None), ("trace", b"")]
        producer.send(topic, key=b"\xff", value=None, headers=headers, partition=2, timestamp_ms=17, token="a")
        assert self.fates(producer, 1)["a"][1:5] == (topic, 2, 0, None)
        (record,) = self.log(topic, 1, 2)
        assert (record.key, record.value, record.timestamp, list(record.headers)) == (b"\xff", None, 17, headers)

    def test_keys_choose_partitions(self) -> None:
        """A keyed record is where Kafka's hash says; many are sent in one go."""
        topic, producer = self.new(5), self.producer()
        for number in range(100):
            producer.send(topic, key=b"key-%d" % number, value=b"", token=number)
        fates = self.fates(producer, 100)
        assert [fates[n].partition for n in range(100)] == [partition_of_key(b"key-%d" % n, 5) for n in range(100)]

    def test_records_without_keys_take_turns(self) -> None:
        """With round robin each partition gets as many as any other."""
        topic, producer = self.new(4), self.producer("round_robin")
        for number in range(40):
            producer.send(topic, key=None, value=b"", token=number)
        fates = self.fates(producer, 40)
        assert sorted(fates[n].partition for n in range(40)) == sorted(list(range(4)) * 10)

    def test_a_function_chooses_partitions(self) -> None:
        """It sees topic, key, value and the partitions; where it names one that there is not, that record fails."""

        def last(topic: str, key: bytes | None, value: bytes | None, partitions: Partitions) -> int:
            return partitions.count - (0 if value == b"bad" else 1)

        topic, producer = self.new(3), self.producer(last)
        self.send(producer, topic, b"good", b"bad")
        fates = self.fates(producer, 2)
        assert (fates[b"good"].partition, fates[b"good"].error) == (2, None)
        assert "has no partition 3: it has 3" in str(fates[b"bad"].error)

    @pytest.mark.parametrize("partition", [-1, 3])
    def test_a_partition_that_there_is_not_fails_its_record_alone(self, partition: int) -> None:
        """The error tells the count, and the others are written."""
        topic, producer = self.new(3), self.producer()
        self.send(producer, topic, b"1", partition=1)
        self.send(producer, topic, b"bad", partition=partition)
        self.send(producer, topic, b"2", partition=1)
        fates = self.fates(producer, 3)
        assert isinstance(fates[b"bad"].error, ValueError)
        assert f"{topic} has no partition {partition}: it has 3" in str(fates[b"bad"].error)
        assert [record.value for record in self.log(topic, 2, 1)] == [b"1", b"2"]

    @pytest.mark.parametrize("time_ms", [1.5, 1 << 70, -5])
    def test_a_time_that_there_is_not_fails_its_record_alone(self, time_ms: Any) -> None:
        """Also as the first of its batch; the others are written."""
        topic, producer = self.new(), self.producer()
        self.send(producer, topic, b"bad", timestamp_ms=time_ms)
        self.send(producer, topic, b"1")
        fates = self.fates(producer, 2)
        assert isinstance(fates[b"bad"].error, ValueError)
        assert [record.value for record in self.log(topic, 1)] == [b"1"]

    @pytest.mark.parametrize("acks", ["all", 1])
    def test_a_record_that_is_too_large_fails_alone(self, acks: Any) -> None:
        """Those around it in its batch, and those after it, are written once."""
        topic, producer = self.new(max_message_bytes="2000"), self.producer(acks=acks)
        large = b"x" * 3000
        self.send(producer, topic, b"1", b"2", large, b"3")
        first = self.fates(producer, 4)
        self.send(producer, topic, b"4", b"5")
        second = self.fates(producer, 2)
        assert isinstance(first[large].error, errors.MessageSizeTooLargeError)
        assert {each.error for token, each in (first | second).items() if token != large} == {None}
        records = self.log(topic, 5)
        assert sorted(record.value or b"" for record in records) == [b"1", b"2", b"3", b"4", b"5"]
        for record in records:
            assert (first | second)[record.value].offset == record.offset

    def refused_alone(self, topic: str, producer: ProducerPort, culprit: Callable[[], None], kind: type) -> None:
        """Send good records around a bad one, and look at their fates."""
        self.send(producer, topic, b"1", b"2", key=b"k")
        culprit()
        self.send(producer, topic, b"3", key=b"k", timestamp_ms=5, headers=[("h", b"v")])
        fates = self.fates(producer, 4)
        self.send(producer, topic, b"4", key=b"k")
        fates |= self.fates(producer, 1)
        error = fates.pop("bad").error
        assert isinstance(error, kind), error
        assert {each.error for each in fates.values()} == {None}
        records = self.log(topic, 4)
        assert [record.value for record in records] == [b"1", b"2", b"3", b"4"]
        assert [fates[record.value].offset for record in records] == [record.offset for record in records]
        assert (records[2].timestamp, list(records[2].headers)) == (5, [("h", b"v")])

    @pytest.mark.parametrize("acks", ["all", 1])
    def test_a_record_without_a_key_for_a_compacted_topic_fails_alone(self, acks: Any) -> None:
        """The broker refuses the whole batch; the others are sent again, once, and the producer goes on."""
        topic, producer = self.new(cleanup_policy="compact"), self.producer(acks=acks)
        self.refused_alone(
            topic,
            producer,
            lambda: producer.send(topic, key=None, value=b"bad", token="bad"),
            errors.InvalidRecordError,
        )

    def test_a_record_of_the_far_future_fails_alone(self) -> None:
        topic, producer = self.new(message_timestamp_after_max_ms=str(HOUR_MS)), self.producer()
        future = int(time.time() * 1000) + 100 * HOUR_MS
        self.refused_alone(
            topic, producer,
            lambda: producer.send(topic, key=b"k", value=b"bad", timestamp_ms=future, token="bad"),
            errors.InvalidTimestampError,
        )  # fmt: skip

    def test_an_unknown_topic_fails_its_records_and_holds_no_others(self) -> None:
        topic, producer = self.new(), self.producer(max_block_ms=1_000, allow_auto_create_topics=False)
        missing = unique()
        self.send(producer, missing, b"1", b"2")
        self.send(producer, topic, b"good")
        fates = self.fates(producer, 3)
        assert fates.pop(b"good").error is None
        assert {(type(each.error), each.partition) for each in fates.values()} == {
            (errors.UnknownTopicOrPartitionError, -1)
        }
        assert [record.value for record in self.log(topic, 1)] == [b"good"]

    def test_a_topic_that_appears_takes_what_waits_for_it(self) -> None:
        producer, topic = self.producer(max_block_ms=30_000, allow_auto_create_topics=False), unique()
        self.send(producer, topic, b"1", b"2", key=b"k")
        producer.results()
        self.stage.create(topic, 2)
        self.send(producer, topic, b"3", key=b"k")
        fates = self.fates(producer, 3)
        assert {each.error for each in fates.values()} == {None}
        records = self.log(topic, 3, partition_of_key(b"k", 2))
        assert [record.value for record in records] == [b"1", b"2", b"3"]

    def test_without_acks_nothing_is_known(self) -> None:
        """There is no offset, and a record that is refused looks like one that is written."""
        topic, producer = self.new(max_message_bytes="2000"), self.producer(acks=0)
        self.send(producer, topic, b"1", b"2")
        self.fates(producer, 2)
        self.send(producer, topic, b"x" * 3000)
        fates = self.fates(producer, 1)
        assert [(each.offset, each.error) for each in fates.values()] == [(-1, None)]
        assert [record.value for record in self.log(topic, 2)] == [b"1", b"2"]

    def test_a_record_without_a_token_is_told_by_errors_alone(self) -> None:
        topic, producer = self.new(max_message_bytes="2000"), self.producer()
        producer.send(topic, key=None, value=b"1")
        self.send(producer, topic, b"x" * 3000)
        producer.flush()
        assert isinstance(self.fates(producer, 1)[b"x" * 3000].error, errors.MessageSizeTooLargeError)
        producer.send(topic, key=None, value=b"y" * 3000)
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.flush()
        producer.send(topic, key=None, value=b"2")
        producer.flush()
        assert producer.results() == []
        assert [record.value for record in self.log(topic, 2)] == [b"1", b"2"]

    def test_what_a_closed_producer_has_left_fails(self) -> None:
        """Each token comes back, written or not."""
        topic, producer = unique(), self.producer(max_block_ms=60_000, allow_auto_create_topics=False)
        self.send(producer, topic, b"1")
        with pytest.raises(errors.KafkaTimeoutError):
            producer.flush(0.05)
        producer.close()
        (sent,) = producer.results()
        assert list(sent.tokens) == [b"1"]
        assert sent.error is not None

    @pytest.mark.parametrize("given", [
        {"acks": 1}, {"acks": "0"}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6},
    ], ids=str)  # fmt: skip
    def test_idempotence_that_cannot_be_is_an_error(self, given: dict[str, Any]) -> None:
        """Where it is wanted in so many words; otherwise it is turned off."""
        with pytest.raises(ConfigError, match="enable_idempotence cannot be combined with"):
            self.producer(enable_idempotence=True, **given)
        topic = self.new()
        producer = self.producer(**given)
        self.send(producer, topic, b"1")
        assert self.fates(producer, 1)[b"1"].error is None

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_compressed_records_arrive(self, codec: str) -> None:
        topic, producer = self.new(), self.producer(compression_type=codec)
        values = [b"value-%d" % number * 20 for number in range(200)]
        self.send(producer, topic, *values)
        fates = self.fates(producer, 200)
        assert {each.error for each in fates.values()} == {None}
        assert [record.value for record in self.log(topic, 200)] == values
