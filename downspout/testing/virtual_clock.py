"""A clock that only a test advances, so that simulated hours take milliseconds."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

from downspout.clock import Clock


class VirtualClock(Clock):
    """A :class:`~downspout.clock.Clock` that only :meth:`advance` and :meth:`sleep` advance.

    Args:
        wall: the start in seconds since the Unix epoch; the default is a round number, for readable timestamps.

    >>> clock = VirtualClock()
    >>> clock.sleep(90)
    >>> clock.monotonic(), clock.wall()
    (90.0, 1700000090.0)
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._start = wall
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the seconds since the clock was made."""
        return self._now

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        return self._start + self._now

    def sleep(self, seconds: float) -> None:
        """Advance the clock at once."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Advance the clock.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._now += seconds


# --- Time, randomness and trace of a repeatable simulation ---

__all__ = ["TimelineEvent", "Trace", "WorldClock", "determined"]


class WorldClock(VirtualClock):
    """One clock for all processes of a world, set to the time of the process whose turn it is.

    A turn takes time, and the next may begin before the last one has ended. So the processes' times differ by up to
    one turn, as the clocks of different machines do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slept: Callable[[], None] = lambda: None
        """Called after each sleep; gives others their turns while a process takes long."""

    def turn_to(self, now: float) -> None:
        """Set the time."""
        self._now = now

    def sleep(self, seconds: float) -> None:
        """Advance the clock of the process whose turn it is."""
        super().sleep(seconds)
        self.slept()


class TimelineEvent(NamedTuple):
    """An event of a run; ``at`` is in virtual seconds."""

    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.3f}  {self.who:<6} {self.what}"


class Trace:
    """All events of a run; equal runs have equal hashes."""

    def __init__(self, clock: WorldClock) -> None:
        self.events: list[TimelineEvent] = []
        self._clock = clock

    def note(self, who: str, what: str) -> None:
        """Add an event now."""
        self.events.append(TimelineEvent(self._clock.monotonic(), who, what))

    def hash(self) -> str:
        """Return the hash of all events, 16 hexadecimal digits."""
        text = "\n".join(map(str, self.events))
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

    def about(self, *words: str, last: int = 40) -> list[TimelineEvent]:
        """Return the last events that contain one of these words."""
        return [event for event in self.events if any(word in event.what for word in words)][-last:]


@contextlib.contextmanager
def determined(seed: int) -> Iterator[None]:
    """Seed the module ``random`` and ``uuid.uuid4`` for components, and silence logs.

    Other sources (the system's clock, ``os.urandom``, the order of a set of strings) are not covered: our components
    should use ``self.clock``, and never such an order.
    """
    chance = random.Random(f"{seed}/uuid")
    before, real, disabled = random.getstate(), uuid.uuid4, logging.root.manager.disable
    random.seed(seed)
    uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128), version=4)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        uuid.uuid4 = real
        random.setstate(before)
