"""What several processes that run one topology share, and what they do not.

They share the partitions of a consumer group and the commit log of an output directory. They share no bolts: each
process has tasks of its own, so groupings hold within a process.
"""

from __future__ import annotations

from collections.abc import Iterator

from downspout.engine.graph import Component, Graph
from downspout.engine.settings import Settings, reads
from downspout.errors import TopologyError
from downspout.findings import Finding

SPLIT_GROUPINGS = ("fields", "global", "direct")
"""Groupings by which a component counts on one task seeing all that belongs together."""


def processes_of(settings: Settings) -> int:
    """Return how many processes run the topology, as far as the settings show: 2 stands for "several"."""
    workers, member = settings.run.values["run.workers"], settings.run.values["run.member"]
    return int(workers or 1) if workers or member is None else 2


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find what does not survive being cut into several processes (``run.workers``, ``run.member``)."""
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
        # Only a consumer group gives each its part. Any other spout would emit all that it has in each of them; and
        # coordinators of batches would throw each other out.
        if not reads(spout, "kafka") or reads(spout, "batch"):
            raise TopologyError(
                f"run.workers = {workers}: {spout.name} ({spout.cls.__name__}) is not a KafkaSpout, so each "
                "worker would emit all of its tuples",
                cure="one process (no --workers), or a KafkaSpout in its place",
            )
    if not graph.spouts:
        raise TopologyError(f"run.workers = {workers}: there is no spout", cure="one process (no --workers)")


def split_groupings(graph: Graph) -> Iterator[tuple[Component, str, str]]:
    """Yield each bolt that may count on seeing all tuples of a key, what it would see, and the cure."""
    for bolt in graph.bolts:
        if reads(bolt, "parquet") or reads(bolt, "sql"):
            # A sink counts on nothing of the kind: it writes rows, or partial aggregates that the reader finishes.
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
