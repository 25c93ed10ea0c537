"""What the parts of a spout share."""

from __future__ import annotations

import logging
from collections.abc import Callable

from downspout.kafka.retry_gate import RetryGate
from downspout.spout.dead_lettering import DeadLettering
from downspout.spout.hooks import Hooks
from downspout.spout.setup import Setup
from downspout.spout.spout_metrics import SpoutMetrics
from downspout.spout.timer import Timer
from downspout.spout.transactions import SpoutTransactions

FIRST_COMMIT_DELAY_MS = 500  # The reference's first commit comes this much later than one period
TURN_MS_MAX = 900
"""A turn that has taken so long asks the broker nothing more: one question may take 4 s, and no call more than 5 s."""


class SpoutServices:
    """What a session works with, and what outlives it: checked settings, counters, gates for the client's errors."""

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
        self.transactions = transactions  # Makes the commits, where a KafkaBolt is transactional
        self.poll_gate = RetryGate("poll", bootstrap, metrics, log)
        self.commit_gate = RetryGate("commit", bootstrap, metrics, log)
        self.commit_timer = Timer(period, now(), FIRST_COMMIT_DELAY_MS)

    @property
    def gates(self) -> tuple[RetryGate, RetryGate]:
        """What knows whether the brokers answer."""
        return self.poll_gate, self.commit_gate

    def is_late(self, since: int) -> bool:
        """Return whether the turn that began at ``since`` should ask the broker nothing more; the next one will."""
        return self.now() - since > TURN_MS_MAX
