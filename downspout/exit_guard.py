"""Keeps components from ending the process with a code of success.

``os._exit`` runs no handlers: if a bolt called ``os._exit(0)``, the run would seem complete. So it is replaced at the
start of the program, before any user code is loaded; even ``from os import _exit`` gets the replacement. A call of
``exit`` in C code is not detected.

This module imports nothing heavy, since every command loads it.
"""

from __future__ import annotations

import os
import posix
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

leave_at_once = os._exit  # The original


def _as_text(text: str, is_error: bool) -> str:
    return f"downspout: {text}"


_shaped: Callable[[str, bool], str] = _as_text


def say(text: str, *, is_error: bool = False) -> None:
    """Write a line to standard error without Python's buffers; safe in signal handlers and other threads."""
    with suppress(OSError):
        os.write(2, f"{_shaped(text, is_error)}\n".encode())


def say_as(shaped: Callable[[str, bool], str]) -> None:
    """Set the function that formats lines for :func:`say` from the text and whether it is an error."""
    global _shaped
    _shaped = shaped


def guard() -> None:
    """Make ``os._exit`` report its caller, and replace exit code 0 with that of a component's error.

    Processes forked by a component are not affected.
    """
    pid = os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() == pid:
            say(
                f"{_caller(status)}: the run ends here, and what is not committed will be processed again. "
                "Try: raise an exception, which fails the tuple",
                is_error=True,
            )
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            status = status or _failed()
        leave_at_once(status)

    os._exit = posix._exit = leave


def _caller(status: int) -> str:
    """Name the caller: the component and its record, or the line of code."""
    frame = sys._getframe(2)
    if (calls := sys.modules.get("downspout.run.watchdog")) is not None and (call := calls.current_call(frame)):
        return f"{call.name} called os._exit({status}){call.doing}"
    return f"os._exit({status}) was called ({frame.f_code.co_filename}:{frame.f_lineno})"


def _failed() -> int:
    from downspout.errors import ComponentError

    return ComponentError.exit_code
