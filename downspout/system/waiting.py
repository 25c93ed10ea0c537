"""Progress lines of what takes long: what is waited for, and for how long already."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 5.0
Report = Callable[[str], None]  # Is given one line


def report_to_stderr(line: str) -> None:
    """Print a line on the standard error."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def waiting(
    what: str | Callable[[], str], report: Report = report_to_stderr, every_s: float = EVERY_S
) -> Iterator[None]:
    """Say every few seconds that the block goes on; nothing where it is done before.

    ``what`` may be a function, which is asked each time; it and ``report`` are called in another thread.

    >>> with waiting("fetching jars", print):
    ...     pass
    """
    done, began = threading.Event(), time.monotonic()

    def run() -> None:
        while not done.wait(every_s):
            report(f"{what if isinstance(what, str) else what()} … {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=run, name="downspout-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
