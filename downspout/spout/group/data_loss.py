"""What to do when records are gone from Kafka: ``kafka.on_data_loss``.

Two things happen. The log may *begin* later than where we read: retention or DeleteRecords was faster. Or it may *end*
earlier: it was truncated by an unclean leader election. Or the topic was deleted and created again: what is known of
offsets says nothing about the new one.
"""

from __future__ import annotations

import logging

from downspout.errors import DataLossError, coordinates
from downspout.kafka.port import TopicPartition
from downspout.ledger.offsets import PartitionLedger
from downspout.spout.spout_metrics import SpoutMetrics


class DataLoss:
    """The policy: ``fail`` stops the run, ``earliest`` goes on with what is left, ``latest`` at the end."""

    def __init__(self, policy: str, start: str, metrics: SpoutMetrics, log: logging.Logger) -> None:
        at_start = "latest" if start.endswith("LATEST") else "earliest"
        self._policy = at_start if policy == "start" else policy  # what ``kafka.start`` says
        self._metrics = metrics
        self._log = log

    def skip(self, ledger: PartitionLedger, tp: TopicPartition, begin: int, end: int) -> None:
        """The log begins at ``begin`` now: let the ledger go on from there, or from its end."""
        place = coordinates(tp.topic, tp.partition, ledger.base)
        lost = ledger.lost_below(begin)
        if lost and self._policy == "fail":  # before the ledger changes: the end of the run may still commit by it
            raise DataLossError(
                f"{place}: {lost} offsets below {begin} were not processed and are gone from Kafka",
                cure="kafka.on_data_loss=earliest goes on with what is left; retention may be too short",
            )
        ledger.skip_to(begin)
        if not lost:
            return
        if self._policy == "latest":
            lost += ledger.skip_to(end)
        self._metrics.lost += lost
        self._log.warning("%s: %d offsets are lost; goes on at %d", place, lost, ledger.next)

    def restart(self, tp: TopicPartition, reading: int, begin: int, end: int) -> int:
        """The log ends at ``end``, below where we read: return where to start again."""
        place = coordinates(tp.topic, tp.partition, reading)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the log ends at {end}: it was truncated, or the topic was created again",
                cure="kafka.on_data_loss=earliest reads it from its beginning",
            )
        self._metrics.lost += max(0, reading - end)
        start = begin if self._policy == "earliest" else end
        self._log.warning("%s: the log ends at %d; goes on at %d", place, end, start)
        return start

    def named(self, tp: TopicPartition, offset: int, begin: int, end: int) -> int:
        """``kafka.start_offsets`` names this offset: return where to start."""
        if begin <= offset <= end:
            return offset
        place = coordinates(tp.topic, tp.partition, offset)
        what = f"kafka.start_offsets names it, but the log holds {begin} to {end}"
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: {what}",
                cure=f"an offset from {begin} to {end}, or kafka.on_data_loss=earliest or latest: its beginning or end",
            )
        start = begin if self._policy == "earliest" else end
        self._metrics.lost += start - offset if offset < begin else 0
        self._log.warning("%s: %s; starts at %d", place, what, start)
        return start

    def recreated(self, tp: TopicPartition, unprocessed: int) -> None:
        """The topic is another one of the same name: nothing of it was processed, so it is read from its beginning.

        Args:
            unprocessed: how many records of the old topic were read and not processed, as far as we know.
        """
        place = coordinates(tp.topic, tp.partition)
        if self._policy == "fail":
            raise DataLossError(
                f"{place}: the topic was deleted and created again; what was not processed of the old one is gone",
                cure="kafka.on_data_loss=earliest reads the new one from its beginning",
            )
        self._metrics.lost += unprocessed
        self._log.warning("%s: the topic was deleted and created again; starts at its beginning", place)
