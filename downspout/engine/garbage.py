"""Garbage collection while tuples flow."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

GC_THRESHOLDS = (200_000, 20, 50)
"""Tuples live for microseconds and die by reference count; what is in flight lives on and is looked at in vain by
every collection. With Python's default thresholds that took 40 % of a run (10.8 against 6.4 CPU-seconds per million
records), and with 100,000 still 4 %: what waits for a flush is more than that. Cycles, such as those that a traceback
makes, are still collected, only seldom."""


@contextlib.contextmanager
def calm_gc() -> Iterator[None]:
    """Collect garbage seldom (see GC_THRESHOLDS) and never look at what was there before the run, garbage or not."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
