from typing import Any

from .component import Component

class Spout(Component):
    def next_tuple(self) -> None: ...
    def ack(self, tup_id: Any, /) -> None: ...
    def fail(self, tup_id: Any, /) -> None: ...
    def activate(self) -> None: ...
    def deactivate(self) -> None: ...
    def emit(
        self,
        tup: Any,  # a list or a tuple; with Downspout also a chunk of records
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None: ...

class ReliableSpout(Spout):
    max_fails: int
    unacked_tuples: dict[Any, Any]
