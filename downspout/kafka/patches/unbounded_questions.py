"""Questions about topics that wait without limit, and create them.

Wrong: the client's questions for a topic (``partitions_for_topic``, ``topics``) wait without limit, let brokers
    create topics that do not exist, and have no ids in their answers.
Patch: our own requests for metadata, through the client's connections: bounded, and without creating anything.
Self-test: the client's loop runs requests of ours.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: a consumer can be asked, within a time, what a topic is, with its id, and whether it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka.protocol.metadata import MetadataRequest

from downspout.kafka.patches.questions_behind_fetches import coordinator_node

CONSUMER = {"_manager.run": "method", "_manager.send": "method", "_manager.wait_for": "method"}


def described_topics(consumer: Any, topics: Sequence[str] | None, timeout_ms: int) -> Any:
    """Return what any broker says of topics, or of all (None). Raises KafkaTimeoutError: no answer in time."""
    manager = consumer._manager
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]

    async def ask() -> Any:
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        return await manager.wait_for(manager.send(request, coordinator_node(consumer)), timeout_ms)

    return manager.run(ask).topics
