"""The checks of ``downspout check``: finds problems of a topology without running it, and lists its settings.

**Several processes** of one topology share the partitions of a consumer group and the commit log of an output
directory. They do not share bolts: each process has its own tasks, so groupings apply within a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from downspout.batches import findings as batch_findings
from downspout.engine.findings import chunk_findings, transaction_findings
from downspout.engine.findings import findings as engine_findings
from downspout.engine.graph import Component, Graph
from downspout.engine.settings import Settings, reads, resolve
from downspout.errors import TopologyError
from downspout.findings import Finding
from downspout.producing import findings as producing_findings
from downspout.protocols import scopes_of
from downspout.settings.layers import Resolved
from downspout.settings.secrets import shown
from downspout.settings.table import SETTINGS
from downspout.sink import findings as sink_findings
from downspout.spout.findings import findings as spout_findings
from downspout.spout.settings import UI_KEYS
from downspout.sql import findings as sql_findings
from downspout.wire.values import KRYO

# --- several processes ---

__all__ = ["Finding", "findings", "refuse_spouts", "resolve", "split_groupings", "values_of", "values_table"]

SPLIT_GROUPINGS = ("fields", "global", "direct")
"""Groupings that promise that related tuples reach the same task."""


def processes_of(settings: Settings) -> int:
    """Return how many processes run the topology; 2 stands for an unknown number of members."""
    workers, member = settings.run.values["run.workers"], settings.run.values["run.member"]
    return int(workers or 1) if workers or member is None else 2


def sharing_findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find components that cannot be split over several processes (``run.workers``, ``run.member``)."""
    if processes_of(settings) == 1:
        return
    workers = settings.run.values["run.workers"] or 1
    try:
        if workers > 1:
            refuse_spouts(graph, workers)
    except TopologyError as error:
        yield Finding(True, graph.name, error.message, error.cure or "one process")
    for bolt, what, cure in split_groupings(graph):
        yield Finding(False, bolt.name, what, cure)


def refuse_spouts(graph: Graph, workers: int) -> None:
    """Raise a TopologyError for a spout that several processes cannot share."""
    for spout in graph.spouts:
        # Only a consumer group divides the input. Any other spout would emit all its tuples in each process, and batch
        # coordinators would fence each other.
        if not reads(spout, "kafka") or reads(spout, "batch"):
            raise TopologyError(
                f"run.workers = {workers}: {spout.name} ({spout.cls.__name__}) is not a KafkaSpout, so each "
                "worker would emit all of its tuples",
                cure="one process (no --workers), or a KafkaSpout in its place",
            )
    if not graph.spouts:
        raise TopologyError(f"run.workers = {workers}: there is no spout", cure="one process (no --workers)")


def split_groupings(graph: Graph) -> Iterator[tuple[Component, str, str]]:
    """Yield each bolt that may rely on seeing all tuples of a key, with problem and cure."""
    for bolt in graph.bolts:
        if reads(bolt, "parquet") or reads(bolt, "sql"):
            # Sinks do not rely on it: they write rows, or partial aggregates that the reader merges.
            continue
        given = next((each for each in bolt.inputs if each.grouping in SPLIT_GROUPINGS), None)
        if given is None:
            continue
        how = f"{given.grouping} grouping" + (f" on {', '.join(given.fields)}" if given.fields else "")
        yield (
            bolt,
            f"it reads {given.source!r} with a {how}, which applies within one process: with several processes each "
            f"has its own {bolt.name}, which gets only a part of the tuples",
            "nothing, if it keeps no state or if all records with one key are in one partition; otherwise one process, "
            "Storm or Spark",
        )


# --- findings and values ---

FINDERS = (
    engine_findings,
    sink_findings.findings,
    sql_findings.findings,
    chunk_findings,
    transaction_findings,
    batch_findings.findings,
    sharing_findings,
)
"""Checks of a whole graph; :func:`findings` adds those of single KafkaSpouts and KafkaBolts."""


def findings(graph: Graph, settings: Settings) -> list[Finding]:
    """Return all findings about a graph and its settings, errors first."""
    found = [finding for find in FINDERS for finding in find(graph, settings)]
    for spout in graph.spouts:
        if reads(spout, "kafka"):
            found += spout_findings(spout.name, settings.components[spout.name].values)
    for bolt in graph.bolts:
        if reads(bolt, "produce"):
            found += producing_findings.findings(bolt.name, settings.components[bolt.name].values)
    return sorted(found, key=lambda finding: not finding.is_error)


def values_table(graph: Graph, settings: Settings, *, everything: bool = False) -> str:
    """Return each component's settings with their sources; secrets are masked."""
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
    """Yield key, value and source of a component's settings, including secrets.

    Args:
        resolved: its settings.
        scopes: the prefixes of the settings that it reads.
        everything: whether to include defaults.
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
