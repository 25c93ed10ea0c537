"""Chunks in the engine: a chunk goes whole to a bolt that takes chunks, and record by record to any other.

A chunk is a ``pyarrow.RecordBatch`` with the fields of its stream as columns. It is handed on without a copy; only a
fields grouping with several tasks takes it apart, with the hash that decides for records. A bolt takes chunks if its
class has ``process_chunk(tup)`` and leaves to pystorm how tuples are read; ``tup.values`` is the RecordBatch. For any
other bolt each record becomes a tuple, anchored like the chunk itself: the chunk is done when all of its records are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pystorm.component import Tuple

from downspout.engine import acker
from downspout.engine.groupings import Route
from downspout.engine.task import Outlet, Spread, Target, Task
from downspout.errors import TopologyError
from downspout.origins import rows_of, values_of

RecordBatch: Any = pa.RecordBatch
_new = tuple.__new__


def deliver(task: Task, outlet: Outlet, batch: Any, root: acker.Root | None, direct_task: int | None) -> list[int]:
    """Put a chunk into the queues of the stream's readers; return the tasks that got any of it."""
    fields = outlet.kind._fields
    if tuple(batch.schema.names) != fields:
        raise TopologyError(
            f"{task.place} emits a chunk with the columns {', '.join(batch.schema.names)} to stream {outlet.stream!r}, "
            f"whose fields are {', '.join(fields)}",
            cure="batch.select([…]) with the stream's fields, in their order",
        )
    world = task.world
    task.emitted += batch.num_rows
    observed, reached = [], []
    for target, part in _parts(task, outlet, batch, direct_task):
        if not part.num_rows:
            continue
        task_id, held, put, _ = target
        reached.append(task_id)
        if (taker := world.takes_chunks.get(task_id)) is not None:
            taker.has_chunks = True
        for values in (part,) if taker is not None else map(outlet.kind._make, rows_of(part)):
            if root is None:
                tuple_id = world.next_untracked()
            else:
                tuple_id = world.next_id()
                acker.attach(held, tuple_id, root)
            observed.append(tuple_id)
            put(_new(Tuple, (tuple_id, task.name, outlet.stream, task.task_id, values)))
    if world.observer is not None:
        world.observer.on_emit(task, outlet.stream, batch, observed)
    return reached


def _parts(task: Task, outlet: Outlet, batch: Any, direct_task: int | None) -> Iterable[tuple[Target, Any]]:
    if direct_task is not None:
        return [(target, batch) for target in task.direct_targets(outlet, direct_task)]
    if outlet.is_direct:
        raise task.wrong_emit(outlet, outlet.stream, ())
    return [item for spread in outlet.spreads for item in spread(batch)]


def make_spread(grouping: str, targets: Sequence[Target], indexes: Sequence[int], route: Route[Target]) -> Spread:
    """Return the function that divides a chunk among tasks: by a fields grouping by its records, else whole."""
    if grouping != "fields" or len(targets) == 1:
        return lambda batch: [(target, batch) for target in route(())]
    numbers = {target[0]: number for number, target in enumerate(targets)}

    def spread(batch: Any) -> Iterable[tuple[Target, Any]]:
        wanted = _task_numbers(batch, indexes, lambda values: numbers[route(values)[0][0]])
        return [(target, batch.filter(pa.array(wanted == number))) for number, target in enumerate(targets)]

    return spread


def _task_numbers(batch: Any, indexes: Sequence[int], number_of: Callable[[tuple[Any, ...]], int]) -> NDArray[np.int64]:
    """Return the number of each record's task; of a key that is one column, each value is looked up once."""
    column = batch.column(indexes[0])
    if len(indexes) > 1 or pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        columns = [
            values_of(column) if index in indexes else itertools.repeat(None)
            for index, column in enumerate(batch.columns)
        ]
        return np.array([number_of(values) for values in zip(*columns, strict=False)])
    encoded, before = column.dictionary_encode(null_encoding="encode"), (None,) * indexes[0]
    found = np.array([number_of((*before, value)) for value in values_of(encoded.dictionary)])
    picked: NDArray[np.int64] = found[encoded.indices.to_numpy()]
    return picked
