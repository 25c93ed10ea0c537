"""Keys go where Kafka's own producer puts them: its console producer writes, and each record is where we say."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, TopicPartition, partition_of_key
from downspout.system import resolve
from downspout.system.java import java
from tests.kafka.stage import read, unique

pytestmark = pytest.mark.broker

KEYS, PARTITIONS = 10_000, 7
TOOL = "org.apache.kafka.tools.ConsoleProducer"


def test_kafkas_own_producer_puts_keys_where_we_do(
    cluster: KafkaCluster, kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """10,000 random keys, in many scripts and of many lengths, are in the partitions that our hash says."""
    topic, rng = unique(), random.Random(19)
    cluster.ensure_topic(topic, PARTITIONS)
    letters = [chr(number) for number in (*range(0x21, 0x7F), *range(0xA1, 0x250), *range(0x4E00, 0x4F00), 0x1F600)]
    keys = ["".join(rng.choices(letters, k=rng.randrange(1, 40))) for _ in range(KEYS)]
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{key}\t{number}\n" for number, key in enumerate(keys)), encoding="utf-8")
    jars = os.pathsep.join(map(str, resolve("kafka-tools") + resolve("kafka")))
    command = [str(java()), "-Dfile.encoding=UTF-8", "-cp", jars, TOOL, "--bootstrap-server", kafka_broker.bootstrap]
    command += ["--topic", topic, "--reader-property", "parse.key=true"]
    with lines.open("rb") as source:
        subprocess.run(command, stdin=source, capture_output=True, check=True, timeout=120)
    consumer = cluster.consumer(group=None)
    parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(parts)
    for part in parts:
        consumer.seek(part, 0)
    found = {int(record.value or b""): record for record in read(consumer, KEYS)}
    consumer.close()
    assert [found[number].key for number in range(KEYS)] == [key.encode() for key in keys]
    wrong = [
        key for number, key in enumerate(keys) if found[number].partition != partition_of_key(key.encode(), PARTITIONS)
    ]
    assert wrong == []
