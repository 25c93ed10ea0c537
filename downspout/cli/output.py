"""Where a command's own result goes, apart from what users' code prints; and how a command shows a page."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, TextIO, TypeVar

from downspout.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from downspout.web.page import Page

PageType = TypeVar("PageType", bound="Page")


@contextmanager
def aside(*, wanted: bool = True) -> Iterator[TextIO]:
    """Have all else that is printed go to stderr from now on, and give where our own result goes: standard output."""
    out = sys.stdout
    if not wanted:
        yield out
    # The descriptor is turned, so that child processes and native code write to stderr too; and for good, since
    # there is what is printed as the process ends. Where a caller in Python has put something into standard output's
    # place, that is left alone until the end of the context.
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
    """Print what ends a command, or what went wrong in it, to standard error; in a log of JSON as an error."""
    from downspout.export import json_log  # a run without errors needs nothing of it

    json_log.complain(text)


def write_bytes(data: bytes, out: TextIO) -> None:
    """Write bytes as they are; errors as for :func:`print_result`."""
    with _written(out):
        out.buffer.write(data)
        out.flush()


def finish(out: TextIO) -> None:
    """Write what was printed so far: not as the process ends, where an error could not be reported."""
    with _written(out):
        out.flush()


@contextmanager
def _written(out: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (descriptor := _descriptor(out)) is not None:  # or the rest would be tried again, with the same error
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
    """Raise a ConfigError if a file cannot be written: before hours of work whose result it would hold.

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
        why = "it must not be written"
    else:
        return
    raise ConfigError(f"{option} {path}: {why}", cure="a path that can be written, or -")


def take_any_text() -> None:
    """Let standard output take any character, whatever its encoding is: one that it has not is escaped.

    Otherwise a command would end with a traceback where it prints its result, after it has done its work.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def fill_gaps() -> None:
    """Put ``/dev/null`` where standard input, output or error is closed: else the next file that is opened is there."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


@contextmanager
def shown(serve: Callable[[], AbstractContextManager[PageType]], what: str) -> Iterator[PageType]:
    """Serve a page while the context lasts, and say where it is.

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
