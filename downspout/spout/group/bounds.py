"""Bounded runs: "the end as of now", and whether it is reached by the whole group."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from downspout.errors import BrokerError, coordinates
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.spout.partition import Partition

GONE_MS = 30_000  # A topic that has not been there for so long is taken as deleted for good
ASK_MS = 500  # How often the group's commits for partitions of other members are asked for


def topics_of(consumer: ConsumerPort, settings: Mapping[str, Any]) -> list[str]:
    """Return the topics that a task reads, by name or by pattern as of now."""
    pattern = re.compile(settings["pattern"] or "")
    return settings["topics"] or sorted(name for name in consumer.topic_names() if pattern.fullmatch(name))


def is_named(settings: Mapping[str, Any], topic: str) -> bool:
    """Return whether a spout's settings name a topic, by name or by pattern.

    >>> is_named({"topics": None, "pattern": "orders-.*"}, "orders-eu")
    True
    """
    topics, pattern = settings["topics"] or (), settings["pattern"]
    return topic in topics or bool(pattern and re.fullmatch(pattern, topic))


def partitions_of(consumer: ConsumerPort, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions that topics have, topic by topic in order; none of a topic that does not exist."""
    return [TopicPartition(topic, number) for topic in topics for number in sorted(consumer.partitions_for(topic))]


def missing_topics(consumer: ConsumerPort, topics: Iterable[str]) -> list[str]:
    """Return the topics that do not exist."""
    return [topic for topic in topics if not consumer.partitions_for(topic)]


def no_topic(topic: str, bootstrap: str) -> BrokerError:
    """Return the error for a topic that a bounded run needs and that does not exist."""
    return BrokerError(
        f"topic {topic} does not exist on {bootstrap}",
        cure=f"`downspout kafka create {topic}`, or look at the spelling",
    )


def no_partition(setting: str, tp: TopicPartition, bootstrap: str) -> BrokerError:
    """Return the error for a partition that a setting of a bounded run names and that does not exist."""
    return BrokerError(
        f"{setting} names {coordinates(*tp)}, which does not exist on {bootstrap}", cure="look at the topic and number"
    )


class Bounds:
    """The offsets at which a bounded run ends.

    Args:
        ends: the end of the log of each partition of the topics, as of the start.
        stops: where to end before that, of the partitions for which that is named (``kafka.stop_offsets``).
    """

    def __init__(self, ends: Mapping[TopicPartition, int], stops: Mapping[TopicPartition, int] | None = None) -> None:
        self._stops = dict(stops or {})
        self.short = {tp: end for tp, end in ends.items() if self._stops.get(tp, end) > end}
        """Ends of logs that do not reach as far as named; the run ends there all the same."""
        self._ends = self._stopped(ends)
        self._open = set(self._ends)  # Partitions whose commit is not known to have reached the end
        self._asked_at = -ASK_MS
        self._gone_since: dict[str, int] = {}

    @property
    def topics(self) -> set[str]:
        """Return the topics that the run still waits for."""
        return {tp.topic for tp in self._open}

    def miss(self, topics: Collection[str], now: int) -> None:
        """Take note of the topics that are not there at the moment; it may be that they are being made again."""
        self._gone_since = {topic: self._gone_since.get(topic, now) for topic in topics}
        for topic, since in self._gone_since.items():
            if now - since >= GONE_MS:
                count = sum(tp.topic == topic for tp in self._open)
                raise BrokerError(
                    f"topic {topic} was deleted; {count} of its partitions were not processed up to the end of the run",
                    cure="create it again, or leave it out of kafka.topics; what was processed is committed",
                )

    @classmethod
    def of(
        cls,
        consumer: ConsumerPort,
        partitions: Collection[TopicPartition],
        stops: Mapping[TopicPartition, int] | None = None,
    ) -> Bounds:
        """Take the ends as of now."""
        return cls(consumer.end_offsets(partitions) if partitions else {}, stops)

    def _stopped(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: min(end, self._stops.get(tp, end)) for tp, end in ends.items()}

    def add(self, consumer: ConsumerPort, partitions: Collection[TopicPartition]) -> None:
        """Bound partitions that were not known at the start (topics by pattern): their end is as of now."""
        if new := [tp for tp in partitions if tp not in self._ends]:
            ends = consumer.end_offsets(new)
            self._ends.update(self._stopped(ends))
            self._open |= ends.keys()

    def bound(self, consumer: ConsumerPort, parts: Mapping[TopicPartition, Partition]) -> None:
        """Give each partition that has none yet the offset at which it ends: that of its log, if that is lower now.

        Raises:
            KafkaError: the broker did not answer. Nothing may be read before a later call has succeeded.
        """
        if new := [tp for tp, part in parts.items() if part.cursor.stop is None]:
            self.add(consumer, new)
            for tp, end in consumer.end_offsets(new).items():
                parts[tp].cursor.stop = self.cut(tp, end)

    def cut(self, tp: TopicPartition, end: int) -> int | None:
        """The log was truncated to ``end``: the run does not wait for what is gone. Return where it ends now."""
        if tp in self._ends:
            self._ends[tp] = min(self._ends[tp], end)
        return self._ends.get(tp)

    def forget(self, tp: TopicPartition) -> None:
        """The topic was created again: :meth:`add` bounds the new one; no setting names offsets of it."""
        self._stops.pop(tp, None)
        self._ends.pop(tp, None)
        self._open.discard(tp)

    def reached(self, consumer: ConsumerPort, parts: Mapping[TopicPartition, Partition], now: int) -> bool:
        """Return whether the commits of the group have reached all ends.

        Ours are known; those of other members are asked for, now and then. So are the ends of their logs: one that was
        cut, or made again and is shorter, ends the run where it ends now.

        Raises:
            KafkaError: the broker did not answer.
        """
        for tp in list(self._open):
            part = parts.get(tp)
            if part is not None and part.commits.offset >= self._ends[tp]:
                self._open.discard(tp)
        others = self._open - parts.keys()
        if others and now - self._asked_at >= ASK_MS:
            self._asked_at = now
            ends = consumer.end_offsets(others)
            for tp, commit in consumer.committed(others).items():
                if commit is not None and commit.offset >= min(self._ends[tp], ends[tp]):
                    self._open.discard(tp)
        return not self._open
