"""Commits to a consumer group in the background: newest first, never backwards, and nobody waits or fails for it.

The group has no members: it is a place where lag tools look. So nothing depends on these commits, and whatever goes
wrong with them is logged and tried again with what is newest by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.spark.source.ranges import Offsets

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 30.0

log = logging.getLogger("downspout.spark")


class Committer:
    """One group's commits, by a thread of their own.

    Args:
        group: for the log.
        connect: makes a consumer of the group; it is used by the thread alone and not joined to the group.
        backoff_s: the first wait after a failure; it doubles up to 30 s.
    """

    def __init__(self, group: str, connect: Callable[[], ConsumerPort], backoff_s: float = BACKOFF_S_MIN) -> None:
        self._group = group
        self._connect = connect
        self._backoff_s = backoff_s
        self._consumer: ConsumerPort | None = None
        self._changed = threading.Condition()
        self._wanted: Offsets = {}
        self._done: Offsets = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"commits-{group}", daemon=True)
        self._thread.start()

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these soon; an offset below an earlier one of its partition changes nothing. Never waits."""
        with self._changed:
            for tp, offset in offsets.items():
                self._wanted[tp] = max(offset, self._wanted.get(tp, 0))
            self._changed.notify_all()

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all is committed that was added before; return whether it was in time."""
        with self._changed:
            wanted = dict(self._wanted)
            return self._changed.wait_for(
                lambda: all(self._done.get(tp, -1) >= offset for tp, offset in wanted.items()), timeout_s
            )

    def close(self, timeout_s: float = 10.0) -> None:
        """Commit what is left, for at most so long, and end the thread."""
        self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
        while (offsets := self._next()) is not None:
            try:
                self._commit(offsets)
                failures = 0
            except Exception as error:  # a lag tool that sees old figures for a while is no reason to stop anything
                failures += 1
                wait_s = min(self._backoff_s * 2 ** min(failures - 1, 10), BACKOFF_S_MAX)
                log.warning("group %s: commit failed, again in %.0f s: %s", self._group, wait_s, error)
                self._release()
                self._pause(wait_s)
        self._release()

    def _next(self) -> Offsets | None:
        """Wait for something to commit and return it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted != self._done)
            if self._closed:
                return None
            return {tp: offset for tp, offset in self._wanted.items() if self._done.get(tp) != offset}

    def _commit(self, offsets: Offsets) -> None:
        if self._consumer is None:
            self._consumer = self._connect()
        there = self._consumer.committed(list(offsets))
        ahead = {
            tp: OffsetAndMetadata(offset, "", -1)
            for tp, offset in offsets.items()
            if (found := there.get(tp)) is None or found.offset < offset
        }
        if ahead:
            self._consumer.commit(ahead)
        with self._changed:
            self._done |= offsets
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._closed, max(until - time.monotonic(), 0))

    def _release(self) -> None:
        consumer, self._consumer = self._consumer, None
        try:
            if consumer is not None:
                consumer.close()
        except Exception as error:
            log.warning("group %s: closing: %s", self._group, error)
