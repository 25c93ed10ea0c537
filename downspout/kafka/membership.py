"""Which partitions are ours, and where each starts: facts from the listener, acted on by the spout's own thread.

The race that shapes this file: kafka-python calls a listener in the middle of our ``poll``, on its own thread, where
asking the broker anything raises and waiting would deadlock. So the listener writes down what happened, and pauses
what is new, so that nothing of it is read before it is known where to start. When ``poll`` has returned, the spout
calls :meth:`Membership.settle`, which may ask the broker. If the broker does not answer, the partitions stay paused,
and the next call asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import errors

from downspout.kafka.bounds import Bounds
from downspout.kafka.data_loss import DataLoss
from downspout.kafka.emit import rows_maker, tuple_maker
from downspout.kafka.listener import Listener
from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.spout_state import Figures, Partition
from downspout.kafka.starts import NEVER_OURS, Beginning, Earlier, Identity, Starts, another
from downspout.kafka.translate import translator_of
from downspout.ledger.assignment import Assignment, Fact
from downspout.ledger.breaker import Breaker
from downspout.ledger.offsets import PartitionLedger
from downspout.ledger.retries import Backoff

__all__ = ["Identity", "Listener", "Membership"]

SAME_TOPICS_MS = 2_000
"""How often the topics' ids are asked for, to see whether one was created again."""

Committed = Mapping[TopicPartition, OffsetAndMetadata | None]


