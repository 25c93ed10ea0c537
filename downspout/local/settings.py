"""Which values hold for each component of a graph, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from downspout import config
from downspout.config import Layer, Resolved
from downspout.errors import ConfigError
from downspout.local.graph import Component, Graph, nearest

STORM_DEFAULTS: Mapping[str, Any] = {
    "topology.message.timeout.secs": 30,
    "topology.acker.executors": 1,
    "topology.max.spout.pending": None,
    "topology.tick.tuple.freq.secs": None,
    "topology.workers": 1,
    "topology.debug": False,
}
"""What Storm's own defaults.yaml says, for the keys that the engine knows."""

POLL_BUDGET_MS = 200
"""How long all Kafka spouts together may wait for records in one round of the engine."""


@dataclass(frozen=True)
class Settings:
    """The values of a run.

    Attributes:
        run: those of the topology as a whole (``run.*``).
        components: those of each component.
    """

    run: Resolved
    components: Mapping[str, Resolved]

    def confs(self) -> dict[str, dict[str, Any]]:
        """Return the configuration of each component as Storm hands it over."""
        return {name: dict(resolved.values) for name, resolved in self.components.items()}


def resolve(
    graph: Graph,
    given: Sequence[str] = (),
    *,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Return all values of a run; the strongest source wins.

    The order: command line, environment, component, topology, file, default.

    Args:
        graph: the topology.
        given: ``--set`` options, ``[COMPONENT:]KEY=VALUE``.
        options: values of options that stand for settings (``--until``), as strong as ``--set``.
        environ: the environment; not given: the process's.
        file: the settings file; not given: ``downspout.toml`` in the working directory.

    Raises:
        ConfigError: an unknown key or component, or a value that does not fit.
    """
    by_component = {name: _typed(layer) for name, layer in config.from_command_line(given).items()}
    for name in by_component:
        if name and name not in graph.components:
            raise ConfigError(f"--set {name}:…: there is no component {name!r}", cure=nearest(name, graph.components))
    _check_given(graph, by_component)
    everywhere = Layer("command line", {**by_component.pop("").values, **_without_none(options or {})})
    environment = config.from_environment(os.environ if environ is None else environ)
    topology, stored = Layer("topology", graph.config), config.from_file(file or Path(config.FILE_NAME))
    for key in stored.values:
        config.check_known(key, stored.name, _declared(graph))
    storm = Layer("default", STORM_DEFAULTS)
    components = {
        name: config.resolve(
            [
                *([by_component[name]] if name in by_component else []),
                everywhere,
                environment,
                Layer("component", component.config),
                topology,
                stored,
                storm,
            ]
        )
        for name, component in graph.components.items()
    }
    run = config.resolve([everywhere, environment, topology, stored, storm])
    return Settings(run, _share_poll_budget(graph, components))


def _declared(graph: Graph, name: str = "") -> set[str]:
    """Return the keys that the topology's own configuration holds, or one component's besides the topology's."""
    components = [graph.components[name]] if name else graph.components.values()
    return {*graph.config, *(key for component in components for key in component.config)}


def _check_given(graph: Graph, by_component: Mapping[str, Layer]) -> None:
    """Refuse what is given on the command line and reaches nobody."""
    for name, layer in by_component.items():
        for key in layer.values:
            config.check_known(key, "command line", _declared(graph, name))
            if not name or key not in config.SETTINGS or key in graph.components[name].config:
                continue
            scope = config.SETTINGS[key].scope
            if scope != "run" and not reads(graph.components[name], scope):
                readers = [component.name for component in graph.components.values() if reads(component, scope)]
                raise ConfigError(
                    f"--set {name}:{key}: {graph.components[name].cls.__name__} reads no setting of {scope}",
                    cure=f"--set {readers[0]}:{key}=…" if readers else "remove it",
                )


def reads(component: Component, scope: str) -> bool:
    """Return whether a component's class reads the settings of a scope."""
    return scope in getattr(component.cls, "settings_scopes", ())


def _share_poll_budget(graph: Graph, components: Mapping[str, Resolved]) -> dict[str, Resolved]:
    """Kafka spouts wait for records inside ``next_tuple``; in one thread they must share that time."""
    tasks = sum(spout.par for spout in graph.spouts if reads(spout, "kafka"))
    key, shared = "kafka.poll_timeout_ms", {}
    for name, resolved in components.items():
        if tasks > 1 and resolved.sources[key] == "default" and reads(graph.components[name], "kafka"):
            resolved = replace(resolved, values={**resolved.values, key: max(1, POLL_BUDGET_MS // tasks)})
        shared[name] = resolved
    return shared


def _typed(layer: Layer) -> Layer:
    """Read values of keys that are not in our table (Storm's) as JSON where they are, so that 30 is a number."""
    return Layer(
        layer.name, {k: v if k in config.SETTINGS else config.client_value(k, v) for k, v in layer.values.items()}
    )


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
