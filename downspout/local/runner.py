"""A run as the command line does it: settings, the embedded broker, signals, garbage collection."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.config import CLIENT_PREFIX, parse_scope
from downspout.kafka.sense import dead_letter_topic
from downspout.local.check import require_fields
from downspout.local.engine import Bounds, Engine, View
from downspout.local.graph import Graph
from downspout.local.load import load
from downspout.local.result import RunResult
from downspout.local.settings import Settings, reads, resolve
from downspout.local.state import topology_id

GC_THRESHOLDS = (200_000, 20, 50)
"""Tuples live for microseconds and die by reference count; what is in flight lives on and is looked at in vain by
every collection. With Python's default thresholds that took 40 % of a run (10.8 against 6.4 CPU-seconds per million
records), and with 100,000 still 4 %: what waits for a flush is more than that. Cycles, such as those that a traceback
makes, are still collected, only seldom."""


def run(
    target: str | Graph,
    *,
    topology: str | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    view: View | None = None,
    bounds: Bounds | None = None,
) -> RunResult:
    """Run a topology in this process until it ends, is stopped, or fails.

    Args:
        target: a file, ``module:Class``, or a graph.
        topology: which class, where the file holds several.
        overrides: ``--set`` options, ``[COMPONENT:]KEY=VALUE``.
        options: settings as strong as ``overrides``, such as ``{"run.until": "end"}``.
        clock: the time.
        view: shows the run.
        bounds: when to stop, where that is not what the settings say.

    Raises:
        DownspoutError: the topology or a setting is wrong, or a component ended the run.
    """
    graph = target if isinstance(target, Graph) else load(target, topology)
    settings = resolve(graph, overrides, options=options)
    require_fields(graph)
    values = settings.run.values
    confs = configurations(graph, settings, clock)
    bounds = bounds or bounds_of(values)
    engine = Engine(graph, confs, bounds=bounds, clock=clock, rng=random.Random(values["run.seed"]), view=view)
    with signals(engine) as received, calm_gc():
        try:
            result = engine.run()
        except KeyboardInterrupt:
            if not received:
                raise
            result = engine.result()
    result.signal = received[0] if received else None
    return result


def bounds_of(values: Mapping[str, Any]) -> Bounds:
    """Return when a run stops, by the settings ``run.*``."""
    return Bounds(values["run.until"], values["run.for_s"], values["run.records"], values["run.drain_s"])


def dead_letter_topics(
    graph: Graph, overrides: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the topic for dead letters of each Kafka spout, and of each bolt that writes letters, by its name."""
    settings = resolve(graph, overrides, options=options)
    found = {}
    for name, component in graph.components.items():
        if reads(component, "kafka"):
            values = parse_scope(settings.components[name].values, "kafka")
            found[name] = dead_letter_topic(values, values["group"] or graph.name)
    return found


def configurations(graph: Graph, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> dict[str, dict[str, Any]]:
    """Return each component's configuration with what only the engine knows: name, id, and where the broker is."""
    confs = settings.confs()
    storm_id = topology_id(graph.name, redeploy=bool(settings.run.values["run.redeploy"]), clock=clock)
    embedded: tuple[str, dict[str, str]] | None = None
    for name, conf in confs.items():
        conf["topology.name"] = graph.name
        conf["storm.id"] = storm_id
        if conf["kafka.bootstrap"] == "embedded" and reads(graph.components[name], "kafka"):
            if embedded is None:
                from downspout.kafka.embedded import find_access

                embedded = find_access()
            conf["kafka.bootstrap"], own = embedded
            for property_name, value in own.items():
                conf.setdefault(CLIENT_PREFIX + property_name, value)
    return confs


class Stoppable(Protocol):
    """What signals stop."""

    def stop(self) -> None:
        """Finish what is in flight."""

    def abort(self) -> None:
        """Stop at once."""


@contextlib.contextmanager
def signals(run: Stoppable, *, interrupt: bool = True) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM lets the run finish, the second one stops it wherever it is; yield their numbers.

    Args:
        run: what is stopped.
        interrupt: raise a KeyboardInterrupt at the second one, out of whatever a component waits for.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            run.stop()
        else:
            run.abort()
            if interrupt:
                raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def calm_gc(*, collect: bool = True) -> Iterator[None]:
    """Collect garbage seldom (see GC_THRESHOLDS) and never look at what was there before the run.

    Args:
        collect: first collect what is garbage by then; not worth its time where runs are short and many.
    """
    before = gc.get_threshold()
    if collect:
        gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
