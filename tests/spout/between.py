"""Layers between a spout and the real client: faults, and slow dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka import errors

from downspout.kafka import ProducerPort, Sent
from downspout.kafka.port import Answered
from downspout.testing import OPERATIONS, FakeFaults
from tests.jumping import JumpingClock


class Between:
    """What the calls that pass here run into; see :class:`~downspout.testing.FakeKafka` for the names.

    ``acks_after_s`` goes by the time that a test lets pass, and not by what the machine takes besides.
    """

    def __init__(self, clock: JumpingClock) -> None:
        self.clock = clock
        self.faults = FakeFaults()
        self.acks_after_s = 0.0


class Faulty:
    """A consumer or cluster whose calls run into the faults that are due for them."""

    def __init__(self, inner: Any, between: Between) -> None:
        self._inner = inner
        self._between = between

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        operation = {"topic_ids": "topic_id"}.get(name, name)
        if name == "consumer":
            return lambda **given: Faulty(found(**given), self._between)
        if name == "producer":
            return lambda **given: FaultyProducer(found(**given), self._between)
        return self._faulty(operation, found) if operation in OPERATIONS else found

    def _faulty(self, operation: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            if operation == "commit_async":
                return self._commit_async(call, *given)
            if operation == "commit" and not given[0]:  # only waits
                return call(*given)
            fault = self._between.faults.take(operation)
            answer = call(*given, **named) if fault is None or fault.applied else None
            if fault is not None:
                raise fault.error
            return answer

        return called

    def _commit_async(self, call: Callable[..., Any], offsets: Any, answered: Answered | None = None) -> None:
        if (fault := self._between.faults.take("commit_async")) is None:
            call(offsets, answered)
        elif fault.applied and answered is not None:
            call(offsets, lambda _: answered(fault.error))
        elif answered is not None:
            answered(fault.error)


class FaultyProducer:
    """A producer that holds records back where they are late, or will be lost: then the broker never sees them."""

    def __init__(self, inner: ProducerPort, between: Between) -> None:
        self._inner = inner
        self._between = between
        self._held: list[tuple[str, dict[str, Any]]] = []
        self._held_at = 0.0

    def send(self, topic: str, **record: Any) -> None:
        self._between.faults.raise_next("send")
        if self._between.acks_after_s or "flush" in self._between.faults.pending():
            self._held.append((topic, record))
            self._held_at = self._between.clock.jumped
        else:
            self._inner.send(topic, **record)

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all is acknowledged; what is later than that, or meets a fault, is dropped."""
        fault = self._between.faults.take("flush")
        held, self._held = self._held, []
        if fault is not None and not fault.applied:
            raise fault.error
        if held and self._late_s > timeout_s:
            raise errors.KafkaTimeoutError(f"not acknowledged within {timeout_s:g} s")
        for topic, record in held:
            self._inner.send(topic, **record)
        self._inner.flush(timeout_s)
        if fault is not None:
            raise fault.error

    def results(self) -> list[Sent]:
        """Return what became of records; an answer that meets a fault is that error, and its records are written."""
        found = list(self._inner.results())
        if found and (fault := self._between.faults.take("produce")) is not None:
            found[0] = found[0]._replace(error=fault.error, offset=-1)
        return found

    @property
    def buffered_bytes(self) -> int:
        return self._inner.buffered_bytes

    def refuse_when_stuck(self, seconds: float) -> None:
        """Refuse records for a partition that has had no answer for so long."""
        self._inner.refuse_when_stuck(seconds)

    def oldest_s(self) -> float:
        return self._inner.oldest_s()

    @property
    def retried(self) -> int:
        return self._inner.retried

    def acknowledged(self) -> bool:
        """Return whether all is acknowledged; what is held is only when its time has come."""
        if self._held:
            if self._late_s > 0:
                return False
            self.flush()
        return self._inner.acknowledged()

    @property
    def _late_s(self) -> float:
        return self._held_at + self._between.acks_after_s - self._between.clock.jumped

    def close(self) -> None:
        self._inner.close()
