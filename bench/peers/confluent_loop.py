"""The fast loop: librdkafka's consumer through confluent-kafka, a parser, PyArrow.

One file and one commit per 100,000 records. PARSER is ``arrow`` (Arrow's JSON reader), ``orjson`` (a row at a time) or
``polars`` (its reader of NDJSON).
"""

from __future__ import annotations

import sys

import orjson
from confluent_kafka import Consumer, KafkaException
from flights_parquet import ROWS_PER_FILE, table_of, table_of_json, table_of_polars, write_durably

bootstrap, topic, group, directory, records, parser = sys.argv[1:]

consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
)
consumer.subscribe([topic])
remaining, files = int(records), 0
values: list[bytes] = []
partitions: list[int] = []
offsets: list[int] = []
while remaining:
    messages = consumer.consume(10_000, 0.2)
    for message in messages:
        if (error := message.error()) is not None:
            raise KafkaException(error)
    values += [message.value() for message in messages]
    partitions += [message.partition() for message in messages]
    offsets += [message.offset() for message in messages]
    remaining -= len(messages)
    if len(values) >= ROWS_PER_FILE or not remaining:
        if parser == "orjson":
            table = table_of([orjson.loads(value) for value in values], partitions, offsets)
        else:
            table = (table_of_json if parser == "arrow" else table_of_polars)(values, partitions, offsets)
        write_durably(table, directory, f"part-{files}")
        consumer.commit(asynchronous=False)
        files += 1
        values, partitions, offsets = [], [], []
consumer.close()
