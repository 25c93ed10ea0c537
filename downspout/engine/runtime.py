"""What all tasks of a run share: time, names, the log, errors without floods, and whether a bolt is broken.

**Tracebacks.** To format a traceback costs 0.1 ms and more, nearly all of it for reading source files. But errors of
one kind pass through the same instructions, so the lines about frames are made once per path through the code; the
error's own text is made each time. The text is what :func:`traceback.format_exception` returns. Only text is kept: no
frame, and so no local variable, outlives the error.

**Broken or bad records?** A bad record is retried and dead-lettered by its spout, and the run goes on. A broken bolt
fails on every record: then the run stops, because the user should see the bug, and because each tuple without an id
would be lost. :class:`BrokenBoltDetector` decides for a whole component, since a retry may go to any of its tasks:

* Only *first attempts* count. A tuple is a first attempt if this component has not raised on its spout tuple before.
  Retries prove nothing: a bad record fails each time. Nor does a record that an earlier run left behind while later
  ones got through. Tuples are identified by their spout tuple, never by their value; one that belongs to no tree
  comes once.
* A first attempt that got through ends a row of failures.
* The component is broken if it raised on more than ROW_MAX first attempts in a row.
* It is also broken if it has processed nothing yet, raised on more than ``run.restarts_max`` first attempts whose
  spout does not give up by itself, and no tuple is queued that could prove otherwise. A spout that retries a record
  until it gives up (ours dead-letters it, under a circuit breaker) decides by itself: a topic may begin with nothing
  but bad records, and so may a quiet day or the partitions of one worker.

A chunk of several records proves nothing: it is retried in halves until the bad record is alone. What a bolt processes
in batches or at ticks is counted in a row of its own, which an ack ends: taking a tuple into a batch proves nothing.
"""

from __future__ import annotations

import itertools
import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from types import CodeType, TracebackType
from typing import Any, Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.acker import Latencies, PendingTrees, Root, Tree, trees_of, will_be_retried
from downspout.formatting import counted
from downspout.protocols import Failure

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


ROW_MAX = 100
"""First attempts in a row that a bolt which has worked before may raise on: a bad batch of a producer is shorter."""
TRIED_MAX = 100_000
"""Spout tuples that are remembered; with one more, the oldest is forgotten, and its retry counts as a first attempt."""
REPORT_EVERY_S = 60.0


@dataclass(slots=True)
class _Row:
    """First attempts that failed, with nothing in between that got through."""

    length: int = 0
    unjudged: int = 0  # Those of them whose spout does not give up by itself
    good: int = 0

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
        """Tuples that wait for it."""


class BrokenBoltDetector:
    """Decides whether one component of a run is broken, over all of its tasks, and reports its restarts.

    The first restart is logged at once; then, once a minute, how many there were.
    """

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
        """Take in a task of the component."""
        self._tasks.append(task)

    def raised(self, roots: Sequence[Root | None], *, in_batch: bool) -> int:
        """Record a failure. Return the number of consecutive failed first attempts if the bolt is broken, otherwise 0.

        Args:
            roots: of each tuple at hand, the trees that it belongs to.
            in_batch: whether it was at a tick, a timer or a drain, and not while processing these tuples.
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
        """Report that a task was restarted."""
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
        """Return whether a tuple of these trees is a first attempt, and remember that the bolt raised on it."""
        trees = () if root is None else trees_of(root)
        firsts = [self._is_first_of(tree, now) for tree in trees]  # each of them is remembered
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
        # Where a spout gives many tuples one id, those that were out at the first failure are none of its retries.
        is_retry = before is not None and tree.started > before
        return not is_retry and not tree.forest.was_tried(tree.msg_id)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


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
class Runtime:
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
    breakages: dict[str, BrokenBoltDetector] = field(
        default_factory=dict
    )  # what is known of each bolt's errors, by component
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
