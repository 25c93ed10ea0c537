"""No component ends the process as if it were done.

``os._exit`` runs no handlers: a bolt that calls ``os._exit(0)`` would look like a run that has come to its end. So it
is replaced at the start of the program, before any code of the user is loaded: ``from os import _exit`` in a topology's
file gives the replacement as well. An ``exit`` that C code calls is not seen here.

Nothing heavy is imported: this is part of every command's start.
"""

from __future__ import annotations

import os
import posix
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

leave_at_once = os._exit  # The real one


def _as_text(text: str, is_error: bool) -> str:
    return f"downspout: {text}"


_shaped: Callable[[str, bool], str] = _as_text


def say(text: str, *, is_error: bool = False) -> None:
    """Write a line to standard error from a signal's handler or another thread: not through Python's own buffers."""
    with suppress(OSError):
        os.write(2, f"{_shaped(text, is_error)}\n".encode())


def say_as(shaped: Callable[[str, bool], str]) -> None:
    """Give :func:`say` another form of line, made of the text and whether it is an error."""
    global _shaped
    _shaped = shaped


def guard() -> None:
    """Let ``os._exit`` say who called it, and make exit code 0 that of a component's error.

    A process that a component forks may leave as it likes.
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
    """Return who called: the component, and at which record, where it was one."""
    frame = sys._getframe(2)
    if (calls := sys.modules.get("downspout.run.watchdog")) is not None and (call := calls.current_call(frame)):
        return f"{call.name} called os._exit({status}){call.doing}"
    return f"os._exit({status}) was called ({frame.f_code.co_filename}:{frame.f_lineno})"


def _failed() -> int:
    from downspout.errors import ComponentError

    return ComponentError.exit_code
