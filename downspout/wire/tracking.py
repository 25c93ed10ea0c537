"""How a spout of ours emits into Storm's pipe: a value that cannot travel is its record's failure, not the process's.

Where a topology has no ackers, Storm acks inside emit: over the pipe that is a command within a command, for all
tuples of one call. So tuples leave without ids then, and count as acked when the call is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from downspout.wire.serializer import WireError


class Outlet:
    """Emits for one spout."""

    def __init__(
        self, emit: Callable[..., Any], refused: Callable[[str | None, WireError], None], conf: Mapping[str, Any]
    ) -> None:
        self._emit = emit  # the component's own
        self._refused = refused  # called for each record whose tuple cannot be sent
        self._has_ackers = conf.get("topology.acker.executors") != 0  # not set: as many as workers
        self._acked: list[str] = []

    def emit(self, values: list[Any], tup_id: str | None = None, stream: str | None = None) -> None:
        """Emit; without ackers leave the id out, and note the ack."""
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
