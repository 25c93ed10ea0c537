"""Joins that go wrong between two polls.

Wrong: a member joins its group within ``poll``, and only there. A pending rejoin is a flag that the heartbeat's
    answer sets, or a difference in the metadata; ``need_rejoin`` looks at both. Three things go wrong about that:

    * *A rejoin that comes up in the middle of a poll.* A poll that finds no records goes round until its time is
      over, and joins again as soon as a round sees the flag. Then everything is revoked before anybody could commit
      what is done: the next owner processes it again.
    * *A join that outlasts a poll.* A join that was begun because metadata changed (a new topic, a new partition)
      is finished by a later ``poll`` only if that sees a need to join. As leader we have noted the new metadata by
      then and see none: the member hangs without partitions and without heartbeats, for ever.
    * *A join that ends between two polls.* Its outcome is thrown away (``_join_task.is_done``) and another join
      begun, which makes every other member join again. Where two members are polled in turns, by one thread, each
      one's join ends while the other is polled: they rebalance for ever.
Patch: a poll that began with no rejoin pending ends when it meets one (:class:`_RejoinPending`), and the next one
    joins; the same holds for one that came up after ``pending`` answered no, and before the poll: a commit may lie
    between the two. ``poll`` keeps the need alive while a join is under way. A join whose outcome has not been read
    does not say that it is done (:class:`_Unread`).
Self-test: the coordinator's questions and flags, and the place of the join, which is empty in a new consumer.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client joins apart from polls, and revokes on request; or all three are otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

CONSUMER = {
    "_coordinator.need_rejoin": "method",
    "_coordinator.rejoining": "bool",
    "_coordinator.ensure_active_group": "method",
    "_coordinator.request_rejoin": "method",
    "_coordinator._join_task": "NoneType",
}


class Step(Protocol):
    """What is to be done once after a poll, when no join is due."""

    due: bool

    def take(self) -> None:
        """Do it; it may stay due."""


class PolledJoins:
    """Stands between a consumer's coordinator and its polls."""

    def __init__(self, consumer: Any) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self._may_join, self._reported_calm = True, False
        self._join, coordinator.ensure_active_group = coordinator.ensure_active_group, self._join_if_due
        self.afterwards: list[Step] = []

    def pending(self) -> bool:
        """Return whether the next poll may revoke partitions, without asking a broker."""
        due = self._due()
        self._reported_calm |= not due
        return due

    def _due(self) -> bool:
        return bool(self._coordinator.need_rejoin() or self._coordinator.rejoining)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Poll within: it joins if that was due before it began; else it ends, without a word, when a join comes up."""
        coordinator = self._coordinator
        if coordinator.rejoining:
            coordinator.request_rejoin()  # "A join that outlasts a poll", above
        join = coordinator._join_task
        if join is not None and not isinstance(join, _Unread):
            coordinator._join_task = _Unread(join)
        # After ``pending`` answered no, the caller has not drained: a rejoin that came up since waits one more poll.
        self._may_join = self._due() and not self._reported_calm
        self._reported_calm = False
        try:
            yield
        except _RejoinPending:
            pass
        finally:
            for step in self.afterwards:
                if step.due and not self._due():
                    step.take()

    def _join_if_due(self, timeout_ms: float | None = None) -> bool:
        if not self._may_join:
            raise _RejoinPending
        return bool(self._join(timeout_ms=timeout_ms))


class _RejoinPending(Exception):
    """Ends a poll that may not join ("A rejoin that comes up in the middle of a poll", above)."""


class _Unread:
    """A join whose outcome was not read yet ("A join that ends between two polls", above)."""

    is_done = False

    def __init__(self, future: Any) -> None:
        self.add_callback = future.add_callback
        self.add_errback = future.add_errback
        self._future = future

    def __await__(self) -> Any:
        return self._future.__await__()
