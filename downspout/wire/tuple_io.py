"""Reading and emitting tuples and chunks: replacements for pystorm's methods with fewer calls.

Reading differs from pystorm in two ways. An origin becomes an ``Origin`` again. And a tuple with a wrong number of
values is failed: pystorm raises before it has noted the current tuple, and so neither acks nor fails it.

Chunks use pystorm's methods: ``emit`` accepts a record batch, and ``process_chunk`` receives one, as in the local
engine (``downspout.engine.bulk_calls``).

:class:`Outlet` emits for our spouts: a value that cannot travel fails its record, not the process. If a topology has no
ackers, Storm acks inside emit: over the pipe that is a command within a command, for all tuples of one call. So tuples
are emitted without ids and count as acked after the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from pystorm.bolt import BatchingBolt, Bolt
from pystorm.component import Tuple
from pystorm.spout import Spout

from downspout.errors import TopologyError
from downspout.ledger.origin import Origin
from downspout.system.process_notes import NoteWriter
from downspout.wire.json_messages import WireError
from downspout.wire.pipe import Pipe


def reader(bolt: Any, context: Mapping[str, Any], note: NoteWriter | None = None) -> Callable[[], Any]:
    """Return a ``read_tuple`` for a bolt; it records in ``note`` each tuple that the bolt begins."""
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
            # pystorm fails the current tuples.
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
    """Record the first and last record of a chunk, which must not be empty."""
    from downspout.origins import origin_at

    if "origin" not in batch.schema.names:
        note.begin_unknown()
        return
    origins = batch.column("origin")
    first, last = origin_at(origins, 0), origin_at(origins, batch.num_rows - 1)
    note.begin(first.topic, first.partition, first.offset, last.offset)


def acker(pipe: Pipe, stock: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an ``ack`` for a bolt; ``stock`` gets ids that are not Storm's (numbers as text)."""
    write = pipe.write

    def ack(tup: Any) -> None:
        tup_id = tup.id if isinstance(tup, Tuple) else tup
        if type(tup_id) is str and tup_id.isascii() and tup_id.removeprefix("-").isdigit():
            write(b'{"command":"ack","id":"%b"}' % tup_id.encode())
        else:
            stock(tup)

    return ack


