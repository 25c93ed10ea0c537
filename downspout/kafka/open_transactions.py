"""Which transactions hold back what a group commits: asked of the brokers when a spout waits for them."""

from __future__ import annotations

from typing import Any

from downspout.kafka.commit_ages import partition_of_group
from downspout.kafka.port import OpenTransaction, TopicPartition

OFFSETS = "__consumer_offsets"
AT_WORK = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States in which the coordinator of a transaction still has something to do."""


def open_transactions(admin: Any, group: str) -> list[OpenTransaction]:
    """Return the transactions that are open where the commits of a group are kept.

    Raises:
        KafkaError: there is no right to ask, or no answer.
    """
    (described,) = admin.describe_topics([OFFSETS])
    home = TopicPartition(OFFSETS, partition_of_group(group, len(described["partitions"])))

    def begun() -> dict[int, int]:
        (state,) = admin.describe_producers([home]).values()
        starts = {each.producer_id: each.current_transaction_start_offset for each in state.active_producers}
        return {producer: start for producer, start in starts.items() if start >= 0}

    before = begun()
    if not before:
        return []
    listed = [each for some in admin.list_transactions(producer_id_filters=list(before)).values() for each in some]
    found = admin.describe_transactions([each.transactional_id for each in listed])
    # One that ended in order between the two questions would look as if it were lost. Its marks are written before its
    # coordinator calls it ended: so it is not open any more now.
    still = begun()
    return [
        OpenTransaction(name, each.transaction_timeout_ms, is_lost=each.state not in AT_WORK)
        for name, each in sorted(found.items())
        if before.get(each.producer_id) == still.get(each.producer_id, -1)
    ]
