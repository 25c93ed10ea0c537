"""What was dead-lettered lately: how many by exception, and the last few, for who looks at a run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

LAST_MAX = 10
ERRORS_MAX = 50  # Exceptions that are counted apart; any others are counted together
OTHERS = "other exceptions"


@dataclass(frozen=True, slots=True)
class Written:
    """One dead letter that is durable."""

    topic: str  # of the record that failed, like partition and offset
    partition: int
    offset: int
    error: str  # class and message of the exception; else how it failed
    component: str  # the bolt that failed it; empty where that is not known
    attempts: int
    at_ms: int | None  # when it failed last, milliseconds since the epoch


class WrittenLetters:
    """Counts dead letters by exception, and keeps the last ones. Its memory is bounded.

    >>> letters = WrittenLetters("shop.dead-letters")
    >>> letters.add([Written("orders", 3, 918, "KeyError: 'sku'", "price", 4, 1_700_000_000_000)])
    >>> letters.report()["by_error"], letters.report()["last"][0]["offset"]
    ({'KeyError': 1}, 918)
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._by_error: Counter[str] = Counter()
        self._last: deque[Written] = deque(maxlen=LAST_MAX)

    def add(self, written: Iterable[Written]) -> None:
        """Take note of dead letters that are durable."""
        for each in written:
            kind = each.error.partition(": ")[0]
            self._by_error[kind if kind in self._by_error or len(self._by_error) < ERRORS_MAX else OTHERS] += 1
            self._last.append(each)

    def report(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold; the newest dead letter comes last."""
        return {"topic": self._topic, "by_error": dict(self._by_error), "last": [asdict(each) for each in self._last]}
