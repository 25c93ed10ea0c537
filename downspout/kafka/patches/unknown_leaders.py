"""Ends of logs that are left out.

Wrong: ``beginning_offsets``, ``end_offsets`` and ``offsets_for_times`` ask the leader of each partition, and leave
    out, without a word, those whose leader the client has not heard of: one that is new, or whose leader is lost while
    it asks, has no end then (KeyError), or no record since a time.
Patch: the client is made to learn the leaders first, within a limit of time, and asks again if one was lost meanwhile.
Self-test: the leaders can be looked up and refreshed, and the client's loop runs work of ours.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: those methods wait for leaders, or raise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

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
T = TypeVar("T")


def ask_leaders(consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int, ask: Callable[[int], T]) -> T:
    """Return what the leaders of these say.

    Args:
        consumer: the client.
        partitions: of which all have a leader, or else there is no answer.
        timeout_ms: for all of it.
        ask: the client's question, which is given the time that is left in ms.

    Raises:
        KafkaTimeoutError: some have no leader, or do not exist; or a leader does not answer.
    """
    until = time.monotonic() + timeout_ms / 1000
    while (left_ms := int((until - time.monotonic()) * 1000)) > 0:
        learn_leaders(consumer, partitions, left_ms)
        try:
            found = ask(max(1, int((until - time.monotonic()) * 1000)))
        except KeyError:  # a leader is lost, and the client looks for an answer that it has not asked for
            continue
        if not _unled(consumer, partitions):
            return found
    raise errors.KafkaTimeoutError(f"no leader: {sorted(_unled(consumer, partitions))}")


def _unled(consumer: Any, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    cluster = consumer._cluster
    return [tp for tp in partitions if cluster.leader_for_partition(tp) in (None, NO_LEADER)]


def learn_leaders(consumer: Any, partitions: Collection[TopicPartition], timeout_ms: int) -> None:
    """Have a consumer know who leads these. Raises KafkaTimeoutError: some have no leader, or do not exist."""
    cluster, manager = consumer._cluster, consumer._manager
    waited_for = True

    async def learn() -> None:
        while waited_for and (unknown := _unled(consumer, partitions)):
            for tp in unknown:
                cluster.add_topic(tp.topic)
            try:
                await cluster.request_update()
            except errors.KafkaError as error:
                # A broker that its controller takes for dead for a moment (it had no time to run) knows no brokers.
                if not error.retriable:
                    raise
            await manager._net.sleep(LEADERS_PERIOD_S if _unled(consumer, partitions) else 0)

    async def in_time() -> None:
        nonlocal waited_for
        try:
            await manager.wait_for(manager.call_soon(learn), timeout_ms)
        finally:
            waited_for = False  # what was timed out would go on for ever

    if _unled(consumer, partitions):
        manager.run(in_time)
