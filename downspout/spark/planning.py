"""Plan what each micro-batch reads: the driver's side of the source, without Spark.

Spark keeps the end of every batch in its checkpoint and passes it back as the start of the next. It calls ``initial``
(for a query without checkpoint), then ``latest`` for the end of the batch, writes that end to the checkpoint, and calls
``ranges`` for the tasks. After a restart it calls ``ranges`` for the last written batch again, so ``ranges`` depends on
its arguments and on Kafka alone.

Two rules follow:

* *A start at the end of the log is a batch of its own.* Spark records the ends of batches, not the start of the first
  one. If a first batch that starts at "latest" read records, a crash in it would lose them: after the restart, "latest"
  is a later offset. So the first batch of such a query is empty, and its recorded end is the query's start.
* *A lost log is removed from the offsets.* A partition that is gone, is shorter than what was read, or belongs to a
  topic that was created again, is left out of the batch's end; if it exists, the next batch treats it as new and reads
  it from its beginning. That holds for ``failOnDataLoss=false``; otherwise the query fails before an end is written. A
  topic's id, kept in the checkpoint beside the offsets, shows that it was created again, even while the query was
  stopped and even if the new log is longer than what was read of the old one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from kafka import errors

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, ConfigError, DataLossError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.spark.kafka_options import EARLIEST, LATEST, SourceOptions, SourcePosition
from downspout.spark.source_offsets import OffsetRange, Offsets, Sieve, Skipped, place, prorate, split

log = logging.getLogger("downspout.spark")

DATA_LOSS_CURE = "failOnDataLoss=false continues with the remaining records; retention may be too short"


class BatchPlan:
    """The ranges of one batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._ids: dict[str, str] = {}

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of a topic from :meth:`ranges`; empty unless ``includeTopicId`` is set."""
        return self._ids.get(topic, "")

    def ranges(self) -> list[OffsetRange]:
        """Return the ranges for the tasks.

        Raises:
            ConfigError: an option does not fit the topic.
            BrokerError: no broker answers.
            DataLossError: offsets lie outside the log and ``failOnDataLoss`` is set.
        """
        with closing(Topics(self._options)) as topics:
            _check_stops(self._options)
            partitions = topics.partitions()
            starts, _ = topics.resolve(self._options.starting, partitions)
            ends, _ = topics.resolve(self._options.ending, partitions)
            self._check(topics, starts, ends)
            if self._options.include_topic_id:
                self._ids = dict(topics.ids({tp.topic for tp in partitions}))
            stops = self._options.stopping
            ends = {tp: min(end, stops.get(tp, end)) for tp, end in ends.items()}
            ranges = [OffsetRange.of(tp, starts[tp], ends[tp]) for tp in partitions]
            ranges = _behind_gaps(self._options, ranges, topics, lambda gaps: skips_of(self._options, topics, gaps))
        return split(ranges, self._options.min_partitions, self._options.records_per_partition_max)

    def skips(self, pieces: Sequence[OffsetRange]) -> list[Skipped]:
        """Return the skipped offsets of each range (``skipOffsets``)."""
        with closing(Topics(self._options)) as topics:
            return skips_of(self._options, topics, pieces)

    def _check_order(self, topics: Topics, starts: Offsets, ends: Offsets, real: Offsets) -> None:
        """Raise if a range begins above its end, as the connector does; an empty result would hide the mistake."""
        crossed = [tp for tp in sorted(ends) if real[tp] >= starts[tp] > ends[tp]]
        begins = topics.earliest(crossed) if crossed else {}
        for tp in crossed:
            if starts[tp] == begins[tp]:  # the records up to the end are gone
                report_loss(self._options, f"{place(tp, ends[tp])} is before the log begins, at {begins[tp]}")
                ends[tp] = starts[tp]
                continue
            start, end = self._options.starting.option, self._options.ending.option
            raise ConfigError(
                f"{start} begins {place(tp)} at {starts[tp]}, above {end}, which ends it at {ends[tp]}",
                cure=f"{end} at or above {start}; the end itself is not read",
            )

    def _check(self, topics: Topics, starts: Offsets, ends: Offsets) -> None:
        """Limit the ranges to the logs, or fail: a task would wait for records that never arrive."""
        real = topics.latest(list(ends))
        for tp in ends:
            if ends[tp] > real[tp] or starts[tp] > real[tp]:
                beyond = max(ends[tp], starts[tp])
                report_loss(self._options, f"{place(tp, beyond)} is beyond the end of the log, {real[tp]}")
                ends[tp] = min(ends[tp], real[tp])
        self._check_order(topics, starts, ends, real)


class StreamPlan:
    """The batches of one streaming query; lives as long as the query, on the driver."""

    def __init__(
        self, options: SourceOptions, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] | None = None
    ) -> None:
        self._options = options
        self._clock = clock
        self._topics = Topics(options, sleep or clock.sleep)
        self._initial: Offsets | None = None
        self._initial_is_passing = False
        self._ids: dict[str, str] = {}
        self._recreated: set[str] = set()
        self._frozen: Offsets | None = None
        self._last_batch: float | None = None
        self._seen: Offsets | None = None

    def initial(self) -> Offsets:
        """Return the start of a query without checkpoint; always the same."""
        if self._initial is None:
            _check_stops(self._options)
            partitions = self._topics.partitions()
            self._note_ids(partitions)
            self._initial, self._initial_is_passing = self._topics.resolve(self._options.starting, partitions)
        return self._initial

    def freeze(self) -> None:
        """End the query at the current ends of the logs (``availableNow``)."""
        self._frozen = self._topics.latest(self._topics.partitions(gone=True))

    def seen(self) -> Offsets | None:
        """Return the last known ends of all logs, for the progress report; None before the first query of Kafka."""
        return self._seen

    def latest(self, start: Offsets, *, limited: bool, ids: Mapping[str, str] | None = None) -> Offsets:
        """Return the end of the batch that begins at ``start``, or ``start`` if there is nothing to read.

        Raises:
            DataLossError: offsets that should be read are gone, and ``failOnDataLoss`` is set.
            BrokerError: no broker answers, or a topic that is named in the options never existed.
        """
        if self._initial_is_passing and start == self._initial:
            self._initial_is_passing = False
            self._seen = self._seen or dict(start)
            return start
        self._ids |= ids or {}  # of the topics that the offsets belong to; they override ids seen later
        ends = self._ends(start)
        self._seen = dict(ends)
        if (frozen := self._frozen) is not None:
            ends = {tp: min(end, frozen[tp]) for tp, end in ends.items() if tp in frozen}
        begins = {**self._topics.earliest([tp for tp in ends if tp not in start]), **start}
        stops = self._options.stopping
        ends = {tp: max(min(end, stops.get(tp, end)), begins[tp]) for tp, end in ends.items()}
        lost_nothing = all(tp in ends for tp in start)
        if limited and not self._options.fail_on_data_loss:
            # Lost offsets are skipped at once; otherwise each batch would report a part of the same gap.
            begins = {tp: min(max(begins[tp], low), ends[tp]) for tp, low in self._topics.earliest(list(ends)).items()}
        if limited and lost_nothing and self._wait_for_more(begins, ends):
            return start
        if limited and self._options.offsets_per_trigger_max is not None:
            return prorate(begins, ends, self._options.offsets_per_trigger_max)
        return ends

    def ids_of(self, offsets: Offsets) -> dict[str, str]:
        """Return the known ids of these topics."""
        return {tp.topic: self._ids[tp.topic] for tp in offsets if tp.topic in self._ids}

    def is_at_end(self, offsets: Offsets) -> bool:
        """Return whether everything up to the ends recorded by :meth:`freeze` is read."""
        stops = self._options.stopping
        return self._frozen is not None and all(
            offsets.get(tp, 0) >= min(end, stops.get(tp, end)) for tp, end in self._frozen.items()
        )

    def ranges(self, start: Offsets, end: Offsets, ids: Mapping[str, str] | None = None) -> list[OffsetRange]:
        """Return the ranges of a batch; a partition without a start is read from its beginning.

        Raises:
            DataLossError: such a partition has lost records at its beginning, or a topic was created again, so that the
                batch's records are gone. Only with ``failOnDataLoss``.
        """
        # After a restart, an earlier process may have planned this batch, with the topics of that time.
        others = self._others(ids or {})
        for tp in sorted(end):
            if tp.topic in others:
                report_loss(self._options, _say_recreated(tp, start.get(tp, 0)))
        end = {tp: offset for tp, offset in end.items() if tp.topic not in others}
        new = self._topics.earliest([tp for tp in end if tp not in start])
        for tp, begin in new.items():
            if begin > 0:
                report_loss(self._options, f"{place(tp)} is new and begins at {begin}: earlier records are gone")
        ranges = [OffsetRange.of(tp, start.get(tp, new.get(tp, 0)), end[tp]) for tp in sorted(end)]
        backwards = [piece for piece in ranges if piece.size < 0]
        if backwards and start != self._initial:
            report_loss(self._options, f"{', '.join(map(str, backwards))}: the log ends below what was read")
        ranges = _behind_gaps(self._options, ranges, self._topics, self.skips)
        return split(ranges, self._options.min_partitions, self._options.records_per_partition_max)

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of a topic; empty if unknown or not requested. Kafka is asked once per topic."""
        if topic not in self._ids and self._options.include_topic_id:
            self._ids |= self._topics.ids({topic})
        return self._ids.get(topic, "")

    def skips(self, pieces: Sequence[OffsetRange]) -> list[Skipped]:
        """Return the skipped offsets of each range (``skipOffsets``)."""
        return skips_of(self._options, self._topics, pieces, self._recreated)

    def close(self) -> None:
        """Release the connection."""
        self._topics.close()

    def _ends(self, start: Offsets) -> Offsets:
        """Return the end of each log that continues from ``start`` or is new; report losses."""
        partitions = self._topics.partitions(gone=True)
        recreated = self._note_ids(partitions)
        ends = self._topics.latest_after({} if recreated else start, partitions)
        for tp in sorted(start):
            if tp not in ends:
                report_loss(self._options, self._say_gone(tp, start[tp]))
            elif tp.topic in recreated:
                report_loss(self._options, _say_recreated(tp, start[tp]))
            elif ends[tp] < start[tp]:
                report_loss(
                    self._options, f"{place(tp, start[tp])} was read up to this offset, but the log ends at {ends[tp]}"
                )
            else:
                continue
            if (lost := ends.pop(tp, None)) is not None and self._frozen is not None:
                self._frozen[tp] = lost
        return ends

    def _say_gone(self, tp: TopicPartition, offset: int) -> str:
        where = place(tp, offset)
        if self._options.selects(tp):
            return f"{where} was read up to this offset, but the partition is gone"
        return f"the checkpoint is at {where}, which is not read ({self._options.selection}): is it another query's?"

    def _note_ids(self, partitions: Collection[TopicPartition]) -> set[str]:
        """Record the topics' ids; return the topics whose ids have changed."""
        ids: Mapping[str, str] = self._topics.ids({tp.topic for tp in partitions})
        changed = {topic for topic, identity in ids.items() if self._ids.get(topic, identity) != identity}
        self._ids |= {topic: identity for topic, identity in ids.items() if identity}
        self._recreated |= changed
        return changed

    def _others(self, ids: Mapping[str, str]) -> set[str]:
        """Return the topics that now have other ids than these."""
        if unseen := ids.keys() - self._ids.keys():
            self._ids |= {topic: found for topic, found in self._topics.ids(unseen).items() if found}
        return {topic for topic, identity in ids.items() if self._ids.get(topic, identity) != identity}

    def _wait_for_more(self, begins: Offsets, ends: Offsets) -> bool:
        """Return whether ``minOffsetsPerTrigger`` delays the batch; never the first or an overdue one."""
        wanted = self._options.offsets_per_trigger_min
        if wanted is None or self._frozen is not None:
            return False
        now, last = self._clock.monotonic(), self._last_batch
        is_due = last is None or (now - last) * 1000 >= self._options.trigger_delay_ms_max
        if not is_due and sum(max(end - begins[tp], 0) for tp, end in ends.items()) < wanted:
            return True
        self._last_batch = now
        return False


