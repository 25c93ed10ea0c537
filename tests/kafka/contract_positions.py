"""The contract of the consumer port: positions, and partitions that have no leader."""

from __future__ import annotations

from typing import Protocol

import pytest
from kafka import errors

from downspout.kafka import NO_LEADER, ConsumerPort, TopicPartition
from tests.kafka.stage import POLL_MS, Stage, Staged, fill, poll_until, read, unique


class PositionContract(Staged):
    """What ``position`` says, and what a seek does to it."""

    def test_what_was_sought_is_the_position(self) -> None:
        """At once, before any poll and wherever it is, also outside the log; of two seeks the later one counts."""
        tp = self.topic(10)
        consumer = self.consumer(None)
        consumer.assign([tp])
        for offset in (4, 25, 0, 10):
            consumer.seek(tp, offset)
            assert consumer.position(tp) == offset
        consumer.seek(tp, 7)
        assert [record.offset for record in read(consumer, 3)] == [7, 8, 9]

    @pytest.mark.parametrize("deleted", [0, 4])
    def test_without_a_seek_it_is_the_beginning_of_the_log(self, deleted: int) -> None:
        """The first offset that is still there, and no poll is needed to know it."""
        tp = self.topic(10)
        if deleted:
            self.stage.delete_records(tp, deleted)
        consumer = self.consumer(None)
        consumer.assign([tp])
        assert consumer.position(tp) == deleted
        assert read(consumer, 1, limit=1)[0].offset == deleted

    def test_it_stands_behind_what_was_returned_not_behind_what_was_fetched(self) -> None:
        """A small poll leaves the rest for the next one; a poll that brings nothing leaves it where it is."""
        tp = self.topic(10)
        consumer = self.reader(tp)
        for expected in (3, 6, 9, 10):
            read(consumer, 1, limit=3)
            assert consumer.position(tp) == expected
        assert not consumer.poll(POLL_MS, 3)
        assert consumer.position(tp) == 10
        fill(self.stage, tp.topic, 1)
        assert [record.offset for record in read(consumer, 1)] == [10]

    def test_it_passes_offsets_that_hold_no_records(self) -> None:
        """Polls that return nothing bring it to the end of a log whose last records were aborted."""
        tp = self.topic(2)
        self.stage.transaction(tp, [b"no", b"no"]).abort()
        consumer = self.reader(tp, at=2)
        end = consumer.end_offsets([tp])[tp]
        assert end == 5
        assert poll_until(consumer, lambda _: consumer.position(tp) == end) == []

    def test_paused_it_stays_where_it_was_sought(self) -> None:
        """Polls move those that are not paused alone."""
        tp = self.topic(5, partitions=2)
        other = fill(self.stage, tp.topic, 5, partition=1)
        consumer = self.consumer(None)
        consumer.assign([tp, other])
        consumer.seek(tp, 2)
        consumer.seek(other, 0)
        consumer.pause([tp])
        poll_until(consumer, lambda _: consumer.position(other) == 5)
        assert consumer.position(tp) == 2
        consumer.seek(tp, 4)
        assert consumer.position(tp) == 4
        consumer.resume([tp])
        assert [record.offset for record in read(consumer, 1)] == [4]

    def test_what_is_not_assigned_has_none(self) -> None:
        """Neither asking nor seeking is allowed, and what is assigned again has forgotten where it stood."""
        tp = self.topic(5, partitions=2)
        other = fill(self.stage, tp.topic, 5, partition=1)
        consumer = self.reader(tp, at=3)
        with pytest.raises(errors.IllegalStateError):
            consumer.position(other)
        with pytest.raises(ValueError, match="Unassigned partition"):
            consumer.seek(other, 1)
        with pytest.raises(ValueError, match="Offset must be"):
            consumer.seek(tp, -1)
        assert consumer.position(tp) == 3
        consumer.assign([other])
        consumer.assign([tp, other])
        assert (consumer.position(tp), consumer.position(other)) == (0, 0)

    def test_in_a_topic_that_was_created_again_it_is_where_it_was_sought(self) -> None:
        """A seek drops what was fetched of the old topic, and reads the new one, once its id is known."""
        tp = self.topic(10)
        consumer = self.reader(tp)
        before = consumer.topic_ids([tp.topic])[tp.topic]
        read(consumer, 1, limit=3)
        self.stage.delete(tp.topic)
        assert consumer.topic_ids([tp.topic]) == {tp.topic: ""}
        self.stage.create(tp.topic, 1)
        self.stage.transaction(tp, [b"new"] * 15).commit()
        now = consumer.topic_ids([tp.topic])[tp.topic]
        assert now not in (before, "")
        assert consumer.end_offsets([tp]) == {tp: 16}
        consumer.seek(tp, 0)
        assert consumer.position(tp) == 0
        found = poll_until(consumer, lambda _: consumer.position(tp) == 16)
        assert [(record.offset, record.value) for record in found] == [(offset, b"new") for offset in range(15)]


