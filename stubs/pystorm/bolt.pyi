from collections.abc import Hashable, Sequence
from typing import Any

from .component import Component, Tuple

signal: Any  # the module, which Downspout takes away while it builds a TicklessBatchingBolt

class Bolt(Component):
    auto_anchor: bool
    auto_ack: bool
    auto_fail: bool
    _current_tups: list[Any]
    _source_tuple_types: Any

    @staticmethod
    def is_tick(tup: Tuple) -> bool: ...
    def read_tuple(self) -> Tuple: ...
    def process(self, tup: Tuple, /) -> None: ...
    def process_tick(self, tup: Tuple, /) -> None: ...
    def emit(
        self,
        tup: Any,  # a list or a tuple; with Downspout also a chunk of records
        stream: str | None = None,
        anchors: Sequence[Any] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None: ...
    def ack(self, tup: Any, /) -> None: ...
    def fail(self, tup: Any, /) -> None: ...

class BatchingBolt(Bolt):
    ticks_between_batches: int

    def group_key(self, tup: Tuple, /) -> Hashable: ...
    def process_batch(self, key: Any, tups: list[Tuple], /) -> None: ...
    def process_batches(self) -> None: ...

class TicklessBatchingBolt(BatchingBolt):
    secs_between_batches: float
    _batch_entry: Any
