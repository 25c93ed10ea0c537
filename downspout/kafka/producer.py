"""The producer port on real brokers: kafka-python's producer, which also takes nulls and does not lose errors.

Its errors come through one future per record; ours surface in the next ``send``, ``flush`` or ``acknowledged``. After
the first error an idempotent producer answers every further record with that same error, so a new one is made then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kafka import errors
from kafka.serializer import Serializer

from downspout.kafka.port import ProducerPort


class _Null:
    """Stands for a value of null until it is serialized: kafka-python refuses a record without key and value."""


_NULL = _Null()


class NullableSerializer(Serializer):
    """Passes bytes through, and makes :data:`_NULL` a null."""

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
        """Return the bytes, or None for :data:`_NULL`."""
        return None if data is _NULL else data


class KafkaProducerPort:
    """A producer; see :class:`~downspout.kafka.port.ProducerPort`. Made by :meth:`KafkaCluster.producer`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._producer = make()
        self._out: deque[Any] = deque()
        """Futures of records that are not known to be acknowledged."""
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
        """Queue one record.

        Raises:
            KafkaError: this record cannot be sent, or an earlier one could not.
        """
        self._collect()
        self._raise()
        if self._is_spent:
            self._late = True  # what it still holds would fail as well
            self.close()
            self._producer = self._make()
            self._out.clear()
            self._error, self._late, self._is_spent = None, False, False
        sent = self._producer.send(
            topic,
            value=_NULL if value is None and key is None else value,
            key=key,
            headers=list(headers),
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        self._out.append(sent)

    def _collect(self) -> None:
        """Take the answers that are there; the client's thread sets a future's error before it is done."""
        out = self._out
        while out and out[0].is_done:
            answered = out.popleft()
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
        try:
            self._producer.flush(timeout=timeout_s)
        except errors.KafkaTimeoutError:
            self._late = True
            raise
        self._collect()
        self._raise()

    def acknowledged(self) -> bool:
        """Return whether all queued records are acknowledged by all replicas; do not wait.

        Raises:
            KafkaError: one was refused; which others were is not known.
        """
        self._collect()
        self._raise()
        return not self._out

    def close(self) -> None:
        """Release the client; what is queued is still sent, for at most 5 s, or dropped if a flush has timed out."""
        if not self._late:
            try:
                self._producer.close(timeout=5.0)
                return
            except errors.KafkaTimeoutError:
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
