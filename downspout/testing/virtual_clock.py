"""A clock that moves only when a test moves it, so that hours of a topology's life take milliseconds."""

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
    """A :class:`~downspout.clock.Clock` whose time passes only by :meth:`advance` and :meth:`sleep`.

    Args:
        wall: seconds since the Unix epoch at the start; the default is a round number, so that stamps are easy to read.

    >>> clock = VirtualClock()
    >>> clock.sleep(90)
    >>> clock.monotonic(), clock.wall()
    (90.0, 1700000090.0)
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._start = wall
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the seconds that have passed since the clock was made."""
        return self._now

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        return self._start + self._now

    def sleep(self, seconds: float) -> None:
        """Let that much time pass at once."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Let that much time pass.

        Raises:
            ValueError: ``seconds`` is negative; time does not run back.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._now += seconds


# --- time, chance and trace, which make a simulation repeat byte for byte ---

__all__ = ["TimelineEvent", "Trace", "WorldClock", "determined"]


class WorldClock(VirtualClock):
    """One clock for all processes of a world, which shows the time of whoever has its turn.

    A process's turn takes time, and the next one's turn may begin before the last one's ended, as with clocks of
    different machines: they differ by no more than one turn takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slept: Callable[[], None] = lambda: None
        """Called after each sleep; a process that may take long lets others have their turns meanwhile."""

    def turn_to(self, now: float) -> None:
        """Show this time."""
        self._now = now

    def sleep(self, seconds: float) -> None:
        """Let time pass for whoever has its turn."""
        super().sleep(seconds)
        self.slept()


class TimelineEvent(NamedTuple):
    """Something that happened: when (virtual seconds), to whom, and what."""

    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.3f}  {self.who:<6} {self.what}"


class Trace:
    """All that happened in a run, and a hash of it: two runs are the same if their hashes are."""

    def __init__(self, clock: WorldClock) -> None:
        self.events: list[TimelineEvent] = []
        self._clock = clock

    def note(self, who: str, what: str) -> None:
        """Note that something happens now."""
        self.events.append(TimelineEvent(self._clock.monotonic(), who, what))

    def hash(self) -> str:
        """Return the hash of all events, 16 hexadecimal digits."""
        text = "\n".join(map(str, self.events))
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

    def about(self, *words: str, last: int = 40) -> list[TimelineEvent]:
        """Return the last events in which one of these words occurs."""
        return [event for event in self.events if any(word in event.what for word in words)][-last:]


@contextlib.contextmanager
def determined(seed: int) -> Iterator[None]:
    """Let chance in components be the seed's: the module ``random``, and ``uuid.uuid4``. Logs are silent meanwhile.

    What a component takes from elsewhere (the system's clock, ``os.urandom``, the order of a set of texts) is not
    covered: it should use ``self.clock`` where it is one of ours, and no such order anywhere.
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
