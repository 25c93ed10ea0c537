"""Runs a topology in this process: settings, the embedded broker, signals, garbage collection."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.graph import Graph, require_fields
from downspout.engine.lifecycle import calm_gc
from downspout.engine.load import load
from downspout.engine.loop import Bounds, Engine, EngineView
from downspout.engine.result import RunResult
from downspout.engine.settings import configurations, resolve
from downspout.outages import OUTAGES
from downspout.run.watchdog import Watchdog, watched
from downspout.sink.notes import hand_over_run
from downspout.system.process import handled_by


def run(
    target: str | Graph,  # a file, ``module:Class``, or a graph
    *,
    topology: str | None = None,  # the class, if the file has several
    # ``--set`` options, ``[COMPONENT:]KEY=VALUE``; or a dict, ``{"[COMPONENT:]KEY": value}``
    overrides: Sequence[str] | Mapping[str, Any] = (),
    options: Mapping[str, Any] | None = None,  # settings with the precedence of ``overrides``: ``{"run.until": "end"}``
    clock: Clock = SYSTEM_CLOCK,
    view: EngineView | None = None,  # shows the run
    bounds: Bounds | None = None,  # when to stop; default: as the settings say
    supervised: bool = False,  # a supervisor process stops this one
    watching: Callable[[Watchdog], None] | None = None,  # called with the watchdog before the loop starts
) -> RunResult:
    """Run a topology in this process until it ends, is stopped, or fails.

    Raises:
        DownspoutError: the topology or a setting is wrong, or a component ended the run.
    """
    graph = target if isinstance(target, Graph) else load(target, topology)
    settings = resolve(graph, overrides, options=options)
    require_fields(graph)
    values = settings.run.values
    confs = configurations(graph, settings, clock)
    hand_over_run(graph, settings, confs)
    bounds = bounds or bounds_of(values)
    engine = Engine(graph, confs, bounds=bounds, clock=clock, rng=random.Random(values["run.seed"]), view=view)
    watchdog = Watchdog(
        engine, threading.get_ident(), stuck_s=values["run.stuck_s"], drain_s=bounds.drain_s, supervised=supervised
    )
    if watching is not None:
        watching(watchdog)
    with signals(engine, watchdog=watchdog) as received, watched(watchdog), calm_gc():
        try:
            result = engine.run()
        except KeyboardInterrupt:
            if not received:
                raise
            result = engine.result()
        finally:
            OUTAGES.forget()
    result.signal = received[0] if received else None
    return result


def bounds_of(values: Mapping[str, Any]) -> Bounds:
    """Return a run's bounds from the settings ``run.*``."""
    return Bounds(values["run.until"], values["run.for_s"], values["run.records"], values["run.drain_s"])


class Stoppable(Protocol):
    """A run that signals can stop."""

    def stop(self) -> None:
        """Finish the tuples in flight, then stop."""

    def abort(self) -> None:
        """Stop at once."""


@contextlib.contextmanager
def signals(
    run: Stoppable,
    *,
    interrupt: bool = True,  # whether the second signal raises KeyboardInterrupt, even inside a component's call
    watchdog: Watchdog | None = None,  # hears the signals too, and may request such an interrupt itself
    on_first: Callable[[int], None] | None = None,  # called with the first signal's number
) -> Iterator[list[int]]:
    """Stop the run at the first SIGINT or SIGTERM and abort it at the second; yield the list of received numbers."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if watchdog is not None and watchdog.interrupts:
            watchdog.interrupts = 0
            if not watchdog.has_ended:
                raise KeyboardInterrupt
            return
        received.append(number)
        if len(received) == 1:
            run.stop()
            if on_first is not None:
                on_first(number)
        else:
            run.abort()
            if interrupt:
                raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    with handled_by(handle):
        yield received
