"""Where a stage's tuples come from: a port, and the spout that stands in a stage for what feeds it."""

from __future__ import annotations

from typing import Any

import streamparse

from downspout.component import Failure

EMITS = 256  # Tuples that one call of next_tuple emits


class TaskInput:
    """Where a stage's tuples come from: Kafka's records, or tuples of earlier stages."""

    idle: bool  # Whether nothing is left to emit, retries included

    def emit_next(self, spout: InputSpout) -> None:
        """Emit some tuples, if any are this spout's."""
        raise NotImplementedError

    def done(self, root: Any) -> None:
        """A tree is complete."""
        raise NotImplementedError

    def failed(self, root: Any, failure: Failure) -> None:
        """A tree failed."""
        raise NotImplementedError


class InputSpout(streamparse.Spout):
    """Stands in a stage for what feeds it."""

    task_input: TaskInput
    task: Any  # The engine's view of it

    def next_tuple(self) -> None:
        """Emit what there is."""
        self.task_input.emit_next(self)

    def ack(self, tup_id: Any) -> None:
        """A tree is complete."""
        self.task_input.done(tup_id)

    def fail_with(self, tup_id: Any, failure: Failure) -> None:
        """A tree failed."""
        self.task_input.failed(tup_id, failure)
