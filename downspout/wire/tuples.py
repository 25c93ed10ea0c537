"""Tuples in and out: what pystorm's methods do, by fewer calls.

Reading has two differences. An origin is an ``Origin`` again. And a tuple with a wrong number of values is failed by
name: pystorm raises before it has noted which tuple it was, and so neither acks nor fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pystorm.component import Tuple

from downspout.errors import TopologyError
from downspout.ledger.origin import Origin
from downspout.system.process_notes import NoteWriter
from downspout.wire.pipe import Pipe


def reader(bolt: Any, context: Mapping[str, Any], note: NoteWriter | None = None) -> Callable[[], Any]:
    """Return the ``read_tuple`` of a bolt with this context, which notes what it begins with."""
    inputs: dict[tuple[str, str], tuple[Any, int, int]] = {}
    for source, streams in (context.get("source->stream->fields") or {}).items():
        for stream, fields in streams.items():
            kind = bolt._source_tuple_types[source][stream]
            inputs[source, stream] = kind, len(fields), fields.index("origin") if "origin" in fields else -1
    read, new = bolt.read_command, tuple.__new__

    def read_tuple() -> Any:
        command = read()
        source, stream, values = command["comp"], command["stream"], command["tuple"]
        if type(values) is not list:  # a chunk
            if note is not None:
                note_chunk(note, values)
            return new(Tuple, (command["id"], source, stream, command["task"], values))
        found = inputs.get((source, stream))
        if found is None:
            if note is not None:
                note.begin_tick()
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
            origin = values[origin_at] = as_origin(values[origin_at])
            if note is not None and type(origin) is Origin:
                note.begin(origin[0], origin[2], origin[3], origin[3])
        elif note is not None:
            note.begin_unknown()
        return new(Tuple, (command["id"], source, stream, command["task"], new(kind, values)))

    return read_tuple


def note_chunk(note: NoteWriter, batch: Any) -> None:
    """Note from which record to which a chunk goes; it has rows."""
    from downspout.origins import origin_at

    if "origin" not in batch.schema.names:
        note.begin_unknown()
        return
    origins = batch.column("origin")
    first, last = origin_at(origins, 0), origin_at(origins, batch.num_rows - 1)
    note.begin(first.topic, first.partition, first.offset, last.offset)


def acker(pipe: Pipe, stock: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the ``ack`` of a bolt; ``stock`` is for ids that are not Storm's, which are numbers as text."""
    write = pipe.write

    def ack(tup: Any) -> None:
        tup_id = tup.id if isinstance(tup, Tuple) else tup
        if type(tup_id) is str and tup_id.isascii() and tup_id.removeprefix("-").isdigit():
            write(b'{"command":"ack","id":"%b"}' % tup_id.encode())
        else:
            stock(tup)

    return ack


def emitter(send: Callable[[dict[str, Any]], None], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``emit`` of a spout; ``stock`` is for direct emits and those that ask for task ids."""

    def emit(
        tup: Any, tup_id: Any = None, stream: Any = None, direct_task: Any = None, need_task_ids: bool = False
    ) -> Any:
        if need_task_ids or direct_task is not None or type(tup) is not list:
            return stock(tup, tup_id=tup_id, stream=stream, direct_task=direct_task, need_task_ids=need_task_ids)
        message: dict[str, Any] = {"command": "emit", "tuple": tup}
        if tup_id is not None:
            message["id"] = tup_id
        if stream is not None:
            message["stream"] = stream
        message["need_task_ids"] = need_task_ids
        send(message)
        return None

    return emit


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
