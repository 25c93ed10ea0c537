"""Wait for a condition while a stage runs."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.05


def wait_turning(holds: Callable[[], bool], seconds: float, turn: Callable[[], None]) -> bool:
    """Call ``turn`` until a condition holds or the time is over; return whether it holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= end:
            return False
        turn()
        time.sleep(LOOK_S)
    return True
