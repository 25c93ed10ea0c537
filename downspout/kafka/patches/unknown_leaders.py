"""Ends of logs that are left out.

Wrong: ``beginning_offsets``, ``end_offsets`` and ``offsets_for_times`` ask the leader of each partition, and leave
    out, without a word, those whose leader the client has not heard of: one that is new has no end then (KeyError),
    or no record since a time.
Patch: the client is made to learn the leaders first, within a limit of time.
Self-test: the leaders can be looked up and refreshed, and the client's loop runs work of ours.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: those methods wait for leaders, or raise.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kafka import errors

from downspout.kafka.port import TopicPartition

CONSUMER = {
    "_manager.run": "method",
    "_manager.wait_for": "method",
    "_manager.call_soon": "method",
    "_manager._net.sleep": "method",
    "_cluster.leader_for_partition": "method",
    "_cluster.add_topic": "method",
    "_cluster.request_update": "method",
}

LEADERS_PERIOD_S = 0.1  # How often a partition without a leader is asked about
NO_LEADER = -1


def learn_leaders(consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int) -> None:
    """Have a consumer know who leads these. Raises KafkaTimeoutError: some have no leader, or do not exist."""
    cluster, manager = consumer._cluster, consumer._manager
    waited_for = True

    def unknown() -> list[TopicPartition]:
        return [tp for tp in partitions if cluster.leader_for_partition(tp) in (None, NO_LEADER)]

    async def learn() -> None:
        while waited_for and unknown():
            for tp in unknown():
                cluster.add_topic(tp.topic)
            try:
                await cluster.request_update()
            except errors.KafkaError as error:
                # A broker that its controller takes for dead for a moment (it had no time to run) knows no brokers.
                if not error.retriable:
                    raise
            await manager._net.sleep(LEADERS_PERIOD_S if unknown() else 0)

    async def in_time() -> None:
        nonlocal waited_for
        try:
            await manager.wait_for(manager.call_soon(learn), timeout_ms)
        finally:
            waited_for = False  # what was timed out would go on for ever

    if unknown():
        manager.run(in_time)
