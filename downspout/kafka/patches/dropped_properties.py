"""Properties that the client takes and drops.

Wrong: a client's ``ClusterMetadata`` is given three of its properties. Two others,
    ``allow_auto_create_topics`` and ``retry_backoff_ms``, are accepted and documented, and never get there: so a
    consumer has brokers create the topics that it asks for, and a producer waits 100 ms for a topic that is new to
    it, whatever was wanted.
Patch: they are put there, when the client is made.
Self-test: it has its ``config``.
Upstream: issue 2083 has ``allow_auto_create_topics`` as the cure for consumers that create topics.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: ``KafkaConnectionManager`` hands these properties on to ``ClusterMetadata``.
"""

from __future__ import annotations

from typing import Any

CONSUMER = {"_cluster.config": "dict"}
PRODUCER = {"producer._metadata.config": "dict"}


def hand_on_to_consumer(consumer: Any) -> None:
    """Let a consumer create topics, or not, as its property says."""
    consumer._cluster.config["allow_auto_create_topics"] = consumer.config["allow_auto_create_topics"]


def hand_on_to_producer(producer: Any) -> None:
    """Let a producer create topics, or not, and wait for a new one as long as its property says."""
    producer._metadata.config["allow_auto_create_topics"] = producer.config["allow_auto_create_topics"]
    producer._metadata.config["retry_backoff_ms"] = producer.config["retry_backoff_ms"]
