"""Resolves each component's settings, their sources, and the configurations of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.graph import Component, Graph, nearest, topology_id
from downspout.errors import ConfigError
from downspout.kafka.clusters import Access, access_of
from downspout.protocols import emits_chunks, scopes_of
from downspout.settings import layers
from downspout.settings.layers import FILE_NAME, Layer, Resolved, client_value
from downspout.settings.table import CLIENT_PREFIX, SETTINGS, check_known, parse_scope
from downspout.spout.settings import dead_letter_topic
from downspout.spout.tuples import CHUNKS, RECORDS, why_records
from downspout.wire.specs import Part, records_by_readers

STORM_DEFAULTS: Mapping[str, Any] = {
    "topology.message.timeout.secs": 30,
    "topology.acker.executors": 1,
    "topology.max.spout.pending": None,
    "topology.tick.tuple.freq.secs": None,
    "topology.workers": 1,
    "topology.debug": False,
}
"""The values of Storm's defaults.yaml for the keys that the engine knows."""
WHOLE_RUN = frozenset((
    "run.drain_s", "run.for_s", "run.records", "run.redeploy", "run.seed", "run.stuck_s",
    "run.workers",
))  # fmt: skip
"""Settings of the whole run, without effect if given for one component."""
EMIT = "kafka.emit"
POLL_BUDGET_MS = 200  # Longest wait of all Kafka spouts together for records in one round of the engine


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    run: Resolved  # of the topology as a whole (``run.*``)
    components: Mapping[str, Resolved]  # of each component

    def confs(self) -> dict[str, dict[str, Any]]:
        """Return the configuration of each component, in Storm's form."""
        return {name: dict(resolved.values) for name, resolved in self.components.items()}


def resolve(
    graph: Graph,
    # ``--set`` options, ``[COMPONENT:]KEY=VALUE``; or a program's dict, ``{"[COMPONENT:]KEY": value}``
    given: Sequence[str] | Mapping[str, Any] = (),
    *,
    # options that stand for settings (``--until``), with the precedence of ``--set``
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,  # default: the process's environment
    file: Path | None = None,  # default: ``downspout.toml`` in the working directory
) -> Settings:
    """Return all settings of a run.

    Precedence: command line, environment, component, topology, file, default.

    Raises:
        ConfigError: an unknown key or component, or an invalid value.
    """
    if isinstance(given, Mapping):
        by_component = layers.from_mapping(given, "config")
    else:
        by_component = {name: _typed(layer) for name, layer in layers.from_command_line(given).items()}
    everywhere = by_component[""]
    _check_given(graph, by_component, "" if isinstance(given, Mapping) else "--set ")
    del by_component[""]
    stronger = {key: value for key, value in (options or {}).items() if value is not None}
    everywhere = Layer(everywhere.name, {**everywhere.values, **stronger})
    environment = layers.from_environment(os.environ if environ is None else environ)
    topology, stored = Layer("topology", graph.config), layers.from_file(file or Path(FILE_NAME))
    for key in stored.values:
        check_known(key, stored.name, _declared(graph))
    storm = Layer("default", STORM_DEFAULTS)
    # Shared values first: an error in them must not name a component.
    run = layers.resolve([everywhere, environment, topology, stored, storm])
    components = {
        name: _resolve(
            name,
            [
                *([by_component[name]] if name in by_component else []),
                everywhere,
                environment,
                Layer("component", component.config),
                topology,
                stored,
                storm,
            ],
        )
        for name, component in graph.components.items()
    }
    return Settings(run, _choose_emit(graph, _share_poll_budget(graph, components)))


def _resolve(name: str, given: Sequence[Layer]) -> Resolved:
    """Return a component's settings; errors name it."""
    try:
        return layers.resolve(given)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", cure=error.cure) from None


def _declared(graph: Graph, name: str = "") -> set[str]:
    """Return the keys in the configurations of the topology and of its components, or of one component."""
    components = [graph.components[name]] if name else graph.components.values()
    return {*graph.config, *(key for component in components for key in component.config)}


