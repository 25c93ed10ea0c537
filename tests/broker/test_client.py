"""The client beyond the contract: odd records, bounded errors, and kafka-python's traps."""

from __future__ import annotations

import base64
import logging
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import crc32c
import kafka.record.util
import pytest
from kafka import errors

from downspout.broker import EmbeddedKafka
from downspout.errors import BrokerError, ConfigError
from downspout.kafka import KafkaCluster, KafkaConsumerPort, OffsetAndMetadata, TopicPartition, cluster_for
from tests.broker.scene import PATIENCE_S, polled, run_until
from tests.kafka.stage import Deaf
from tests.waiting import eventually

pytestmark = pytest.mark.broker

T = TypeVar("T")
RUN = [sys.executable, "-m", "downspout", "kafka"]
ROOT = Path(__file__).parents[2]


def _read(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []

    def all_came() -> bool:
        for records in consumer.poll(200, 1000).values():
            found.extend(records)
        return len(found) >= count

    run_until(all_came)
    assert len(found) == count
    return found


def _persistently(call: Callable[[], T]) -> T:
    """Call again as long as the error is one that may pass."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with suppress(errors.RetriableError):
            return call()
        time.sleep(0.05)
    return call()


# --- records ---


def test_a_round_trip_keeps_every_byte(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """A record of 5 MiB, a null, an empty value, keys that are no text and headers come back as they were."""
    cluster.ensure_topic(topic_name, 1)
    sent = [
        (b"\xff\xfe", os.urandom(5 * 1024 * 1024), [("h", b"\x00"), ("h", b""), ("h", None)]),
        (None, None, []),
        (b"", b"", []),
        ("schlüssel".encode(), None, [("é", b"1")]),
        (b"k", b"\x00\r\n", []),
    ]
    producer = cluster.producer()
    for key, value, headers in sent:
        producer.send(topic_name, key=key, value=value, headers=headers, partition=0)
    producer.flush()
    producer.close()
    consumer = cluster.consumer(group=None)
    consumers.append(consumer)
    consumer.assign([TopicPartition(topic_name, 0)])
    found = _read(consumer, len(sent))
    assert [(record.key, record.value, record.headers) for record in found] == sent
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]


def test_a_batch_that_a_topic_finds_too_large_is_split(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """Records that exceed the limit together, and not alone, are acknowledged and there once, in order."""
    cluster.ensure_topic(topic_name, 1, {"max.message.bytes": "1000"})
    producer = cluster.producer()
    sent = [b"%03d" % number + b"x" * 100 for number in range(50)]
    for value in sent:
        producer.send(topic_name, key=None, value=value)
    producer.flush()
    assert producer.acknowledged()
    producer.close()
    consumers.append(cluster.consumer(group=None))
    consumers[0].assign([TopicPartition(topic_name, 0)])
    assert [record.value for record in _read(consumers[0], len(sent))] == sent


def test_a_record_without_a_flush_is_sent_by_close(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """What is queued when a producer is closed is there afterwards."""
    cluster.ensure_topic(topic_name, 1)
    producer = cluster.producer()
    producer.send(topic_name, key=None, value=b"last", timestamp_ms=7)
    producer.close()
    consumers.append(cluster.consumer(group=None))
    consumers[0].assign([TopicPartition(topic_name, 0)])
    [record] = _read(consumers[0], 1)
    assert (record.value, record.timestamp) == (b"last", 7)


def test_a_large_record_among_small_ones_stops_nobody(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """A record above the fetch size of a partition is read in its turn."""
    cluster.ensure_topic(topic_name, 1)
    values = [b"a" * 100] * 500 + [b"L" * 5 * 1024 * 1024] + [b"z" * 100] * 500
    producer = cluster.producer()
    for value in values:
        producer.send(topic_name, key=None, value=value)
    producer.flush()
    producer.close()
    consumer = cluster.consumer(group=None, client={"max_partition_fetch_bytes": 1000})
    consumers.append(consumer)
    consumer.assign([TopicPartition(topic_name, 0)])
    assert [len(record.value) for record in _read(consumer, len(values))] == [len(value) for value in values]


def test_an_error_of_one_record_surfaces_once(cluster: KafkaCluster, topic_name: str) -> None:
    """A record that the broker refuses raises in flush (or the next send), once; the producer goes on after it."""
    cluster.ensure_topic(topic_name, 1, {"max.message.bytes": "2000"})
    producer = cluster.producer()
    producer.send(topic_name, key=None, value=b"x" * 5000)
    with pytest.raises(errors.MessageSizeTooLargeError):
        producer.flush()
    producer.send(topic_name, key=None, value=b"small")
    producer.flush()
    producer.close()


def test_the_fast_checksum_is_in_use() -> None:
    """kafka-python takes the crc32c package; its own Python one costs three times the CPU."""
    assert kafka.record.util._crc32c is crc32c.crc32c


# --- topics ---


def test_a_version_that_is_given_is_no_hindrance(kafka_broker: EmbeddedKafka, topic_name: str) -> None:
    """A client that does not ask the broker's version knows its brokers all the same; a wrong one is named."""
    known = KafkaCluster(kafka_broker.bootstrap, {"api_version": "2.8"})
    known.ensure_topic(topic_name, 2)
    consumer = known.consumer(group=None)
    assert consumer.partitions_for(topic_name) == {0, 1}
    consumer.close()
    consumer = KafkaCluster(kafka_broker.bootstrap, {"api_version": "0.10"}).consumer(group=None)
    with pytest.raises(errors.IncompatibleBrokerVersion):
        consumer.end_offsets([TopicPartition(topic_name, 0)])
    consumer.close()


def test_a_topic_is_listed_and_deleted(cluster: KafkaCluster, topic_name: str) -> None:
    cluster.ensure_topic(topic_name, 3)
    topics = cluster.topics()
    assert topics[topic_name] == 3
    assert not any(topic.startswith("__") for topic in topics)
    assert cluster.delete_topic(topic_name)
    assert not cluster.delete_topic(topic_name)


def test_a_refused_topic_is_named(cluster: KafkaCluster) -> None:
    """A name that Kafka does not take is an error with that name, and no dump of the request."""
    with pytest.raises(BrokerError, match="no good cannot be created") as caught:
        cluster.ensure_topic("no good")
    assert "CreatableTopic" not in str(caught.value)


def test_subscribing_creates_no_topic(tmp_path: Path, topic_name: str, consumers: list[KafkaConsumerPort]) -> None:
    with EmbeddedKafka(tmp_path / "kafka", properties={"auto.create.topics.enable": "true"}) as kafka:
        cluster = KafkaCluster(kafka.bootstrap)
        consumer = cluster.consumer(group="g")
        consumer.subscribe([topic_name], Deaf())
        for _ in range(5):
            consumer.poll(100, 10)
        assert consumer.partitions_for(topic_name) == frozenset()
        assert topic_name not in cluster.topics()
        consumer.close()


def test_a_topic_id_is_kafka_s_own(cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]) -> None:
    """The id is the base64 of 16 bytes, known without a subscription."""
    cluster.ensure_topic(topic_name)
    consumers.append(cluster.consumer(group=None))
    identity = consumers[0].topic_id(topic_name)
    assert len(base64.urlsafe_b64decode(identity + "==")) == 16


