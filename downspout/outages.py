"""Outages: what does not answer, what waits for it, and when it is over, in a few lines of log.

Whatever waits for a service (a broker, a database, a store, a disk) says so here at each try, and no more when the
service answers. One line tells of an outage within ``SOON_S``, one a minute while it lasts, and one when it is over.
Nothing here waits, and nothing decides what is tried again.

    OUTAGES.waiting("PostgreSQL at db:5432", "sink orders", "connection timed out", since=began)
    OUTAGES.over("PostgreSQL at db:5432", "sink orders")
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.formatting import lasting

SOON_S = 3.0
"""A shorter outage is not worth a line: a broker that restarts, a connection that is made anew."""
AGAIN_S = 60.0

logger = logging.getLogger("downspout.outages")


@dataclass(slots=True)
class Outage:
    """A service that does not answer."""

    service: str
    since: float  # on the monotonic clock
    since_wall: float
    why: str = ""
    waiting: dict[str, None] = field(default_factory=dict)
    said_at: float | None = None  # when a line was logged last

    def __str__(self) -> str:
        who = list(self.waiting)
        at = time.strftime("%H:%M:%S", time.localtime(self.since_wall))
        goes = "waits for it and goes on" if len(who) == 1 else "wait for it and go on"
        why = f" ({self.why})" if self.why else ""
        return f"{self.service} has not answered since {at}{why}; {', '.join(who)} {goes} when it answers"


class Outages:
    """The outages that one process knows of. Any thread may call.

    >>> outages = Outages()
    >>> outages.waiting("the registry", "parse", "refused")
    >>> [outage.service for outage in outages.current()]
    ['the registry']
    >>> outages.over("the registry", "parse"); outages.current()
    []
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Outage] = {}

    def waiting(self, service: str, who: str, why: str = "", since: float | None = None) -> None:
        """Say that ``who`` waits for a service; to be called again at each try that fails.

        Args:
            service: with node and host.
            who: the component, and what it does.
            why: the error of the last try; empty: silence.
            since: when the first try began that failed, on the monotonic clock; None: now.
        """
        now = self._clock.monotonic()
        with self._lock:
            if (outage := self._open.get(service)) is None:
                began = now if since is None else since
                outage = self._open[service] = Outage(service, began, self._clock.wall() - (now - began))
            outage.why = why or outage.why
            outage.waiting[who] = None
            lasted = now - outage.since
            due = lasted >= SOON_S if outage.said_at is None else now - outage.said_at >= AGAIN_S
            text = f"{outage}" if outage.said_at is None else f"for {lasting(lasted)}: {outage}"
            if due:
                outage.said_at = now
        if due:
            logger.warning("%s", text)

    def over(self, service: str, who: str) -> None:
        """Say that ``who`` does not wait for a service any more. Costs nothing where it did not."""
        if service not in self._open:
            return
        with self._lock:
            if (outage := self._open.get(service)) is None or outage.waiting.pop(who, 0) == 0 or outage.waiting:
                return
            del self._open[service]
        if outage.said_at is not None:
            lasted = lasting(self._clock.monotonic() - outage.since)
            logger.warning("%s answers again, after %s", service, lasted)

    def current(self) -> list[Outage]:
        """Return what does not answer at the moment, for longer than a moment."""
        with self._lock:
            return list(self._open.values())


OUTAGES = Outages()
"""Those of this process."""
