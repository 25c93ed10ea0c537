"""Records that fail for good: each is written to the dead-letter topic, and only then resolved.

The whole record is needed for that. In its last try a record is held in memory; where there is no room, or it
was never held, it is read again: the spout goes back to it as for a retry, and hands it over here instead of
emitting it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Mapping

from kafka.errors import KafkaError

from downspout.component import Failure
from downspout.errors import BrokerError, RecordError
from downspout.kafka.deadletter import DeadLetters
from downspout.kafka.port import Record
from downspout.kafka.spout_state import Figures, Partition, Setback
from downspout.ledger.offsets import NEVER
from downspout.ledger.retries import Backoff

__all__ = ["GivingUp"]

WRITE_MS_MAX = 1_000
"""Letters are written for at most so long (and one letter more) in one call of ``next_tuple``."""
NO_ROOM_MS = 1_000
"""When there is no room to hold a record, it is read again after so long."""


class GivingUp:
    """Holds, writes and resolves.

    Args:
        letters: where to write; None: the run stops at the first record that fails for good.
        figures: where they are counted.
        log: where warnings go.
        told: hears of each record whose letter is written.
    """

    def __init__(
        self,
        letters: DeadLetters | None,
        figures: Figures,
        log: logging.Logger,
        told: Callable[[Partition, Record], None] = lambda part, record: None,
    ) -> None:
        self._letters = letters
        self._figures = figures
        self._told = told
        self._log = log
        self._queue: deque[tuple[Partition, int]] = deque()
        self._not_before = 0
        self._failed_writes = 0
        self._backoff = Backoff(initial_ms=200, delay_ms=200, delay_ms_max=10_000)

    @property
    def busy(self) -> bool:
        """Return whether letters wait to be written."""
        return bool(self._queue)

    def condemn(self, part: Partition, offset: int) -> None:
        """Try this record no more; it is waiting for a retry at the moment."""
        part.condemned.add(offset)
        if offset in part.held:
            part.ledger.postpone(offset, NEVER)
            self._queue.append((part, offset))

    def bring(self, part: Partition, record: Record, now: int) -> None:
        """Take a condemned record that was read again."""
        offset = record.offset
        if offset in part.held:
            return
        if part.hold(record):
            part.ledger.postpone(offset, NEVER)
            self._queue.append((part, offset))
        else:
            part.ledger.postpone(offset, now + NO_ROOM_MS)

    def write(self, now: Callable[[], int], parts: Mapping[str, Partition], mine: Container[Partition]) -> None:
        """Write letters and resolve their records.

        Args:
            now: the time in ms.
            parts: by key; a partition that is not among them was taken away, and others judge its records.
            mine: those that are not set aside in a rebalance: only for them anything may be resolved.

        Raises:
            RecordError: there is no dead-letter topic.
        """
        until = now() + WRITE_MS_MAX
        for _ in range(len(self._queue)):
            if not self._not_before <= now() < until:
                return
            part, offset = self._queue.popleft()
            record = part.held.get(offset)
            if parts.get(part.key) is not part or record is None:
                continue
            if part in mine and self._write_one(part, record, now()):
                part.ledger.resolve(offset)
                part.forget(offset)
                self._figures.dead_lettered += 1
                self._told(part, record)
            else:
                self._queue.append((part, offset))

    def _write_one(self, part: Partition, record: Record, now: int) -> bool:
        trouble = part.ledger.trouble(record.offset)
        setback = part.setbacks.get(record.offset)
        attempts = trouble.failures if trouble else 0
        if self._letters is None:
            raise refuse(part, record.offset, attempts, setback)
        try:
            self._letters.write(
                record,
                attempts=attempts,
                first_failure_ms=setback.first_ms if setback else None,
                last_failure_ms=setback.last_ms if setback else None,
                failure=setback.failure if setback else None,
                topic_id=part.topic_id,
            )
        except (KafkaError, BrokerError) as error:
            self._failed_writes += 1
            self._not_before = now + self._backoff.delay(self._failed_writes)
            self._figures.errors += 1
            self._log.warning("%s", error)
            return False
        self._failed_writes = 0
        return True

    def close(self) -> None:
        """Release the producer."""
        if self._letters is not None:
            self._letters.close()


def refuse(part: Partition, offset: int, attempts: int, setback: Setback | None) -> RecordError:
    """Return the error that stops a run without a dead-letter topic."""
    failure = setback.failure if setback else None
    return RecordError(
        f"{part.place(offset)}: failed {attempts} times; {_describe(failure)}",
        cure="repair the bolt, or set kafka.dead_letter_topic; the record is not committed and comes again",
    )


def _describe(failure: Failure | None) -> str:
    if failure is None:
        return "the reason is not known"
    where = f" in {failure.component}" if failure.component else ""
    return f"last by {failure.kind}{where}{': ' + failure.error if failure.error else ''}"
