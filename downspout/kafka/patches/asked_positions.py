"""A known position that is asked about nevertheless.

Wrong: ``position`` has the broker confirm each place after a change of leaders (KIP-320), waits for that, and
    raises errors on the way, such as those of a broker that restarts. Polls have it confirmed anyway.
Patch: the position of a partition that was sought or read comes from the client's subscription state, without a
    request.
Self-test: the state has whether a partition has a position, and which.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client returns a known position without asking a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downspout.kafka.port import TopicPartition

CONSUMER = {"_subscription.has_valid_position": "method", "_subscription.position": "method"}


def known_positions(consumer: Any) -> Callable[[TopicPartition], int | None]:
    """Return a function that returns the next offset to be read, or None where no place was sought or read so far."""
    positions = consumer._subscription

    def known_position(partition: TopicPartition) -> int | None:
        return int(positions.position(partition).offset) if positions.has_valid_position(partition) else None

    return known_position
