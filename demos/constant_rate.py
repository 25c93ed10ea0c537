"""Publishes real flights at a constant rate until stopped."""

from __future__ import annotations

import itertools
import threading
import time

from demos.flights_data import PARTITIONS, TOPIC, FlightRecord, Flights, load_flights
from downspout.kafka.client import KafkaCluster

FLIGHTS = 50_000
POISON = b'{"carrier": "UA", "flight": "<script>document.title = \'poison\'</script>"}'
"""A value that parsers of flights reject, and that a browser must not execute."""


class Publisher(threading.Thread):
    """Writes flights at a constant rate; every ``poison_every``-th record is POISON."""

    def __init__(self, cluster: KafkaCluster, rate: float, *, poison_every: int | None = None) -> None:
        super().__init__(name="publisher", daemon=True)
        self._cluster = cluster
        self._rate = rate
        self._poison_every = poison_every
        self._end = threading.Event()
        self.sent = 0

    def run(self) -> None:
        """Write until :meth:`end`."""
        flights = Flights(load_flights(FLIGHTS))
        rows = itertools.cycle(range(len(flights)))
        producer = self._cluster.producer(client={"linger_ms": 20})
        began = time.monotonic()
        while not self._end.wait(0.05):
            due = int((time.monotonic() - began) * self._rate) - self.sent
            for row in itertools.islice(rows, due):
                record = flights.record(row)
                producer.send(
                    TOPIC,
                    key=record.key,
                    value=self._value(record),
                    partition=self.sent % PARTITIONS,
                    timestamp_ms=record.timestamp_ms,
                )
                self.sent += 1
        producer.flush(60.0)
        producer.close()

    def _value(self, record: FlightRecord) -> bytes:
        is_poison = self._poison_every and self.sent % self._poison_every == self._poison_every - 1
        return POISON if is_poison else record.value

    def end(self) -> None:
        """Stop, and wait until all records are written."""
        self._end.set()
        self.join(90.0)
