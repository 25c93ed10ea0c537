"""Handlers of signals that are set for a while."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


@contextlib.contextmanager
def handled_by(
    handle: Callable[[int, FrameType | None], object], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Let a function handle these signals while the context lasts; only for the main thread."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
