"""Wait for something while a stage goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.05


def wait_turning(holds: Callable[[], bool], seconds: float, turn: Callable[[], None]) -> bool:
    """Call ``turn`` until something holds or the seconds are over; return whether it does."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= end:
            return False
        turn()
        time.sleep(LOOK_S)
    return True