def _check_given(graph: Graph, by_component: Mapping[str, Layer], how: str) -> None:
    """Refuse given values that no component would read."""
    for name, layer in by_component.items():
        if name and name not in graph.components:
            raise ConfigError(f"{how}{name}:…: there is no component {name!r}", cure=nearest(name, graph.components))
        for key in layer.values:
            check_known(key, layer.name, _declared(graph, name))
            if name and key in WHOLE_RUN:
                raise ConfigError(
                    f"{how}{name}:{key}: {key} is a setting of the whole run, not of one component", cure=f"{how}{key}"
                )
            if not name or key not in SETTINGS or key in graph.components[name].config:
                continue
            scope = SETTINGS[key].scope
            if scope != "run" and not reads(graph.components[name], scope):
                readers = [component.name for component in graph.components.values() if reads(component, scope)]
                raise ConfigError(
                    f"{how}{name}:{key}: {graph.components[name].cls.__name__} does not read {scope}.* settings",
                    cure=f"{how}{readers[0]}:{key}" if readers else "remove it",
                )


def reads(component: Component, scope: str) -> bool:
    """Return whether a component's class reads the settings of a scope."""
    return scope in scopes_of(component.cls)


def _share_poll_budget(graph: Graph, components: Mapping[str, Resolved]) -> dict[str, Resolved]:
    """Divide POLL_BUDGET_MS among the Kafka spouts, which wait for records in one thread."""
    tasks = sum(spout.par for spout in graph.spouts if reads(spout, "kafka"))
    key, shared = "kafka.poll_timeout_ms", {}
    for name, resolved in components.items():
        if tasks > 1 and resolved.sources[key] == "default" and reads(graph.components[name], "kafka"):
            resolved = replace(resolved, values={**resolved.values, key: max(1, POLL_BUDGET_MS // tasks)})
        shared[name] = resolved
    return shared


def _choose_emit(graph: Graph, components: Mapping[str, Resolved]) -> dict[str, Resolved]:
    """Resolve ``kafka.emit=auto`` to ``record`` or ``chunk`` for each Kafka spout; the reason is the value's source.

    Only a component that runs without a known topology sees ``auto``.
    """
    parts = {
        name: Part(name, each.cls, components[name].values, {given.source for given in each.inputs})
        for name, each in graph.components.items()
    }
    return {
        name: _choose(parts, graph.components[name], resolved) if resolved.values[EMIT] == "auto" else resolved
        for name, resolved in components.items()
    }


def _choose(parts: Mapping[str, Part], component: Component, resolved: Resolved) -> Resolved:
    source, why = "default", "it is not a spout"
    if component.is_spout and reads(component, "kafka"):
        why = _why_records(parts, component.name, resolved.values)
        source = f"auto: {why or 'all that its records reach takes chunks'}"
    emit = (RECORDS if why else CHUNKS).name
    return Resolved({**resolved.values, EMIT: emit}, {**resolved.sources, EMIT: source})


def _why_records(parts: Mapping[str, Part], name: str, values: Mapping[str, Any]) -> str:
    """Return why a spout emits records; empty if it emits chunks."""
    if not emits_chunks(parts[name].cls):
        return f"{parts[name].cls.__name__} emits records"
    try:
        settings = parse_scope(values, "kafka")
    except ConfigError:
        return "its settings are wrong"  # reported by their readers
    return why_records(settings, values["run.records"]) or records_by_readers(parts, name)


def _typed(layer: Layer) -> Layer:
    """Parse values of keys outside our table (Storm's) as JSON if possible, so that 30 is a number."""
    return Layer(layer.name, {k: v if k in SETTINGS else client_value(k, v) for k, v in layer.values.items()})


def dead_letter_topics(graph: Graph, settings: Settings) -> dict[str, str]:
    """Return the dead-letter topic of each Kafka spout and each bolt that writes dead letters, by component name."""
    found = {}
    for name, component in graph.components.items():
        if reads(component, "kafka"):
            values = parse_scope(settings.components[name].values, "kafka")
            found[name] = dead_letter_topic(values, values["group"] or graph.name)
    return found


def configurations(graph: Graph, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> dict[str, dict[str, Any]]:
    """Return each component's configuration with topology name, topology id and broker address added."""
    confs = settings.confs()
    storm_id = topology_id(graph.name, redeploy=bool(settings.run.values["run.redeploy"]), clock=clock)
    found: dict[str, Access] = {}
    for name, conf in confs.items():
        conf["topology.name"] = graph.name
        conf["storm.id"] = storm_id
        if reads(graph.components[name], "kafka"):
            given = conf["kafka.bootstrap"]
            if given not in found:  # each broker is resolved once
                found[given] = access_of(given)
            conf["kafka.bootstrap"], own = found[given]
            for property_name, value in own.items():
                conf.setdefault(CLIENT_PREFIX + property_name, value)
    return confs
