"""Where a command's own result goes, apart from what users' code prints; and how a command shows a page.

**The log on a terminal.** A client that has lost its broker says so dozens of times a second, and buries the one line
of ours that says what it means. So each place in kafka-python's code is heard once in a while, with the number of times
that it was not.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from downspout.web.page import Page

PageType = TypeVar("PageType", bound="Page")


@contextmanager
def aside(*, wanted: bool = True) -> Iterator[TextIO]:
    """Redirect prints to stderr from now on, and yield standard output for our own result."""
    out = sys.stdout
    if not wanted:
        yield out
    # The descriptor is redirected, which includes child processes and native code; permanently, because of prints at
    # the end of the process. If a Python caller has replaced sys.stdout, that is redirected only within the context.
    elif _descriptor(out) == 1:
        out.flush()
        ours = open(os.dup(1), "w", encoding=out.encoding, errors=out.errors)  # noqa: SIM115
        os.dup2(2, 1)
        with ours:
            yield ours
    else:
        with redirect_stdout(sys.stderr):
            yield out


def print_result(text: str, out: TextIO) -> None:
    """Print a command's result.

    Raises:
        BrokenPipeError: the reader has gone.
        ConfigError: it cannot be written; a full device, for example.
    """
    with _written(out):
        print(text, file=out, flush=True)


def complain(text: str) -> None:
    """Print an error to standard error; in a JSON log, as a record of level error."""
    from downspout.export import json_log  # not needed without errors

    json_log.complain(text)


def write_bytes(data: bytes, out: TextIO) -> None:
    """Write bytes unchanged; errors as for :func:`print_result`."""
    with _written(out):
        out.buffer.write(data)
        out.flush()


def finish(out: TextIO) -> None:
    """Flush, because an error at the end of the process could not be reported."""
    with _written(out):
        out.flush()


@contextmanager
def _written(out: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (descriptor := _descriptor(out)) is not None:  # otherwise the rest would be retried, with the same error
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        if isinstance(error, BrokenPipeError):
            raise
        raise ConfigError(f"standard output: {error.strerror}", cure="to write it elsewhere") from None


def _descriptor(out: TextIO) -> int | None:
    try:
        return out.fileno()
    except (OSError, ValueError):
        return None


def check_writable(option: str, path: str) -> None:
    """Raise a ConfigError if a file cannot be written, before hours of work on its content.

    >>> check_writable("--json", "/")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: --json /: it is a directory. Try: a path that can be written, or -
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        why = "it is a directory"
    elif not os.path.isdir(folder):
        why = f"there is no directory {folder}"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        why = "this user may not write it"
    else:
        return
    raise ConfigError(f"{option} {path}: {why}", cure="a path that can be written, or -")


def take_any_text() -> None:
    """Escape characters that the encoding of standard output or error lacks.

    Otherwise printing the result could end a command with a traceback, after it has done its work.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def fill_gaps() -> None:
    """Open ``/dev/null`` for closed standard streams: otherwise the next opened file would take their place."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


@contextmanager
def shown(serve: Callable[[], AbstractContextManager[PageType]], what: str) -> Iterator[PageType]:
    """Serve a page while the context lasts, and print its URL.

    Args:
        serve: imports what the page needs, and returns the context in which it is served.
        what: what the page shows.

    Raises:
        MissingExtraError: a package is not installed.
    """
    try:
        served = serve()
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"--ui needs the package {error.name}", cure="pip install 'downspout[ui]'") from None
    with served as page:
        print(f"downspout: {what} is shown at {page.url}", file=sys.stderr, flush=True)
        yield page


# --- records ---


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with invisible characters escaped, except those in ``keep``.

    Records may hold characters that move a cursor, hide a line or send an answer to the terminal's input.

    >>> printable("ü\n\x1b[2J"), printable("a\nb", keep="\n")
    ('ü\\n\\x1b[2J', 'a\nb')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def as_text(data: bytes | None, limit: int | None = None, null: str | None = None) -> str | None:
    r"""Return up to ``limit`` bytes as text, with invalid ones escaped.

    >>> as_text(b"caf\xc3\xa9 \xff"), as_text(b"abc", 2), as_text(None, null="null")
    ('café \\xff', 'ab', 'null')
    """
    return null if data is None else data[:limit].decode("utf-8", errors="backslashreplace")


def stamp(time_ms: int | None, unknown: str = "-", timespec: str = "seconds") -> str:
    """Format milliseconds since the epoch as UTC.

    >>> stamp(1500), stamp(1500, timespec="milliseconds"), stamp(-1)
    ('1970-01-01T00:00:01Z', '1970-01-01T00:00:01.500Z', '-')
    """
    from datetime import UTC, datetime, timedelta  # not at the top, for the startup time of every command

    if time_ms is None or time_ms < 0:
        return unknown
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_time(option: str, text: str) -> int:
    """Parse a time to milliseconds since the epoch; without a zone, it is UTC.

    >>> parse_time("--since", "1970-01-01T00:00:01"), parse_time("--since", "250")
    (1000, 250)
    """
    from datetime import UTC, datetime, timedelta

    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text} is not a time", cure="2026-01-31T12:00, or milliseconds") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


# --- logs ---

WHILE_S = 30.0


class OnceInAWhile(logging.Filter):
    """Passes one logger family's records at most once per WHILE_S and line of code."""

    def __init__(self, family: str, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._family = family  # the logger and its children; records of others pass
        self._clock = clock
        self._heard: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show the record; if so, append the number of suppressed ones."""
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
    """Formats a message as one line, escaping anything that could forge a line or control a terminal.

    A traceback's lines are indented, so that none looks like a log line.
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
    """Writes to the current ``sys.stderr``, because a live table replaces it to print lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current standard error."""
        return sys.stderr


def log_to_stderr(quiet: bool, handler: logging.Handler | None = None) -> None:
    """Show logs from INFO on (``quiet``: WARNING); from kafka-python only warnings, rate-limited.

    Args:
        quiet: warnings and errors only.
        handler: replaces the text handler.
    """
    level = logging.WARNING if quiet else logging.INFO
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    if handler is None:
        handler = StderrHandler()
        handler.setFormatter(OneLine(form))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger().setLevel(level)
    logging.getLogger("kafka").setLevel(logging.WARNING)
    # The leader of a new group warns because it has no metadata yet; the next join has it.
    logging.getLogger("kafka.coordinator.assignors").setLevel(logging.ERROR)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, OnceInAWhile) for known in handler.filters):
            handler.addFilter(OnceInAWhile("kafka"))
