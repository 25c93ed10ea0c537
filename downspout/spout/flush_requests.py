"""On Storm, a spout that waits for acks asks the sinks to flush at once (``downspout.wire.flushing``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from downspout.wire.flushing import FLUSH, FLUSH_S

LOOK_MS = 100  # How often it is seen whether the sinks should flush
REPEAT_MS = 1_000  # How often they are asked, while they should; a request holds for FLUSH_S


class FlushRequests:
    """Asks before the tuples leave that will be waited for."""

    def __init__(self, emit: Callable[..., Any]) -> None:
        self._emit, self._next_at = emit, 0

    @classmethod
    def of(cls, spout: Any, context: Mapping[str, Any]) -> FlushRequests | None:
        """Return the requests of a spout; None: it is not on Storm, or no bolt reads them."""
        is_heard = FLUSH in (context.get("stream->outputfields") or ())
        return cls(spout.emit) if spout.on_storm and is_heard else None

    def look(self, now: int, waits: Callable[[], bool]) -> None:
        """Ask, if it is time, and the spout waits for acks."""
        if now < self._next_at:
            return
        self._next_at = now + LOOK_MS
        if waits():
            self._next_at = now + REPEAT_MS
            self._emit([FLUSH_S], stream=FLUSH)
