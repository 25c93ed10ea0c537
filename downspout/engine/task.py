"""One task: an unmodified pystorm component, driven without pipes.

pystorm's components talk to Storm through a serializer. Here it is an :class:`EnginePipe` into the engine, so any
component works, whatever it overrides. If a class does *not* override ``emit``, ``ack``, ``fail`` or ``send_message``,
the instance gets functions that do the same without messages. If it does not override how tuples are read, they are
passed to ``process`` directly. Both behave as pystorm does, in a third of the time.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pystorm.bolt
import pystorm.component
import pystorm.spout
from pystorm.component import StormHandler
from pystorm.exceptions import StormWentAwayError

from downspout.engine.acker import Held
from downspout.engine.graph import Component, nearest
from downspout.engine.groupings import Route
from downspout.engine.runtime import Runtime, error_line, raised_at
from downspout.errors import (
    USER_ERRORS,
    ComponentError,
    DownspoutError,
    TopologyError,
    UnavailableError,
    coordinates,
)
from downspout.formatting import counted, safe_repr
from downspout.origins import FIELD, is_origins, origin_at
from downspout.protocols import BoltEngine, ComponentOffers, Failure, SpoutEngine, offered

Target = tuple[int, Held, Callable[[Any], None], Callable[[Iterable[Any]], None]]
"""A receiving task: its id, its map of unsettled tuples, and ``append`` and ``extend`` of its queue."""
Spread = Callable[[Any], Iterable[tuple[Target, Any]]]
"""From a chunk to a subscriber's tasks, each with its part of the chunk."""


class StreamTargets(NamedTuple):
    """The targets of one task's stream."""

    stream: str
    kind: Any  # the namedtuple of its fields
    size: int  # the number of fields
    fixed: Any  # the targets of every tuple, if they are always the same; otherwise None
    route: Route[Target]  # the function that picks the targets
    direct: Mapping[int, Target]  # targets by task id, of subscribers with a direct grouping
    is_direct: bool  # whether every emit must name a task
    # one per subscriber
    spreads: Sequence[Spread] = ()

    @property
    def has_one_reader(self) -> bool:
        """Whether all tuples go to the same single task."""
        return not self.is_direct and self.fixed is not None and len(self.fixed) == 1


class EnginePipe:
    """Replaces pystorm's serializer: messages go to the task."""

    def __init__(self, receive: Callable[[dict[str, Any]], None]) -> None:
        self.send_message = receive
        self.input_stream = self.output_stream = None

    def read_message(self) -> Any:
        """Raise: tuples are passed in, never read."""
        raise StormWentAwayError()


