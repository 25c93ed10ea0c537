"""Exporters that run beside a topology: metrics and health (``run.metrics_port``), OpenTelemetry (``run.otel``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from downspout.engine.settings import reads
from downspout.errors import MissingExtraError

if TYPE_CHECKING:
    from downspout.engine.graph import Graph
    from downspout.engine.settings import Settings
    from downspout.run.run_snapshots import Snapshots
    from downspout.run.watchdog import Watchdog

Watch = Callable[["Watchdog"], None]


@contextmanager
def beside(graph: Graph, settings: Settings) -> Iterator[tuple[list[Snapshots], list[Watch]]]:
    """Run the exporters that the settings enable while the context lasts; without any, import nothing.

    Yields the snapshots that the run's view must fill, and callbacks that take its watchdog.

    Raises:
        MissingExtraError: a package is not installed.
        ConfigError: the port is in use, or the address cannot be listened on.
    """
    values = settings.run.values
    views: list[Snapshots] = []
    watches: list[Watch] = []
    groups = groups_of(graph, settings)
    with ExitStack() as opened:
        if (port := values["run.metrics_port"]) is not None:
            try:
                from downspout.export.server import exposed
            except ModuleNotFoundError as error:
                what = f"run.metrics_port needs the package {error.name}"
                raise MissingExtraError(what, cure="pip install 'downspout[metrics]'") from None
            served = exposed(values["run.metrics_host"], port, groups, stuck_s=values["run.stuck_s"])
            exposure = opened.enter_context(served)
            views.append(exposure.snapshots)
            watches.append(exposure.health.watch)
        if values["run.otel"]:
            try:
                from downspout.export.otel import exported
            except ModuleNotFoundError as error:
                what = f"run.otel needs the package {error.name}"
                raise MissingExtraError(what, cure="pip install 'downspout[otel]'") from None
            views.append(opened.enter_context(exported(graph.name, groups)))
        yield views, watches


def groups_of(graph: Graph, settings: Settings) -> dict[str, str]:
    """Return the consumer group of each Kafka spout."""
    spouts = [spout.name for spout in graph.spouts if reads(spout, "kafka")]
    return {name: settings.components[name].values["kafka.group"] or graph.name for name in spouts}
