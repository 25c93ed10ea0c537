"""The simulation's time, chance and trace: the three things that make a run repeat byte for byte."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

from downspout.testing.virtual_clock import VirtualClock

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
