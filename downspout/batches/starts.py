"""Where a partition starts in a batch: after the batch before, or where ``kafka.start`` says.

Offsets belong to one topic. If it is deleted and created again, another topic has its name: where the batch before
ended says nothing about that one, whether its log is shorter or longer. So Kafka's id of the topic is kept with each
range, and another id is lost data, as ``kafka.on_data_loss`` says.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from downspout.batches.core.attempt import BatchRange
from downspout.errors import DataLossError, coordinates
from downspout.kafka.port import Cluster, ConsumerPort, TopicPartition
from downspout.ledger.start import Start, start_at
from downspout.spout.settings import offsets_of
from downspout.spout.starts import another


def ids_of(consumer: ConsumerPort, partitions: Collection[TopicPartition]) -> dict[str, str]:
    """Return Kafka's ids of the topics of partitions: empty where the brokers give none.

    A topic that is not there at the moment is left out.

    Raises:
        KafkaError: the broker does not answer.
    """
    topics = {tp.topic for tp in partitions}
    found = dict(consumer.topic_ids(topics)) if topics else {}
    for topic in topics:
        if not found.get(topic):
            found.pop(topic, None)
            if consumer.partitions_for(topic):
                found[topic] = consumer.topic_id(topic)
    return found


class Decided(NamedTuple):
    """Where the strategy has let a partition start."""

    offset: int
    topic_id: str


class Logs(NamedTuple):
    """Where the logs of some partitions begin and end."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def logs_one_by_one(cluster: Cluster, partitions: Collection[TopicPartition], reads_committed: bool) -> Logs:
    """Ask where logs begin and end, and leave out those of which Kafka does not say."""
    begins, ends = {}, {}
    found = cluster.describe_logs({tp.topic for tp in partitions})
    for tp in partitions:
        log = found[tp.topic].partitions.get(tp.partition)
        end = None if log is None else log.stable if reads_committed else log.high_watermark
        if log is not None and log.begin is not None and end is not None:
            begins[tp], ends[tp] = log.begin, end
    return Logs(begins, ends)


def goes_on(strategy: str, before: BatchRange, topology_id: str) -> bool:
    """Return whether a topology's reading goes on at a range that is stored.

    >>> [goes_on(strategy, BatchRange(5, 9, "wc-1"), "wc-2") for strategy in ("EARLIEST", "UNCOMMITTED_EARLIEST")]
    [False, True]
    """
    return _start(strategy, before, topology_id) is Start.COMMITTED


def _start(strategy: str, before: BatchRange | None, topology_id: str) -> Start:
    ours = before is not None and before.topology_id == topology_id
    return start_at(strategy, committed=before is not None, by_this_topology=ours)


class BatchStarts:
    """Decides where partitions start.

    Args:
        settings: those of the scope ``kafka``.
        topology_id: of this submit.
        log: for warnings.
    """

    def __init__(self, settings: Mapping[str, Any], topology_id: str, log: logging.Logger) -> None:
        self._strategy: str = settings["start"]
        self._timestamp_ms: int = settings["start_timestamp_ms"] or 0
        at_start = "latest" if self._strategy.endswith("LATEST") else "earliest"
        self._policy = at_start if settings["on_data_loss"] == "start" else settings["on_data_loss"]
        self._offsets = offsets_of("kafka.start_offsets", settings["start_offsets"])
        self._topology_id, self._log = topology_id, log
        self._decided: dict[TopicPartition, Decided] = {}  # by the strategy, until a batch is committed
        self.lost = 0

    def of(
        self, tp: TopicPartition, before: BatchRange | None, topic_id: str, logs: Logs, consumer: ConsumerPort
    ) -> int:
        """Return where a partition starts.

        Args:
            tp: the partition.
            before: its range in the batch before; None: there is none.
            topic_id: Kafka's id of its topic, as of now.
            logs: where the logs begin and end.
            consumer: asked where the strategy goes by time.

        Raises:
            DataLossError: records are gone that were in no batch yet, and ``kafka.on_data_loss`` says ``fail``.
        """
        start = _start(self._strategy, before, self._topology_id)
        if start is Start.COMMITTED and before is not None:
            if another(before.topic_id, topic_id):
                return self._created_again(tp, logs)
            return self._in_range(tp, before.next, logs.begins[tp], logs.ends[tp])
        # A batch that is tried again starts where its first attempt did: the end of the log has moved on meanwhile.
        known = self._decided.get(tp)
        if known is None:
            known = Decided(self._by_strategy(start, tp, logs, consumer), topic_id)
        elif another(known.topic_id, topic_id):
            known = Decided(self._created_again(tp, logs), topic_id)
        self._decided[tp] = known
        return self._in_range(tp, known.offset, logs.begins[tp], logs.ends[tp])

    def goes_on(self, before: BatchRange) -> bool:
        """Return whether reading goes on at a batch that is stored: it is of this topology, or any one's counts."""
        return goes_on(self._strategy, before, self._topology_id)

    def committed(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what the strategy decided of these: what was stored counts from now on."""
        for tp in partitions:
            self._decided.pop(tp, None)

    def _by_strategy(self, start: Start, tp: TopicPartition, logs: Logs, consumer: ConsumerPort) -> int:
        if start is Start.END:
            return logs.ends[tp]
        if start is Start.TIMESTAMP:
            found = consumer.offsets_for_times({tp: self._timestamp_ms}).get(tp)
            return logs.ends[tp] if found is None else found
        if start is Start.OFFSET and tp in self._offsets:
            return self._in_range(tp, self._offsets[tp], logs.begins[tp], logs.ends[tp])
        return logs.begins[tp]

    def _created_again(self, tp: TopicPartition, logs: Logs) -> int:
        """Return where to start in another topic of the same name: no batch has had anything of it."""
        place = coordinates(tp.topic, tp.partition)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the topic was deleted and created again; what was in no batch of the old one is gone",
                cure="kafka.on_data_loss=earliest reads the new one from its beginning",
            )
        self._log.warning("%s: the topic was deleted and created again; starts at its beginning", place)
        return logs.begins[tp]

    def _in_range(self, tp: TopicPartition, offset: int, begin: int, end: int) -> int:
        if begin <= offset <= end:
            return offset
        place = coordinates(tp.topic, tp.partition, offset)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the next batch starts here, but the log holds {begin} to {end}",
                cure="kafka.on_data_loss=earliest goes on with what is left; retention may be too short",
            )
        start = begin if self._policy == "earliest" else end
        lost = max(0, start - offset)
        self.lost += lost
        self._log.warning(
            "%s: the log holds %d to %d; %d offsets are lost; goes on at %d", place, begin, end, lost, start
        )
        return start
