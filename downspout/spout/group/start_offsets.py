"""Where a partition starts that has become ours: by what is committed, and by ``kafka.start`` where nothing is.

The table of strategies is in ``downspout.ledger.start``. Here it meets what Kafka says: where the log begins and ends,
what the commit's metadata holds, and whether the topic is still the one that was committed for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from downspout.errors import coordinates
from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.ledger.isolation import AT_WORK, Isolation
from downspout.ledger.metadata import BYTES_MAX, NOTHING, CommitMetadata, author_for_another_topic, decode
from downspout.ledger.offsets import PartitionLedger
from downspout.ledger.ranges import Ranges
from downspout.ledger.retry_schedule import RetryPolicy
from downspout.ledger.start import Start, start_at
from downspout.spout.crash_isolation import UncleanStarts
from downspout.spout.group.bounds import Bounds
from downspout.spout.group.data_loss import DataLoss
from downspout.spout.group.explicit_offsets import offsets_of
from downspout.spout.spout_metrics import SpoutMetrics


@dataclass(slots=True)
class MetadataLimit:
    """How much metadata a commit may have, as far as we know."""

    bytes_max: int = BYTES_MAX  # the bound; no metadata is longer
    is_known: bool = False  # whether the broker has taken a commit with it

    def lower(self) -> bool:
        """Halve it; return whether that is less than before. With 0, metadata is empty."""
        before, self.bytes_max = self.bytes_max, self.bytes_max // 2
        self.is_known = False
        return self.bytes_max < before


@dataclass(frozen=True, slots=True)
class Identity:
    """Who commits: goes into the metadata of each commit; and which tasks there are beside it, where that is known."""

    topology_id: str
    task: int
    tasks: frozenset[int] = frozenset()
    metadata_limit: MetadataLimit = field(default_factory=MetadataLimit, compare=False, repr=False)


class Earlier(NamedTuple):
    """What is kept of a partition that was ours."""

    topic_id: str = ""
    pending: int = 0  # How much was not processed
    commit: tuple[int, str] | None = None  # Our last one
    attempted: tuple[int, str] | None = None  # One of ours of which it is not known whether it was made
    failures: Mapping[int, int] = {}  # Failed attempts by offset, where we go on ourselves
    reasons: Mapping[int, Any] = {}
    """And why: :class:`~downspout.spout.partition.LastFailure`."""
    timeouts: Mapping[int, int] = {}


NEVER_OURS = Earlier()


class Beginning(NamedTuple):
    """What a partition starts with.

    ``killed_by`` is the record that was out alone when an earlier owner died; after a death ``behind_until`` is where
    the log ended at the start.
    """

    ledger: PartitionLedger
    isolation: Isolation = AT_WORK
    killed_by: int | None = None
    behind_until: int = 0


class Logs(NamedTuple):
    """What Kafka says of the logs of some partitions; ``times`` only where ``kafka.start`` goes by time."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    times: Mapping[TopicPartition, int | None]


