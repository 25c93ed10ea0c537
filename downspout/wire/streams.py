"""On which streams a chunk may go whole: where all readers can read it, and Storm need not look into it.

A chunk is a text to Storm, so a grouping that goes by values would send it anywhere; and to a component that is not on
our wire (a stock streamparse bolt, a Java bolt) it is a text, too. On such a stream the emitter sends the records, one
by one: slower, and right.

*Who reads* is known where the topology is built: :mod:`downspout.wire.specs` writes into the configuration of each
component which streams only components on our wire read. *How they read*, and with how many tasks, is known when the
topology runs: Storm tells each component how its own streams are grouped (``stream->target->grouping``). What neither
tells goes as records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from downspout.wire.flushing import FLUSH
from downspout.wire.transacting import TRANSACTIONS

CHUNKS = "wire.chunks"  # The key of the configuration: streams by component
BLIND = frozenset({"shuffle", "local_or_shuffle", "none", "all", "direct"})
"""Groupings that do not look into a tuple. A global one is a fields grouping without fields, to Storm."""


def readable(specs: Iterable[Any], on_wire: Iterable[str]) -> dict[str, list[str]]:
    """Return the streams of each component on our wire that only such components read."""
    specs, ours = list(specs), set(on_wire)
    readers: dict[tuple[str, str], set[str]] = {}
    for spec in specs:
        for source in spec.inputs or {}:
            readers.setdefault((source.componentId, source.streamId), set()).add(spec.name)
    return {
        spec.name: sorted(
            stream
            for stream in spec.outputs or {}
            if stream not in (FLUSH, TRANSACTIONS) and readers.get((spec.name, stream), set()) <= ours
        )
        for spec in specs
        if spec.name in ours
    }


def whole(conf: Mapping[str, Any], context: Mapping[str, Any]) -> frozenset[str]:
    """Return the streams of this component on which a chunk goes whole, from Storm's handshake.

    >>> conf = {"wire.chunks": {"parse": ["default", "rejects"]}}
    >>> targets = {"default": {"rows": {"type": "SHUFFLE"}}, "rejects": {"sums": {"type": "FIELDS", "fields": ["key"]}}}
    >>> tasks = {"1": "parse", "2": "rows", "3": "sums", "4": "sums"}
    >>> context = {"componentid": "parse", "stream->target->grouping": targets, "task->component": tasks}
    >>> sorted(whole(conf, context))
    ['default']
    """
    targets = context.get("stream->target->grouping")
    if targets is None:
        return frozenset()
    tasks = Counter((context.get("task->component") or {}).values())
    named = (conf.get(CHUNKS) or {}).get(context.get("componentid"), ())
    return frozenset(
        stream
        for stream in named
        if all(is_blind(grouping, tasks[reader]) for reader, grouping in (targets.get(stream) or {}).items())
    )


def is_blind(grouping: Mapping[str, Any], tasks: int) -> bool:
    """Return whether Storm delivers to a reader of so many tasks without looking into the tuples.

    >>> is_blind({"type": "SHUFFLE"}, 2), is_blind({"type": "FIELDS", "fields": ["key"]}, 2)
    (True, False)
    """
    kind = str(grouping.get("type")).lower()
    return kind in BLIND or (kind == "fields" and (not grouping.get("fields") or tasks == 1))


def arriving(conf: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return the component and stream of all chunks that may be on their way in this topology."""
    return frozenset((name, stream) for name, streams in (conf.get(CHUNKS) or {}).items() for stream in streams)