def emitter(send: Callable[[dict[str, Any]], None], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return an ``emit`` for a spout; ``stock`` gets direct emits and those that ask for task ids."""

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
    """Convert a list to an Origin; any other value, which a field of that name may hold, is returned unchanged.

    >>> as_origin(["lines", "", 0, 17, ""]), as_origin("JFK")
    (Origin(topic='lines', topic_id='', partition=0, offset=17, path=''), 'JFK')
    """
    if type(value) is list and len(value) == 5:
        topic, _, partition, offset, path = value
        if type(topic) is str and type(partition) is int and type(offset) is int and type(path) is str:
            return tuple.__new__(Origin, value)
    return value


READING = ("_run", "read_tuple", "read_command", "read_message", "is_tick", "is_heartbeat")
"""A class that overrides one of these receives records only."""
OF_SPOUT = ("tup_id", "stream", "direct_task", "need_task_ids")
OF_BOLT = ("stream", "anchors", "direct_task", "need_task_ids")


def reads_as_pystorm(cls: Any) -> bool:
    """Return whether a bolt class uses pystorm's methods to read tuples."""
    return all(getattr(cls, name, None) is getattr(Bolt, name, None) for name in READING)


def chunk_processor(bolt: Any, stock: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``process`` for a bolt that takes records and chunks."""

    def process(tup: Any) -> None:
        (stock if isinstance(tup.values, tuple) else bolt.process_chunk)(tup)

    return process


def chunk_emitter(component: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return an ``emit`` for values and chunks; ``stock`` emits values."""
    if isinstance(component, Bolt) and not isinstance(component, BatchingBolt):

        def emit_of_bolt(
            tup: Any, stream: Any = None, anchors: Any = None, direct_task: Any = None, need_task_ids: bool = False
        ) -> Any:
            if type(tup) is list or not _is_batch(tup):  # positional: keywords would make an emit a tenth slower
                return stock(tup, stream, anchors, direct_task, need_task_ids)
            given = (stream, anchors, direct_task, need_task_ids)
            return _send(component, stock, tup, dict(zip(OF_BOLT, given, strict=True)))

        return emit_of_bolt
    names = OF_SPOUT if isinstance(component, Spout) else OF_BOLT

    def emit(tup: Any, *given: Any, **how: Any) -> Any:
        if type(tup) is list or not _is_batch(tup):
            return stock(tup, *given, **how)
        return _send(component, stock, tup, {**dict(zip(names, given, strict=False)), **how})

    return emit


def _is_batch(tup: Any) -> bool:
    pyarrow = sys.modules.get("pyarrow")  # not loaded: no batch can exist
    return pyarrow is not None and isinstance(tup, pyarrow.RecordBatch)


def _send(component: Any, stock: Callable[..., Any], batch: Any, how: dict[str, Any]) -> Any:
    """Emit a chunk whole or record by record; return the receiving tasks on request.

    Raises:
        TopologyError: its columns are not the stream's fields.
        WireError: Arrow IPC does not support its types.
    """
    from downspout.wire.chunks import pack

    serializer = component.serializer
    stream = how.get("stream") or "default"
    _check(batch, stream, serializer.fields)
    tup_id = how.get("tup_id")
    if stream in serializer.whole and (batch.num_rows or tup_id is not None):
        try:
            values = pack(batch)
        except Exception as error:
            raise WireError(
                f"stream {stream!r}: a chunk cannot be sent: {error}", cure="types that Arrow IPC supports"
            ) from error
        return stock(values, **how)
    return _send_records(component, stock, batch, how)


def _send_records(component: Any, stock: Callable[..., Any], batch: Any, how: dict[str, Any]) -> Any:
    from downspout.origins import rows_of

    tup_id = how.get("tup_id")
    if tup_id is not None and not batch.num_rows:
        component.ack(tup_id)  # nothing is emitted that a reader could ack
    elif tup_id is not None:
        how["tup_id"] = component.serializer.shares.open(tup_id, batch.num_rows)
    reached: set[int] = set()
    for values in rows_of(batch):
        reached.update(stock(list(values), **how) or ())
    return sorted(reached) if how.get("need_task_ids") else None


def _check(batch: Any, stream: str, fields: Mapping[str, Any]) -> None:
    wanted = fields.get(stream)
    if wanted is not None and batch.schema.names != list(wanted):
        raise TopologyError(
            f"an emit to stream {stream!r} has a chunk with the columns {', '.join(batch.schema.names)}; the stream's "
            f"fields are {', '.join(wanted)}",
            cure="batch.select([…]) with the stream's fields, in their order",
        )


class Outlet:
    """Emits for one spout."""

    def __init__(
        self, emit: Callable[..., Any], refused: Callable[[str | None, WireError], None], conf: Mapping[str, Any]
    ) -> None:
        self._emit = emit  # the component's own
        self._refused = refused  # called for each tuple that cannot be sent
        self._has_ackers = conf.get("topology.acker.executors") != 0  # unset: as many as workers
        self._acked: list[str] = []

    def emit(self, values: list[Any], tup_id: str | None = None, stream: str | None = None) -> None:
        """Emit; without ackers, omit the id and count the tuple as acked."""
        try:
            self._emit(values, tup_id=tup_id if self._has_ackers else None, stream=stream)
        except WireError as error:
            self._refused(tup_id, error)
        else:
            if tup_id is not None and not self._has_ackers:
                self._acked.append(tup_id)

    def take_acked(self) -> list[str]:
        """Return the ids that count as acked since the last call."""
        acked, self._acked = self._acked, []
        return acked