def _say_recreated(tp: TopicPartition, offset: int) -> str:
    return f"{place(tp, offset)}: the topic was deleted and created again"


def _check_stops(options: SourceOptions) -> None:
    """Raise if a query would begin above its stop. (A checkpoint may be above it.)"""
    for tp, start in (options.starting.offsets or {}).items():
        if start > options.stopping.get(tp, start):
            raise ConfigError(
                f"stoppingOffsets ends {place(tp)} at {options.stopping[tp]}, below its start at {start}",
                cure="stop at or above startingOffsets; the stop itself is not read",
            )


def _behind_gaps(
    options: SourceOptions,
    ranges: list[OffsetRange],
    topics: Topics,
    skips: Callable[[list[OffsetRange]], list[Skipped]],
) -> list[OffsetRange]:
    """Cut the ranges at the beginnings of their logs and report each gap once, not once per task."""
    if options.fail_on_data_loss:
        return ranges  # the task that meets the gap raises
    begins = topics.earliest([piece.where for piece in ranges if piece.size > 0])
    cut = [replace(piece, start=max(piece.start, min(begins.get(piece.where, 0), piece.end))) for piece in ranges]
    gaps = [replace(before, end=after.start) for before, after in zip(ranges, cut, strict=True) if after != before]
    for gap, skipped in zip(gaps, skips(gaps), strict=True):
        if lost := list(Sieve(skipped).wanted(gap.start, gap.end)):
            report_loss(options, f"{place(gap.where)}: offsets {lost[0][0]} to {lost[-1][1] - 1} are gone from Kafka")
    return cut


