"""How old a group's commits are, which no request of Kafka's protocol tells: from the topic that holds them.

Brokers write each commit as a record of ``__consumer_offsets``, at the time when it is made. Those of one group are in
one partition. Of that, the records of the wanted time are read, and nothing else.
"""

from __future__ import annotations

import time

from kafka import errors

from downspout.kafka.port import ConsumerPort, TopicPartition

TOPIC = "__consumer_offsets"
READ_S_MAX = 10.0
_COMMIT_KEYS = (0, 1)  # Versions of the keys of commits; other keys are of groups


def commit_ages(
    consumer: ConsumerPort, group: str, now: float, within_s: float
) -> dict[TopicPartition, float]:  # fmt: skip
    """Return the ages in seconds of a group's commits that are younger than that, at ``now``.

    Raises:
        KafkaError: the broker does not answer, or gives no right to read the topic.
    """
    count = len(consumer.partitions_for(TOPIC))
    if not count:
        return {}
    tp = TopicPartition(TOPIC, partition_of_group(group, count))
    start = consumer.offsets_for_times({tp: int((now - within_s) * 1000)})[tp]
    if start is None:
        return {}
    end = consumer.end_offsets([tp])[tp]
    consumer.assign([tp])
    consumer.seek(tp, start)
    found: dict[TopicPartition, float] = {}
    deadline = time.monotonic() + READ_S_MAX
    while consumer.position(tp) < end:
        for record in consumer.poll(200, 10_000).get(tp, ()):
            key = _commit_key(record.key or b"")
            if key is not None and key[0] == group and record.value is not None:
                found[key[1]] = max(0.0, now - record.timestamp / 1000)
        if time.monotonic() >= deadline:
            raise errors.KafkaTimeoutError(f"{TOPIC} cannot be read in time")
    return {partition: age for partition, age in found.items() if age <= within_s}


def partition_of_group(group: str, count: int) -> int:
    """Return the partition that holds a group's commits: by Java's hash of a string.

    >>> partition_of_group("kafka-demo", 50), partition_of_group("copies", 50)
    (6, 23)
    >>> partition_of_group("polygenelubricants", 50)  # -2^31, which has no amount: Kafka takes 0
    0
    """
    value = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8) + low) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if value == 1 << 31 else abs(signed) % count


def _commit_key(key: bytes) -> tuple[str, TopicPartition] | None:
    """Return the group and partition of which a record of the topic holds a commit.

    >>> _commit_key(b"\\x00\\x01\\x00\\x01g\\x00\\x02ab\\x00\\x00\\x00\\x07")
    ('g', TopicPartition(topic='ab', partition=7))
    """
    if int.from_bytes(key[:2], "big") not in _COMMIT_KEYS or len(key) < 2:
        return None
    group, at = _text(key, 2)
    topic, at = _text(key, at)
    return group, TopicPartition(topic, int.from_bytes(key[at : at + 4], "big"))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : end].decode("utf-8", "replace"), end
