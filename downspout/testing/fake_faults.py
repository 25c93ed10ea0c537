"""Failures of the fake Kafka as data."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

OPERATIONS = (
    "poll",
    "commit",
    "commit_async",
    "committed",
    "beginning_offsets",
    "end_offsets",
    "offsets_for_times",
    "first_records",
    "partitions_for",
    "topic_id",
    "topic_names",
    "send",
    "flush",
    "produce",
    "begin",
    "send_offsets",
    "commit_transaction",
    "abort_transaction",
    "ensure_topic",
)
"""Methods of the port that can be made to fail."""


@dataclass(frozen=True)
class Fault:
    """One failure to come; ``applied`` means that the operation took effect and only its answer was lost."""

    error: Exception
    applied: bool = False


class Faults:
    """Failures as data: what the next calls of an operation will run into."""

    def __init__(self) -> None:
        self._due: dict[str, deque[Fault]] = defaultdict(deque)

    def fail_next(
        self, operation: str, error: Exception | type[Exception], times: int = 1, *, applied: bool = False
    ) -> None:
        """Let the next ``times`` calls of ``operation`` raise ``error``.

        Args:
            operation: one of ``OPERATIONS``.
            error: usually one of ``kafka.errors``. That of ``commit_async`` is its answer.
            times: how many calls.
            applied: the operation takes effect all the same, and only its answer is lost (not for ``poll``).
        """
        if operation not in OPERATIONS:
            raise ValueError(f"{operation!r} is none of {', '.join(OPERATIONS)}")
        if applied and operation == "poll":
            raise ValueError("a poll that fails takes no effect: a client keeps its position")
        raised = error() if isinstance(error, type) else error
        self._due[operation].extend([Fault(raised, applied)] * times)

    def take(self, operation: str) -> Fault | None:
        """Return the fault that is due for this call, if any, and count it as used."""
        due = self._due[operation]
        return due.popleft() if due else None

    def raise_next(self, operation: str) -> None:
        """Raise the error that is due for this call, if any."""
        if (fault := self.take(operation)) is not None:
            raise fault.error

    def pending(self) -> dict[str, int]:
        """Return how many faults have not been met yet, by operation."""
        return {operation: len(due) for operation, due in self._due.items() if due}

    def clear(self) -> None:
        """Forget all that are due."""
        self._due.clear()
