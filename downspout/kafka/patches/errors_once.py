"""A batch that cannot be read: one error, and then a poll that never returns.

Wrong: a batch that cannot be read is an error of one ``poll``. Nothing more comes of its bytes then, and they do
    not count as used up: the next ``poll`` asks them again and again, without an end.
Patch: the error stays, and is raised by every poll, until the next seek.
Self-test: the class of what was fetched of a partition has ``take``.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client raises such an error again, or ends, at the next poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CONSUMER = {"_fetcher.PartitionRecords.take": "function"}


def keeping_errors(known: type[Any]) -> type[Any]:
    """Return a class for the records of a fetch whose error stays."""

    class KeepingErrors(known):
        _failure: Exception | None = None

        def take(self, n: int | None = None) -> Sequence[Any]:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            try:
                found: Sequence[Any] = super().take(n)
            except Exception as error:
                self._failure = error
                raise
            return found

    return KeepingErrors