class Membership:
    """The partitions of one consumer.

    Args:
        consumer: subscribed with :attr:`listener`.
        settings: those of the scope ``kafka``.
        identity: who we are.
        figures: where lost offsets are counted.
        log: where warnings go.
        last_epoch: of an earlier membership of this process.
        bounds: where a bounded run ends.
    """

    def __init__(
        self,
        consumer: ConsumerPort,
        settings: Mapping[str, Any],
        identity: Identity,
        figures: Figures,
        log: logging.Logger,
        last_epoch: int = 0,
        bounds: Bounds | None = None,
    ) -> None:
        self.listener = Listener(consumer)
        self.parts: dict[TopicPartition, Partition] = {}
        """What is ours, started and verified: only these are read and committed."""
        self.by_key: dict[str, Partition] = {}
        """Where acks and fails go: those of :attr:`parts`, and those set aside."""
        self.on_compacted: Callable[[Partition, int], None] = lambda part, offset: None
        """Told of failed records that were gone before their retry."""
        self._consumer = consumer
        self._settings = settings
        self._log = log
        self._loss = DataLoss(settings["on_data_loss"], figures, log)
        self._assignment: Assignment[TopicPartition] = Assignment(last_epoch)
        self._bounds = bounds
        self._aside: dict[TopicPartition, Partition] = {}
        self._earlier: dict[TopicPartition, Earlier] = {}
        """Of partitions that are not ours any more, or not yet again."""
        self._topics_due = 0
        self._read: set[str] = set()
        """Topics of which a partition was ours."""
        self._gone_since: dict[str, int] = {}
        self._told_gone: set[str] = set()
        self.unanswered_at = -1
        """When the broker did not say which topics there are; asking again at once would take as long again."""
        self._unstarted: set[TopicPartition] = set()
        self._unverified: set[TopicPartition] = set()
        self._backoff = Backoff(
            settings["retry_initial_ms"], settings["retry_delay_ms"], settings["retry_delay_ms_max"]
        )
        self._starts = Starts(settings, identity, figures, log, self._loss, self._backoff, bounds)

    @property
    def last_epoch(self) -> int:
        """Return the latest epoch."""
        return self._assignment.last_epoch

    @property
    def settled(self) -> bool:
        """Whether an assignment has arrived, all of it has started, and nothing has happened since.

        In the middle of a rebalance, when all is revoked and nothing is assigned yet, it has not.
        A cooperative member that gets nothing, and had nothing, is told nothing: it knows from having joined.
        """
        if self._unstarted or self._unverified or self.listener.facts:
            return False
        if self._assignment.aside and self._consumer.rejoin_pending():
            return False
        joins = self._settings["mode"] == "subscribe"
        return self._assignment.settled or (joins and not self._consumer.rejoin_pending())

    def expect(self) -> None:
        """To be called before each poll."""
        self.listener.expect(self.parts.keys() | self._aside.keys())

    def fold(self) -> bool:
        """Take what the listener has written down; return whether anything changed hands. Asks nobody."""
        facts: list[Fact[TopicPartition]] = []
        while self.listener.facts:
            facts.append(self.listener.facts.popleft())
        if not facts:
            return False
        changes = self._assignment.fold(facts)
        # In one order each time, so that partitions have their turns in one order: a run can be repeated.
        for tp in sorted(changes.forgotten):
            self._forget(tp)
        for tp in (*sorted(self._assignment.aside), *sorted(changes.returned)):
            if tp in self.parts:
                self._aside[tp] = self.parts.pop(tp)
        for tp in sorted(changes.gained):
            # It may have been ours before, and lost and won again within one poll: that is a new epoch.
            self._forget(tp)
            self._unstarted.add(tp)
        self._unverified |= changes.returned & self._aside.keys()
        self._unstarted |= changes.returned - self._aside.keys()
        self._unstarted &= set(self._assignment.owned)
        self._unverified &= set(self._assignment.owned)
        return True

    def settle(self) -> set[TopicPartition]:
        """Start what is new and take back what has returned; return what was started.

        Raises:
            KafkaError: the broker did not answer; call again.
            DataLossError: records that were not processed are gone, and ``kafka.on_data_loss`` says ``fail``.
        """
        if not self._unstarted and not self._unverified:
            return set()
        wanted = self._unstarted | self._unverified
        committed = self._consumer.committed(wanted)
        topic_ids = self._topic_ids({tp.topic for tp in wanted})
        for tp in sorted(self._unverified):
            self._take_back(tp, committed.get(tp), topic_ids[tp.topic])
        started = set(self._unstarted)
        if started:
            self._start_all(committed, topic_ids)
        return started

    def suspect_topics(self) -> None:
        """Let the next :meth:`check_topics` look: a poll failed, and that is how a deleted topic may show."""
        self._topics_due = 0

    def check_topics(self, now: int) -> None:
        """Now and then: drop the partitions of a topic that was deleted and created again; ``settle`` starts them anew.

        To be called before what is known of a topic is committed or added to. One request, however many topics.

        Raises:
            KafkaError: the broker did not answer.
            BrokerError: a bounded run waits for a topic that is not there any more.
        """
        wanted = self._bounds.topics if self._bounds is not None else set()
        self._read.update(part.tp.topic for part in self.parts.values() if part.topic_id)
        known = self._read | wanted
        if now < self._topics_due or not known:
            return
        self.unanswered_at = now
        topic_ids = self._consumer.topic_ids(known)
        gone = [topic for topic in known if not topic_ids.get(topic) and not self._consumer.partitions_for(topic)]
        self.unanswered_at = -1
        self._topics_due = now + SAME_TOPICS_MS
        for tp, part in list(self.parts.items()):
            if another(part.topic_id, topic_ids.get(tp.topic, "")):
                self._begin_again(tp)
        if self._bounds is not None:
            self._bounds.miss([topic for topic in gone if topic in wanted], now)
        self._tell_gone(gone, now)

    def _tell_gone(self, gone: Collection[str], now: int) -> None:
        """Say once that a topic was deleted, and once that it is there again; one look alone proves nothing."""
        for topic in sorted(self._told_gone.difference(gone)):
            self._log.warning("%s is there again", topic)
        self._told_gone.intersection_update(gone)
        self._gone_since = {topic: self._gone_since.get(topic, now) for topic in gone}
        for topic, since in sorted(self._gone_since.items()):
            if now - since >= SAME_TOPICS_MS and topic not in self._told_gone:
                self._told_gone.add(topic)
                self._log.warning("%s was deleted: nothing of it is read until it is there again", topic)

    def check_log(self, now: int, cut: Mapping[TopicPartition, int | None]) -> None:
        """A position is outside the log: find the partitions, and go by ``kafka.on_data_loss``.

        Args:
            now: the time in ms.
            cut: partitions of which the broker says that they were truncated, and to where, if it knows.

        Raises:
            KafkaError: the broker did not answer.
            DataLossError: as in :meth:`settle`.
        """
        self.suspect_topics()
        self.check_topics(now)
        if not self.parts:
            return
        begins = self._consumer.beginning_offsets(self.parts.keys())
        ends = self._consumer.end_offsets(self.parts.keys())
        for tp, part in list(self.parts.items()):
            if tp in cut:
                at = cut[tp]
                self._restart_truncated(part, begins[tp], ends[tp] if at is None else min(at, ends[tp]))
            elif part.reading < begins[tp]:
                self._loss.skip(part.ledger, tp, begins[tp], ends[tp])
                part.drop_waiting_below(part.ledger.next)
                part.forget_done()
                part.sought = None
                part.seek(self._consumer, max(begins[tp], part.ledger.next))
            elif max(part.reading, part.ledger.next) > ends[tp]:
                self._restart_truncated(part, begins[tp], ends[tp])

    # --- inside ---

    def _forget(self, tp: TopicPartition) -> None:
        for holder in (self.parts, self._aside):
            if (part := holder.pop(tp, None)) is not None:
                self.by_key.pop(part.key, None)
                self._earlier[tp] = Earlier(part.topic_id, part.ledger.pending, part.commit)
        self._unstarted.discard(tp)
        self._unverified.discard(tp)

    def _begin_again(self, tp: TopicPartition) -> None:
        """What we know of a partition that is ours holds no more: start it anew, in a new epoch."""
        for holder in (self.parts, self._aside):
            if (part := holder.get(tp)) is not None:
                part.at = len(part.waiting)  # whoever still holds it finds nothing to emit
        self._forget(tp)
        self._assignment.renew(tp)
        self._consumer.pause([tp])
        self._unstarted.add(tp)

    def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the topics' ids, empty where the brokers give none; raise where a topic is not there at the moment."""
        found = dict(self._consumer.topic_ids(topics))
        for topic in topics:
            if not found.get(topic):
                if not self._consumer.partitions_for(topic):
                    raise errors.UnknownTopicOrPartitionError(topic)
                found[topic] = self._consumer.topic_id(topic)
        return found

    def _take_back(self, tp: TopicPartition, committed: OffsetAndMetadata | None, topic_id: str) -> None:
        """A partition has returned: it goes on, unless somebody has committed for it, or it is another, meanwhile."""
        part = self._aside[tp]
        self._unverified.discard(tp)
        told = None if committed is None else (committed.offset, committed.metadata)
        if told == part.commit and not another(part.topic_id, topic_id):
            self.parts[tp] = self._aside.pop(tp)
            part.drop_waiting(self._consumer)
            part.seek(self._consumer, part.reading)
            self._consumer.resume([tp])
            return
        self._begin_again(tp)

    def _start_all(self, committed: Committed, topic_ids: Mapping[str, str]) -> None:
        fresh = sorted(self._unstarted)
        logs = self._starts.ask(self._consumer, fresh)
        for tp in fresh:
            commit, topic_id = committed.get(tp), topic_ids[tp.topic]
            beginning = self._starts.decide(tp, commit, topic_id, logs, self._earlier.get(tp, NEVER_OURS))
            self._start(tp, topic_id, beginning, commit)

    def _start(
        self,
        tp: TopicPartition,
        topic_id: str,
        beginning: Beginning,
        commit: OffsetAndMetadata | None,
    ) -> None:
        settings = self._settings
        formats = (settings["fields"], settings["key_format"], settings["value_format"])
        make: Callable[[Any], Any]
        make_many = None
        if translator := translator_of(settings, tp.topic):
            make = translator.maker(topic_id, settings["emit_null"], settings["honour_replays"])
        else:
            make = tuple_maker(*formats, topic_id, settings["honour_replays"])
            make_many = rows_maker(*formats, topic_id, settings["honour_replays"])
        part = Partition(
            tp=tp,
            topic_id=topic_id,
            epoch=self._assignment.epoch(tp),
            ledger=beginning.ledger,
            make=make,
            make_many=make_many,
            make_chunk=self._chunk_maker(topic_id),
            stream=translator.stream if translator else None,
            breaker=Breaker(settings["breaker_ratio"], settings["breaker_window"]),
            retry_cache_bytes=settings["retry_cache_bytes"],
            reading=beginning.ledger.next,
            commit=None if commit is None else (commit.offset, commit.metadata),
            watch=beginning.watch,
            killed_by=beginning.killed_by,
            on_compacted=self.on_compacted,
        )
        self.parts[tp] = part
        self.by_key[part.key] = part
        self._unstarted.discard(tp)
        self._earlier.pop(tp, None)
        part.seek(self._consumer, part.reading)
        self._consumer.resume([tp])

    def _chunk_maker(self, topic_id: str) -> Any:
        """Return what makes chunks; None where each record is a tuple. (Arrow is loaded where it is needed.)"""
        settings = self._settings
        if settings["emit"] == "record":
            return None
        from downspout.kafka.emit_chunk import ChunkMaker

        formats = (settings["fields"], settings["key_format"], settings["value_format"])
        return ChunkMaker(*formats, topic_id, settings["honour_replays"])

    def _restart_truncated(self, part: Partition, begin: int, end: int) -> None:
        start = self._loss.restart(part.tp, max(part.reading, part.ledger.next), begin, end)
        tp, commit = part.tp, part.commit
        self._forget(tp)
        self._assignment.renew(tp)
        told = None if commit is None else OffsetAndMetadata(commit[0], commit[1], -1)
        self._start(tp, part.topic_id, Beginning(PartitionLedger(start, self._backoff)), told)
        if self._bounds is not None:
            self.parts[tp].stop = self._bounds.cut(tp, end)
