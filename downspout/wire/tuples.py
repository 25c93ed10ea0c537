"""Reading tuples: pystorm's way, with two differences.

An origin is an ``Origin`` again. And a tuple with a wrong number of values is failed by name: pystorm raises before it
has noted which tuple it was, and so neither acks nor fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pystorm.component import Tuple

from downspout.errors import TopologyError
from downspout.ledger.origin import Origin

__all__ = ["as_origin", "reader"]


def reader(bolt: Any, context: Mapping[str, Any]) -> Callable[[], Any]:
    """Return the ``read_tuple`` of a bolt with this context."""
    inputs: dict[tuple[str, str], tuple[Any, int, int]] = {}
    for source, streams in (context.get("source->stream->fields") or {}).items():
        for stream, fields in streams.items():
            kind = bolt._source_tuple_types[source][stream]
            inputs[source, stream] = kind, len(fields), fields.index("origin") if "origin" in fields else -1
    read, new = bolt.read_command, tuple.__new__

    def read_tuple() -> Any:
        command = read()
        source, stream, values = command["comp"], command["stream"], command["tuple"]
        found = inputs.get((source, stream))
        if found is None:
            return Tuple(command["id"], source, stream, command["task"], tuple(values))
        kind, count, origin_at = found
        if len(values) != count:
            # pystorm fails what is current.
            bolt._current_tups = [Tuple(command["id"], source, stream, command["task"], tuple(values))]
            raise TopologyError(
                f"{bolt.component_name}: a tuple of {source}:{stream} has {len(values)} values; the stream has {count} "
                f"fields ({', '.join(kind._fields)})",
                cure=f"one value per field in {source}",
            )
        if origin_at >= 0:
            values[origin_at] = as_origin(values[origin_at])
        return new(Tuple, (command["id"], source, stream, command["task"], new(kind, values)))

    return read_tuple


def as_origin(value: Any) -> Any:
    """Return what is an origin as one; a field of that name may hold something else.

    >>> as_origin(["lines", "", 0, 17, ""]), as_origin("JFK")
    (Origin(topic='lines', topic_id='', partition=0, offset=17, path=''), 'JFK')
    """
    if type(value) is list and len(value) == 5:
        topic, _, partition, offset, path = value
        if type(topic) is str and type(partition) is int and type(offset) is int and type(path) is str:
            return tuple.__new__(Origin, value)
    return value
