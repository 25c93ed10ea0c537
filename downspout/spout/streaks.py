"""Fails without an ack in between: a broken bolt, said long before the circuit breaker can know of it.

The breaker goes by records that failed for good. Where everything fails, that takes all their retries: minutes, in
which the spout reads on up to ``kafka.uncommitted_max``. So the first streak of fails is warned of.

A sink that holds its acks back must not make the few that fail look like the only ones. So a streak is one when there
are many records that failed and have not come through, and no more that are on their way.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from downspout.component import Failure
from downspout.formatting import counted
from downspout.kafka.retry_gate import LogThrottle
from downspout.ledger.retry_schedule import FOR_EVER
from downspout.spout.dead_lettering import describe_failure
from downspout.spout.partition import Partition
from downspout.spout.spout_metrics import SpoutMetrics

FAILS_MIN = 100  # Fewer say nothing; and so often it is looked at


class Streak:
    """Counts the first attempts that failed since the last ack."""

    def __init__(self, metrics: SpoutMetrics, retries_max: int, log: logging.Logger) -> None:
        self._metrics = metrics
        self._retries_max = retries_max
        self._log = log
        self._acked = metrics.acked
        self._fails = 0
        self._throttle = LogThrottle()

    def note(self, part: Partition, offset: int, failure: Failure, parts: Collection[Partition], now: int) -> None:
        """Take note of a first attempt that failed, and not by a timeout; warn where nothing else has come."""
        if self._metrics.acked != self._acked:
            self._acked, self._fails = self._metrics.acked, 0
        self._fails += 1
        if self._fails % FAILS_MIN:
            return
        failed = sum(each.ledger.failed for each in parts)
        if failed >= max(FAILS_MIN, sum(each.ledger.in_flight for each in parts)) and self._throttle.due("streak", now):
            self._log.warning(
                "%s: nothing gets through: the last %s answers are fails, this one %s. %s records wait for another "
                "try; each is tried again %s (kafka.retries_max), and the run ends when too many have failed for good "
                "(kafka.breaker_ratio). If a bolt is broken, stop the run now: what has failed is not committed",
                part.place(offset), f"{self._fails:,}", describe_failure(failure), f"{failed:,}",
                "for ever" if self._retries_max == FOR_EVER else counted(self._retries_max, "time"),
            )  # fmt: skip
