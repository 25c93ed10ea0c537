"""JSON logging: one object per line, for log collectors.

=========================================  ===============================================================
key                                        value
=========================================  ===============================================================
``time``                                   UTC (ISO 8601)
``level``, ``logger``, ``message``         as in Python's ``logging``
``topic``, ``partition``, ``offset``       if the message names exactly one place, such as ``orders[3]@918``
``component``, ``task``                    if the message or the logger names them: ``reader[task 4]``
``exception``                              the traceback, if any
``worker``                                 the number of the worker that wrote the line (``--workers``)
(others)                                   values of ``extra`` whose names are not reserved
=========================================  ===============================================================

Text written to standard error without ``logging`` (progress, the summary, components' prints) also becomes such a line;
its logger is ``downspout`` if it begins with that name, else ``stderr``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from downspout import exit_guard
from downspout.formatting import safe_repr

PLACE = re.compile(r"(?<![\w.\[\]-])([\w.-]+)\[(\d+)\](?:@(\d+))?(?![\w\[])")
TASK = re.compile(r"(?<![\w.-])([\w.-]+)\[task (\d+)\]")
COMPONENT = "pystorm.component."
PROGRAM, WARNING = "downspout: ", "warning: "
TRACEBACK = re.compile(r"^[ +|]*(?:Exception Group )?Traceback \(most recent call last\):$", re.MULTILINE)
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every log record; any others come from ``extra``."""
OURS = STANDARD | {"time", "level", "logger", "exception"}
"""Reserved names, under which no ``extra`` is written."""


class JsonFormatter(logging.Formatter):
    """Formats a log record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        entry = _entry(record.created, record.levelname, record.name, message)
        if record.name.startswith(COMPONENT):
            entry["component"] = record.name.removeprefix(COMPONENT)
        entry |= coordinates_of(message)
        entry |= {key: value for key, value in vars(record).items() if key not in OURS}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return _dumped(entry)


def coordinates_of(message: str) -> dict[str, Any]:
    """Return the Kafka coordinates and the task in the first line of a message, if it names exactly one.

    >>> coordinates_of("counts[task 4]: orders[3]@918: KeyError: 'a'")
    {'topic': 'orders', 'partition': 3, 'offset': 918, 'component': 'counts', 'task': 4}
    >>> coordinates_of("orders[3] and orders[4] wait")
    {}
    """
    line = message.partition("\n")[0]
    found: dict[str, Any] = {}
    places = {match.groups() for match in PLACE.finditer(line)}
    if len(places) == 1:
        topic, partition, offset = places.pop()
        found = {"topic": topic, "partition": int(partition)}
        if offset is not None:
            found["offset"] = int(offset)
    tasks = {match.groups() for match in TASK.finditer(line)}
    if len(tasks) == 1:
        component, task = tasks.pop()
        found |= {"component": component, "task": int(task)}
    return found


class JsonLines(io.TextIOBase):
    """A standard error stream that writes each message as a line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self._lock = threading.RLock()
        self._rest = ""

    def write(self, text: str) -> int:
        """Write a message once it ends with a newline."""
        with self._lock:
            self._rest += text
            if self._rest.endswith("\n"):
                self.flush()
        return len(text)

    def line(self, line: str) -> None:
        """Write a line that is JSON already."""
        with self._lock:
            self.out.write(line + "\n")
            self.out.flush()

    def flush(self) -> None:
        """Write the text so far, even an incomplete line."""
        with self._lock:
            said, self._rest = self._rest.rstrip("\n"), ""
            if said:
                self.line(line_of(said))

    def fileno(self) -> int:
        """The descriptor of the wrapped stream."""
        return self.out.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def buffer(self) -> Any:
        """The wrapped stream's buffer; bytes written to it are not converted."""
        return self.out.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The wrapped stream's encoding."""
        return self.out.encoding


