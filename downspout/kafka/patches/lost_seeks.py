"""A seek that is lost to a reset of the same partition.

Wrong: a partition without a position is reset to the beginning or the end on the client's own thread. That looks
    whether the reset is still wanted, and then sets the position; a seek that comes between the two is overwritten, and
    reading begins somewhere else.
Patch: a lock makes one step of the look and the setting, and a seek waits for it. Neither asks a broker, so no
    wait is long.
Self-test: the step is a method of its own.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client sets a position by a reset only where none was set since it looked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

CONSUMER = {"_fetcher._reset_offset_if_needed": "method"}


def atomic_seek(consumer: Any) -> Callable[[Any, int], None]:
    """Return a function that seeks a partition of a consumer, before a reset or after it."""
    fetcher, lock = consumer._fetcher, threading.RLock()  # a rebalance listener seeks on the client's own thread
    reset = fetcher._reset_offset_if_needed

    def reset_whole(*given: Any) -> None:
        with lock:
            reset(*given)

    def seek(partition: Any, offset: int) -> None:
        with lock:
            consumer.seek(partition, offset)

    fetcher._reset_offset_if_needed = reset_whole
    return seek
