"""Fields that a component cannot do without: are they in the streams that it reads?"""

from __future__ import annotations

import json
from collections.abc import Iterator

from downspout.engine.graph import Graph
from downspout.errors import TopologyError
from downspout.wire.transacting import TRANSACTIONS


def lacking_fields(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield the component, what is wrong and the cure, for each input that lacks a field its reader needs."""
    for component in graph.components.values():
        for given in (each for each in component.inputs if each.stream != TRANSACTIONS):
            source = graph.components.get(given.source)
            stream = source.streams.get(given.stream) if source else None
            requires_of = getattr(component.cls, "requires_of", None)
            requires = tuple(getattr(component.cls, "requires", ()))
            wanted = requires_of(component.config) if requires_of is not None else requires
            if stream and (lacks := [name for name in wanted if name not in stream.fields]):
                yield (
                    component.name,
                    f"stream {given.stream!r} of {given.source!r} lacks {', '.join(map(repr, lacks))}, which "
                    f"{component.cls.__name__} needs",
                    f"fields={json.dumps(wanted)} of {given.source!r}",
                )


def require_fields(graph: Graph) -> None:
    """Raise a TopologyError where a component's input lacks a field that it needs."""
    for name, what, cure in lacking_fields(graph):
        raise TopologyError(f"{name}: {what}", cure=cure)
