"""A program without our code: writes numbers to Kafka, and notes those that the brokers have acknowledged."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time

from kafka import KafkaProducer

NEVER_MS = 3_600_000


def main(bootstrap: str, topic: str, partitions: str, rate: str, acknowledged: str) -> int:
    """Write until SIGTERM; then wait for all answers, and print how many records there were."""
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), acks="all", enable_idempotence=True, linger_ms=20,
        request_timeout_ms=5_000, delivery_timeout_ms=NEVER_MS, max_block_ms=NEVER_MS,
    )  # fmt: skip
    began, number = time.monotonic(), 0
    failed: list[BaseException] = []
    with open(acknowledged, "w", encoding="ascii", buffering=1) as notes:
        while not ends:
            if number < (time.monotonic() - began) * float(rate):
                text = hashlib.md5(b"%d" % number).hexdigest()
                value = json.dumps({"id": number, "text": text}).encode()
                sent = producer.send(topic, value=value, partition=number % int(partitions))
                sent.add_callback(lambda _, number=number: notes.write(f"{number}\n"))
                sent.add_errback(failed.append)
                number += 1
            else:
                time.sleep(0.01)
        producer.flush()
        producer.close()
    print(f"{number} {len(failed)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
