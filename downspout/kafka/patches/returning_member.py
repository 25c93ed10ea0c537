"""A static member that comes back to a cooperative group, and what was about to move then.

Wrong: in the first round of a cooperative rebalance (KIP-429) what must move has no new owner yet; its old owner
    gives it up and asks for a second round. If that one dies first and comes back under its static name, the
    coordinator hands it its old assignment without any rebalance (KIP-345), and what was to move has no owner,
    until another member joins or leaves. The client does nothing about it.
Patch: such a member joins once more after its first join.
Self-test: a rejoin can be asked for; the protocol of the group is of ``lost_in_joining``.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client asks for the second round after it has come back.
"""

from __future__ import annotations

from typing import Any

from downspout.kafka.patches.lost_in_joining import is_cooperative

CONSUMER = {"_coordinator.request_rejoin": "method"}


class SecondRound:
    """Has a static member join once more, if its group is cooperative; a step after polls."""

    def __init__(self, consumer: Any) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self.due = is_cooperative(coordinator)

    def take(self) -> None:
        """Ask for it."""
        self.due = False
        self._coordinator.request_rejoin()
