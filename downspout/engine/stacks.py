"""Tracebacks as text, made cheaply: a record that always fails leaves the same lines behind each time.

To format a traceback costs 0.1 ms and more, nearly all of it for looking at source files. But errors of one kind pass
through the same instructions, so the lines about frames are made once per way through the code; what the error itself
says is made each time. The text is what :func:`traceback.format_exception` returns, and nothing but text is kept: no
frame, so no local variable either, outlives the error.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

_HEAD = "Traceback (most recent call last):\n"
_BECAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"
_HELPFUL = (SyntaxError, NameError, AttributeError, ImportError)
"""Errors of which Python may print more than the message: a place, or what could have been meant."""
_PLAIN = frozenset(("builtins", "__main__"))
WAYS_MAX = 256  # Ways through the code that are remembered; with one more, all are forgotten
DEPTH_MAX = 100  # A way through more frames than that (a recursion) is not remembered

_Way = tuple[tuple[CodeType, int], ...]


class Stacks:
    """Formats errors and remembers the lines of frames.

    >>> try:
    ...     int("poison")
    ... except ValueError as error:
    ...     Stacks().text(error) == "".join(traceback.format_exception(error))
    True
    """

    def __init__(self) -> None:
        self.lines: dict[_Way, str] = {}

    def text(self, error: BaseException) -> str:
        """Return the traceback of an error, and of those that led to it, as Python prints it."""
        alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
        if alone and not isinstance(error, BaseExceptionGroup):
            return self._frames(error.__traceback__) + _message(error)
        parts: list[str] = []
        seen: set[int] = set()
        at: BaseException | None = error
        while at is not None:
            if id(at) in seen or isinstance(at, BaseExceptionGroup):  # rare, and more than one chain of causes
                return "".join(traceback.format_exception(error))
            seen.add(id(at))
            parts += [_message(at), self._frames(at.__traceback__)]
            if at.__cause__ is not None:
                parts.append(_BECAUSE)
                at = at.__cause__
            else:
                at = None if at.__suppress_context__ else at.__context__
                if at is not None:
                    parts.append(_MEANWHILE)
        return "".join(reversed(parts))

    def _frames(self, trace: TracebackType | None) -> str:
        if trace is None:
            return ""
        way = _way(trace)
        lines = self.lines.get(way)
        if lines is None:
            lines = _HEAD + "".join(traceback.format_tb(trace))
            if len(way) <= DEPTH_MAX:
                if len(self.lines) >= WAYS_MAX:
                    self.lines.clear()
                self.lines[way] = lines
        return lines


def _message(error: BaseException) -> str:
    """Return what stands below the frames: class and message. Nearly always that is one line, without more to say."""
    if isinstance(error, _HELPFUL) or hasattr(error, "__notes__"):
        return "".join(traceback.format_exception_only(error))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in _PLAIN else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception:
        return "".join(traceback.format_exception_only(error))
    return f"{name}: {text}\n" if text else f"{name}\n"


def _way(trace: TracebackType) -> _Way:
    """Return the instructions that a traceback leads through."""
    way = []
    at: TracebackType | None = trace
    while at is not None:
        way.append((at.tb_frame.f_code, at.tb_lasti))
        at = at.tb_next
    return tuple(way)
