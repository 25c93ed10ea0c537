"""A seek concurrent with the client's own reset of a partition; a real broker needs thousands of tries to show it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from downspout.kafka import atomic_seek


def test_a_seek_is_not_overwritten_by_a_reset_that_was_under_way() -> None:
    """The reset has looked and not yet set the position when the seek comes: the seek's place holds."""
    looked, goes_on, position = threading.Event(), threading.Event(), [-1]

    def reset(partition: str, timestamp: int, offset: int) -> None:
        looked.set()
        assert goes_on.wait(10)
        position[0] = offset

    fetcher = SimpleNamespace(_reset_offset_if_needed=reset)
    consumer: Any = SimpleNamespace(_fetcher=fetcher, seek=lambda partition, offset: position.__setitem__(0, offset))
    seek = atomic_seek(consumer)
    threads = [threading.Thread(target=fetcher._reset_offset_if_needed, args=("t-1", -2, 0))]
    threads[0].start()
    assert looked.wait(10)
    threads.append(threading.Thread(target=seek, args=("t-1", 43)))
    threads[1].start()
    threads[1].join(0.2)  # where nothing holds it up it is through by then
    goes_on.set()
    for thread in threads:
        thread.join()
    assert position == [43]
