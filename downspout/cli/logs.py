"""What of the log is shown on a terminal.

A client that has lost its broker says so dozens of times a second, and buries the one line of ours that says what it
means. So each place in kafka-python's code is heard once in a while, with the number of times that it was not.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

from downspout.cli.records import printable
from downspout.clock import SYSTEM_CLOCK, Clock

WHILE_S = 30.0


class OnceInAWhile(logging.Filter):
    """Lets a record of one logger family through if the same line of code has not spoken lately."""

    def __init__(self, family: str, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._family = family  # the logger and those below it; all others pass
        self._clock = clock
        self._heard: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show the record; one that is shown says how many were not."""
        if record.name.partition(".")[0] != self._family:
            return True
        place, now = (record.pathname, record.lineno), self._clock.monotonic()
        since, silent = self._heard.get(place, (-WHILE_S, 0))
        if now - since < WHILE_S:
            self._heard[place] = since, silent + 1
            return False
        self._heard[place] = now, 0
        if silent:
            record.msg = f"{record.getMessage()} ({silent} more like this)"
            record.args = ()
        return True


class OneLine(logging.Formatter):
    """Makes a line of a message, whatever a record had in it: no line that it forges, nothing that a terminal obeys.

    The lines of a traceback are indented, so that none of them looks like one of the log.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return the traceback."""
        lines = super().formatException(ei).splitlines()
        return "\n".join("    " + printable(line, keep="\t") for line in lines)


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: a table that renews itself puts itself there, and lets lines pass
    above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Where lines go."""
        return sys.stderr


def log_to_stderr(quiet: bool, handler: logging.Handler | None = None) -> None:
    """Show logs from INFO on (``quiet``: WARNING), and of kafka-python's only warnings, once in a while.

    Args:
        quiet: warnings and errors only.
        handler: writes them, where that is not to be text.
    """
    level = logging.WARNING if quiet else logging.INFO
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    if handler is None:
        handler = StderrHandler()
        handler.setFormatter(OneLine(form))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger().setLevel(level)
    logging.getLogger("kafka").setLevel(logging.WARNING)
    # The leader of a group that has just been made has no metadata yet, and warns; the next join has it.
    logging.getLogger("kafka.coordinator.assignors").setLevel(logging.ERROR)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, OnceInAWhile) for known in handler.filters):
            handler.addFilter(OnceInAWhile("kafka"))
