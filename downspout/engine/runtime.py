"""The runtime context that all tasks share: time, names, error reports, and the detection of broken bolts.

**Tracebacks.** Formatting a traceback costs 0.1 ms or more, nearly all of it for reading source files. Errors of one
kind pass through the same instructions, so the lines about frames are formatted once per path through the code; the
error's own text is formatted each time. The result equals :func:`traceback.format_exception`'s. Only text is kept: no
frame or local variable outlives the error.

**Broken bolt or bad records?** A bad record is retried and dead-lettered by its spout, and the run continues. A broken
bolt fails on every record: then the run stops, because the user should see the bug, and because tuples without an id
would be lost. :class:`BrokenBoltDetector` decides for a whole component, since a retry may go to any of its tasks:

* Only *first attempts* count: tuples of spout tuples on which this component has not raised before. Retries prove
  nothing, since a bad record fails each time; nor does a record on which an earlier run failed while later ones
  succeeded. Tuples are identified by their spout tuple, never by value. A tuple without a tree is never retried.
* A successful first attempt ends a row of failures.
* The component is broken if it raised on more than ROW_MAX first attempts in a row.
* It is also broken if it has processed nothing yet, raised on more than ``run.restarts_max`` first attempts whose
  spout does not give up by itself, and no tuple is queued that could prove otherwise. A spout that retries a record
  until it gives up (ours dead-letters it, under a circuit breaker) needs no such verdict: a topic, a quiet day or one
  worker's partitions may begin with nothing but bad records.

A chunk of several records proves nothing: it is retried in halves until the bad record is alone. Failures in batches or
ticks are counted in a row of their own, which an ack ends: taking a tuple into a batch proves nothing.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.acker import Latencies, PendingTrees, Root, Tree, trees_of, will_be_retried
from downspout.errors import RecordError
from downspout.formatting import MessageForms, counted
from downspout.protocols import Failure

_HEAD = "Traceback (most recent call last):\n"
_BECAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"
_HELPFUL = (SyntaxError, NameError, AttributeError, ImportError)
"""Errors for which Python may print more than the message: a place, or a suggestion."""
_PLAIN = frozenset(("builtins", "__main__"))
PATHS_MAX = 256  # Cached paths through the code; one more empties the cache
DEPTH_MAX = 100  # A path through more frames than this (a recursion) is not cached
_Path = tuple[tuple[CodeType, int], ...]


class Stacks:
    """Formats errors, with a cache for the lines of frames.

    >>> try:
    ...     int("poison")
    ... except ValueError as error:
    ...     Stacks().text(error) == "".join(traceback.format_exception(error))
    True
    """

    def __init__(self) -> None:
        self.lines: dict[_Path, str] = {}

    def text(self, error: BaseException) -> str:
        """Return the traceback of an error and its causes, as Python prints it."""
        alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
        if alone and not isinstance(error, BaseExceptionGroup):
            return self._frames(error.__traceback__) + _message(error)
        parts: list[str] = []
        seen: set[int] = set()
        at: BaseException | None = error
        while at is not None:
            if id(at) in seen or isinstance(at, BaseExceptionGroup):  # rare, and not a plain chain
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
        path = _path(trace)
        lines = self.lines.get(path)
        if lines is None:
            lines = _HEAD + "".join(traceback.format_tb(trace))
            if len(path) <= DEPTH_MAX:
                if len(self.lines) >= PATHS_MAX:
                    self.lines.clear()
                self.lines[path] = lines
        return lines


def _message(error: BaseException) -> str:
    """Return the text below the frames: class and message, nearly always in one line."""
    if isinstance(error, _HELPFUL) or hasattr(error, "__notes__"):
        return "".join(traceback.format_exception_only(error))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in _PLAIN else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception:
        return "".join(traceback.format_exception_only(error))
    return f"{name}: {text}\n" if text else f"{name}\n"


def _path(trace: TracebackType) -> _Path:
    """Return the instructions that a traceback leads through."""
    path = []
    at: TracebackType | None = trace
    while at is not None:
        path.append((at.tb_frame.f_code, at.tb_lasti))
        at = at.tb_next
    return tuple(path)


ROW_MAX = 100
"""Consecutive first attempts on which a sound bolt may raise: a producer's bad batch is shorter."""
TRIED_MAX = 100_000
"""Remembered spout tuples; with one more, the oldest is forgotten, and its retry counts as a first attempt."""
REPORT_EVERY_S = 60.0


