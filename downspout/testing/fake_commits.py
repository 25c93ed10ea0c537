"""Commits that are on their way to the coordinator of the fake Kafka, and that no call waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kafka import errors

from downspout.kafka.port import Answered
from downspout.testing.fake_faults import Faults


class Coordinator(Protocol):
    """What is needed of :class:`~downspout.testing.FakeKafka`."""

    faults: Faults
    holds_commits: bool
    sent_commits: list[SentCommit]

    @property
    def coordinates(self) -> bool:
        """Whether the group coordinator answers."""


class SentCommit:
    """An asynchronous commit. It arrives at once, unless ``FakeKafka.holds_commits``: then a test says when."""

    def __init__(self, cluster: Coordinator, sender: object, request: Callable[[], None], answered: Answered) -> None:
        self.sender = sender
        self._cluster, self._request, self._answered = cluster, request, answered
        cluster.sent_commits.append(self)
        if not cluster.holds_commits:
            self.arrive()

    def arrive(self, error: errors.KafkaError | None = None, *, applied: bool = True) -> None:
        """Reach the coordinator; the sender hears of it in its next call.

        Args:
            error: what it hears, instead of what the coordinator says.
            applied: whether the commit takes effect all the same.
        """
        self._cluster.sent_commits.remove(self)
        fault = self._cluster.faults.take("commit_async")
        if error is None and fault is not None:
            error, applied = fault.error, fault.applied
        found: errors.KafkaError | None = None
        if not self._cluster.coordinates:
            found = errors.CoordinatorNotAvailableError()
        elif error is None or applied:
            try:
                self._request()
            except errors.KafkaError as refused:
                found = refused
        self._answered(error or found)