def skips_of(
    options: SourceOptions, topics: Topics, pieces: Sequence[OffsetRange], recreated: set[str] | None = None
) -> list[Skipped]:
    """Return the skipped offsets of each range; none of a topic that was created again since the option was written.

    Such topics are added to ``recreated`` and reported once.
    """
    found = [options.skips.within(piece) for piece in pieces]
    # Kafka is asked for ids only while offsets are skipped, usually at a query's beginning.
    meant = {piece.topic: options.skips.ids[piece.topic] for piece, skipped in zip(pieces, found, strict=True)
             if skipped and piece.topic in options.skips.ids}  # fmt: skip
    others = {topic for topic, now in topics.ids(list(meant)).items() if now and now != meant[topic]}
    stale = set() if recreated is None else recreated
    for topic in sorted(others - stale):
        log.warning("%s was created again since skipOffsets was written: none of its offsets are skipped", topic)
    stale |= others
    return [() if piece.topic in stale else skipped for piece, skipped in zip(pieces, found, strict=True)]


def report_loss(options: SourceOptions, what: str) -> None:
    """Raise if ``failOnDataLoss`` is set; otherwise warn."""
    if options.fail_on_data_loss:
        raise DataLossError(what, cure=DATA_LOSS_CURE)
    log.warning("%s; the query continues with what is left", what)


