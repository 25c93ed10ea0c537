"""What the coordinator knows of Kafka: the partitions of its topics, and where a bounded run ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import errors

from downspout.batches.core.metadata import partition_id
from downspout.batches.setup import BatchSetup
from downspout.batches.starts import goes_on, ids_of
from downspout.batches.stores import BatchStore
from downspout.errors import coordinates
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.kafka.retry_gate import RetryGate
from downspout.spout.assignment import REFRESH_MS, partitions_to_read
from downspout.spout.ports import SpoutMetrics
from downspout.spout.settings import offsets_of
from downspout.spout.starts import another, missing_topics, no_topic


class KafkaSource:
    """Lists partitions. See :class:`downspout.batches.coordinating.BatchSource`.

    Args:
        setup: the settings.
        consumer: asks Kafka; reads nothing.
        store: the metadata of the batches.
        is_ready: the component's hook.
        log: for warnings.
    """

    def __init__(
        self,
        setup: BatchSetup,
        consumer: ConsumerPort,
        store: BatchStore,
        is_ready: Callable[[int], bool],
        log: logging.Logger,
    ) -> None:
        self._setup, self._consumer, self._store, self._log = setup, consumer, store, log
        self.is_ready = is_ready
        self._settings = setup.kafka.settings
        self._gate = RetryGate("listing partitions", self._settings["bootstrap"], SpoutMetrics(), log)
        self._known: list[list[Any]] | None = None
        self._look_at = 0
        self._ends: dict[TopicPartition, int] | None = None
        self._ids: dict[str, str] = {}  # of the topics in whose logs these ends are
        self._looked_for_end = 0
        self._missed: set[str] = set()

    def partitions(self, now: int) -> Sequence[Any] | None:
        """Return the partitions; if Kafka does not answer, those that it last named.

        Raises:
            BrokerError: Kafka refuses, or a bounded run lacks a topic.
        """
        if now >= self._look_at and not self._gate.waits(now):
            try:
                self._look(now)
                self._gate.succeeded(now)
            except errors.KafkaError as error:
                self._gate.record_error(error, now)
        return self._known

    def _look(self, now: int) -> None:
        missing = set(missing_topics(self._consumer, self._settings["topics"] or []))
        for topic in sorted(missing - self._missed):
            if self._setup.kafka.bounded and self._ends is None:
                raise no_topic(topic, self._settings["bootstrap"])
            self._log.warning("topic %s does not exist on %s; waits for it", topic, self._settings["bootstrap"])
        self._missed = missing
        found = sorted(partitions_to_read(self._consumer, self._settings))
        if self._setup.kafka.bounded:
            self._bound(found)
        if found:
            # A bounded run reads what was there at its start, so partitions that are added later are not in it.
            self._known = [[*tp] for tp in found if self._ends is None or tp in self._ends]
        self._look_at = now + REFRESH_MS

    def _bound(self, found: Sequence[TopicPartition]) -> None:
        """Let a bounded run end where the logs end now; later, where those of topics do that were created again."""
        ids = ids_of(self._consumer, found)
        if self._ends is None:
            self._ends, self._ids = self._ends_of(found), ids
            return
        if new := {topic for topic, now in ids.items() if another(self._ids.get(topic, ""), now)}:
            ends = self._ends_of([tp for tp in found if tp.topic in new])
            self._ends = {tp: end for tp, end in self._ends.items() if tp.topic not in new} | ends
            self._ids |= {topic: ids[topic] for topic in new}

    def _ends_of(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        ends = dict(self._consumer.end_offsets(partitions)) if partitions else {}
        for tp, stop in offsets_of("kafka.stop_offsets", self._settings["stop_offsets"]).items():
            if tp in ends:
                if stop > ends[tp]:
                    self._log.warning("%s ends at %d, before kafka.stop_offsets: so does the run",
                                      coordinates(*tp), ends[tp])  # fmt: skip
                ends[tp] = min(stop, ends[tp])
        return ends

    @property
    def ends(self) -> Mapping[TopicPartition, int] | None:
        """Where a bounded run ends; None: it is not bounded, or that is not known yet."""
        return self._ends

    def end_reached(self, current: int) -> bool:
        """Return whether a bounded run has all up to its end in transactions before ``current``. One read per commit.

        Raises:
            BatchStoreError: the store does not answer.
        """
        if self._ends is None or self._looked_for_end == current:
            return False
        ranges = self._store.load_ranges([partition_id(*tp) for tp in self._ends])
        self._looked_for_end = current
        for tp, end in self._ends.items():
            done = {txid: found for txid, found in ranges.get(partition_id(*tp), {}).items() if txid < current}
            last = done[max(done)] if done else None
            if last is not None and not goes_on(self._settings["start"], last, self._setup.topology_id):
                last = None  # another topology has read so far; this one begins anew
            if last is not None and another(last.topic_id, self._ids.get(tp.topic, "")):
                # Of the two, one is the topic that was created again. It ends elsewhere, if it is not the one we know.
                self._look_at = 0
                return False
            if end > 0 and (last is None or last.next < end):
                return False
        return True

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close()