class Starts:
    """Decides where partitions start."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        metrics: SpoutMetrics,
        log: logging.Logger,
        loss: DataLoss,
        backoff: RetryPolicy,
        bounds: Bounds | None,
    ) -> None:
        self._strategy: str = settings["start"]
        self._timestamp_ms: int = settings["start_timestamp_ms"] or 0
        self._behind_max: int | None = settings["behind_max"]
        self._offsets = offsets_of("kafka.start_offsets", settings["start_offsets"])
        self._identity = identity
        self._unclean = UncleanStarts(settings, identity.topology_id, identity.tasks, metrics, log)
        self._loss = loss
        self._backoff = backoff
        self._bounds = bounds
        self._metrics = metrics
        self._log = log

    def ask(self, consumer: ConsumerPort, fresh: Collection[TopicPartition]) -> Logs:
        """Ask Kafka for what is needed to decide. Raises KafkaError: the broker did not answer."""
        begins, ends = consumer.beginning_offsets(fresh), consumer.end_offsets(fresh)
        by_time = self._strategy.endswith("TIMESTAMP")
        times = consumer.offsets_for_times(dict.fromkeys(fresh, self._timestamp_ms)) if by_time else {}
        return Logs(begins, ends, times)

    def decide(
        self, tp: TopicPartition, commit: OffsetAndMetadata | None, topic_id: str, logs: Logs, earlier: Earlier
    ) -> Beginning:
        """Return what a partition starts with.

        Raises:
            DataLossError: records that were not processed are gone, and ``kafka.on_data_loss`` says ``fail``.
        """
        metadata = NOTHING if commit is None else decode(commit.offset, commit.metadata, topic_id=topic_id)
        if self._is_of_another_topic(topic_id, metadata, commit, earlier):
            self._loss.recreated(tp, earlier.pending)
            if self._bounds is not None:
                self._bounds.forget(tp)
            return Beginning(PartitionLedger(logs.begins[tp], self._backoff), killed_by=metadata.isolation.alone)
        isolation = AT_WORK
        if commit is not None and metadata != NOTHING:
            ours = (commit.offset, commit.metadata) in (earlier.commit, earlier.attempted)
            isolation, metadata = self._unclean.look_back(tp, commit.offset, logs.ends[tp], metadata, ours=ours)
        ours = metadata.topology_id == self._identity.topology_id
        start = start_at(self._strategy, committed=commit is not None, by_this_topology=ours)
        if start is Start.COMMITTED and commit is not None:
            place = self._not_too_far_behind(tp, commit, metadata, logs)
            ledger = self._go_on(tp, place, metadata, logs, earlier.failures)
        else:
            ledger = PartitionLedger(self._place(start, tp, logs), self._backoff, (), earlier.failures)
        if commit is None or ledger.base != commit.offset:
            isolation = AT_WORK
        return Beginning(ledger, isolation, metadata.isolation.alone, logs.ends[tp] if isolation.starts else 0)

    def _is_of_another_topic(
        self, topic_id: str, metadata: CommitMetadata, commit: OffsetAndMetadata | None, earlier: Earlier
    ) -> bool:
        """Return whether we, or the commit that we would go by, know an earlier topic of this name."""
        if metadata != NOTHING:
            return False
        if another(earlier.topic_id, topic_id):
            return True
        if commit is None:
            return False
        # A commit that says who made it is of this topic: a spout has begun with it, and we go on.
        author = author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id)
        ours = author == self._identity.topology_id
        start = start_at(self._strategy, committed=True, by_this_topology=ours)
        return author is not None and start is Start.COMMITTED

    def _not_too_far_behind(
        self, tp: TopicPartition, commit: OffsetAndMetadata, metadata: CommitMetadata, logs: Logs
    ) -> OffsetAndMetadata:
        """Return where to go on: where a new group would start, if the commit lies too far behind that."""
        start = start_at(self._strategy, committed=False, by_this_topology=False)
        # Below the beginning of the log nothing could be read: that is lost, and not left out.
        if self._behind_max is None or start is Start.BEGINNING or commit.offset > logs.ends[tp]:
            return commit
        place = self._place(start, tp, logs)
        if place - commit.offset <= self._behind_max:
            return commit
        left = sum(end - begin for begin, end in Ranges(metadata.done).missing(commit.offset, place))
        self._metrics.left_behind += left
        self._log.warning(
            "%s: the commit lies %d offsets behind %d, where kafka.start = %s starts, and kafka.behind_max = %d; "
            "goes on there, and leaves %d out",
            coordinates(tp.topic, tp.partition, commit.offset), place - commit.offset, place, self._strategy,
            self._behind_max, left,
        )  # fmt: skip
        return commit._replace(offset=place)

    def _go_on(
        self,
        tp: TopicPartition,
        commit: OffsetAndMetadata,
        metadata: CommitMetadata,
        logs: Logs,
        failures: Mapping[int, int],
    ) -> PartitionLedger:
        """Start where a commit says, with what its metadata holds."""
        begin, end = logs.begins[tp], logs.ends[tp]
        known = max(commit.offset, metadata.done[-1][1] if metadata.done else 0)
        if known > end:
            start_again = self._loss.restart(tp, known, begin, end)
            if self._bounds is not None:
                self._bounds.cut(tp, end)
            return PartitionLedger(start_again, self._backoff)
        ledger = PartitionLedger(commit.offset, self._backoff, metadata.done, {**metadata.failures, **failures})
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
