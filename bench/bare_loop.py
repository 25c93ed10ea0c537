"""The peer: what a careful engineer writes without a framework.

kafka-python's poll loop, orjson, pyarrow, one Parquet file and one commit per 100,000 records.
No tuple trees, no retries, and not exactly-once: stopped between the file and the commit, it writes those rows again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from kafka import KafkaConsumer, TopicPartition

from bench.flights import ARROW_SCHEMA, FIELDS

ROWS_PER_FILE = 100_000


def main(bootstrap: str, topic: str, group: str, directory: str) -> None:
    """Read the topic to its end as of now."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    remaining = sum(consumer.end_offsets(partitions).values())
    rows: list[dict[str, object]] = []
    files = 0
    Path(directory).mkdir(parents=True, exist_ok=True)
    while remaining > 0:
        for records in consumer.poll(timeout_ms=200, max_records=2_000).values():
            remaining -= len(records)
            for record in records:
                row = orjson.loads(record.value)
                row["_partition"] = record.partition
                row["_offset"] = record.offset
                rows.append(row)
        if len(rows) >= ROWS_PER_FILE or (remaining <= 0 and rows):
            columns = [[row.get(name) for row in rows] for name in (*FIELDS, "_partition", "_offset")]
            table = pa.table(
                [pa.array(c, f.type) for c, f in zip(columns, ARROW_SCHEMA, strict=True)], schema=ARROW_SCHEMA
            )
            pq.write_table(table, f"{directory}/part-{files}.parquet", compression="zstd")
            files += 1
            rows.clear()
            consumer.commit()
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
