"""A member that is expelled from the group while it joins, without a callback.

Wrong: a member's callbacks for lost partitions run before a join, once, and not again when the answer is that it is no
    longer a member: in a cooperative group it then keeps what it had, though others may have owned it meanwhile, and
    reads and commits from an old place.
Patch: such an answer makes it prepare again.
Self-test: the reset that such an answer leads to, the flag, and the protocol of the group.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client reports to a member that is expelled in the middle of a join what it has lost.
"""

from __future__ import annotations

from typing import Any

from kafka.coordinator.assignors.abstract import RebalanceProtocol

CONSUMER = {
    "_coordinator.reset_generation": "method",
    "_coordinator.rejoining": "bool",
    "_coordinator._rebalance_protocol": "RebalanceProtocol",
}


def report_loss_while_joining(consumer: Any) -> None:
    """Let a member whose join finds it out of the group learn what it lost."""
    coordinator = consumer._coordinator
    reset = coordinator.reset_generation

    def reset_generation(*member_id: str, **named: str) -> None:
        reset(*member_id, **named)
        if is_cooperative(coordinator):
            coordinator.rejoining = False

    coordinator.reset_generation = reset_generation


def is_cooperative(coordinator: Any) -> bool:
    """Return whether members keep in a rebalance what need not move (KIP-429)."""
    return bool(coordinator._rebalance_protocol == RebalanceProtocol.COOPERATIVE)
