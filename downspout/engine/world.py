"""What all tasks of a run share: time, names, the log, and errors without floods."""

from __future__ import annotations

import itertools
import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.breakage import Breakage
from downspout.engine.latencies import Latencies
from downspout.engine.stacks import Stacks
from downspout.protocols import Failure

UNTRACKED = "u"  # First letter of the ids of tuples that belong to no tree
TICK = "tick"  # The id of tick tuples
STACK_CHARS_MAX = 8_000  # Of a traceback, its end is kept


class Observer(Protocol):
    """Sees what tasks do; the test harness is one. Not for production: it costs time per tuple."""

    def on_emit(self, task: Any, stream: str, values: Any, targets: list[str]) -> None:
        """A task emitted ``values``, of a record or a chunk; ``targets`` are the ids that the deliveries got."""

    def on_ack(self, task: Any, tuple_id: str) -> None:
        """A bolt acked a tuple."""

    def on_fail(self, task: Any, tuple_id: str) -> None:
        """A bolt failed a tuple, or raised on it."""

    def on_tree(self, task: Any, msg_id: Any, failure: Failure | None) -> None:
        """A spout gets the answer to a tree: it is complete (``failure`` is None) or failed."""


def raised_at(error: BaseException) -> str:
    """Return file:line of where an error was raised. Reads no source file, so it is cheap for each of many errors."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def error_line(error: BaseException) -> str:
    """Return class and message of an error, whatever its ``__str__`` does.

    >>> error_line(ValueError("no"))
    'ValueError: no'
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: <its __str__ raised>"


class ErrorLog:
    """Reports errors: the first of a kind in full, then at each power of ten how many there were.

    Two errors are of a kind if the same component raised the same class in the same line.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[tuple[str, str, str], int] = {}
        self.first: dict[tuple[str, str, str], str] = {}
        self.last: dict[str, str] = {}  # The last error of each component, in a line
        self._last_kind: dict[str, tuple[str, str, str]] = {}
        self._stacks: dict[tuple[str, str, str], str] = {}  # The traceback of the first error of each kind

    def report(self, component: str, error: BaseException, about: Callable[[], str]) -> None:
        """Take note of an error; ``about`` says where it was, and is asked only if that is logged."""
        kind = (component, type(error).__name__, raised_at(error))
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        self.last[component] = error_line(error)
        self._last_kind[component] = kind
        if count != 1 and count not in _POWERS:
            return
        message = f"{about()}: {error_line(error)}"
        if count == 1:
            self.first[kind] = message
            stack = "".join(traceback.format_exception(error)).rstrip()
            self._stacks[kind] = stack[-STACK_CHARS_MAX:]
            self._log.error("%s\n%s", message, stack)
        else:
            self._log.error("%s (%s time of this error; the first has the traceback)", message, f"{count:,}th")

    def last_stacks(self) -> dict[str, str]:
        """Return the traceback of each component's last kind of error, as of the first error of that kind."""
        return {component: self._stacks[kind] for component, kind in self._last_kind.items()}

    def summary(self) -> list[str]:
        """Return one line per kind: how often, and the first message."""
        return [f"{count:,} × {self.first[kind]}" for kind, count in self._counts.items()]


_POWERS = frozenset(10**n for n in range(1, 12))


@dataclass
class World:
    """What tasks need of the engine."""

    clock: Clock = SYSTEM_CLOCK
    spouts: Sequence[Any] = ()  # the tasks of the spouts
    bolts: Sequence[Any] = ()  # the tasks of the bolts, sources first
    names: Mapping[int, str] = field(default_factory=dict)  # component by task id
    # the components that read a stream, by (component, stream)
    readers: Mapping[tuple[str, str], list[str]] = field(default_factory=dict)
    # the tasks that take chunks, by id; others get them record by record
    takes_chunks: dict[int, Any] = field(default_factory=dict)
    ends_at: float = math.inf  # when the run stops by itself, on the clock
    ackers: bool = True  # whether there are ackers; without, spout tuples are acked inside emit
    observer: Observer | None = None  # sees every emit, ack and fail
    breakages: dict[str, Breakage] = field(default_factory=dict)  # what is known of each bolt's errors, by component
    # called with each task between construction and ``initialize`` of its component
    created: Callable[[Any], None] | None = None
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("downspout.engine"))

    def __post_init__(self) -> None:
        self.errors = ErrorLog(self.log)
        self.stacks = Stacks()
        self.latencies = Latencies()
        # Ids are text, as over Storm's pipes; making them is one C call.
        self.next_id: Callable[[], str] = map(str, itertools.count(1)).__next__
        self.next_untracked: Callable[[], str] = map((UNTRACKED + "%d").__mod__, itertools.count(1)).__next__
