"""Outages: what does not answer, what waits for it, and when it is over, in a few lines of log.

Whatever waits for a service (a broker, a database, a store, a disk) says so here at each try, and no more when the
service answers. One line tells of an outage within ``SOON_S``, one a minute while it lasts, and one when it is over.

    OUTAGES.waiting("PostgreSQL at db:5432", "sink orders", "connection timed out", since=began)
    OUTAGES.over("PostgreSQL at db:5432", "sink orders")

Who stands still in a try that has no answer cannot say so. It makes the try within :meth:`Outages.asking`, and a thread
says it. :class:`Patience` does all that for a store, and decides when to try again.
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
"""A shorter outage is not worth a line: a broker that restarts, a connection that is made anew."""
AGAIN_S = 60.0
SLOW_S = 20.0
"""What had an answer after less was slow; the like is not worth another line within a minute."""
LOOK_S = 0.5
TRY_S = (0.25, 5.0)
"""Pause before the second try, and the longest one before a later try."""
SILENT, LOCKED, FULL = "has not answered", "has been locked", "has been full"
OVER_QUOTA = "has had no room left in this user's quota"
CURES = {
    SILENT: "see whether it runs and can be reached",
    LOCKED: "let that transaction end",
    FULL: "free the disk",
    OVER_QUOTA: "free the disk, or a larger quota",
}
"""What ends an outage, by what is the matter with the service."""

State = tuple[str, str]
"""What is the matter with a service, after its name ("has been locked"), and why, if that is known."""
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
    said_at: float | None = None  # when a line was logged last
    last: float = 0.0  # when anything waited for it last

    def __str__(self) -> str:
        who = list(self.waiting)
        at = time.strftime("%H:%M:%S", time.localtime(self.since_wall))
        goes = "waits for it and goes on" if len(who) == 1 else "wait for it and go on"
        why = f" ({self.why})" if self.why else ""
        until = "answers" if self.state == SILENT else "can be used again"
        return f"{self.service} {self.state} since {at}{why}; {', '.join(who)} {goes} when it {until}"

    @property
    def cure(self) -> str:
        """What ends it; who waits for it goes on by itself then."""
        return CURES.get(self.state, CURES[SILENT])


@dataclass(slots=True, eq=False)
class _Request:
    """Something that is under way."""

    service: str
    who: str
    since: float
    due: float
    look: Callable[[], State | None] | None


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
        self._lock = threading.RLock()
        self._open: dict[str, Outage] = {}
        self._requests: set[_Request] = set()
        self._quiet: dict[str, float] = {}  # until when a service that was slow is not mentioned for being so again
        self._thread: threading.Thread | None = None
        self._ended: dict[str, float] = {}  # when outages were over, on the monotonic clock

    def waiting(self, service: str, who: str, why: str = "", since: float | None = None, state: str = SILENT) -> None:
        """Say that ``who`` waits for a service; to be called again at each try that fails.

        Args:
            service: with node and host.
            who: the component, and what it does.
            why: the error of the last try; empty: silence.
            since: when the first try began that failed, on the monotonic clock; None: now.
            state: what is the matter with it, after its name.
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
        """Say that ``who`` does not wait for a service any more. Costs nothing where it did not."""
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
        """Say that ``who`` waits, from another thread, where what is done in this context takes long.

        Args:
            since: when it was asked first, on the monotonic clock.
            soon_s: how long it may take.
            look: returns what is the matter; None: nothing, it takes its time.
        """
        if self._clock is not SYSTEM_CLOCK:  # time that does not pass by itself
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
                with self._lock:  # answered meanwhile: who asked may have said so
                    if found is not None and request in self._requests:
                        state, why = found
                        self.waiting(request.service, request.who, why, request.since, state)

    def forget(self) -> None:
        """Forget all: nobody waits any more, since a run is over."""
        with self._lock:
            self._open.clear()
            self._quiet.clear()
            self._ended.clear()

    def end(self, service: str, how: str = "answers again") -> None:
        """Say that a service answers, or is not needed any more, whoever waited for it. Most calls cost nothing."""
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
        """Return what does not answer at the moment, and is waited for."""
        now = self._clock.monotonic()
        with self._lock:
            return [outage for outage in self._open.values() if now - outage.last < AGAIN_S]


OUTAGES = Outages()
"""Those of this process."""


class Patience:
    """Of one who needs a store: how long that is away, and when to try again."""

    def __init__(self, who: str, most_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._who, self._clock = who, clock
        self._most_s = most_s  # how long it may be away; 0: without end
        self._outages = OUTAGES if clock is SYSTEM_CLOCK else Outages(clock)
        self._service = ""
        self._since: float | None = None
        self._tries = 0  # in vain

    @property
    def lasted_s(self) -> float:
        """How long the store has been away by now."""
        return 0.0 if self._since is None or not self._tries else self._clock.monotonic() - self._since

    @contextmanager
    def trying(
        self, service: str, *, soon_s: float = SOON_S, look: Callable[[], State | None] | None = None
    ) -> Iterator[None]:
        """Try within this context; the arguments are those of :meth:`Outages.asking`.

        Raises:
            StoreAwayError: the try was in vain; :meth:`pause_s` says when to try again.
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
        """Return how long to wait after a try in vain.

        Raises:
            StoreAwayError: the store was away for too long.
        """
        self._tries += 1
        self._outages.waiting(self._service, self._who, error.why, self._since, error.state or SILENT)
        if self._most_s and self.lasted_s >= self._most_s:
            raise StoreAwayError(f"{error.message}, for {lasting(self.lasted_s)}", cure=error.cure) from error
        return float(min(TRY_S[0] * 2 ** min(self._tries - 1, 16), TRY_S[1]))

    def over(self) -> None:
        """The store has answered."""
        self._since, self._tries = None, 0
        self._outages.over(self._service, self._who)

    def until_it_works(self, work: Callable[[], T], service: str, look: Callable[[], State | None] | None = None) -> T:
        """Do some work; where the store is away, again and again until it is back."""
        while True:
            try:
                with self.trying(service, look=look):
                    return work()
            except StoreAwayError as error:
                self._clock.sleep(self.pause_s(error))
