"""Starts after an owner that did not end in order: what the last commit tells of it (``downspout.ledger.watch``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from downspout.errors import coordinates
from downspout.kafka.port import TopicPartition
from downspout.kafka.spout_state import Figures
from downspout.ledger.metadata import Progress
from downspout.ledger.watch import AT_WORK, Watch

__all__ = ["UncleanStarts"]


class UncleanStarts:
    """Counts them, and warns.

    Args:
        settings: those of the scope ``kafka``.
        figures: where they are counted.
        log: where warnings go.
    """

    def __init__(self, settings: Mapping[str, Any], figures: Figures, log: logging.Logger) -> None:
        self._tracks = settings["guarantee"] == "AT_LEAST_ONCE"
        self._reach = settings["uncommitted_max"] + settings["poll_records_max"]
        self._figures = figures
        self._log = log

    def look_back(
        self, tp: TopicPartition, base: int, end: int, told: Progress, *, ours: bool
    ) -> tuple[Watch, Progress]:
        """Return the watch to start with; and what was told, with a death while a record was alone as its attempt.

        Args:
            tp: which partition.
            base: the committed offset.
            end: of the log.
            told: by the commit.
            ours: whether this process made that commit: then it lives, and its session ran out.
        """
        if not self._tracks:
            return AT_WORK, told
        before = told.watch.end() if ours else told.watch
        watch = before.start(base, self._reach, end)
        if not before.ended and watch.starts:
            self._figures.unclean += 1
            place = coordinates(tp.topic, tp.partition, base)
            alone = f"; up to {watch.lone_until} one record is out at a time" if watch.solo else ""
            self._log.warning("%s: the last owner did not end in order (%d in a row)%s", place, watch.starts, alone)
        failures = told.failures
        if before.alone is not None:
            failures = {**failures, before.alone: failures.get(before.alone, 0) + 1}
        return watch, replace(told, failures=failures, watch=before)