class LeaderStage(Stage, Protocol):
    """A cluster whose partitions can be without a leader."""

    def create_apart(self, topic: str) -> None:
        """Create a topic of two partitions, of which the second can lose its leader alone."""

    def lose_leader(self, partition: TopicPartition) -> None:
        pass

    def find_leader(self, partition: TopicPartition) -> None:
        pass


class LeaderlessContract(Staged):
    """What a consumer says of partitions without a leader, and of those beside them."""

    stage: LeaderStage

    def _two(self) -> tuple[TopicPartition, TopicPartition, ConsumerPort]:
        """Return a partition with a leader and one that is about to lose it, and who is to read both."""
        topic = unique()
        self.stage.create_apart(topic)
        led, lost = fill(self.stage, topic, 5), fill(self.stage, topic, 5, partition=1)
        consumer = self.consumer(None)
        consumer.assign([led, lost])
        return led, lost, consumer

    def test_only_partitions_with_a_leader_are_read(self) -> None:
        """The others keep their position, a seek moves it, and reading goes on there when the leader is back."""
        led, lost, consumer = self._two()
        consumer.seek(led, 0)
        consumer.seek(lost, 1)
        self.stage.lose_leader(lost)
        found = poll_until(consumer, lambda _: consumer.position(led) == 5)
        assert {record.partition for record in found} == {0}
        assert consumer.position(lost) == 1
        consumer.seek(lost, 2)
        for _ in range(3):
            assert not consumer.poll(POLL_MS, 10)
        assert consumer.position(lost) == 2
        self.stage.find_leader(lost)
        assert [(record.partition, record.offset) for record in read(consumer, 3)] == [(1, 2), (1, 3), (1, 4)]

    def test_where_their_logs_begin_and_end_is_not_known(self) -> None:
        """Asked about one, alone or beside others, a consumer raises an error that passes; the others are known."""
        led, lost, consumer = self._two()
        self.stage.lose_leader(lost)
        for ask in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(errors.KafkaTimeoutError) as error:
                ask([led, lost])
            assert error.value.retriable
        with pytest.raises(errors.KafkaTimeoutError):
            consumer.offsets_for_times({lost: 0})
        assert (consumer.beginning_offsets([led]), consumer.end_offsets([led])) == ({led: 0}, {led: 5})
        state = self.stage.cluster.describe_logs([led.topic])[led.topic]
        assert (state.partitions[0].begin, state.partitions[0].stable) == (0, 5)
        assert (state.partitions[1].begin, state.partitions[1].problem) == (None, NO_LEADER)
        assert state.id == consumer.topic_ids([led.topic])[led.topic]
        self.stage.find_leader(lost)
        assert consumer.end_offsets([led, lost]) == {led: 5, lost: 5}

    def test_without_a_seek_they_have_no_position(self) -> None:
        """Nobody knows where the log begins: asking raises an error that passes. A seek is enough."""
        _, lost, consumer = self._two()
        self.stage.lose_leader(lost)
        with pytest.raises(errors.KafkaTimeoutError) as error:
            consumer.position(lost)
        assert error.value.retriable
        consumer.seek(lost, 3)
        assert consumer.position(lost) == 3
        self.stage.find_leader(lost)
