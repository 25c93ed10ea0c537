"""Chunks out and in, by pystorm's methods: ``emit`` takes a record batch, and ``process_chunk`` gets one.

It is what the local engine does (``downspout.engine.bulk_calls``), with Storm at the other end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from pystorm.bolt import BatchingBolt, Bolt
from pystorm.spout import Spout

from downspout.errors import TopologyError
from downspout.wire.serializer import WireError

READING = ("_run", "read_tuple", "read_command", "read_message", "is_tick", "is_heartbeat")
"""A class that overrides one of these reads in its own way, and is given records."""
OF_SPOUT = ("tup_id", "stream", "direct_task", "need_task_ids")
OF_BOLT = ("stream", "anchors", "direct_task", "need_task_ids")


def reads_as_pystorm(cls: Any) -> bool:
    """Return whether a class of bolts leaves to pystorm how tuples are read."""
    return all(getattr(cls, name, None) is getattr(Bolt, name, None) for name in READING)


def chunk_processor(bolt: Any, stock: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the ``process`` of a bolt that takes records and chunks."""

    def process(tup: Any) -> None:
        (stock if isinstance(tup.values, tuple) else bolt.process_chunk)(tup)

    return process


def chunk_emitter(component: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``emit`` of a component that emits values and chunks; ``stock`` emits values."""
    if isinstance(component, Bolt) and not isinstance(component, BatchingBolt):

        def emit_of_bolt(
            tup: Any, stream: Any = None, anchors: Any = None, direct_task: Any = None, need_task_ids: bool = False
        ) -> Any:
            if type(tup) is list or not _is_batch(tup):  # by place: keywords cost a record a tenth of its emit
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
    pyarrow = sys.modules.get("pyarrow")  # without it there is no batch
    return pyarrow is not None and isinstance(tup, pyarrow.RecordBatch)


def _send(component: Any, stock: Callable[..., Any], batch: Any, how: dict[str, Any]) -> Any:
    """Emit a chunk whole, or record by record; return the tasks that got any of it, where that is asked for.

    Raises:
        TopologyError: its columns are not the stream's fields.
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
        component.ack(tup_id)  # no reader will
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
