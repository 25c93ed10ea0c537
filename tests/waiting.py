"""One way to wait: until a condition holds, with a limit that says "never", and not "slowly".

A fixed sleep, or a limit of a few seconds, measures the machine. What a test waits for takes milliseconds on a quiet
machine; beside other work a JVM alone may need a minute to start.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 240.0
"""After this, what a test waits for does not happen: less than the time that pytest gives a test on a real server."""

T = TypeVar("T")


class NeverHappenedError(AssertionError):
    """What a test waited for did not happen."""


def eventually(
    condition: Callable[[], T],
    within_s: float = PATIENCE_S,
    *,
    every_s: float = 0.02,
    otherwise: str | Callable[[], object] = "",
    alive: subprocess.Popen[str] | subprocess.Popen[bytes] | None = None,
) -> T:
    """Return what a condition gives, as soon as that is true.

    Raises :class:`NeverHappenedError` after ``within_s`` seconds, or as soon as the process ``alive`` has ended and the
    condition still does not hold. ``otherwise``, a text or a function such as ``log.read_text``, is what it then says.

    >>> eventually([0, 0, 7].pop)
    7
    """
    end = time.monotonic() + within_s
    while True:
        code = None if alive is None else alive.poll()
        if found := condition():
            return found
        if code is not None:
            raise NeverHappenedError(f"the process ended with {code} before it happened: {_told(otherwise)}")
        if time.monotonic() >= end:
            raise NeverHappenedError(f"it did not happen within {within_s:g} s: {_told(otherwise)}")
        time.sleep(every_s)


def _told(otherwise: str | Callable[[], object]) -> str:
    return otherwise if isinstance(otherwise, str) else str(otherwise())
