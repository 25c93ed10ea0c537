"""Resumed partitions whose records never come.

Wrong: what was fetched for a partition that is then paused is parked, and not fetched again. After it is resumed it
    comes back only when the slot for the records in line is None: a slot whose records are used up (false, not
    None) blocks it for ever, and one that a busy partition refills blocks it as long as that is busy.
Patch: before each poll, what is parked and no longer paused is put in line, and what was there is parked: they take
    turns.
Self-test: the place for what is parked, and the slot, which is empty in a new consumer.
Upstream: pull request 2981 brought the parking (it is Java's KAFKA-7548).
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client looks at its parked records also while the slot is taken or used up.
"""

from __future__ import annotations

from typing import Any

CONSUMER = {"_fetcher._paused_partition_records": "dict", "_fetcher._next_partition_records": "NoneType"}


class Parking:
    """The parked records of a consumer, and the slot for those in line."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._fetcher = consumer._fetcher

    def take_turns(self) -> None:
        """Put the records of a resumed partition in line; to be called before a poll."""
        fetcher, parked = self._fetcher, self._fetcher._paused_partition_records
        paused = self._consumer.paused() if parked else ()
        if (resumed := next((partition for partition in parked if partition not in paused), None)) is None:
            return
        in_line, fetcher._next_partition_records = fetcher._next_partition_records, parked.pop(resumed)
        if in_line:
            parked[in_line.topic_partition] = in_line
