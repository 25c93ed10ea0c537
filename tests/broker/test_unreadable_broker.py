"""Unreadable data on a real broker: a flipped byte in its log, and a small batch that unpacks to a huge one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from kafka import KafkaProducer

from downspout.broker import EmbeddedKafka
from downspout.dead_letters import DeadLetter, read_dead_letters
from downspout.errors import BrokerError
from tests.broker.scene import Scene, run_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]
MODES = pytest.mark.parametrize("emit", ["record", "chunk"])


@pytest.fixture
def scene(kafka_broker: EmbeddedKafka, topic_name: str) -> Iterator[Scene]:
    with Scene(kafka_broker.bootstrap, topic_name) as made:
        yield made


def flip(broker: EmbeddedKafka, scene: Scene, batch: int) -> None:
    """Change a byte at the end of one of the batches in the log's file."""
    (path,) = broker.directory.glob(f"data/**/{scene.topic}-0/*.log")
    data = bytearray(path.read_bytes())
    at = 0
    for _ in range(batch):
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    end = at + 12 + struct.unpack_from(">i", data, at + 8)[0]
    with path.open("r+b") as file:
        file.seek(end - 2)
        file.write(bytes([data[end - 2] ^ 1]))


def letters(scene: Scene) -> list[DeadLetter]:
    return list(read_dead_letters(scene.cluster, f"{scene.group}.dead-letters"))


@MODES
def test_a_flipped_byte_in_the_log_is_passed_if_so_told(kafka_broker: EmbeddedKafka, scene: Scene, emit: str) -> None:
    """One dead letter names the offsets of the batch; all others are emitted, and the commit reaches the end."""
    scene.fill(15, batch=5)
    flip(kafka_broker, scene, 1)
    member = scene.member(emit=emit, chunk_records_max=1, on_corrupt_batch="dead_letter")

    run_until(lambda: 14 in member.offsets and letters(scene), member, answer=True)
    scene.commit_all(member, p0=15)
    assert member.offsets == [*range(5), *range(10, 15)]
    assert [(letter.offsets, letter.is_cut) for letter in letters(scene)] == [(range(5, 10), True)]


def test_a_flipped_byte_in_the_log_ends_the_run_by_default(kafka_broker: EmbeddedKafka, scene: Scene) -> None:
    """The error names the batch and the setting, at each start."""
    scene.fill(15, batch=5)
    flip(kafka_broker, scene, 1)
    for _ in range(2):
        member = scene.member()

        with pytest.raises(BrokerError, match=r"\[0\]@5: .*5 to 9.*checksum.*kafka.on_corrupt_batch=dead_letter"):
            run_until(lambda: False, member)
        member.kill()


@MODES
def test_a_record_of_zeros_in_a_small_batch_is_given_up(scene: Scene, emit: str) -> None:
    """It comes as a few kilobytes; of 40 MB the dead letter has the beginning, and the next record is emitted."""
    scene.fill(1)
    producer = KafkaProducer(bootstrap_servers=scene.bootstrap, compression_type="zstd", max_request_size=1 << 28)
    producer.send(scene.topic, key=b"bomb", value=bytes(40_000_000)).get(timeout=60)
    producer.close()
    scene.fill(1)
    member = scene.member(emit=emit, chunk_records_max=1, record_bytes_max=1 << 20)

    run_until(lambda: 2 in member.offsets and letters(scene), member, answer=True)
    scene.commit_all(member, p0=3)
    assert member.offsets == [0, 2]
    (letter,) = letters(scene)
    assert (letter.offset, letter.record.key) == (1, b"bomb")
    assert letter.record_bytes is not None
    assert letter.record_bytes > 40_000_000
