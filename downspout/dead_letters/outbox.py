"""Sends dead letters in batches, one at a time, without waiting; retries a failed batch after a back-off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from kafka.errors import KafkaError

from downspout.dead_letters.dead_letter import DeadLetters
from downspout.errors import BrokerError
from downspout.kafka.retry_gate import LogThrottle, describe, may_pass
from downspout.ledger.retry_schedule import Backoff

BATCH_RECORDS = 500
T = TypeVar("T")


class Outbox(Generic[T]):
    """Writes entries as dead letters without waiting for the broker; times are milliseconds on the caller's clock.

    After a failure, the next batch has one entry, so that a further failure identifies the bad dead letter; each
    success doubles the size. A batch without an answer in time has failed.

    Args:
        letters: the topic.
        log: for failures: permanent ones for each entry, others at intervals.
        name: identifies an entry.
        failed: called with a failed batch, its error, and Kafka's error if it is permanent.
    """

    def __init__(
        self,
        letters: DeadLetters,
        log: logging.Logger,
        name: Callable[[T], Hashable],
        failed: Callable[[list[T], Exception, KafkaError | None], None],
    ) -> None:
        self.letters, self._log, self._name, self._failed = letters, log, name, failed
        self.sent: list[T] = []  # the batch in flight
        self.not_before = 0  # when the back-off ends
        self.batch_max = BATCH_RECORDS
        self._deadline = self._failures = 0
        self._backoff, self._throttle = Backoff(200, 10_000), LogThrottle()

    def send(self, batch: list[T], queue: Callable[[T], None], now: Callable[[], int]) -> None:
        """Send a batch; ``queue`` queues one entry in :attr:`letters`. No other batch may be in flight."""
        self.sent, self._deadline = batch, now() + int(self.letters.timeout_s * 1000)
        try:
            for each in batch:
                queue(each)
        except (KafkaError, BrokerError) as error:
            self.fail(batch, error, now())  # a new now(): the back-off starts after the failed call

    def durable(self, now: Callable[[], int], wait_s: float = 0.0) -> list[T]:
        """Return the batch in flight if it is durable now, and forget it; otherwise return nothing."""
        if not self.sent:
            return []
        try:
            if not self.letters.answered(late=now() >= self._deadline, wait_s=wait_s):
                return []
        except (KafkaError, BrokerError) as error:
            self.fail(self.sent, error, now())
            return []
        self._failures, self.batch_max = 0, min(2 * self.batch_max, BATCH_RECORDS)
        batch, self.sent = self.sent, []
        return batch

    def fail(self, batch: list[T], error: Exception, now: int) -> None:
        """Back off, and return the batch to the caller (``failed``)."""
        self.sent, self.batch_max = [], 1
        self._failures += 1
        self.not_before = now + self._backoff.delay(self._failures)
        cause: BaseException | None = error
        while isinstance(cause, BrokerError):
            cause = cause.__cause__
        refusal = cause if isinstance(cause, KafkaError) and not may_pass(cause) else None
        which = None if refusal is None else tuple(map(self._name, batch))
        if self._throttle.due((type(cause).__name__, which), now):
            self._log.warning("%s", error if isinstance(error, BrokerError) else describe(error))
        self._failed(batch, error, refusal)
