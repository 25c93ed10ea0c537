"""On Storm, a spout that waits for acks asks the sinks to flush at once (``downspout.wire.flushing``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downspout.spout.group.group_session import GroupSession, SessionState
from downspout.wire.flushing import FLUSH, FLUSH_S

LOOK_MS = 100  # How often it is seen whether the sinks should flush
REPEAT_MS = 1_000  # How often they are asked, while they should; a request holds for FLUSH_S


class FlushRequests:
    """Asks before the tuples leave that will be waited for."""

    def __init__(self, emit: Callable[..., Any]) -> None:
        self._emit, self._next_at = emit, 0

    def look(self, session: GroupSession, now: int) -> None:
        """Ask if it is time, and a hand-over, a search, a death to make up for or a commit waits for acks."""
        if now < self._next_at or not session.parts:
            return  # the look that counts is the first one after the partitions are known
        self._next_at = now + LOOK_MS
        if session.state is SessionState.DRAINING or session.ends_transaction or session.hurries(now):
            self._next_at = now + REPEAT_MS
            self._emit([FLUSH_S], stream=FLUSH)
