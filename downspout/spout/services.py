"""What the parts of a spout share: checked settings, counters, timers, the gates for the client's errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from downspout.kafka.retry_gate import RetryGate
from downspout.spout.dead_lettering import DeadLettering
from downspout.spout.ports import Hooks, SpoutMetrics
from downspout.spout.settings import Setup
from downspout.spout.spout_transactions import SpoutTransactions
from downspout.wire.side_streams import FLUSH, FLUSH_S

FIRST_COMMIT_DELAY_MS = 500  # The reference's first commit comes this much later than one period
TURN_MS_MAX = 900
"""A turn that has taken this long sends no more requests: one may take 4 s, and no call more than 5 s."""


class SpoutServices:
    """What a session uses and what outlives it: checked settings, counters, gates for the client's errors."""

    def __init__(
        self,
        setup: Setup,
        metrics: SpoutMetrics,
        hooks: Hooks,
        dead_lettering: DeadLettering,
        log: logging.Logger,
        now: Callable[[], int],
        transactions: SpoutTransactions | None = None,
    ) -> None:
        bootstrap, period = setup.settings["bootstrap"], setup.guarantee.period_ms(setup.settings)
        if transactions is not None:
            period = setup.settings["transaction_ms"]
        self.setup, self.metrics, self.hooks, self.dead_lettering, self.log = setup, metrics, hooks, dead_lettering, log
        self.now = now  # Returns the time in ms
        self.transactions = transactions  # Makes the commits, if a KafkaBolt is transactional
        self.poll_gate = RetryGate("poll", bootstrap, metrics, log)
        self.commit_gate = RetryGate("commit", bootstrap, metrics, log)
        self.commit_timer = Timer(period, now(), FIRST_COMMIT_DELAY_MS)

    @property
    def gates(self) -> tuple[RetryGate, RetryGate]:
        """The gates that know whether the brokers answer."""
        return self.poll_gate, self.commit_gate

    def is_late(self, since: int) -> bool:
        """Return whether the turn that began at ``since`` should send no more requests; the next turn will."""
        return self.now() - since > TURN_MS_MAX


class Timer:
    """Something that is due every ``period_ms``, first after ``period_ms + delay_ms``.

    >>> timer = Timer(30_000, delay_ms=500, now=0)
    >>> timer.due(30_499), timer.due(30_500)
    (False, True)
    >>> timer.restart(30_500); timer.due(60_499), timer.due(60_500)
    (False, True)
    """

    def __init__(self, period_ms: float, now: int, delay_ms: int = 0) -> None:
        self._period = period_ms
        self._at = now + period_ms + delay_ms

    def due(self, now: int) -> bool:
        """Return whether the time has come."""
        return now >= self._at

    def left_ms(self, now: int) -> float:
        """Return how long it is until then.

        >>> Timer(30_000, now=0).left_ms(29_000)
        1000
        """
        return max(0, self._at - now)

    def restart(self, now: int) -> None:
        """Wait one more period from now."""
        self._at = now + self._period

    def expedite(self) -> None:
        """Be due at once."""
        self._at = 0


LOOK_MS = 100  # How often to check whether the sinks should flush
REPEAT_MS = 1_000  # How often they are asked, while they should; a request holds for FLUSH_S


class FlushRequests:
    """Asks sinks to flush, before the tuples to wait for are emitted."""

    def __init__(self, emit: Callable[..., Any]) -> None:
        self._emit, self._next_at = emit, 0

    @classmethod
    def of(cls, spout: Any, context: Mapping[str, Any]) -> FlushRequests | None:
        """Return the requests of a spout; None: it is not on Storm, or no bolt reads them."""
        is_heard = FLUSH in (context.get("stream->outputfields") or ())
        return cls(spout.emit) if spout.on_storm and is_heard else None

    def look(self, now: int, waits: Callable[[], bool]) -> None:
        """Send a request if one is due and the spout waits for acks."""
        if now < self._next_at:
            return
        self._next_at = now + LOOK_MS
        if waits():
            self._next_at = now + REPEAT_MS
            self._emit([FLUSH_S], stream=FLUSH)