def line_of(said: str, level: str = "INFO") -> str:
    """Format text that was written without ``logging``."""
    logger = "stderr"
    if said.startswith(PROGRAM):
        said, logger = said.removeprefix(PROGRAM), "downspout"
        if said.startswith(WARNING):
            said, level = said.removeprefix(WARNING), "WARNING"
    return _dumped(_entry(time.time(), level, logger, said) | coordinates_of(said))


def complain(text: str) -> None:
    """Write an error to standard error, as text or JSON."""
    if isinstance(sys.stderr, JsonLines):
        sys.stderr.line(line_of(PROGRAM + text, "ERROR"))
    else:
        print(PROGRAM + text, file=sys.stderr)


class JsonHandler(logging.Handler):
    """Writes log records as JSON."""

    def __init__(self, lines: JsonLines) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            self._lines.line(self.format(record))
        except Exception:
            self.handleError(record)


def install() -> JsonHandler:
    """Convert this process's standard error to JSON for good; return the log handler."""
    lines = JsonLines(sys.stderr)
    sys.stderr = lines
    sys.excepthook, threading.excepthook = _uncaught, _uncaught_in_thread
    logging.captureWarnings(True)
    exit_guard.say_as(lambda text, is_error: line_of(PROGRAM + text, "ERROR" if is_error else "INFO"))
    return JsonHandler(lines)


def _uncaught(kind: type[BaseException], error: BaseException, trace: Any, where: str = "") -> None:
    """Log an uncaught exception in one line."""
    last = "".join(traceback.format_exception_only(error)).strip()
    complain(f"{where}{last}\n{''.join(traceback.format_exception(kind, error, trace)).rstrip()}")


def _uncaught_in_thread(given: threading.ExceptHookArgs) -> None:
    if given.exc_value is not None and given.exc_type is not SystemExit:
        thread = f"thread {given.thread.name}: " if given.thread is not None else ""
        _uncaught(given.exc_type, given.exc_value, given.exc_traceback, thread)


def hand_on(number: int, line: str) -> None:
    """Write a worker's line with its number; text (from C code, for example) is converted to JSON."""
    entry: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # thousands of brackets
        entry = json.loads(line)
    if not isinstance(entry, dict):
        entry = json.loads(line_of(line))
    text = _dumped(entry | {"worker": number})
    with contextlib.suppress(OSError, ValueError):  # the reader is gone; the run continues
        if isinstance(sys.stderr, JsonLines):
            sys.stderr.line(text)
        else:
            sys.stderr.write(text + "\n")


def _entry(at: float, level: str, logger: str, message: str) -> dict[str, Any]:
    message, exception = _without_traceback(message)
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"time": when, "level": level, "logger": logger, "message": message}
    return entry | ({"exception": exception} if exception else {})


def _without_traceback(message: str) -> tuple[str, str]:
    r"""Split a message from the traceback at its end; the message of a bare traceback is its last line.

    >>> _without_traceback("lost\nTraceback (most recent call last):\n  x\nKeyError: 1")
    ('lost', 'Traceback (most recent call last):\n  x\nKeyError: 1')
    """
    if (found := TRACEBACK.search(message)) is None:
        return message, ""
    exception = message[found.start() :]
    return message[: found.start()].rstrip() or exception.rpartition("\n")[2], exception


def _dumped(entry: dict[str, Any]) -> str:
    """Serialise an entry; values that JSON cannot hold (from ``extra``) are written as text."""
    try:
        text = json.dumps(entry, ensure_ascii=False, allow_nan=False, default=str)
    except Exception:  # keys that are not text; NaN; a list that contains itself; a __str__ that raises
        text = json.dumps({key: _fit(value) for key, value in entry.items()}, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _fit(value: Any) -> Any:
    """Return a value that JSON can hold, or its text.

    >>> _fit({"a": 1}), _fit(float("nan")), _fit({("a", 1): 2})
    ({'a': 1}, 'nan', "{('a', 1): 2}")
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=str))
    except Exception:
        return safe_repr(value)
