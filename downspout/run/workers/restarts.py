"""Whether a crashed worker is restarted, and when: a table and a count.

==========================================  =====================================================================
it ended by                                 then
==========================================  =====================================================================
a signal; BrokerError                       again, at most RESTARTS_MAX times in a row
SIGTERM from outside, in order              the same
ComponentError; without an error (a crash)  again, at most ERRORS_MAX times in a row: it will happen again
any other error of ours                     the run stops: a setting is wrong in each worker alike, a package is
                                            missing everywhere; about lost data and bad records people decide
TakenOverError                              the run stops: a new one would take the place of that process in turn
UnreadableError                             the run stops: Kafka could not return the record in full to another one
==========================================  =====================================================================

*In a row* are deaths of one worker number, each within STEADY_S of its start. A record that kills the process is found
by dying of it (decision 0004): five to eight deaths, and ``kafka.retries_max`` + 1 more. So the limit is not small.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from downspout.errors import BrokerError, ComponentError, DownspoutError, TakenOverError, UnreadableError

STEADY_S = 60.0  # A worker that ran for this long starts a new row
BACKOFF_S = (0.5, 10.0)
"""Wait before the first and, doubled each time, before any later start. Static members have 10 s to come back."""
RESTARTS_MAX, ERRORS_MAX = 20, 3


@dataclass(frozen=True)
class Death:
    """How a worker ended that was not asked to."""

    exit_code: int  # of the process; the negative number of a signal that killed it
    error: DownspoutError | None = None  # that it reported
    drained: bool = False  # it got a SIGTERM from outside, and ended in order

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Death(-9)), str(Death(1)), str(Death(143, drained=True))
        ('was killed by signal 9 (SIGKILL)', 'ended with exit code 1', 'was stopped from outside (exit code 143)')
        """
        if self.error is not None:
            return f"ended with an error: {self.error.message.splitlines()[0]}"
        return self.in_short

    @property
    def in_short(self) -> str:
        """What there is to say without the error."""
        if self.exit_code >= 0:
            code = f"exit code {self.exit_code}"
            return f"was stopped from outside ({code})" if self.drained else f"ended with {code}"
        try:
            name = f" ({signal.Signals(-self.exit_code).name})"
        except ValueError:
            name = ""
        return f"was killed by signal {-self.exit_code}{name}"

    def has_same_error_as(self, error: DownspoutError | None) -> bool:
        """Return whether another worker has reported this error already."""
        return self.error is not None and error is not None and self.error.message == error.message

    @property
    def is_final(self) -> bool:
        """Whether a restart would change nothing."""
        if self.error is None or type(self.error) is DownspoutError:
            return False
        return isinstance(self.error, TakenOverError | UnreadableError) or not isinstance(
            self.error, BrokerError | ComponentError
        )

    @property
    def repeats(self) -> bool:
        """Whether it will probably end like this again."""
        if self.error is not None:
            return not isinstance(self.error, BrokerError)
        return self.exit_code > 0 and not self.drained


class Restarts:
    """Counts the deaths of one worker."""

    def __init__(self, most: int = RESTARTS_MAX) -> None:
        self._most = most
        self.in_a_row = 0

    def wait_s(self, death: Death, lived_s: float) -> float | None:
        """Return how long to wait before the worker is started again; None: the run stops.

        >>> restarts = Restarts(2)
        >>> [restarts.wait_s(Death(-9), lived_s=3) for _ in range(3)]
        [0.5, 1.0, None]
        """
        if death.is_final:
            return None
        self.in_a_row = 1 if lived_s >= STEADY_S else self.in_a_row + 1
        if self.in_a_row > (min(self._most, ERRORS_MAX) if death.repeats else self._most):
            return None
        return float(min(BACKOFF_S[0] * 2 ** (self.in_a_row - 1), BACKOFF_S[1]))

    def final_error(self, death: Death, worker: int) -> DownspoutError:
        """Return the error that ends the run, of the class that the worker's has."""
        if death.error is not None and death.is_final:
            return death.error
        times = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        if death.error is not None:
            cause = type(death.error)(f"worker {worker}{times}: {death.error.message}", cure=death.error.cure)
            cause.exit_code = death.error.exit_code
            return cause
        return ComponentError(
            f"worker {worker} {death}{times}",
            cure="see its output above; if signal 9 killed it, memory may have run out: fewer workers, or less in "
            "flight (topology.max.spout.pending)",
        )
