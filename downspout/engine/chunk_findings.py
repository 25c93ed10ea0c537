"""What becomes of chunks on Storm, found beforehand: streams that go as records, and the readers that need them.

A topology with ``kafka.emit=chunk`` runs on Storm either way, and with the same result; but where one reader needs
records, all readers of that stream lose what chunks are for (decision 0008). The rule itself is in
:mod:`downspout.wire.streams`, where Storm's handshake is asked; here it is the graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from downspout.engine.graph import Component, Graph, Input
from downspout.engine.values import Settings, reads
from downspout.findings import Finding
from downspout.protocols import takes_chunks
from downspout.wire import Wired
from downspout.wire.chunk_readers import has_types
from downspout.wire.streams import is_blind


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find the streams that carry chunks in the local engine, and would carry records on Storm."""
    whole: set[tuple[str, str]] = set()
    for component in [*graph.spouts, *graph.bolts]:
        if not _emits_chunks(component, settings, whole):
            continue
        for stream in component.streams:
            readers = list(graph.subscribers(component.name, stream))
            guilty = {reader.name: why for reader, given in readers if (why := _why_records(reader, given))}
            if not guilty:
                whole.add((component.name, stream))
            elif (others := [reader.name for reader, _ in readers if reader.name not in guilty]) or component.is_spout:
                yield _finding(component, stream, guilty, others)


def _finding(source: Component, stream: str, guilty: dict[str, str], others: list[str]) -> Finding:
    """Return the line; where all readers of a bolt's stream need records, nobody loses anything, and there is none."""
    too = f", to {' and '.join(others)} too" if others else ""
    names = " and ".join(guilty)
    return Finding(
        False,
        source.name,
        f"on Storm its stream {stream!r} goes as records, not in chunks{too}, because "
        + " and ".join(f"{name} {why}" for name, why in guilty.items()),
        ("kafka.emit=record, or a bolt before " if source.is_spout else "a separate stream for ")
        + f"{names}; nothing where it runs elsewhere, or records are fast enough",
    )


def _emits_chunks(component: Component, settings: Settings, whole: set[tuple[str, str]]) -> bool:
    """Return whether chunks leave a component on our wire, on those of its streams that can carry them."""
    conf = settings.components[component.name].values
    if not issubclass(component.cls, Wired):
        return False
    if component.is_spout:
        # What is chosen by itself (auto) promises nothing that Storm would not keep.
        chosen = settings.components[component.name].sources["kafka.emit"].startswith("auto")
        return reads(component, "kafka") and conf.get("kafka.emit") == "chunk" and not chosen
    if not takes_chunks(component.cls) or not has_types(component.cls, conf):
        return False
    return any((given.source, given.stream) in whole for given in component.inputs)


def _why_records(reader: Component, given: Input) -> str:
    """Return why chunks are taken apart for this reader's sake; empty: they are not."""
    if not issubclass(reader.cls, Wired):
        return f"({reader.cls.__name__}) is not one of our bolts and would take a chunk for text"
    grouping = "fields" if given.grouping == "global" else given.grouping  # Storm has no word of its own for global
    if is_blind({"type": grouping, "fields": given.fields}, reader.par):
        return ""
    return f"reads it by {grouping} ({', '.join(given.fields)}) with {reader.par} tasks"
