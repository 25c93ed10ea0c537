"""A static member that is not told that another has its place.

Wrong: the heartbeat of a static member learns that another process has come under its name, logs that, and stops. The
    member stays as it is: it reads on, and only a commit raises. One that has nothing to commit is never told; its
    polls return at once and find nothing, for ever, with a whole processor.
Patch: what the heartbeat learns is noted, and the next poll raises it.
Self-test: the coordinator's method that takes the answers to heartbeats.
Since: 3.0.12 was read.
Goes when: ``poll`` raises FencedInstanceIdError.
"""

from __future__ import annotations

from typing import Any

from kafka import errors

CONSUMER = {"_coordinator._handle_heartbeat_response": "method"}


class Fencing:
    """Notes whether another process has a static member's place."""

    def __init__(self, consumer: Any) -> None:
        coordinator = consumer._coordinator
        self._handle = coordinator._handle_heartbeat_response
        coordinator._handle_heartbeat_response = self._taken
        self._found: errors.FencedInstanceIdError | None = None

    def _taken(self, *answer: Any) -> Any:
        try:
            return self._handle(*answer)
        except errors.FencedInstanceIdError as error:
            self._found = error
            raise

    def check(self) -> None:
        """Raise FencedInstanceIdError if a heartbeat has learned it."""
        if self._found is not None:
            raise errors.FencedInstanceIdError() from self._found
