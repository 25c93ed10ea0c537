"""Where a partition starts that has become ours: by what is committed, and by ``kafka.start`` where nothing is.

The table of strategies is in ``downspout.ledger.start``. Here it meets what Kafka says: where the log begins and ends,
what the commit's metadata tells, and whether the topic is still the one that was committed for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from downspout.kafka.bounds import Bounds
from downspout.kafka.data_loss import DataLoss
from downspout.kafka.explicit import offsets_of
from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.spout_state import Figures
from downspout.kafka.unclean import UncleanStarts
from downspout.ledger.metadata import NOTHING, Progress, author_for_another_topic, decode
from downspout.ledger.offsets import PartitionLedger
from downspout.ledger.retries import Backoff
from downspout.ledger.start import Start, start_at
from downspout.ledger.watch import AT_WORK, Watch

__all__ = ["NEVER_OURS", "Beginning", "Earlier", "Identity", "Logs", "Starts", "another"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who commits: goes into the metadata of each commit."""

    topology_id: str
    task: int


class Earlier(NamedTuple):
    """What is kept of a partition that was ours: the topic's id, how much was not processed, our last commit."""

    topic_id: str = ""
    pending: int = 0
    commit: tuple[int, str] | None = None


NEVER_OURS = Earlier()


class Beginning(NamedTuple):
    """What a partition starts with; ``killed_by`` is the record that was out alone when an earlier owner died."""

    ledger: PartitionLedger
    watch: Watch = AT_WORK
    killed_by: int | None = None


class Logs(NamedTuple):
    """What Kafka says of the logs of some partitions; ``times`` only where ``kafka.start`` goes by time."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    times: Mapping[TopicPartition, int | None]


class Starts:
    """Decides where partitions start.

    Args:
        settings: those of the scope ``kafka``.
        identity: who we are.
        figures: where unclean starts are counted.
        log: where warnings go.
        loss: what to do where records are gone.
        backoff: of the retries.
        bounds: where a bounded run ends.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        figures: Figures,
        log: logging.Logger,
        loss: DataLoss,
        backoff: Backoff,
        bounds: Bounds | None,
    ) -> None:
        self._strategy: str = settings["start"]
        self._timestamp_ms: int = settings["start_timestamp_ms"] or 0
        self._offsets = offsets_of("kafka.start_offsets", settings["start_offsets"])
        self._identity = identity
        self._unclean = UncleanStarts(settings, figures, log)
        self._loss = loss
        self._backoff = backoff
        self._bounds = bounds

    def ask(self, consumer: ConsumerPort, fresh: Collection[TopicPartition]) -> Logs:
        """Ask Kafka for what is needed to decide.

        Raises:
            KafkaError: the broker did not answer.
        """
        begins, ends = consumer.beginning_offsets(fresh), consumer.end_offsets(fresh)
        by_time = self._strategy.endswith("TIMESTAMP")
        times = consumer.offsets_for_times(dict.fromkeys(fresh, self._timestamp_ms)) if by_time else {}
        return Logs(begins, ends, times)

    def decide(
        self, tp: TopicPartition, commit: OffsetAndMetadata | None, topic_id: str, logs: Logs, earlier: Earlier
    ) -> Beginning:
        """Return what a partition starts with.

        Args:
            tp: which.
            commit: the group's.
            topic_id: of the topic as of now.
            logs: what Kafka says.
            earlier: what this process knows of it.

        Raises:
            DataLossError: records that were not processed are gone, and ``kafka.on_data_loss`` says ``fail``.
        """
        told = NOTHING if commit is None else decode(commit.offset, commit.metadata, topic_id=topic_id)
        if self._is_of_another_topic(topic_id, told, commit, earlier):
            self._loss.recreated(tp, earlier.pending)
            if self._bounds is not None:
                self._bounds.forget(tp)
            return Beginning(PartitionLedger(logs.begins[tp], self._backoff), killed_by=told.watch.alone)
        watch = AT_WORK
        if commit is not None and told != NOTHING:
            ours = earlier.commit == (commit.offset, commit.metadata)
            watch, told = self._unclean.look_back(tp, commit.offset, logs.ends[tp], told, ours=ours)
        ours = told.topology_id == self._identity.topology_id
        start = start_at(self._strategy, committed=commit is not None, by_this_topology=ours)
        if start is Start.COMMITTED and commit is not None:
            ledger = self._go_on(tp, commit, told, logs)
        else:
            ledger = PartitionLedger(self._place(start, tp, logs), self._backoff)
        if commit is None or ledger.base != commit.offset:
            watch = AT_WORK
        return Beginning(ledger, watch, told.watch.alone)

    def _is_of_another_topic(
        self, topic_id: str, told: Progress, commit: OffsetAndMetadata | None, earlier: Earlier
    ) -> bool:
        """Return whether we, or the commit that we would go by, know an earlier topic of this name.

        A commit that tells who made it is of this topic: somebody has begun with it, and we go on.
        """
        if told != NOTHING:
            return False
        if another(earlier.topic_id, topic_id):
            return True
        if commit is None:
            return False
        author = author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id)
        ours = author == self._identity.topology_id
        start = start_at(self._strategy, committed=True, by_this_topology=ours)
        return author is not None and start is Start.COMMITTED

    def _go_on(self, tp: TopicPartition, commit: OffsetAndMetadata, told: Progress, logs: Logs) -> PartitionLedger:
        """Start where a commit says, with what its metadata tells."""
        begin, end = logs.begins[tp], logs.ends[tp]
        known = max(commit.offset, told.done[-1][1] if told.done else 0)
        if known > end:
            start_again = self._loss.restart(tp, known, begin, end)
            if self._bounds is not None:
                self._bounds.cut(tp, end)
            return PartitionLedger(start_again, self._backoff)
        ledger = PartitionLedger(commit.offset, self._backoff, told.done, told.failures)
        if commit.offset < begin:
            self._loss.skip(ledger, tp, begin, end)
        return ledger

    def _place(self, start: Start, tp: TopicPartition, logs: Logs) -> int:
        """Start where the strategy says."""
        begin, end = logs.begins[tp], logs.ends[tp]
        if start is Start.END:
            return end
        if start is Start.TIMESTAMP:
            at_time = logs.times.get(tp)
            return end if at_time is None else at_time
        if start is Start.OFFSET and tp in self._offsets:
            return self._loss.named(tp, self._offsets[tp], begin, end)
        return begin


def another(before: str, now: str) -> bool:
    """Return whether two ids, both known, are of different topics."""
    return bool(before and now) and before != now