@dataclass(slots=True)
class _Row:
    """Consecutive first attempts that failed."""

    length: int = 0
    unjudged: int = 0  # Those of them with a spout that does not give up by itself
    good: int = 0  # Successes before the row

    def add(self, good: int, is_first: bool, is_unjudged: bool) -> None:
        if good > self.good:
            self.good, self.length, self.unjudged = good, 0, 0
        self.length += is_first
        self.unjudged += is_unjudged


class Judged(Protocol):
    """The counters of a task that the detector reads."""

    acked: int
    executed: int
    raised: int

    @property
    def queue(self) -> Sized:
        """Its waiting tuples."""


class BrokenBoltDetector:
    """Decides whether a component is broken, over all its tasks; logs its first restart, then a count once a minute."""

    def __init__(self, name: str, restarts_max: int, clock: Clock, log: logging.Logger) -> None:
        self._name = name
        self._restarts_max = restarts_max
        self._clock = clock
        self._log = log
        self._reported_at: float | None = None
        self._unreported = 0
        self._tasks: list[Judged] = []
        self._rows = {False: _Row(), True: _Row()}
        self._tried: dict[tuple[PendingTrees, Any], float] = {}

    def add(self, task: Judged) -> None:
        """Add a task of the component."""
        self._tasks.append(task)

    def raised(self, roots: Sequence[Root | None], *, in_batch: bool) -> int:
        """Record a failure. Return the number of consecutive failed first attempts if the bolt is broken, otherwise 0.

        Args:
            roots: the trees of each tuple that was being processed.
            in_batch: whether the bolt raised at a tick, timer or drain, not in processing these tuples.
        """
        now = self._clock.monotonic()
        firsts = [self._is_first(root, now) for root in roots]
        row = self._rows[in_batch]
        good = sum(task.acked if in_batch else task.executed - task.raised for task in self._tasks)
        judged = [root is not None and will_be_retried(root) for root in roots]
        unjudged = [first and not by_spout for first, by_spout in zip(firsts, judged, strict=True)]
        row.add(good, any(firsts) or not roots, any(unjudged) or not roots)
        if row.length > ROW_MAX:
            return row.length
        may_be_sound = row.good or any(task.queue for task in self._tasks)
        return row.length if row.unjudged > self._restarts_max and not may_be_sound else 0

    def restarted(self, place: str) -> None:
        """Log that a task was restarted."""
        now = self._clock.monotonic()
        if self._reported_at is None:
            self._log.warning("%s is restarted; further restarts of %s are reported once a minute", place, self._name)
            self._reported_at = now
            return
        self._unreported += 1
        if now - self._reported_at >= REPORT_EVERY_S:
            self._log.warning("%s was restarted again, %s", self._name, counted(self._unreported, "time"))
            self._reported_at, self._unreported = now, 0

    def _is_first(self, root: Root | None, now: float) -> bool:
        """Return whether a tuple of these trees is a first attempt, and remember the failure."""
        trees = () if root is None else trees_of(root)
        firsts = [self._is_first_of(tree, now) for tree in trees]  # a list: each tree must be remembered
        return all(firsts)

    def _is_first_of(self, tree: Tree, now: float) -> bool:
        if tree.closed:  # another tuple of it failed before
            return False
        key = (tree.forest, tree.msg_id if _is_hashable(tree.msg_id) else repr(tree.msg_id))
        before = self._tried.get(key)
        if before is None:
            if len(self._tried) >= TRIED_MAX:
                del self._tried[next(iter(self._tried))]
            self._tried[key] = now
        # If a spout gives many tuples one id, those already emitted at the first failure are not its retries.
        is_retry = before is not None and tree.started > before
        return not is_retry and not tree.forest.was_tried(tree.msg_id)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


UNTRACKED = "u"  # Prefix of the ids of tuples that belong to no tree
TICK = "tick"  # The id of tick tuples
STACK_CHARS_MAX = 8_000  # The end of a longer traceback is kept


class Observer(Protocol):
    """Observes tasks, as the test harness does. Not for production: it costs time per tuple."""

    def on_emit(self, task: Any, stream: str, values: Any, targets: list[str]) -> None:
        """A task emitted ``values``, of a record or a chunk; ``targets`` are the ids of the deliveries."""

    def on_ack(self, task: Any, tuple_id: str) -> None:
        """A bolt acked a tuple."""

    def on_fail(self, task: Any, tuple_id: str) -> None:
        """A bolt failed a tuple, or raised on it."""

    def on_tree(self, task: Any, msg_id: Any, failure: Failure | None) -> None:
        """A spout is told that a tree is complete (``failure`` is None) or failed."""


