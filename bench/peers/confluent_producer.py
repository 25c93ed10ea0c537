"""confluent-kafka's producer: a loop with a delivery callback per record, as in its documentation.

    python confluent_producer.py BOOTSTRAP TOPIC RECORDS FILE

FILE is a pickle of (key, value). Prints the CPU-seconds of the loop.
"""

from __future__ import annotations

import pickle
import sys
import time

from confluent_kafka import Producer

bootstrap, topic, records, file = sys.argv[1:]
with open(file, "rb") as source:
    rows = pickle.load(source)
producer = Producer(
    {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.size": 131072,
     "partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000}
)  # fmt: skip
acked = [0]


def heard(error: object, message: object) -> None:
    assert error is None
    acked[0] += 1


start = time.process_time()
for number in range(int(records)):
    key, value = rows[number % len(rows)]
    while True:
        try:
            producer.produce(topic, value, key, callback=heard)
            break
        except BufferError:
            producer.poll(0.1)
    if number % 1000 == 0:
        producer.poll(0)
producer.flush()
assert acked[0] == int(records)
print(time.process_time() - start)
