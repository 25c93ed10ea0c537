"""How partitions come to a spout: from its consumer group (``subscribe``), or counted out by itself (``assign``).

*subscribe*: the group gives each partition to one member, and gives it to another when a member is gone.

*assign*: each task takes its share of the sorted partitions, by its number among the tasks, and looks every
REFRESH_MS for new partitions and topics. No task takes over from one that is gone. When a share
changes, what goes is committed first; but the tasks look at different times, so the new owner may begin before that,
and then processes some records again.

Both tell the same listener, so all that follows from an assignment is written once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from kafka import errors

from downspout.errors import BrokerError, coordinates
from downspout.kafka.port import Cluster, ConsumerPort, TopicPartition
from downspout.kafka.retry_gate import cure_of, describe
from downspout.kafka.unreadable import Limits
from downspout.spout.group.bounds import Bounds, missing_topics, no_partition, no_topic, partitions_of, topics_of
from downspout.spout.group.explicit_offsets import named_alone, offsets_of, partitions_named
from downspout.spout.group.noted_commits import noted_commits
from downspout.spout.group.partition_assignment import PartitionAssignment
from downspout.spout.group.start_notes import refuse_other_topologies
from downspout.spout.group.stored_commits import stored_commits
from downspout.spout.offset_store import KAFKA, StoreContext, open_store
from downspout.spout.setup import Setup
from downspout.spout.timer import Timer

REFRESH_MS = 2_000  # How often a task that reads by assignment looks for new topics and partitions


def open_consumer(
    cluster: Cluster, setup: Setup, bounds: Bounds | None, log: logging.Logger
) -> tuple[ConsumerPort, Bounds | None]:
    """Make a consumer and look at its topics; return it and, in a bounded run, where that ends.

    Args:
        bounds: of an earlier consumer of the same run; they stay.
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
        if setup.gathering is not None:
            consumer.gather(setup.gathering)
        consumer.tolerate(
            Limits(setup.settings["record_bytes_max"], setup.settings["batch_bytes_max"]),
            corrupt=setup.settings["on_corrupt_batch"] == "dead_letter",
        )
        missing = missing_topics(consumer, topics)
        if missing and setup.bounded:
            raise no_topic(missing[0], bootstrap)
        unknown = unknown_partitions(consumer, setup, missing)
        if unknown and setup.bounded:
            raise no_partition(*unknown[0], bootstrap)
        if setup.bounded and bounds is None:
            stops = offsets_of("kafka.stop_offsets", setup.settings["stop_offsets"])
            bounds = Bounds.of(consumer, partitions_to_read(consumer, setup.settings), stops)
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
    try:
        refuse_other_topologies(cluster, setup, log)
        return _with_store(consumer, cluster, setup, log), bounds
    except BaseException:
        consumer.close()
        raise


def _with_store(consumer: ConsumerPort, cluster: Cluster, setup: Setup, log: logging.Logger) -> ConsumerPort:
    """Let commits go where ``kafka.offset_store`` says."""
    settings = setup.settings
    if (location := settings["offset_store"]) == KAFKA:
        return noted_commits(consumer, setup, log)
    topics: list[str] = settings["topics"] or []
    context = StoreContext(
        setup.group,
        setup.topology,
        setup.identity.topology_id,
        settings["offset_store_password"],
        cluster,
        topic=topics[0] if len(topics) == 1 else "",
    )
    store = open_store(location, context)
    found: ConsumerPort = stored_commits(
        consumer, store, setup.group, log, adopt=settings["offset_store_adopt"], joins=setup.joins
    )
    return found


def unknown_partitions(
    consumer: ConsumerPort, setup: Setup, missing: Collection[str]
) -> list[tuple[str, TopicPartition]]:
    """Return each partition that settings name and that does not exist, with the setting; not of missing topics.

    Those are warned of separately; and a topic that a pattern matches may appear later.
    """
    named = [
        (key, tp)
        for key in ("kafka.start_offsets", "kafka.stop_offsets")
        for tp in offsets_of(key, setup.settings[key.removeprefix("kafka.")])
    ]
    some = partitions_named(setup.settings["partitions"])
    named += [("kafka.partitions", TopicPartition(topic, number)) for topic in some for number in sorted(some[topic])]
    named = [(key, tp) for key, tp in named if tp.topic not in missing]
    known = {topic: consumer.partitions_for(topic) for topic in {tp.topic for _, tp in named}}
    return [(key, tp) for key, tp in named if tp.partition not in known[tp.topic]]


def partitions_to_read(consumer: ConsumerPort, settings: Mapping[str, Any]) -> list[TopicPartition]:
    """Return the partitions that all tasks together read."""
    return named_alone(settings, partitions_of(consumer, topics_of(consumer, settings)))


class PartitionSource(Protocol):
    """Where partitions come from."""

    def refresh(self, now: int, hand_over: Callable[[], bool]) -> None:
        """Look whether the share has changed; ``hand_over`` commits, and returns whether that succeeded.

        Raises:
            KafkaError: the broker did not answer.
        """


def source_of(consumer: ConsumerPort, assignment: PartitionAssignment, setup: Setup, now: int) -> PartitionSource:
    """Return what ``kafka.mode`` says."""
    if setup.joins:
        return Subscribed(consumer, assignment, setup)
    return Assigned(consumer, assignment, setup, now)


class Subscribed:
    """A member of a consumer group; the first poll joins it, and polls bring changes."""

    def __init__(self, consumer: ConsumerPort, assignment: PartitionAssignment, setup: Setup) -> None:
        if topics := setup.settings["topics"]:
            consumer.subscribe(topics, assignment.listener)
        else:
            consumer.subscribe_pattern(setup.settings["pattern"], assignment.listener)

    def refresh(self, now: int, hand_over: Callable[[], bool]) -> None:
        """Nothing to do: the group looks after it."""


class Assigned:
    """A share that is counted out by the task's number."""

    def __init__(self, consumer: ConsumerPort, assignment: PartitionAssignment, setup: Setup, now: int) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._setup = setup
        self._index, self._tasks = setup.index, setup.tasks
        self._timer = Timer(REFRESH_MS, now)
        self._timer.expedite()
        self._reported = False

    def refresh(self, now: int, hand_over: Callable[[], bool]) -> None:
        """On the timer: take what is new in our share, and hand over what is no longer in it."""
        if not self._timer.due(now):
            return
        wanted = frozenset(share(self._partitions(), self._index, self._tasks))
        mine = self._consumer.assignment()
        if mine - wanted and not hand_over():
            return  # the next call tries again
        self._timer.restart(now)
        if wanted == mine and self._reported:
            return
        self._reported = True
        listener = self._assignment.listener
        self._assignment.expect()
        if mine - wanted:
            listener.on_partitions_revoked(mine - wanted)
        self._consumer.assign(wanted)
        listener.on_partitions_assigned(wanted - mine)

    def _partitions(self) -> list[TopicPartition]:
        return partitions_to_read(self._consumer, self._setup.settings)


def share(partitions: Iterable[TopicPartition], index: int, tasks: int) -> list[TopicPartition]:
    """Return the partitions of one task: the reference's round robin over all in order.

    >>> eleven = [TopicPartition("t", number) for number in range(11)]
    >>> [[tp.partition for tp in share(eleven, index, 3)] for index in range(3)]
    [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    """
    return sorted(partitions)[index::tasks]
