"""Processes that die for good, at a step that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Crashed(BaseException):
    """The process is dead. No ``except OSError`` catches this, and what a ``finally`` does then changes nothing."""


@dataclass(frozen=True)
class Step:
    """One thing that a process is about to do to the world."""

    number: int  # of the process, from 1
    operation: str  # ``write``, ``sync``, ``link`` …; ``tear`` is in the middle of a write
    where: str  # the path, or what stands for one
    changes: bool = True  # whether it changes the world; it may also be a look at it


class Process:
    """One life of a program. Once it has died, nothing that it does has any effect."""

    def __init__(self, name: str, before: Callable[[Process, Step], None] | None = None) -> None:
        self.name = name  # for messages
        self.steps = 0  # how many steps it has begun
        self.dead = False  # whether it has died
        # called ahead of each step; raises :class:`Crashed` to end the process there, any other error to let the step
        # fail, and returns to let it happen
        self._before = before

    def step(self, operation: str, where: object = "", *, changes: bool = True) -> None:
        """Say what comes next. Raises Crashed: the process has died, now or before."""
        self.check()
        self.steps += 1
        if self._before is not None:
            try:
                self._before(self, Step(self.steps, operation, str(where), changes))
            except Crashed:
                self.dead = True
                raise
            self.check()  # it may have died in its sleep

    def check(self) -> None:
        """Raise Crashed if the process has died."""
        if self.dead:
            raise Crashed(f"{self.name} is dead")
