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
from downspout.kafka.giving_up import describe_failure
from downspout.kafka.patience import Seldom
from downspout.kafka.spout_state import Figures, Partition
from downspout.wording import counted

__all__ = ["FAILS_MIN", "Streak"]

FAILS_MIN = 100
"""Fewer say nothing; and so often it is looked at."""


class Streak:
    """Counts the fails since the last ack.

    Args:
        figures: which count the acks.
        retries_max: how often a record is tried again.
        log: where the warning goes; twice a minute at most.
    """

    def __init__(self, figures: Figures, retries_max: int, log: logging.Logger) -> None:
        self._figures = figures
        self._retries_max = retries_max
        self._log = log
        self._acked = figures.acked
        self._fails = 0
        self._seldom = Seldom()

    def note(self, part: Partition, offset: int, failure: Failure, parts: Collection[Partition], now: int) -> None:
        """Take note of a fail that is no timeout; warn where nothing but fails has come for long.

        Args:
            part: of the record.
            offset: of the record.
            failure: of the record.
            parts: all of the spout's.
            now: in milliseconds.
        """
        if self._figures.acked != self._acked:
            self._acked, self._fails = self._figures.acked, 0
        self._fails += 1
        if self._fails % FAILS_MIN:
            return
        failed = sum(each.ledger.failed for each in parts)
        if failed >= max(FAILS_MIN, sum(each.ledger.in_flight for each in parts)) and self._seldom.due("streak", now):
            self._log.warning(
                "%s: nothing gets through: the last %s answers are fails, this one %s. %s records wait for another "
                "try; each is tried %s again (kafka.retries_max), and the run ends when too many have failed for good "
                "(kafka.breaker_ratio). If a bolt is broken, stop the run now: what has failed is not committed",
                part.place(offset), f"{self._fails:,}", describe_failure(failure), f"{failed:,}",
                counted(self._retries_max, "time"),
            )  # fmt: skip
