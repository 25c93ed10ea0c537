"""An emitter task: which records of its partitions are in a batch, and which ranges are stored.

*Transactional*: the ranges are stored before anything is emitted; an attempt that finds stored ranges reads exactly
those records. *Opaque*: the ranges are kept in memory, and stored when the batch is committed; each attempt reads on
from the previous batch, and may leave out a partition that cannot be read.

A batch begins where the previous one ended, according to memory (if this process has seen its latest attempt) or the
store. If neither knows, because the process was restarted between two uncommitted batches, the two may overlap in
memory. But then the commit of the first one fails, because this task has not seen its beginning, and all later ones
are given up with it.

A range has Kafka's id of its topic (see ``batch_reader``). The id is read before the log's offsets and again after
reading records. If it has changed, the records may be of either topic, and the attempt fails.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from kafka import errors

from downspout.batches.batch_reader import BatchLimits, BatchReader, BatchStarts, Logs, ids_of, logs_one_by_one
from downspout.batches.core.held import EmitterBatches
from downspout.batches.core.protocol import Attempt, BatchRange, partition_id, share
from downspout.batches.setup import BatchSetup
from downspout.batches.stores import BatchStore, PartitionId
from downspout.clock import Clock
from downspout.errors import BrokerError, DataLossError, coordinates
from downspout.formatting import counted
from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from downspout.kafka.retry_gate import LogThrottle
from downspout.spout.cursor import ReadTimes
from downspout.spout.observe import fetch_figures, log_figures
from downspout.spout.settings import is_named, offsets_of
from downspout.spout.starting import another

GONE_S = 10.0
"""A topic missing for this long counts as deleted. One answer proves nothing: a broker may not know the topic yet."""
TIME_SHARE = 1 / 3
"""The share of the message timeout that a retried batch may wait for its records."""

Stored: TypeAlias = Mapping[PartitionId, Mapping[int, BatchRange]]
Ranges: TypeAlias = dict[TopicPartition, BatchRange]
Records: TypeAlias = dict[TopicPartition, list[Record]]


class NotYetError(Exception):
    """The records of a batch cannot be read now: this attempt fails, and the next one tries again."""


class Emitting:
    """The batches of one emitter task.

    Args:
        setup: the settings.
        consumer: reads; nothing else uses it.
        store: the metadata of the batches.
        clock: for time limits.
        log: for warnings.
    """

    def __init__(
        self, setup: BatchSetup, consumer: ConsumerPort, store: BatchStore, clock: Clock, log: logging.Logger
    ) -> None:
        settings = setup.kafka.settings
        self._setup, self._consumer, self._store, self._clock = setup, consumer, store, clock
        self._log, self._throttle = log, LogThrottle()
        self._reader = BatchReader(consumer, clock, settings["poll_timeout_ms"])
        self.starts = BatchStarts(settings, setup.topology_id, log)
        stops = offsets_of("kafka.stop_offsets", settings["stop_offsets"]) if setup.kafka.bounded else {}
        self._stops: Mapping[TopicPartition, int] = stops
        self._batches = EmitterBatches[TopicPartition]()
        self._partitions: list[TopicPartition] = []  # of the batch
        self._mine: list[TopicPartition] = []  # of this task
        self._ids: dict[str, str] = {}  # last known id of each topic
        self._missing: dict[str, float] = {}  # missing topics, and since when
        self._has_looked_for_vanished = False
        self._asks_one_by_one = False  # since a partition could not be read
        self._logs_seen: dict[TopicPartition, tuple[int, int]] = {}  # beginning and end of each log at the last batch
        self._done: dict[TopicPartition, int] = {}  # the offset after the committed batches
        self._committed: set[TopicPartition] = set()  # partitions with a committed batch, of this process or earlier
        self._emitted: dict[TopicPartition, int] = {}  # the last emitted offset
        self._times: dict[TopicPartition, ReadTimes] = {}

    # --- a batch ---

    def batch(self, attempt: Attempt, epoch: int, partitions: Sequence[Sequence[Any]]) -> Records | None:
        """Return the records of this task in an attempt; None: it is stale.

        Args:
            attempt: the attempt.
            epoch: of its coordinator.
            partitions: all partitions of the batch, as ``[topic, partition]``.

        Raises:
            DataLossError: records are gone.
            NotYetError: records cannot be read yet.
            KafkaError: the broker refuses, or does not answer.
            BatchStoreError: the store failed.
        """
        if not self._batches.hear(attempt):
            return None
        self._partitions = [TopicPartition(topic, number) for topic, number in partitions]
        self._mine = share(self._partitions, self._setup.kafka.index, self._setup.kafka.tasks)
        self._reader.assign(self._mine)
        self._look_at_topics()
        stored = self._store.load_ranges([partition_id(*tp) for tp in self._mine]) if self._mine else {}
        read = self._transactional if self._setup.is_transactional else self._fresh
        ranges, records = read(attempt.txid, epoch, stored)
        if not self._emitted:  # the first batch of this process: those before it are committed
            before = {tp: self._before(tp, attempt.txid, stored) for tp in self._mine}
            self._committed |= {tp for tp, it in before.items() if it is not None and self.starts.goes_on(it)}
        left_out = [] if self._setup.is_transactional else [tp for tp in self._mine if tp not in ranges]
        self._batches.begin(attempt, ranges, left_out)
        for tp, found in records.items():
            if found:
                self._emitted[tp] = found[-1].offset
                for record in (found[0], found[-1]):
                    self._times.setdefault(tp, ReadTimes()).add(record.offset, record.timestamp)
        return records

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of a topic as of the last batch; empty if unknown."""
        return self._ids.get(topic, "")

    @property
    def lag(self) -> int | None:
        """Offsets between the committed batches and the ends of the logs; None until each partition was read."""
        if not self._mine or not self._logs_seen.keys() >= set(self._mine):
            return None
        return sum(max(0, self._logs_seen[tp][1] - self._done[tp]) for tp in self._mine)

    def by_partition(self) -> dict[str, dict[str, Any]]:
        """Return the metrics of each partition of this task; ``downspout.metrics`` explains the names."""
        in_flight, fetches = self._batches.in_flight(), self._consumer.fetches.by_partition
        found = {}
        for tp in self._mine:
            if tp not in self._logs_seen:
                continue
            (begin, end), done = self._logs_seen[tp], self._done[tp]
            lag, times = max(0, end - done), self._times.get(tp)
            next_ms = times.at(done) if times is not None and lag else None  # of the first record of the next commit
            found[coordinates(*tp)] = {
                **log_figures(done if tp in self._committed else None, begin, end),
                **fetch_figures(fetches.get(tp), self._clock.monotonic()),
                "lag": lag,
                "lag_s": 0.0 if not lag else None if next_ms is None else max(0.0, self._clock.wall() - next_ms / 1000),
                "position": self._reader.position(tp),
                "emitted": self._emitted.get(tp),
                "in_flight": in_flight.get(tp, 0),
            }
        return found

    def _look_at_topics(self) -> None:
        """Read the ids of topics, and drop the records fetched from one that was created again."""
        now = ids_of(self._consumer, self._mine)
        self._reader.forget([tp for tp in self._mine if another(self._ids.get(tp.topic, ""), now.get(tp.topic, ""))])
        # The id of a missing topic is kept: the topic may come back with another id.
        at = self._clock.monotonic()
        self._missing = {tp.topic: self._missing.get(tp.topic, at) for tp in self._mine if tp.topic not in now}
        self._ids.update(now)

    def _was_deleted(self, topic: str) -> bool:
        return topic in self._missing and self._clock.monotonic() - self._missing[topic] >= GONE_S

    def _need(self, partitions: Collection[TopicPartition]) -> None:
        """Raise an UnknownTopicOrPartitionError, which is retried, if a topic is missing."""
        if missing := sorted({tp.topic for tp in partitions}.intersection(self._missing)):
            raise errors.UnknownTopicOrPartitionError(", ".join(missing))

    def _check_topics(self, partitions: Collection[TopicPartition]) -> None:
        """Check that the topics of the records just read still have their known ids.

        Raises:
            NotYetError: one was deleted or created again meanwhile.
        """
        now = ids_of(self._consumer, partitions)
        for topic in sorted({tp.topic for tp in partitions}):
            if now.get(topic) != self._ids[topic]:
                raise NotYetError(f"topic {topic} was deleted or created again while it was read")

    def _fresh(self, txid: int, epoch: int, stored: Stored) -> tuple[Ranges, Records]:
        """Read on from the previous batch."""
        return self._read(txid, stored, self._mine)

    def _read(self, txid: int, stored: Stored, partitions: Collection[TopicPartition]) -> tuple[Ranges, Records]:
        if not partitions:
            return {}, {}
        before = {tp: self._before(tp, txid, stored) for tp in partitions}
        if self._setup.is_transactional:
            # Later attempts must have the same records, so each partition's range must be known now.
            self._need([tp for tp in partitions if before[tp] is None and not self._was_deleted(tp.topic)])
            before = {tp: before[tp] or self._nothing_of(tp) for tp in partitions}
        logs = self._logs(partitions)
        starts = {
            tp: self.starts.of(txid, tp, before[tp], self._ids[tp.topic], logs, self._consumer)
            for tp in partitions
            if tp in logs.ends
        }
        for tp, start in starts.items():
            self._note_log(tp, logs, start)
        ends = {tp: min(logs.ends[tp], self._stops.get(tp, logs.ends[tp])) for tp in starts}
        batch = self._setup.batch
        limits = BatchLimits.of(batch["records_max"], batch["bytes_max"], len(self._partitions))
        read = self._reader.fresh(starts, ends, limits)
        self._check_topics([tp for tp, each in read.items() if each.records])
        ranges = {tp: self._range(tp, each.records, each.position) for tp, each in read.items()}
        # A partition that cannot be read now has no records in the batch, and keeps its next offset.
        kept = {tp: it for tp, it in before.items() if it is not None and tp not in starts}
        ranges.update({tp: BatchRange.empty(it.next, it.topology_id, it.topic_id) for tp, it in kept.items()})
        return ranges, {tp: each.records for tp, each in read.items()}

    def _note_log(self, tp: TopicPartition, logs: Logs, start: int) -> None:
        self._logs_seen[tp] = logs.begins[tp], logs.ends[tp]
        self._done.setdefault(tp, start)

    def _logs(self, partitions: Collection[TopicPartition]) -> Logs:
        """Return the begins and ends of logs, without partitions of missing topics; for an opaque batch also without
        others that cannot be read.

        Raises:
            KafkaError: the broker does not answer.
        """
        existing = [tp for tp in partitions if tp.topic not in self._missing]
        if self._setup.is_transactional:
            return self._logs_at_once(existing)
        if not self._asks_one_by_one:
            try:
                return self._logs_at_once(existing)
            except errors.KafkaError as error:
                return self._logs_one_by_one(existing, error)
        return self._logs_one_by_one(existing)

    def _logs_at_once(self, partitions: Collection[TopicPartition]) -> Logs:
        consumer = self._consumer
        return Logs(consumer.beginning_offsets(partitions), consumer.end_offsets(partitions))

    def _logs_one_by_one(
        self, partitions: Collection[TopicPartition], refused: errors.KafkaError | None = None
    ) -> Logs:
        """Return the begins and ends of logs, without partitions that cannot be read now; these keep their position.

        A request for all partitions would wait for a missing leader until it times out. While one is missing, each
        batch therefore uses this method from the start.
        """
        try:
            found = logs_one_by_one(self._setup.cluster, partitions, self._setup.reads_committed)
        except BrokerError as error:
            raise refused or errors.KafkaTimeoutError(error.message) from error
        self._asks_one_by_one = len(found.ends) < len(partitions)
        if self._asks_one_by_one and self._throttle.due("away", int(self._clock.monotonic() * 1000)):
            away = sorted(coordinates(*tp) for tp in partitions if tp not in found.ends)
            self._log.warning("%s cannot be read now; batches continue without it", ", ".join(away))
        return found

    def _range(self, tp: TopicPartition, records: Sequence[Record], position: int) -> BatchRange:
        ids = self._setup.topology_id, self._ids[tp.topic]
        if not records:
            return BatchRange.empty(position, *ids)
        return BatchRange(records[0].offset, records[-1].offset, *ids, len(records))

    def _nothing_of(self, tp: TopicPartition) -> BatchRange | None:
        """Return an empty range for a partition of a topic that was deleted before its first batch."""
        return BatchRange.empty(0, self._setup.topology_id) if tp.topic in self._missing else None

    def _before(self, tp: TopicPartition, txid: int, stored: Stored) -> BatchRange | None:
        return self._batches.before(tp, txid, stored.get(partition_id(*tp), {}))

    # --- transactional ---

    def _transactional(self, txid: int, epoch: int, stored: Stored) -> tuple[Ranges, Records]:
        """Read the batch's stored ranges; read on in other partitions, and store their ranges first.

        Ranges stored by another topology are not emitted if this one starts anew: it reads their records again from
        where ``kafka.start`` says. (Storm: ``KafkaTridentSpoutEmitter.reEmitPartitionBatch``.)
        """
        again: Ranges = {}
        left: Ranges = {}
        new = []
        for tp in self._mine:
            plan = self._batches.plan(tp, txid, stored.get(partition_id(*tp), {}))
            if plan.again is not None:
                (again if self.starts.goes_on(plan.again) else left)[tp] = plan.again
            elif plan.is_new:
                new.append(tp)
        ranges, records = self._read(txid, stored, new)
        if ranges:
            self._store.save_ranges(epoch, txid, {partition_id(*tp): found for tp, found in ranges.items()})
        return {**again, **left, **ranges}, {**self._again(txid, again), **records}

    def _again(self, txid: int, ranges: Ranges) -> Records:
        """Read exactly the records of a retried batch.

        Raises:
            DataLossError: some are gone.
            NotYetError: some cannot be read yet.
            KafkaError: the broker does not answer.
        """
        wanted = {tp: (found.first, found.last) for tp, found in ranges.items() if found.last >= found.first}
        if not wanted:
            return {}
        for tp, (first, last) in wanted.items():
            if self._was_deleted(tp.topic):
                raise self._gone(txid, tp, first, last, "the topic was deleted")
        self._need(wanted)
        for tp, (first, last) in wanted.items():
            if another(ranges[tp].topic_id, self._ids[tp.topic]):
                raise self._gone(txid, tp, first, last, "the topic was deleted and created again")
        logs = self._logs_at_once(wanted)
        for tp, (first, last) in wanted.items():
            if not logs.begins[tp] <= first or not last < logs.ends[tp]:
                raise self._gone(txid, tp, first, last, f"the log holds {logs.begins[tp]} to {logs.ends[tp]}")
            self._note_log(tp, logs, first)
        until_s = self._clock.monotonic() + self._setup.timeout_s * TIME_SHARE
        found = self._reader.exactly(wanted, until_s)
        if found is None:
            raise NotYetError(f"transaction {txid}: its records cannot be read yet")
        for tp, (first, last) in wanted.items():
            read = [record.offset for record in found[tp]]
            if not read or read[0] != first or read[-1] != last:
                has = f"the remaining ones are {read[0]} to {read[-1]}" if read else "none of them is left"
                raise self._gone(txid, tp, first, last, has)
            if (count := ranges[tp].records) is not None and len(read) != count:
                has = f"only {len(read)} of its {counted(count, 'record')} are left: the others were compacted away"
                raise self._gone(txid, tp, first, last, has)
        self._check_topics(wanted)
        return found

    def _gone(self, txid: int, tp: TopicPartition, first: int, last: int, has: str) -> DataLossError:
        return DataLossError(
            f"{coordinates(tp.topic, tp.partition, first)}: transaction {txid} holds the offsets {first} to {last}, "
            f"but {has}: it cannot be emitted again unchanged",
            cure="start once with batch.kind=opaque, state.exactly_once=false and kafka.on_data_loss=earliest, then "
            "without: states keep their kind, and what is left of the batch is counted once",
        )

    # --- commit and success ---

    def commit(self, attempt: Attempt, epoch: int) -> bool:
        """Store the ranges of an opaque batch; return whether this process has seen its beginning.

        Raises:
            BatchStoreError: the store failed.
        """
        ranges, txid = self._batches.to_commit(attempt), attempt.txid
        if ranges is None or self._setup.is_transactional:
            return ranges is not None
        if attempt.attempt:  # an earlier attempt may have stored ranges of partitions that this one leaves out
            left_out = [partition_id(*tp) for tp in self._mine if tp not in ranges]
            if self._setup.kafka.index == 0:
                known = {partition_id(*tp) for tp in self._partitions}
                left_out += [name for name in self._store.list_partitions() if name not in known]
            if left_out:
                self._store.delete_ranges(epoch, txid, left_out)
        if ranges:
            self._store.save_ranges(epoch, txid, {partition_id(*tp): found for tp, found in ranges.items()})
        return True

    def success(self, attempt: Attempt, epoch: int) -> None:
        """Forget a transaction that is done; delete stored ranges below it."""
        done = self._batches.to_commit(attempt) or {}
        self.starts.committed(done)
        self._done.update({tp: found.next for tp, found in done.items()})
        self._committed.update(done)
        self._batches.success(attempt.txid)
        if self._mine:
            self._store.delete_below(epoch, attempt.txid, [partition_id(*tp) for tp in self._mine])
        if self._setup.kafka.index == 0 and not self._has_looked_for_vanished:
            self._has_looked_for_vanished = True
            self._forget_vanished(epoch)

    def _forget_vanished(self, epoch: int) -> None:
        """Delete the ranges of partitions that Kafka does not have and the settings no longer name.

        While the settings name the topic, its ranges are needed to recognise a re-created topic.
        """
        known = {partition_id(*tp) for tp in self._partitions}
        vanished = []
        for name in self._store.list_partitions():
            topic, _, number = name.rpartition("/")
            if name in known or not topic or not number.isdigit() or is_named(self._setup.kafka.settings, topic):
                continue
            if int(number) not in self._consumer.partitions_for(topic):
                vanished.append(name)
        if vanished:
            self._store.delete_ranges(epoch, 0, vanished)

    def close(self) -> None:
        """Release consumer and store."""
        self._reader.close()
        self._store.close()
