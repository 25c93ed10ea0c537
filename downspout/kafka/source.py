"""How partitions come to a spout: from its consumer group (``subscribe``), or counted out by itself (``assign``).

*subscribe*: the group gives each partition to one member, and gives it to another when a member is gone.

*assign*: each task takes its share of the sorted partitions, by its number among the tasks, and looks every
``kafka.refresh_period_ms`` for new partitions and topics. Nobody takes over from a task that is gone. When a share
changes, what goes is committed first; but the tasks look at different times, so the new owner may begin before that,
and then processes some records again.

Both tell the same listener, so all that follows from an assignment is written once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from kafka import errors

from downspout.errors import BrokerError, coordinates
from downspout.kafka.bounds import Bounds, missing_topics, no_partition, no_topic
from downspout.kafka.explicit import offsets_of
from downspout.kafka.membership import Membership
from downspout.kafka.patience import cure_of, describe
from downspout.kafka.port import Cluster, ConsumerPort, TopicPartition
from downspout.kafka.spout_setup import Setup
from downspout.kafka.spout_state import Timer

__all__ = ["Assigned", "Source", "Subscribed", "open_consumer", "share", "source_of", "topics_of"]


def open_consumer(
    cluster: Cluster, setup: Setup, bounds: Bounds | None, log: logging.Logger
) -> tuple[ConsumerPort, Bounds | None]:
    """Make a consumer and look at its topics; return it and, in a bounded run, where that ends.

    Args:
        cluster: where.
        setup: of the task.
        bounds: of an earlier consumer of the same run; they stay.
        log: where a missing topic is warned about.

    Raises:
        BrokerError: no broker answers, or a bounded run lacks a topic, or a partition that settings name.
    """
    bootstrap, topics = setup.settings["bootstrap"], setup.settings["topics"] or []
    try:
        consumer = cluster.consumer(
            group=setup.group,
            instance_id=setup.instance if setup.joins else None,
            client=setup.client,
            auto_commit_ms=setup.guarantee.auto_commit_ms(setup.settings),
            columns=setup.settings["emit"] == "chunk",
        )
        missing = missing_topics(consumer, topics)
        if missing and setup.bounded:
            raise no_topic(missing[0], bootstrap)
        unknown = unknown_partitions(consumer, setup, missing)
        if unknown and setup.bounded:
            raise no_partition(*unknown[0], bootstrap)
        if setup.bounded and bounds is None:
            stops = offsets_of("kafka.stop_offsets", setup.settings["stop_offsets"])
            bounds = Bounds.of(consumer, topics_of(consumer, setup), stops)
            for tp, end in bounds.short.items():
                log.warning("%s ends at %d, before kafka.stop_offsets: so does the run", coordinates(*tp), end)
    except errors.KafkaError as error:
        raise BrokerError(
            f"{bootstrap}: cannot read: {describe(error)}",
            cure=cure_of(error, "start the broker, or set kafka.bootstrap"),
        ) from error
    for topic in missing:
        log.warning("topic %s does not exist on %s; waits for it", topic, bootstrap)
    for setting, tp in unknown:
        log.warning("%s names %s, which does not exist on %s", setting, coordinates(*tp), bootstrap)
    return consumer, bounds


def topics_of(consumer: ConsumerPort, setup: Setup) -> list[str]:
    """Return the topics that a task reads, by name or by pattern as of now."""
    named: list[str] = setup.settings["topics"] or []
    pattern = re.compile(setup.settings["pattern"] or "")
    return named or sorted(name for name in consumer.topic_names() if pattern.fullmatch(name))


def unknown_partitions(
    consumer: ConsumerPort, setup: Setup, missing: Collection[str]
) -> list[tuple[str, TopicPartition]]:
    """Return each partition that settings name and that does not exist, with the setting; not of missing topics.

    Those are told by themselves; and a topic that a pattern matches may appear later.
    """
    named = [
        (key, tp)
        for key in ("kafka.start_offsets", "kafka.stop_offsets")
        for tp in offsets_of(key, setup.settings[key.removeprefix("kafka.")])
        if tp.topic not in missing
    ]
    known = {topic: consumer.partitions_for(topic) for topic in {tp.topic for _, tp in named}}
    return [(key, tp) for key, tp in named if tp.partition not in known[tp.topic]]


class Source(Protocol):
    """Where partitions come from."""

    def refresh(self, now: int, hand_over: Callable[[], bool]) -> None:
        """Look whether the share has changed; ``hand_over`` commits, and returns whether that succeeded.

        Raises:
            KafkaError: the broker did not answer.
        """


def source_of(consumer: ConsumerPort, membership: Membership, setup: Setup, now: int) -> Source:
    """Return what ``kafka.mode`` says."""
    if setup.joins:
        return Subscribed(consumer, membership, setup)
    return Assigned(consumer, membership, setup, now)


class Subscribed:
    """A member of a consumer group; the first poll joins it, and polls tell of changes."""

    def __init__(self, consumer: ConsumerPort, membership: Membership, setup: Setup) -> None:
        if topics := setup.settings["topics"]:
            consumer.subscribe(topics, membership.listener)
        else:
            consumer.subscribe_pattern(setup.settings["pattern"], membership.listener)

    def refresh(self, now: int, hand_over: Callable[[], bool]) -> None:
        """Nothing to do: the group looks after it."""


class Assigned:
    """A share that is counted out by the task's number.

    Args:
        consumer: what reads; it joins no group.
        membership: is told what is ours.
        setup: which topics, and which of how many tasks this is.
        now: the time in ms.
    """

    def __init__(self, consumer: ConsumerPort, membership: Membership, setup: Setup, now: int) -> None:
        self._consumer = consumer
        self._membership = membership
        self._setup = setup
        self._index, self._tasks = setup.index, setup.tasks
        self._timer = Timer(setup.settings["refresh_period_ms"], now)
        self._timer.expedite()
        self._told = False

    def refresh(self, now: int, hand_over: Callable[[], bool]) -> None:
        """On the timer: take what is new in our share, and hand over what is no longer in it."""
        if not self._timer.due(now):
            return
        wanted = frozenset(share(self._partitions(), self._index, self._tasks))
        mine = self._consumer.assignment()
        if mine - wanted and not hand_over():
            return  # the next call tries again
        self._timer.restart(now)
        if wanted == mine and self._told:
            return
        self._told = True
        listener = self._membership.listener
        self._membership.expect()
        if mine - wanted:
            listener.on_partitions_revoked(mine - wanted)
        self._consumer.assign(wanted)
        listener.on_partitions_assigned(wanted - mine)

    def _partitions(self) -> list[TopicPartition]:
        topics = topics_of(self._consumer, self._setup)
        return [TopicPartition(topic, number) for topic in topics for number in self._consumer.partitions_for(topic)]


def share(partitions: Iterable[TopicPartition], index: int, tasks: int) -> list[TopicPartition]:
    """Return the partitions of one task: the reference's round robin over all in order.

    >>> eleven = [TopicPartition("t", number) for number in range(11)]
    >>> [[tp.partition for tp in share(eleven, index, 3)] for index in range(3)]
    [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    """
    return sorted(partitions)[index::tasks]
