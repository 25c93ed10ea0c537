"""kafka-python's producer: a bare loop, and a flush at the end; a callback checks that no record failed.

    python kafka_python_producer.py BOOTSTRAP TOPIC RECORDS FILE

FILE is a pickle of (key, value). Prints the CPU-seconds of the loop, including the producer's thread.
"""

from __future__ import annotations

import pickle
import sys
import time

from kafka import KafkaProducer

bootstrap, topic, records, file = sys.argv[1:]
with open(file, "rb") as source:
    rows = pickle.load(source)
producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, batch_size=131072, acks="all")
failed: list[object] = []
start = time.process_time()
for number in range(int(records)):
    key, value = rows[number % len(rows)]
    producer.send(topic, key=key, value=value).add_errback(failed.append)
producer.flush()
assert not failed
print(time.process_time() - start)
