"""The producer port on real brokers: kafka-python's producer, with batches of ours, which does not lose errors.

There is one answer per batch (``downspout.kafka.batches``); errors surface in the next ``send``, ``flush`` or
``acknowledged``. After the first error an idempotent producer answers all further batches with that same error, so a
new one is made then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafka import errors

from downspout.kafka.batches import Batches
from downspout.kafka.port import ProducerPort

CLOSE_S = 5.0


class KafkaProducerPort:
    """A producer; see :class:`~downspout.kafka.port.ProducerPort`. Made by :meth:`KafkaCluster.producer`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._producer = make()
        self._batches = Batches(self._producer)
        self._error: BaseException | None = None
        self._late = False
        self._is_spent = False

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue one record; it is sent with its batch, when that is full or the next question is asked.

        Raises:
            KafkaError: this record cannot be sent, or an earlier one could not.
        """
        self._collect()
        self._raise()
        if self._is_spent:
            self._late = True  # what it still holds would fail as well
            self.close()
            self._producer = self._make()
            self._batches = Batches(self._producer)
            self._error, self._late, self._is_spent = None, False, False
        self._batches.add(topic, key, value, headers, partition, timestamp_ms)

    def _collect(self) -> None:
        """Take the answers that are there; the client's thread sets an error before its batch is done."""
        answers = self._batches.answers
        while answers and answers[0].is_done:
            answered = answers.popleft()
            self._error = self._error or answered.exception

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._is_spent = True
            raise error

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all queued records are acknowledged by all replicas.

        Raises:
            KafkaError: one was not; which others were is not known.
        """
        if not self._batches.flush(timeout_s):
            self._late = True
            raise errors.KafkaTimeoutError(f"no answer within {self._batches.waited_s():.1f} s")
        self._collect()
        self._raise()

    def acknowledged(self) -> bool:
        """Return whether all queued records are acknowledged by all replicas; do not wait.

        Raises:
            KafkaError: one was refused; which others were is not known.
        """
        self._batches.hand_over()
        self._collect()
        self._raise()
        return not self._batches.answers

    def close(self) -> None:
        """Release the client; what is queued is still sent, for at most 5 s, or dropped if a flush has timed out."""
        if not self._late:
            try:
                if self._batches.flush(CLOSE_S):
                    self._producer.close(timeout=CLOSE_S)
                    return
            except errors.KafkaError:
                pass
        # kafka-python's close begins with a flush, and one that times out leaves its thread alive for ever.
        self._producer._sender.force_close()
        self._producer._sender.join(1.0)
        try:
            self._producer.close(timeout=0)
        except errors.KafkaTimeoutError:
            self._producer._closed = True


def _conforms(producer: KafkaProducerPort) -> ProducerPort:
    """Let the type checker compare the class with its port."""
    return producer
