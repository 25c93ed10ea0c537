"""A thread that keeps a backlog of records ahead of the readers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from kafka.errors import KafkaError

from downspout.errors import BrokerError
from downspout.kafka import ProducerPort, cluster_for

BATCH = 2_000
PAUSE_S = 0.2


class Feeder(threading.Thread):
    """Writes numbers, to each partition in turn; continues after errors, when brokers are back.

    Args:
        bootstrap: where.
        topic: to which topic.
        partitions: how many it has.
        ahead: records that wait in each partition at least.
        read_to: returns how far each partition was read.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, ahead: int, read_to: Callable[[], Sequence[int]]
    ) -> None:
        super().__init__(name="feeder", daemon=True)
        self._brokers = bootstrap
        self._topic = topic
        self._ahead = ahead
        self._read_to = read_to
        self._end = threading.Event()
        self._producer: ProducerPort | None = None
        self.written = [0] * partitions
        """Records that the broker has; the log may hold more of those whose acknowledgement got lost."""
        self.errors = 0

    def run(self) -> None:
        """Write until :meth:`end`."""
        while not self._end.is_set():
            try:
                if not self._write():
                    self._end.wait(PAUSE_S)
            except (KafkaError, BrokerError, OSError) as error:
                self.errors += 1
                logging.getLogger(__name__).info("feeder: %s", error)
                self._close()
                self._end.wait(1.0)
        self._close()

    def _write(self) -> bool:
        """Write a batch to each partition that needs one; return whether any did."""
        read_to = self._read_to()
        wanting = [p for p, written in enumerate(self.written) if written - read_to[p] < self._ahead]
        if not wanting:
            return False
        if self._producer is None:
            self._producer = cluster_for(self._brokers).producer(client={"linger_ms": 20})
        for partition in wanting:
            first = self.written[partition]
            for number in range(first, first + BATCH):
                self._producer.send(self._topic, key=None, value=b"%d" % number, partition=partition)
        self._producer.flush(30.0)
        for partition in wanting:
            self.written[partition] += BATCH
        return True

    def _close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            try:
                producer.close()
            except (KafkaError, BrokerError, OSError):
                self.errors += 1

    def end(self) -> None:
        """Stop writing, and wait for the end of the thread."""
        self._end.set()
        self.join(60.0)