def raised_at(error: BaseException) -> str:
    """Return the file:line that raised an error. Reads no source file, so it is cheap for many errors."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def error_line(error: BaseException) -> str:
    """Return class and message of an error, even if its ``__str__`` raises.

    >>> error_line(ValueError("no"))
    'ValueError: no'
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: <its __str__ raised>"


def _passed_user_code(error: BaseException) -> bool:
    """Return whether an error, or one that it came of, was raised in a user's code or passed it."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        if any(_is_user_code(frame) for frame, _ in traceback.walk_tb(each.__traceback__)):
            return True
        seen.add(id(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return False


def _is_user_code(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__")).partition(".")[0]
    return module not in _LIBRARIES and not frame.f_code.co_filename.startswith(_OURS)


_LIBRARIES = sys.stdlib_module_names | {
    "downspout", "fastavro", "google", "kafka", "numpy", "orjson", "pyarrow", "pystorm", "streamparse",
}  # fmt: skip
_OURS = tuple(str(Path(__file__).parents[2] / part) + os.sep for part in ("bolts", "spouts"))  # in a checkout

_Kind = tuple[str, str, str, str]  # component, class, line and form of an error


class ErrorLog:
    """Logs the first error of each kind in full, then a count at each power of ten.

    Two errors are of a kind if the same component raised the same class in the same line, and their messages differ
    only in numbers and quoted values. A record that is refused takes one line: a traceback would show our code alone.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[_Kind, int] = {}
        self._forms = MessageForms()
        self.first: dict[_Kind, str] = {}
        self.last: dict[str, str] = {}  # The last error of each component, in a line
        self._last_kind: dict[str, _Kind] = {}
        self._stacks: dict[_Kind, str] = {}  # The traceback of the first error of each kind

    def report(self, component: str, error: BaseException, about: Callable[[], str]) -> None:
        """Count an error, and log it if due; only then is ``about`` called, for the error's location."""
        line = error_line(error)
        place = (component, type(error).__name__, raised_at(error))
        kind = (*place, self._forms.of(place, line))
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        self.last[component] = line
        self._last_kind[component] = kind
        if count != 1 and count not in _POWERS:
            return
        message = f"{about()}: {line}"
        is_refusal = isinstance(error, RecordError) and not _passed_user_code(error)
        if is_refusal:
            message = " ".join(message.split())
        if count == 1:
            self.first[kind] = message
            stack = "".join(traceback.format_exception(error)).rstrip()
            self._stacks[kind] = stack[-STACK_CHARS_MAX:]
            self._log.error("%s", message if is_refusal else f"{message}\n{stack}")
        else:
            first = "" if is_refusal else "; the first has the traceback"
            self._log.error("%s (%s time of this error%s)", message, f"{count:,}th", first)

    def last_stacks(self) -> dict[str, str]:
        """Return, for each component's last error, the traceback of the first error of its kind."""
        return {component: self._stacks[kind] for component, kind in self._last_kind.items()}

    def summary(self) -> list[str]:
        """Return one line per kind: its count and first message."""
        return [f"{count:,} × {self.first[kind]}" for kind, count in self._counts.items()]


_POWERS = frozenset(10**n for n in range(1, 12))


@dataclass
class Runtime:
    """The runtime context of all tasks."""

    clock: Clock = SYSTEM_CLOCK
    spouts: Sequence[Any] = ()  # the tasks of the spouts
    bolts: Sequence[Any] = ()  # the tasks of the bolts, sources first
    names: Mapping[int, str] = field(default_factory=dict)  # component by task id
    # the components that read a stream, by (component, stream)
    readers: Mapping[tuple[str, str], list[str]] = field(default_factory=dict)
    # the tasks that take chunks, by id; others get their records one by one
    takes_chunks: dict[int, Any] = field(default_factory=dict)
    ends_at: float = math.inf  # when the run stops by itself, on the clock
    ackers: bool = True  # without ackers, spout tuples are acked inside emit
    observer: Observer | None = None  # sees every emit, ack and fail
    breakages: dict[str, BrokenBoltDetector] = field(default_factory=dict)  # by component
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
