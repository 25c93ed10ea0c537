"""What several processes that run one topology share, and what they do not.

They share the partitions of a consumer group and the commit log of an output directory. They share no bolts: each
process has tasks of its own, so groupings hold within a process.
"""

from __future__ import annotations

from collections.abc import Iterator

from downspout.errors import DownspoutError, TopologyError
from downspout.local.graph import Component, Graph
from downspout.local.settings import Settings, reads

__all__ = ["SPLIT_GROUPINGS", "processes_of", "refuse_spouts", "split_groupings"]

SPLIT_GROUPINGS = ("fields", "global", "direct")
"""Groupings by which a component counts on one task seeing all that belongs together."""


def processes_of(settings: Settings) -> int:
    """Return how many processes run the topology, as far as the settings tell: 2 stands for "several"."""
    workers, member = settings.run.values["run.workers"], settings.run.values["run.member"]
    return int(workers or 1) if workers or member is None else 2


def refuse_spouts(graph: Graph, workers: int) -> None:
    """Raise a TopologyError for a spout that several processes cannot share.

    Only a consumer group gives each its part. Any other spout would emit all that it has in each of them.
    """
    for spout in graph.spouts:
        if not reads(spout, "kafka"):
            raise TopologyError(
                f"run.workers = {workers}: {spout.name} ({spout.cls.__name__}) is no KafkaSpout, so each worker would "
                "emit all of its tuples",
                cure="one process (no --workers), or a KafkaSpout in its place",
            )
    if not graph.spouts:
        raise TopologyError(f"run.workers = {workers}: there is no spout", cure="one process (no --workers)")


def spout_problem(graph: Graph, settings: Settings) -> DownspoutError | None:
    """Return what :func:`refuse_spouts` would raise for these settings."""
    workers = settings.run.values["run.workers"] or 1
    try:
        if workers > 1:
            refuse_spouts(graph, workers)
    except TopologyError as error:
        return error
    return None


def split_groupings(graph: Graph) -> Iterator[tuple[Component, str, str]]:
    """Yield each bolt that may count on seeing all tuples of a key, what it would see, and the cure.

    A sink does not: it writes rows, or partial aggregates that the reader finishes.
    """
    for bolt in graph.bolts:
        if reads(bolt, "parquet"):
            continue
        given = next((each for each in bolt.inputs if each.grouping in SPLIT_GROUPINGS), None)
        if given is None:
            continue
        how = f"{given.grouping} grouping" + (f" on {', '.join(given.fields)}" if given.fields else "")
        yield (
            bolt,
            f"it reads {given.source!r} by {how}, which holds within one process: where several run, each has its own "
            f"{bolt.name} with a part of the tuples, so what it keeps between tuples is a part too",
            "nothing if it keeps nothing, or if records with one key are in one partition; else one process, Storm "
            "or Spark",
        )