class Task:
    """Base of spout and bolt tasks: builds the component and handles its streams, messages and counters."""

    stock: tuple[type, ...] = ()
    index: int = 0  # Its number among its component's tasks, from 0

    def __init__(self, component: Component, task_id: int, world: Runtime, conf: Mapping[str, Any]) -> None:
        self.component = component
        self.name = component.name
        self.task_id = task_id
        self.world = world
        self.conf = conf
        self.context: dict[str, Any] = {}
        self.outlets: dict[str | None, StreamTargets] = {}
        self.instance: Any = None
        self.emitted = self.executed = self.acked = self.failed = self.errors = self.restarts = 0
        self.busy_s = 0.0  # Seconds of work, for bolts
        self.metrics: dict[str, Any] = {}
        self._emit: Callable[..., list[int] | None] = lambda *args, **kwargs: None
        self._muted = False
        self._handlers: list[logging.Handler] = []

    @property
    def place(self) -> str:
        """The task's name for messages: component and task id."""
        return f"{self.name}[task {self.task_id}]"

    def build(self) -> None:
        """Build the component and initialize it.

        Raises:
            ComponentError: its constructor or ``initialize`` raised; a DownspoutError is passed on unchanged.
        """
        try:
            self.instance = construct(self.component.cls)
            self._set_up()
            self.shortcut()
            self._hand_over()
            if self.world.created is not None:
                self.world.created(self)
            self.instance.initialize(dict(self.conf), self.context)
        except DownspoutError:
            raise
        except USER_ERRORS as error:
            raise self.reported(error, "initialize") from error

    def _hand_over(self) -> None:
        """Set the clock and the engine's services on a component that declares these attributes."""
        if hasattr(self.instance, "clock"):
            self.instance.clock = self.world.clock
        if hasattr(type(self.instance), "engine_services"):
            self.instance.engine_services = self.services()

    def services(self) -> SpoutEngine | BoltEngine:
        """Return the engine's services for the component."""
        raise NotImplementedError

    def _set_up(self) -> None:
        """Run pystorm's set-up, and remove the handler that it adds to the root logger."""
        instance, root = self.instance, logging.getLogger()
        instance.serializer = EnginePipe(self.receive)
        before = list(root.handlers)
        self._muted = True
        try:
            instance._setup_component(dict(self.conf), self.context)
        finally:
            self._muted = False
            for handler in [handler for handler in root.handlers if handler not in before]:
                root.removeHandler(handler)
                if not isinstance(handler, StormHandler):  # pystorm.log.path: a file for this component
                    self._drop_handlers()
                    instance.logger.addHandler(handler)
                    self._handlers.append(handler)

    def _drop_handlers(self) -> None:
        for handler in self._handlers:
            self.instance.logger.removeHandler(handler)
            handler.close()
        self._handlers.clear()

    def shortcut(self) -> None:
        """Replace the pystorm methods that the class has not overridden."""
        raise NotImplementedError

    def overrides(self, *names: str) -> bool:
        """Return whether the user's class overrides any of these methods."""
        cls = type(self.instance)
        return any(
            all(getattr(cls, name, None) is not getattr(base, name, None) for base in self.stock) for name in names
        )

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message of pystorm's multilang protocol."""
        command = message.get("command")
        if command == "emit":
            self._receive_emit(message)
        elif command == "log":
            if not self._muted:
                level = _LEVELS.get(message.get("level", 2), logging.INFO)
                self.world.log.log(level, "%s: %s", self.place, message.get("msg"))
        elif command == "error":
            if not self._muted:
                self.world.log.error("%s: %s", self.place, message.get("msg"))
        elif command == "metrics":
            self.metrics[str(message.get("name"))] = message.get("params")

    def _receive_emit(self, message: dict[str, Any]) -> None:
        wanted = bool(message.get("need_task_ids", True)) and message.get("task") is None
        how: dict[str, Any] = {"stream": message.get("stream"), "direct_task": message.get("task")}
        if self.component.is_spout:
            how["tup_id"] = message.get("id")
        else:
            how["anchors"] = message.get("anchors") or ()
        task_ids = self._emit(message["tuple"], need_task_ids=wanted, **how)
        if wanted:
            self.instance._pending_task_ids.append(task_ids)

    def error(self, error: BaseException, doing: str, tup: Any = None) -> ComponentError:
        """Return a ComponentError that names component, task, tuple and the user's line."""
        about = f" of {describe(tup)}" if tup is not None else ""
        message = f"{self.place}: {doing}{about} raised {error_line(error)}{_line(error)}"
        return ComponentError(message, cure="the traceback is in the log above; correct the component")

    def reported(self, error: BaseException, doing: str) -> ComponentError:
        """Return :meth:`error`'s ComponentError, after logging the traceback."""
        found = self.error(error, doing)
        self.world.log.error("%s\n%s", found.message, "".join(traceback.format_exception(error)).rstrip())
        return found

    def wrong_emit(self, outlet: StreamTargets | None, stream: str | None, tup: Any) -> Exception:
        """Return the error of an invalid emit."""
        if not isinstance(tup, list | tuple):
            return TypeError(f"All Tuples must be either lists or tuples, received {type(tup)!r} instead.")
        if outlet is None:
            known = [name for name in self.outlets if name is not None]
            cure = nearest(stream or "default", known) if known else "declare it in outputs"
            return TopologyError(
                f"{self.place} emits to stream {stream or 'default'!r}, which it does not declare", cure=cure
            )
        if len(tup) != outlet.size:
            fields = ", ".join(outlet.kind._fields)
            return TopologyError(
                f"{self.place} emits {len(tup)} values to stream {outlet.stream!r}, which has {outlet.size} fields "
                f"({fields})",
                cure="emit one value per field",
            )
        return TopologyError(
            f"{self.place} emits to the direct stream {outlet.stream!r} without a task", cure="give direct_task"
        )

    def direct_targets(self, outlet: StreamTargets, task_id: int) -> tuple[Target, ...]:
        """Return the targets of a direct emit: none if the task's component does not read this stream (as in Storm)."""
        if (target := outlet.direct.get(task_id)) is not None:
            return (target,)
        reader = self.world.names.get(task_id)
        if reader is None:
            raise TopologyError(f"{self.place} emits to task {task_id}, which does not exist", cure="use need_task_ids")
        if reader in self.world.readers.get((self.name, outlet.stream), ()):
            raise TopologyError(
                f"{self.place} emits directly to {reader}, which reads stream {outlet.stream!r} with another grouping",
                cure="declare the stream direct and give Grouping.DIRECT",
            )
        return ()

    def report(self) -> Mapping[str, float]:
        """Return the component's own metrics, if any.

        Raises:
            ComponentError: ``report`` raised; a DownspoutError is passed on unchanged.
        """
        report = offered(self.instance, ComponentOffers.report)
        try:
            metrics = report() if report is not None else None
        except DownspoutError:
            raise
        except USER_ERRORS as error:
            raise self.reported(error, "report") from error
        if not isinstance(metrics, Mapping):
            return {}
        return {str(name): value for name, value in metrics.items() if isinstance(value, int | float)}

    def report_dead_letters(self) -> Mapping[str, Any]:
        """Return the component's report on its dead letters, if any.

        Raises:
            ComponentError: ``report_dead_letters`` raised; a DownspoutError is passed on unchanged.
        """
        return self._asked(ComponentOffers.report_dead_letters)

    def report_partitions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the component's position in each partition that it reads, if it reports any.

        Raises:
            ComponentError: ``report_partitions`` raised; a DownspoutError is passed on unchanged.
        """
        return self._asked(ComponentOffers.report_partitions)

    def _asked(self, method: Callable[..., Mapping[str, Any]]) -> Mapping[str, Any]:
        report = offered(self.instance, method)
        try:
            return {} if report is None else report()
        except DownspoutError:
            raise
        except USER_ERRORS as error:
            raise self.reported(error, method.__name__) from error

    def close(self) -> None:
        """Call the component's ``close``, if it has one, and close its log file.

        Raises:
            ComponentError: ``close`` raised; a DownspoutError is passed on unchanged.
        """
        try:
            if (close := offered(self.instance, ComponentOffers.close)) is not None:
                close()
        except DownspoutError:
            raise
        except USER_ERRORS as error:
            raise self.reported(error, "close") from error
        finally:
            self._drop_handlers()


def construct(cls: Any) -> Any:
    """Make a component that is not connected to any pipe."""
    instance = cls.__new__(cls)
    # A TicklessBatchingBolt starts a timer thread and a signal handler. The engine is its timer, so it gets neither:
    # its ``_batch_entry`` does nothing, and pystorm's ``signal`` is replaced while it is built (it would fail outside
    # the main thread anyway).
    if isinstance(instance, pystorm.bolt.TicklessBatchingBolt):
        instance._batch_entry = lambda: None
    thread = threading.current_thread()
    name = thread.name
    try:
        with _no_signals():
            instance.__init__(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    finally:
        thread.name = name
    return instance


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    real = pystorm.bolt.signal
    pystorm.bolt.signal = SimpleNamespace(signal=lambda number, handler: None, SIGUSR1=None)
    try:
        yield
    finally:
        pystorm.bolt.signal = real


def describe(tup: Any) -> str:
    """Return a tuple's coordinates or values, and its source.

    >>> from collections import namedtuple
    >>> values = namedtuple("T", "topic partition offset")("orders", 3, 918)
    >>> describe(pystorm.component.Tuple("7", "spout", "default", 2, values))
    'orders[3]@918 (from spout)'
    """
    return f"{about(tup)} (from {getattr(tup, 'component', '?')})"


def about(tup: Any) -> str:
    """Return a tuple's coordinates in Kafka if it has any, otherwise its values."""
    values = getattr(tup, "values", tup)
    origin = getattr(values, "origin", None)
    if isinstance(values, pa.RecordBatch):
        return _describe_chunk(values)
    if isinstance(origin, list | tuple) and len(origin) == 5:
        return f"{origin[0]}[{origin[2]}]@{origin[3]}"
    if all(hasattr(values, name) for name in ("topic", "partition", "offset")):
        return f"{values.topic}[{values.partition}]@{values.offset}"
    text = safe_repr(tuple(values) if isinstance(values, tuple) else values)
    return f"tuple {text if len(text) <= 200 else text[:197] + '...'}"


def _describe_chunk(batch: Any) -> str:
    count = counted(batch.num_rows, "record")
    if FIELD not in batch.schema.names or not batch.num_rows or not is_origins(batch.schema.field(FIELD).type):
        return f"chunk of {count} ({', '.join(batch.schema.names)})"
    first, last = (origin_at(batch.column(FIELD), row) for row in (0, batch.num_rows - 1))
    return f"{coordinates(first.topic, first.partition, first.offset)} to {last.offset} ({count})"


def _line(error: BaseException) -> str:
    line = raised_at(error)
    return f" ({line})" if line else ""


_LEVELS = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


def failure_of(task: Task, error: BaseException) -> Failure:
    """Return the reason that the spout gets if a bolt raised."""
    outage = isinstance(error, UnavailableError)
    kind = "timeout" if outage else "exception"
    return Failure(kind, task.name, task.task_id, error_line(error), task.world.stacks.text(error), outage)