# --- kafka-python's traps ---


def test_a_question_does_not_wait_behind_a_fetch(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """While a fetch waits minutes for records, a member of a group still learns its topics' ids in time."""
    cluster.ensure_topic(topic_name, 1)
    patient = {"fetch_max_wait_ms": 150_000, "fetch_min_bytes": 1_000_000, "request_timeout_ms": 200_000}
    consumer = cluster.consumer(group=topic_name, client=patient)
    consumers.append(consumer)
    consumer.subscribe([topic_name], Deaf())
    run_until(lambda: polled(consumer) and consumer.assignment() and consumer._consumer._fetcher.in_flight_fetches())
    assert consumer.topic_ids([topic_name])[topic_name]  # behind the fetch: KafkaTimeoutError


def test_a_cluster_that_knows_no_brokers_for_a_moment_is_asked_again(
    cluster: KafkaCluster,
    topic_name: str,
    consumers: list[KafkaConsumerPort],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that its controller takes for dead knows no brokers; the ends of logs are learnt after that."""
    cluster.ensure_topic(topic_name, 1)
    consumer = cluster.consumer(group=None)
    consumers.append(consumer)
    known = consumer._consumer._cluster
    learn, empty = known.update_metadata, []

    def starved(metadata: Any) -> None:
        if len(empty) < 2:
            empty.append(metadata)
            metadata.brokers = []
        learn(metadata)

    monkeypatch.setattr(known, "update_metadata", starved)
    partition = TopicPartition(topic_name, 0)
    assert consumer.end_offsets([partition]) == {partition: 0}
    assert len(empty) == 2


def test_two_that_pause_by_turns_lose_nothing(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """Partitions that are paused and resumed by turns are read to their ends, without a gap or a stall."""
    cluster.ensure_topic(topic_name, 3)
    producer = cluster.producer()
    for number in range(300):
        producer.send(topic_name, key=None, value=b"%d" % number, partition=number % 3)
    producer.flush()
    producer.close()
    consumer = cluster.consumer(group=None)
    consumers.append(consumer)
    partitions = [TopicPartition(topic_name, number) for number in range(3)]
    consumer.assign(partitions)
    offsets: dict[TopicPartition, list[int]] = {partition: [] for partition in partitions}
    turns = count()

    def all_are_read() -> bool:
        consumer.resume(partitions)
        consumer.pause([partitions[next(turns) % 3]])
        for partition, records in consumer.poll(20, 7).items():
            offsets[partition] += [record.offset for record in records]
        return all(len(found) >= 100 for found in offsets.values())

    run_until(all_are_read)
    assert all(found == list(range(100)) for found in offsets.values())


def test_a_private_part_that_is_gone_is_noticed() -> None:
    """A kafka-python without one of the private parts that we use is refused when the consumer is made, by name."""
    closed: list[bool] = []
    stranger = SimpleNamespace(_coordinator=SimpleNamespace(), config={}, close=lambda **given: closed.append(True))
    with pytest.raises(BrokerError, match=r"has no _\w+\.\w+, which downspout needs"):
        KafkaConsumerPort(stranger, True)
    assert closed == [True]


def test_a_commit_needs_a_group(cluster: KafkaCluster, consumers: list[KafkaConsumerPort]) -> None:
    consumer = cluster.consumer(group=None)
    consumers.append(consumer)
    with pytest.raises(errors.IllegalStateError):
        consumer.subscribe(["t"], Deaf())
    with pytest.raises(errors.IllegalStateError):
        consumer.commit({TopicPartition("t", 0): OffsetAndMetadata(1, "", -1)})
    with pytest.raises(errors.IllegalStateError):
        consumer.committed([TopicPartition("t", 0)])


# --- no broker ---


@pytest.mark.timeout(180)
def test_a_dead_port_is_an_error_with_a_cure() -> None:
    """Where nothing listens, cluster_for raises at once, with the address, the reason and what to try."""
    with socket.socket() as dead:  # its port is nobody else's meanwhile, and nobody listens
        dead.bind(("127.0.0.1", 0))
        port = dead.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"127\.0\.0\.1:{port}.*refused.*downspout kafka start"):
            cluster_for(f"127.0.0.1:{port}")


@pytest.mark.usefixtures("hurried")
@pytest.mark.timeout(180)
def test_a_silent_port_is_given_up() -> None:
    """A port that accepts connections and never answers is given up after a few seconds."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(BrokerError, match="does not answer"):
            cluster_for(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.timeout(180)
def test_one_live_address_is_enough(
    kafka_broker: EmbeddedKafka, consumers: list[KafkaConsumerPort], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bootstrap list works as long as one of its addresses answers, also where chance always draws the first."""
    monkeypatch.setattr(random, "choice", lambda addresses: addresses[0])
    with socket.socket() as dead:  # its port is nobody else's meanwhile, and nobody listens
        dead.bind(("127.0.0.1", 0))
        cluster = cluster_for(f"127.0.0.1:{dead.getsockname()[1]},{kafka_broker.bootstrap}")
        consumers.append(cluster.consumer(group=None))
        assert consumers[0].partitions_for("no-such-topic") == frozenset()


@pytest.mark.sweep
@pytest.mark.usefixtures("hurried")
def test_a_broker_that_goes_away_ends_no_call_in_a_hang(
    tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the broker killed, polls are empty, the position stays known, and remote calls raise retriable errors.

    Once it is back, all works.
    """

    def refuse(timeout_ms: int) -> None:
        raise errors.KafkaConnectionError("refused")

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    kafka = EmbeddedKafka(tmp_path / "kafka").start()
    try:
        cluster = KafkaCluster(kafka.bootstrap)
        cluster.ensure_topic(topic_name)
        consumer = cluster.consumer(group="g")
        partition = TopicPartition(topic_name, 0)
        producer = cluster.producer()
        for number in range(5):
            producer.send(topic_name, key=None, value=b"%d" % number, partition=0)
        producer.close()
        consumer.assign([partition])
        consumer.seek(partition, 0)
        eventually(lambda: consumer.position(partition) >= 5 or consumer.poll(200, 10) is None, every_s=0)
        commit = {partition: OffsetAndMetadata(0, "kept", -1)}
        consumer.commit(commit)
        kafka.kill()
        assert consumer.poll(200, 10) == {}
        with monkeypatch.context() as away:  # as where it does not know the leader either, who is to confirm the place
            away.setattr(consumer._consumer._fetcher, "validate_offsets_if_needed", refuse)
            assert consumer.position(partition) == 5
        for call in (
            lambda: consumer.commit(commit),
            lambda: consumer.committed([partition]),
            lambda: consumer.end_offsets([partition]),
            lambda: consumer.topic_id(topic_name),
        ):
            with pytest.raises(errors.KafkaError) as caught:
                call()
            assert caught.value.retriable
        kafka.start()
        found = _persistently(lambda: consumer.committed([partition])[partition])
        assert found is not None
        assert found.metadata == "kept"
        assert _persistently(lambda: consumer.end_offsets([partition])) == {partition: 5}
        kafka.kill()
        consumer.close()
    finally:
        logging.getLogger("kafka").setLevel(logging.NOTSET)
        kafka.stop()


def test_bad_properties_are_named(cluster: KafkaCluster) -> None:
    """A property that kafka-python does not have, or that is decided here, is a configuration error with its name."""
    with pytest.raises(ConfigError, match="fetch_max_byte"):
        cluster.consumer(group=None, client={"fetch_max_byte": 1})
    with pytest.raises(ConfigError, match="enable_auto_commit"):
        cluster.consumer(group=None, client={"enable_auto_commit": True})


# --- the command line ---


def _command(kafka: EmbeddedKafka, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*RUN, *arguments, "--bootstrap", kafka.bootstrap]
    return subprocess.run(command, input=data, capture_output=True, timeout=200, cwd=ROOT, check=False)


def test_lines_become_records_and_come_back(kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> None:
    """`produce` makes the topic, lets lines take turns and keeps their bytes; `consume` shows coordinates."""
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\r\ntwo\n\n\xff")
    made = _command(kafka_broker, "produce", topic_name, str(file), "--partitions", "2")
    assert made.stdout.decode() == f"4 records written to {topic_name}\n", made.stderr
    shown = _command(kafka_broker, "consume", topic_name).stdout.decode().splitlines()
    where = [line.split("  ")[0] for line in shown]
    assert where == [f"{topic_name}[0]@0", f"{topic_name}[0]@1", f"{topic_name}[1]@0", f"{topic_name}[1]@1"]
    found = [line.rpartition("  ")[2] for line in shown]
    assert sorted([found[:2], found[2:]]) == [["one", ""], ["two", "\\xff"]]  # the first partition is drawn
    one = _command(kafka_broker, "consume", topic_name, "--partition", "1", "--offset", "1", "--limit", "1")
    assert one.stdout.decode().split("  ")[0] == f"{topic_name}[1]@1"
    assert f"{topic_name}  " in _command(kafka_broker, "topics").stdout.decode()


@pytest.mark.sweep
def test_a_line_without_its_separator_is_named(kafka_broker: EmbeddedKafka, topic_name: str) -> None:
    """Keys are split off; a line without a separator is an error with its number, and those before it are written."""
    made = _command(kafka_broker, "produce", topic_name, "--key-separator", "=", data=b"a=1\nb=2=3\nc\nd=4\n")
    assert made.returncode == 5
    assert b"stdin:3" in made.stderr
    shown = _command(kafka_broker, "consume", topic_name).stdout.decode().splitlines()
    assert [line.split("  ")[2:] for line in shown] == [["a", "1"], ["b", "2=3"]]


def test_a_missing_topic_is_an_error(kafka_broker: EmbeddedKafka, topic_name: str) -> None:
    """Consuming from a topic that does not exist fails with its name and creates nothing."""
    shown = _command(kafka_broker, "consume", topic_name)
    assert shown.returncode == BrokerError.exit_code
    assert topic_name in shown.stderr.decode()
    assert topic_name not in KafkaCluster(kafka_broker.bootstrap).topics()