# --- queries to Kafka ---

T = TypeVar("T")


def connect(options: SourceOptions, *, columns: bool = False) -> ConsumerPort:
    """Return a consumer without a group. Raises BrokerError: no broker answers, or it rejects the client."""
    cluster = cluster_for(options.bootstrap, options.client)
    return cluster.consumer(group=None, client=options.client, columns=columns)


class Topics:
    """The topics that the options select. Connects at the first query."""

    def __init__(self, options: SourceOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        self._options = options
        self._sleep = sleep
        self._consumer: ConsumerPort | None = None

    def partitions(self, *, gone: bool = False) -> list[TopicPartition]:
        """Return the selected partitions that exist, sorted. Raises BrokerError, unless ``gone``: a named one is
        missing."""
        found = self._ask(self._partitions)
        if not gone and (missing := self._missing(found)):
            raise BrokerError(
                f"{missing} does not exist at {self._options.bootstrap} ({self._options.selection})",
                cure="create the topic first, or subscribePattern, which waits for topics to appear",
            )
        return found

    def _partitions(self, consumer: ConsumerPort) -> list[TopicPartition]:
        options = self._options
        if options.assigned is not None:
            names: Collection[str] = {partition.topic for partition in options.assigned}
        elif options.topics is not None:
            names = options.topics
        else:
            names = [name for name in consumer.topic_names() if re.fullmatch(options.pattern or "", name)]
        found = [TopicPartition(name, number) for name in names for number in consumer.partitions_for(name)]
        return sorted(partition for partition in found if options.selects(partition))

    def _missing(self, found: Collection[TopicPartition]) -> str:
        if self._options.assigned is not None:
            return ", ".join(place(tp) for tp in self._options.assigned if tp not in found)
        there = {partition.topic for partition in found}
        return ", ".join(name for name in self._options.topics or () if name not in there)

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return Kafka's ids of topics; empty where unknown."""
        return self._ask(lambda consumer: consumer.topic_ids(topics)) if topics else {}

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the current beginning of each log."""
        return dict(self._ask(lambda consumer: consumer.beginning_offsets(partitions))) if partitions else {}

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the current end of each log (read_committed: its first open transaction)."""
        return dict(self._ask(lambda consumer: consumer.end_offsets(partitions))) if partitions else {}

    def latest_after(self, start: Offsets, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the current end of each log; retry if one is below ``start``, as a new leader may lag for a moment."""
        ends = self.latest(partitions)
        for _ in range(self._options.offset_retries_max):
            if all(ends.get(tp, offset) >= offset for tp, offset in start.items()):
                break
            self._sleep(self._options.offset_retry_ms / 1000)
            ends = self.latest(partitions)
        return ends

    def resolve(self, position: SourcePosition, partitions: Collection[TopicPartition]) -> tuple[Offsets, bool]:
        """Return an offset for each partition, and whether the answer may change later.

        Raises:
            ConfigError: the option omits a partition, names one that is not read, or no record is late enough.
        """
        named = position.offsets if position.offsets is not None else position.timestamps_ms
        if named is not None:
            _check_same(position.option, named, partitions)
        if position.timestamp_ms is not None:
            return self._by_time(position, dict.fromkeys(partitions, position.timestamp_ms))
        if position.timestamps_ms is not None:
            return self._by_time(position, position.timestamps_ms)
        wanted = position.offsets or dict.fromkeys(partitions, position.everywhere or 0)
        latest = self.latest([tp for tp, offset in wanted.items() if offset == LATEST])
        earliest = self.earliest([tp for tp, offset in wanted.items() if offset == EARLIEST])
        return {**wanted, **latest, **earliest}, bool(latest)

    def _by_time(self, position: SourcePosition, moments: Mapping[TopicPartition, int]) -> tuple[Offsets, bool]:
        if not moments:
            return {}, False
        found = self._ask(lambda consumer: consumer.offsets_for_times(moments))
        without = [tp for tp, offset in found.items() if offset is None]
        if without and not position.latest_if_none:
            places = ", ".join(place(tp) for tp in sorted(without))
            raise ConfigError(
                f"{position.option}: no record at or after that moment in {places}",
                cure="startingOffsetsByTimestampStrategy=latest starts at the end there",
            )
        known = {tp: offset for tp, offset in found.items() if offset is not None}
        return {**known, **self.latest(without)}, bool(without)

    def _ask(self, question: Callable[[ConsumerPort], T]) -> T:
        """Query Kafka; retry transient errors on a new connection, ``fetchOffset.numRetries`` times."""
        for attempt in range(self._options.offset_retries_max + 1):
            try:
                if self._consumer is None:
                    self._consumer = connect(self._options)
                return question(self._consumer)
            # kafka-python raises KeyError for a partition that its metadata do not contain yet.
            except (errors.KafkaError, BrokerError, KeyError) as error:
                self.close()
                may_pass = isinstance(error, (BrokerError, KeyError)) or bool(getattr(error, "retriable", False))
                if attempt == self._options.offset_retries_max or not may_pass:
                    raise _readable(error, self._options) from error
                log.warning("asking Kafka again: %s", error)
                self._sleep(self._options.offset_retry_ms / 1000)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Release the connection; the next query opens another."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            consumer.close()


def _check_same(option: str, named: Collection[TopicPartition], partitions: Collection[TopicPartition]) -> None:
    missing, foreign = sorted(set(partitions) - set(named)), sorted(set(named) - set(partitions))
    if missing:
        raise ConfigError(
            f"{option} leaves out {', '.join(place(tp) for tp in missing)}",
            cure="name every partition; -2 is its beginning and -1 its end",
        )
    if foreign:
        raise ConfigError(
            f"{option} names {', '.join(place(tp) for tp in foreign)}, which is not read", cure="leave it out"
        )


def _readable(error: Exception, options: SourceOptions) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    return BrokerError(
        f"Kafka at {options.bootstrap} could not report where its logs begin and end: {type(error).__name__}: {error}",
        cure="check the broker's log and the permissions of this user",
    )
