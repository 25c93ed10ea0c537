"""A careful engineer's program without a framework: kafka-python's poll loop, a parser, PyArrow.

One file and one commit per 100,000 records. PARSER is ``orjson`` (a row at a time) or ``arrow`` (Arrow's JSON reader).
"""

from __future__ import annotations

import sys

import orjson
from flights_parquet import ROWS_PER_FILE, table_of, table_of_json, write_durably
from kafka import KafkaConsumer

bootstrap, topic, group, directory, records, parser = sys.argv[1:]

consumer = KafkaConsumer(
    topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
)
remaining, files = int(records), 0
values: list[bytes] = []
partitions: list[int] = []
offsets: list[int] = []
while remaining:
    for polled in consumer.poll(timeout_ms=200, max_records=2_000).values():
        for record in polled:
            values.append(record.value)
            partitions.append(record.partition)
            offsets.append(record.offset)
        remaining -= len(polled)
    if len(values) >= ROWS_PER_FILE or not remaining:
        if parser == "arrow":
            table = table_of_json(values, partitions, offsets)
        else:
            table = table_of([orjson.loads(value) for value in values], partitions, offsets)
        write_durably(table, directory, f"part-{files}")
        consumer.commit()
        files += 1
        values, partitions, offsets = [], [], []
consumer.close()
