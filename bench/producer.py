"""Sends flights at a fixed rate for ``bench/latency.py``, and records the times.

    python -m bench.producer BOOTSTRAP TOPIC RATE SECONDS TIMES

A few records are sent every 5 ms; after a late tick, the missing ones follow at once. TIMES becomes a numpy file with
the wall clock in ns at each call of ``send``, so a latency includes the producer's own wait.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from bench.flights import PARTITIONS, flights
from downspout.kafka.clusters import cluster_for

TICK_S = 0.005


def main(bootstrap: str, topic: str, rate: str, seconds: str, times: str) -> None:
    """Send, wait until the broker has all records, and write the times."""
    count, interval = int(float(rate) * float(seconds)), 1 / float(rate)
    sent = np.zeros(count, np.int64)
    producer = cluster_for(bootstrap).producer(client={"linger_ms": 0})
    records = list(flights(min(count, 100_000)))
    begin, done = time.monotonic(), 0
    while done < count:
        due = min(count, int((time.monotonic() - begin) / interval) + 1)
        for number in range(done, due):
            key, value = records[number % len(records)]
            sent[number] = time.time_ns()
            producer.send(topic, key=key, value=value, partition=number % PARTITIONS)
        producer.acknowledged()  # hands the batches over: our producer waits for nothing else, and does not linger
        done = due
        time.sleep(TICK_S)
    producer.flush(60)
    producer.close()
    np.save(times, sent)


if __name__ == "__main__":
    main(*sys.argv[1:])
