"""Commits that a transaction holds back, called a time-out.

Wrong: while a transaction is open that commits for a group, brokers refuse its commits to read_committed consumers. The
    client asks again until its time is over, and raises a time-out that names neither the reason nor the partition.
Patch: what the answers refuse is noted, and raised in the place of the time-out.
Self-test: the coordinator's method that takes the answers.
Since: 3.0.12 was read.
Goes when: ``committed`` raises UnstableOffsetCommitError with the partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors

from downspout.kafka.port import TopicPartition

CONSUMER = {"_coordinator._handle_offset_fetch_response": "method"}


class HeldCommits:
    """Notes of which partitions the last answer has refused the commits."""

    def __init__(self, consumer: Any) -> None:
        coordinator = consumer._coordinator
        self._handle = coordinator._handle_offset_fetch_response
        coordinator._handle_offset_fetch_response = self._taken
        self._partitions: list[TopicPartition] = []

    def _taken(self, response: Any) -> Any:
        groups = getattr(response, "groups", None) or [response]
        self._partitions = [
            TopicPartition(topic.name, each.partition_index)
            for topic in groups[0].topics or ()
            for each in topic.partitions
            if errors.for_code(each.error_code) is errors.UnstableOffsetCommitError
        ]
        return self._handle(response)

    def asked(self, question: Callable[[], Mapping[Any, Any]]) -> Mapping[Any, Any]:
        """Ask for commits.

        Raises:
            UnstableOffsetCommitError: a transaction holds some back; its first argument are the partitions.
            KafkaTimeoutError: no answer in time.
        """
        self._partitions = []
        try:
            return question()
        except errors.KafkaTimeoutError:
            if self._partitions:
                raise errors.UnstableOffsetCommitError(sorted(self._partitions)) from None
            raise
