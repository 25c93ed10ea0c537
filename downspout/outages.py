"""Outages: services that do not answer, the components that wait for them, and a few log lines about both.

A component that waits for a service (a broker, a database, a store, a disk) reports each failed attempt here, and the
end of its wait. An outage is logged after ``SOON_S``, once a minute, and when it ends.

    OUTAGES.waiting("PostgreSQL at db:5432", "sink orders", "connection timed out", since=began)
    OUTAGES.over("PostgreSQL at db:5432", "sink orders")

A component that is blocked in an attempt cannot report it, so it makes the attempt within :meth:`Outages.asking`, and a
thread reports it. :class:`Patience` does this for a store, and schedules the next attempt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import StoreAwayError
from downspout.formatting import lasting

SOON_S = 3.0
"""Shorter outages, such as a broker's restart or a new connection, are not logged."""
AGAIN_S = 60.0
SLOW_S = 20.0
"""After a shorter outage, a slow answer of the same service within a minute is not logged."""
LOOK_S = 0.5
TRY_S = (0.25, 5.0)
"""Pause before the second attempt, and the longest pause."""
SILENT, LOCKED, FULL = "has not answered", "has been locked", "has been full"
OVER_QUOTA = "has had no room left in this user's quota"
CURES = {
    SILENT: "see whether it runs and can be reached",
    LOCKED: "let that transaction end",
    FULL: "free the disk",
    OVER_QUOTA: "free the disk, or a larger quota",
}
"""Hints by the state of a service."""

State = tuple[str, str]
"""The state of a service, as text to follow its name ("has been locked"), and the reason, if known."""
T = TypeVar("T")

logger = logging.getLogger("downspout.outages")


@dataclass(slots=True)
class Outage:
    """A service that does not answer."""

    service: str
    since: float  # on the monotonic clock
    since_wall: float
    state: str = SILENT
    why: str = ""
    waiting: dict[str, None] = field(default_factory=dict)
    said_at: float | None = None  # time of the last log line
    last: float = 0.0  # time of the last report

    def __str__(self) -> str:
        who = list(self.waiting)
        at = time.strftime("%H:%M:%S", time.localtime(self.since_wall))
        goes = "waits for it and goes on" if len(who) == 1 else "wait for it and go on"
        why = f" ({self.why})" if self.why else ""
        until = "answers" if self.state == SILENT else "can be used again"
        return f"{self.service} {self.state} since {at}{why}; {', '.join(who)} {goes} when it {until}"

    @property
    def cure(self) -> str:
        """A hint; waiting components continue by themselves."""
        return CURES.get(self.state, CURES[SILENT])


@dataclass(slots=True, eq=False)
class _Request:
    """An attempt in progress."""

    service: str
    who: str
    since: float
    due: float
    look: Callable[[], State | None] | None


