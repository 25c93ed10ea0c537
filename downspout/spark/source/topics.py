"""What the driver asks Kafka: which partitions there are, and where their logs begin and end."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from kafka import errors

from downspout.errors import BrokerError, ConfigError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.spark.source.options import EARLIEST, LATEST, Position, SourceOptions
from downspout.spark.source.ranges import Offsets, place

T = TypeVar("T")

log = logging.getLogger("downspout.spark")


def connect(options: SourceOptions, *, columns: bool = False) -> ConsumerPort:
    """Return a consumer that belongs to no group. Raises BrokerError: no broker answers, or it does not speak to us."""
    cluster = cluster_for(options.bootstrap, options.client)
    return cluster.consumer(group=None, client=options.client, columns=columns)


class Topics:
    """The topics that the options select. Nothing connects before the first question."""

    def __init__(self, options: SourceOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        self._options = options
        self._sleep = sleep
        self._consumer: ConsumerPort | None = None

    def partitions(self, *, gone: bool = False) -> list[TopicPartition]:
        """Return what is selected and exists now, sorted; with ``gone`` what the options name may be missing."""
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
        """Return where each log begins now."""
        return dict(self._ask(lambda consumer: consumer.beginning_offsets(partitions))) if partitions else {}

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return where each log ends now (read_committed: at its first open transaction)."""
        return dict(self._ask(lambda consumer: consumer.end_offsets(partitions))) if partitions else {}

    def latest_after(self, start: Offsets, partitions: Collection[TopicPartition]) -> Offsets:
        """Return where each log ends now. Below ``start`` it asks again: a new leader may lag for a moment."""
        ends = self.latest(partitions)
        for _ in range(self._options.offset_retries_max):
            if all(ends.get(tp, offset) >= offset for tp, offset in start.items()):
                break
            self._sleep(self._options.offset_retry_ms / 1000)
            ends = self.latest(partitions)
        return ends

    def resolve(self, position: Position, partitions: Collection[TopicPartition]) -> tuple[Offsets, bool]:
        """Return an offset for each partition, and whether asking later could give another answer.

        Raises:
            ConfigError: the option leaves a partition out, names one that is not read, or a moment has no record.
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

    def _by_time(self, position: Position, moments: Mapping[TopicPartition, int]) -> tuple[Offsets, bool]:
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
        """Ask, and ask again on a fresh connection what may pass: ``fetchOffset.numRetries`` times."""
        for attempt in range(self._options.offset_retries_max + 1):
            try:
                if self._consumer is None:
                    self._consumer = connect(self._options)
                return question(self._consumer)
            # kafka-python answers with a KeyError for a partition that its metadata do not know yet.
            except (errors.KafkaError, BrokerError, KeyError) as error:
                self.close()
                may_pass = isinstance(error, (BrokerError, KeyError)) or bool(getattr(error, "retriable", False))
                if attempt == self._options.offset_retries_max or not may_pass:
                    raise _readable(error, self._options) from error
                log.warning("asking Kafka again: %s", error)
                self._sleep(self._options.offset_retry_ms / 1000)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Release the connection; the next question makes another."""
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
        cure="look at the broker's log and at the permissions of this user",
    )
