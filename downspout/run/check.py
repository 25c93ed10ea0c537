"""What is wrong with a topology, found without running it, and its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from downspout.batches import findings as batch_findings
from downspout.engine.findings import chunk_findings, transaction_findings
from downspout.engine.findings import findings as engine_findings
from downspout.engine.graph import Graph
from downspout.engine.settings import Settings, reads, resolve
from downspout.findings import Finding
from downspout.producing import findings as producing_findings
from downspout.protocols import scopes_of
from downspout.run import sharing
from downspout.settings.layers import Resolved
from downspout.settings.secrets import shown
from downspout.settings.table import SETTINGS
from downspout.sink import findings as sink_findings
from downspout.spout.findings import findings as spout_findings
from downspout.spout.settings import UI_KEYS
from downspout.sql import findings as sql_findings
from downspout.wire.values import KRYO

__all__ = ["Finding", "findings", "resolve", "values_of", "values_table"]

FINDERS = (
    engine_findings,
    sink_findings.findings,
    sql_findings.findings,
    chunk_findings,
    transaction_findings,
    batch_findings.findings,
    sharing.findings,
)
"""Each is given the graph and its values; a KafkaSpout's settings are looked at besides, and a KafkaBolt's."""


def findings(graph: Graph, settings: Settings) -> list[Finding]:
    """Return all findings about a graph and its values, errors first."""
    found = [finding for find in FINDERS for finding in find(graph, settings)]
    for spout in graph.spouts:
        if reads(spout, "kafka"):
            found += spout_findings(spout.name, settings.components[spout.name].values)
    for bolt in graph.bolts:
        if reads(bolt, "produce"):
            found += producing_findings.findings(bolt.name, settings.components[bolt.name].values)
    return sorted(found, key=lambda finding: not finding.is_error)


def values_table(graph: Graph, settings: Settings, *, everything: bool = False) -> str:
    """Return each component's values and where they came from; secrets are not shown."""
    lines = [f"topology {graph.name}"]
    lines += _values(settings.run, ("run",), everything)
    for component in graph.components.values():
        scopes = scopes_of(component.cls)
        kind = "spout" if component.is_spout else "bolt"
        lines.append(
            f"{kind} {component.name} ({component.cls.__module__}.{component.cls.__name__}, par {component.par})"
        )
        for given in component.inputs:
            fields = f"({', '.join(given.fields)})" if given.fields else ""
            lines.append(f"  reads {given.source}:{given.stream} by {given.grouping}{fields}")
        lines += _values(settings.components[component.name], scopes, everything)
    return "\n".join(lines)


def _values(resolved: Resolved, scopes: tuple[str, ...], everything: bool) -> Iterator[str]:
    for key, value, source in values_of(resolved, scopes, everything):
        yield f"  {key} = {shown(key, value)}  ({source})"


def values_of(resolved: Resolved, scopes: tuple[str, ...], everything: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield key, value and source of each setting that a component of these scopes reads; secrets are among them.

    Args:
        resolved: its values.
        scopes: the prefixes of its settings.
        everything: also what is as by default.
    """
    for key, value in sorted(resolved.values.items()):
        if key in UI_KEYS or key in KRYO:  # Storm requires these of a spout; users do not set them
            continue
        known = key in SETTINGS
        source = resolved.sources[key]
        if source == "default" and not (everything and known and SETTINGS[key].scope in scopes):
            continue
        if known and SETTINGS[key].scope not in scopes and source != "component":
            continue
        yield key, value, source