class Outages:
    """The outages known to a process. Thread-safe.

    >>> outages = Outages()
    >>> outages.waiting("the registry", "parse", "refused")
    >>> [outage.service for outage in outages.current()]
    ['the registry']
    >>> outages.over("the registry", "parse"); outages.current()
    []
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._open: dict[str, Outage] = {}
        self._requests: set[_Request] = set()
        self._quiet: dict[str, float] = {}  # by slow service, until when further slow answers are not logged
        self._thread: threading.Thread | None = None
        self._ended: dict[str, float] = {}  # ends of outages, on the monotonic clock

    def waiting(self, service: str, who: str, why: str = "", since: float | None = None, state: str = SILENT) -> None:
        """Report that ``who`` waits for a service; call it at each failed attempt.

        Args:
            service: with its address.
            who: the component, with its purpose.
            why: the last attempt's error; empty: no answer.
            since: start of the first failed attempt, on the monotonic clock; None: now.
            state: its condition, as text to follow its name.
        """
        now = self._clock.monotonic()
        with self._lock:
            if (outage := self._open.get(service)) is None:
                # What others have found to be over is a new outage.
                began = now if since is None else max(since, self._ended.get(service, since))
                outage = self._open[service] = Outage(service, began, self._clock.wall() - (now - began))
            outage.why = why or (outage.why if state == outage.state else "")
            outage.state = state
            outage.waiting[who], outage.last = None, now
            lasted = now - outage.since
            due = lasted >= SOON_S if outage.said_at is None else now - outage.said_at >= AGAIN_S
            text = f"{outage}" if outage.said_at is None else f"for {lasting(lasted)}: {outage}"
            if due:
                outage.said_at = now
        if due:
            logger.warning("%s", text)

    def over(self, service: str, who: str) -> None:
        """Report that ``who`` no longer waits for a service. Costs nothing if it did not."""
        if service not in self._open:
            return
        with self._lock:
            if (outage := self._open.get(service)) is None or outage.waiting.pop(who, 0) == 0 or outage.waiting:
                return
            del self._open[service]
            now = self._clock.monotonic()
            if outage.said_at is not None and now - outage.since < SLOW_S:
                self._quiet[service] = now + AGAIN_S
        self._tell_end(outage, "answers again" if outage.state == SILENT else "can be used again")

    @contextmanager
    def asking(
        self,
        service: str,
        who: str,
        *,
        since: float,
        soon_s: float = SOON_S,
        look: Callable[[], State | None] | None = None,
    ) -> Iterator[None]:
        """Report from another thread that ``who`` waits, if the block takes long.

        Args:
            since: start of the first attempt, on the monotonic clock.
            soon_s: time without a report.
            look: returns the state to report; None: no outage, only a slow answer.
        """
        if self._clock is not SYSTEM_CLOCK:  # virtual time does not pass during a call
            yield
            return
        request = _Request(service, who, since, max(since + soon_s, self._quiet.get(service, 0.0)), look)
        with self._lock:
            self._requests.add(request)
            if self._thread is None or not self._thread.is_alive():  # a process that was forked has none
                self._thread = threading.Thread(target=self._watch, name="downspout-outages", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._requests.discard(request)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                requests = list(self._requests)
                if not requests:
                    self._thread = None
                    return
            for request in requests:
                if self._clock.monotonic() < request.due:
                    continue
                found = (SILENT, "") if request.look is None else request.look()
                request.due = self._clock.monotonic() + SOON_S
                with self._lock:  # the attempt may have ended meanwhile
                    if found is not None and request in self._requests:
                        state, why = found
                        # An earlier attempt of the same outage was answered: with "full", for example.
                        if request.look is None and (outage := self._open.get(request.service)) is not None:
                            state, why = outage.state, outage.why
                        self.waiting(request.service, request.who, why, request.since, state)

    def forget(self) -> None:
        """Forget all outages, at the end of a run."""
        with self._lock:
            self._open.clear()
            self._quiet.clear()
            self._ended.clear()

    def end(self, service: str, how: str = "answers again") -> None:
        """Report that a service answers, or is no longer needed, for all who wait. Most calls cost nothing."""
        if service not in self._open:
            return
        with self._lock:
            outage, self._ended[service] = self._open.pop(service, None), self._clock.monotonic()
        if outage is not None:
            self._tell_end(outage, how)

    def _tell_end(self, outage: Outage, how: str) -> None:
        if outage.said_at is not None:
            lasted = lasting(self._clock.monotonic() - outage.since)
            logger.warning("%s %s, after %s", outage.service, how, lasted)

    def current(self) -> list[Outage]:
        """Return the outages for which components wait now."""
        now = self._clock.monotonic()
        with self._lock:
            return [outage for outage in self._open.values() if now - outage.last < AGAIN_S]


OUTAGES = Outages()
"""The outages of this process."""


class Patience:
    """Attempts of a component to reach a store: duration of the outage, and pauses."""

    def __init__(self, who: str, most_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._who, self._clock = who, clock
        self._most_s = most_s  # longest outage; 0: no limit
        self._outages = OUTAGES if clock is SYSTEM_CLOCK else Outages(clock)
        self._service = ""
        self._since: float | None = None
        self._tries = 0  # failed ones

    @property
    def lasted_s(self) -> float:
        """Duration of the current outage."""
        return 0.0 if self._since is None or not self._tries else self._clock.monotonic() - self._since

    @contextmanager
    def trying(
        self, service: str, *, soon_s: float = SOON_S, look: Callable[[], State | None] | None = None
    ) -> Iterator[None]:
        """Make an attempt in this context; arguments as for :meth:`Outages.asking`.

        Raises:
            StoreAwayError: the attempt failed; :meth:`pause_s` returns the pause before the next.
        """
        self._service = service
        if self._since is None:
            self._since = self._clock.monotonic()
        with self._outages.asking(service, self._who, since=self._since, soon_s=soon_s, look=look):
            try:
                yield
            except StoreAwayError:
                raise
            except BaseException:
                self.over()
                raise
        self.over()

    def pause_s(self, error: StoreAwayError) -> float:
        """Return the pause after a failed attempt.

        Raises:
            StoreAwayError: the outage has lasted too long.
        """
        self._tries += 1
        self._outages.waiting(self._service, self._who, error.why, self._since, error.state or SILENT)
        if self._most_s and self.lasted_s >= self._most_s:
            raise StoreAwayError(f"{error.message}, for {lasting(self.lasted_s)}", cure=error.cure) from error
        return float(min(TRY_S[0] * 2 ** min(self._tries - 1, 16), TRY_S[1]))

    def over(self) -> None:
        """Report that the store has answered."""
        self._since, self._tries = None, 0
        self._outages.over(self._service, self._who)

    def until_it_works(self, work: Callable[[], T], service: str, look: Callable[[], State | None] | None = None) -> T:
        """Repeat some work until the store is available."""
        while True:
            try:
                with self.trying(service, look=look):
                    return work()
            except StoreAwayError as error:
                self._clock.sleep(self.pause_s(error))
