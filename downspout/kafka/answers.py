"""What the broker says of a batch, record by record where that differs.

A batch is answered by the client's thread; what it says is read by the thread that sends. The client may split a batch
that a topic finds too large: each record has another batch then, half as large, and the old one has no answer any more.
So records are counted: a batch is done when the batches that were answered hold all of its records.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kafka.structs import TopicPartition

from downspout.kafka.patches.split_batches import call_back, is_bystander, retries_of
from downspout.kafka.port import Sent

ErrorOf = Callable[[int], BaseException]
Part = tuple[Sequence[int], int, ErrorOf | None]
"""Places of records in the batch as it was made, the offset of the first of them, and the error of each."""


class Answer:
    """What the broker says of one batch, however often the client splits it."""

    def __init__(
        self,
        batch: Any,  # the client's
        partition: TopicPartition,  # where it goes
        tokens: Sequence[Any],  # of the records, in order; None for one of which nobody wants to hear
        size: int = 0,  # bytes
        since: float | None = None,  # when its first record was taken, by a monotonic clock
        finished: deque[Answer] | None = None,  # where it puts itself when it is done
    ) -> None:
        self.batch, self.partition, self.tokens, self.size = batch, partition, tokens, size
        self.since = time.monotonic() if since is None else since
        self._finished = finished
        self._parts: list[Part] = []
        self._left = len(tokens)
        self._places: dict[Any, list[int]] = {}
        """Of the batches into which this one was split: which records are in them."""
        self._done = threading.Event()
        self._expect(batch.produce_future, range(len(tokens)))

    @property
    def is_done(self) -> bool:
        """Whether all records have their answer."""
        return self._done.is_set()

    @property
    def retried(self) -> int:
        """How often the client has sent records again: the whole batch, or parts of it."""
        return len(self.tokens) * retries_of(self.batch) + sum(map(len, self._places.values()))

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done, for at most so long; return whether it is."""
        return self._done.wait(timeout_s)

    def moved(self, place: int, future: Any) -> None:
        """Called by the client for each record of a batch that it splits: the record is in that batch now."""
        if future in self._places:
            self._places[future].append(place)
        else:
            self._places[future] = places = [place]
            self._expect(future, places)

    def _expect(self, future: Any, places: Sequence[int]) -> None:
        call_back(future, partial(self._answered, places), partial(self._failed, places))

    def _answered(self, places: Sequence[int], result: tuple[int, int, ErrorOf | None]) -> None:
        self._add((places, result[0], result[2]))

    def _failed(self, places: Sequence[int], error: BaseException) -> None:
        self._add((places, -1, lambda _: error))

    def _add(self, part: Part) -> None:
        self._parts.append(part)
        self._left -= len(part[0])
        if self._left <= 0:
            if self._finished is not None:
                self._finished.append(self)  # first: who has waited looks there
            self._done.set()

    def results(self) -> Iterator[tuple[Sequence[int], Sent]]:
        """Yield places of records and what became of them; those with one fate together. Of a batch that is done.

        Records that were refused for the sake of others in their batch have the error that says so
        (``is_bystander``): they may be sent again.
        """
        topic, partition = self.partition
        for places, offset, error_of in self._parts:
            if error_of is None:
                offset = -1 if offset is None else offset
                yield places, Sent(self._of(places), topic, partition, offset, None, self.since)
                continue
            by_error: dict[int, tuple[BaseException, list[int]]] = {}
            bystanders: list[int] = []
            first: BaseException | None = None
            for index, place in enumerate(places):
                error = error_of(index)
                if is_bystander(error):
                    bystanders.append(place)
                    first = first or error
                else:
                    by_error.setdefault(id(error), (error, []))[1].append(place)
            for error, found in by_error.values():
                yield found, Sent(self._of(found), topic, partition, -1, error, self.since)
            if first is not None:
                yield bystanders, Sent(self._of(bystanders), topic, partition, -1, first, self.since)

    def _of(self, places: Sequence[int]) -> Sequence[Any]:
        return self.tokens if len(places) == len(self.tokens) else [self.tokens[place] for place in places]
