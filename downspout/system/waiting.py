"""Progress lines for long waits, with the elapsed time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 5.0
Report = Callable[[str], None]  # Receives one line


def report_to_stderr(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def waiting(
    what: str | Callable[[], str], report: Report = report_to_stderr, every_s: float = EVERY_S
) -> Iterator[None]:
    """Report every few seconds that the block still runs.

    ``what`` may be a function, which is called for each report; it and ``report`` run in another thread.

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
