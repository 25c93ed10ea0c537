"""Dead letters while a real broker comes and goes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.dead_letters import DeadLetters, origin_of, read_dead_letters
from downspout.errors import BrokerError
from downspout.kafka import ConsumerPort, Record, TopicPartition, cluster_for

pytestmark = pytest.mark.broker

TOMBSTONE = SimpleNamespace(
    topic="orders", partition=2, offset=7, timestamp=1, key=None, value=None, headers=[("trace", b"1")]
)


def _write(letters: DeadLetters) -> None:
    letters.write(TOMBSTONE, attempts=1, first_failure_ms=1, last_failure_ms=2, failure=None)


@pytest.mark.sweep
@pytest.mark.usefixtures("hurried")
def test_letters_survive_a_broker_that_is_killed(tmp_path: Path) -> None:
    """A write to a dead broker raises and leaves no thread behind, and one after its return is read, once."""
    before = set(threading.enumerate())  # of these, others' may end meanwhile
    with EmbeddedKafka(tmp_path) as broker:
        letters = DeadLetters(cluster_for(broker.bootstrap), "dead")
        _write(letters)
        broker.kill()
        for _ in range(2):
            with pytest.raises(BrokerError, match=r"^orders\[2\]@7: .* topic dead: "):
                _write(letters)
        assert set(threading.enumerate()) <= before
        broker.start()
        _write(letters)
        letters.close()
        (letter,) = read_dead_letters(cluster_for(broker.bootstrap), "dead")
        assert (letter.origin, letter.record.value, letter.headers) == (("orders", "", 2, 7), None, [("trace", b"1")])


def test_the_way_of_a_dead_letter(
    kafka_broker: EmbeddedKafka, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a real broker too: listed once, written back as the same record to its partition, deleted."""
    bootstrap, dead = kafka_broker.bootstrap, f"{topic_name}-dead"
    cluster = cluster_for(bootstrap)
    cluster.ensure_topic(topic_name, 2)
    producer = cluster.producer()
    producer.send(topic_name, key=None, value=b"x", headers=[("trace", b"1")], partition=1, timestamp_ms=5)
    producer.flush()
    producer.close()
    consumer = cluster.consumer(group=None)
    partition = TopicPartition(topic_name, 1)
    try:
        topic_id = consumer.topic_id(topic_name)
        letters = DeadLetters(cluster, dead)
        for _ in range(2):
            [record] = poll_one(consumer, partition, 0)
            letters.write(record, attempts=1, first_failure_ms=1, last_failure_ms=2, failure=None, topic_id=topic_id)
        letters.close()
        assert json.loads(command(capsys, "ls", dead, "--json", "--bootstrap", bootstrap))["letters"] == 1
        command(capsys, "replay", dead, "--bootstrap", bootstrap)
        assert consumer.end_offsets([partition])[partition] == 1
        command(capsys, "replay", dead, "--yes", "--bootstrap", bootstrap)
        [record] = poll_one(consumer, partition, 1)
        assert (record.value, record.timestamp, record.headers[0]) == (b"x", 5, ("trace", b"1"))
        assert origin_of(record, topic_id) == (topic_name, topic_id, 1, 0, "")
        command(capsys, "purge", dead, "--before", "1", "--yes", "--bootstrap", bootstrap)
        assert consumer.beginning_offsets([TopicPartition(dead, 0)]) == {TopicPartition(dead, 0): 1}
    finally:
        consumer.close()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["dlq", *arguments]) == 0
    return capsys.readouterr().out


def poll_one(consumer: ConsumerPort, partition: TopicPartition, offset: int) -> list[Record]:
    consumer.assign([partition])
    consumer.seek(partition, offset)
    for _ in range(400):
        if records := consumer.poll(200, 1).get(partition):
            return list(records)
    raise AssertionError("nothing comes")
