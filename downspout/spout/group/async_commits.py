"""Commits that are sent and not waited for (``kafka.commit=async`` and ``combined``): at most one is on its way.

Of two that are on their way either may arrive last, above all where one is sent again after an error; and Kafka stores
what arrives last, also if it is lower. So none is sent before the last one has its answer, and none is ever sent again:
after a failure the next commit says how far the spout has come by then. A commit that is waited for lets the one on its
way have its answer first.

The client hands an answer on in the middle of a later call, a poll perhaps. It is only written down there: the session
acts on it in its own turn, when it knows which partitions are still its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.errors import KafkaError

from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.spout.group.committing import Due, Heard, committed, failed, fits_next, offsets_of, requested
from downspout.spout.group.start_offsets import MetadataLimit
from downspout.spout.partition import Partition

OVERDUE_MS = 120_000
"""So long after a commit was sent its answer is waited for: the client gives up a request long before that."""


class AsyncCommits:
    """The commit of a session that is on its way."""

    def __init__(self, consumer: ConsumerPort, limit: MetadataLimit, heard: Heard) -> None:
        self._consumer, self._limit, self._heard = consumer, limit, heard
        self._due: Due = {}  # What it is for; empty: none is on its way
        self._answer: list[KafkaError | None] = []
        self._sent_at = 0  # in ms

    @property
    def is_out(self) -> bool:
        """Whether one was sent whose answer was not taken."""
        return bool(self._due)

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer to take."""
        return bool(self._answer)

    def is_overdue(self, now: int) -> bool:
        """Return whether the answer has not come for too long; while a bolt keeps the loop none is taken, either."""
        return self.is_out and not self.is_answered and now - self._sent_at >= OVERDUE_MS

    def send(self, due: Due, now: int) -> None:
        """Send a commit at a time in ms; none may be on its way.

        Raises:
            KafkaError: what the client raises at once.
        """
        assert not self._due, "a commit is on its way"
        if due:
            answer: list[KafkaError | None] = []
            self._consumer.commit_async(requested(due), answer.append)
            self._due, self._answer, self._sent_at = due, answer, now

    def take_answer(self, parts: Mapping[TopicPartition, Partition], now: int) -> bool:
        """Act on the answer; return whether the broker has it, and False if it is to get less metadata.

        Args:
            parts: what is ours now; what was taken away meanwhile is left alone.
            now: the time in ms.

        Raises:
            KafkaError: the commit failed.
        """
        due, (error,) = self._due, self._answer
        self._due, self._answer = {}, []
        if error is None:
            self._limit.is_known = True
            committed(self._consumer, {tp: each for tp, each in due.items() if parts.get(tp) is each[0]}, now)
            self._heard(offsets_of(due), None)
            return True
        failed(due, error, self._limit, self._heard)
        if not fits_next(self._limit, error):
            raise error
        return False
