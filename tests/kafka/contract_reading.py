"""The contract of the consumer port: reading, topics and the producer."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors

from downspout.errors import BrokerError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from tests.kafka.stage import POLL_MS, POLLS_MAX, Staged, fill, poll_until, read, unique


class ReadingContract(Staged):
    """Positions, records and the edges of the log."""

    def test_records_come_in_offset_order_and_move_the_position(self) -> None:
        tp = self.topic(10)
        consumer = self.reader(tp)
        first = read(consumer, 1, limit=4)
        assert [record.offset for record in first] == [0, 1, 2, 3]
        assert consumer.position(tp) == 4
        rest = read(consumer, 6, limit=4)
        assert [record.offset for record in rest] == [4, 5, 6, 7, 8, 9]
        assert [record.value for record in rest] == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert consumer.position(tp) == 10

    def test_a_poll_keeps_the_limit_over_all_partitions(self) -> None:
        """One poll returns at most the records that were asked for, whatever number of partitions has some."""
        tp = self.topic(5, partitions=2)
        fill(self.stage, tp.topic, 5, partition=1)
        consumer = self.consumer(None)
        both = [tp, TopicPartition(tp.topic, 1)]
        consumer.assign(both)
        for each in both:
            consumer.seek(each, 0)
        seen = 0
        for _ in range(POLLS_MAX):
            batch = sum(len(records) for records in consumer.poll(POLL_MS, 3).values())
            assert batch <= 3
            seen += batch
            if seen == 10:
                break
        assert seen == 10

    def test_seek_back_and_forward(self) -> None:
        """After a seek the next record is the one sought, though others were fetched already."""
        tp = self.topic(10)
        consumer = self.reader(tp)
        read(consumer, 1, limit=5)
        consumer.seek(tp, 2)
        assert consumer.position(tp) == 2
        assert read(consumer, 1, limit=1)[0].offset == 2
        consumer.seek(tp, 8)
        assert [record.offset for record in read(consumer, 2)] == [8, 9]

    def test_pause_keeps_the_position_and_skips_nothing(self) -> None:
        """A paused partition returns nothing, and reading goes on where it stopped after it is resumed."""
        tp = self.topic(6, partitions=2)
        other = fill(self.stage, tp.topic, 6, partition=1)
        consumer = self.consumer(None)
        consumer.assign([tp, other])
        consumer.seek(tp, 0)
        consumer.seek(other, 0)
        found = read(consumer, 2, limit=2)
        consumer.pause([tp])
        assert consumer.paused() == {tp}
        at = consumer.position(tp)
        while_paused = poll_until(consumer, lambda _: consumer.position(other) == 6, limit=2)
        assert {record.partition for record in while_paused} <= {1}
        assert consumer.position(tp) == at
        consumer.resume([tp])
        assert consumer.paused() == frozenset()
        found += while_paused + poll_until(consumer, lambda _: consumer.position(tp) == 6, limit=2)
        for partition in (0, 1):
            assert [r.offset for r in found if r.partition == partition] == [0, 1, 2, 3, 4, 5]

    def test_a_resumed_partition_gets_its_turn(self) -> None:
        """A partition that was paused is read again soon after it is resumed, though another has plenty to read."""
        tp = self.topic(1000, partitions=2)
        both = {tp, fill(self.stage, tp.topic, 1000, partition=1)}
        consumer = self.consumer(None)
        consumer.assign(both)
        for each in both:
            consumer.seek(each, 0)
        first = TopicPartition(tp.topic, read(consumer, 1, limit=10)[0].partition)
        consumer.pause([first])
        (other,) = both - {first}
        poll_until(consumer, lambda _: consumer.position(other) > 20, limit=10)
        consumer.resume([first])
        at = consumer.position(other)
        poll_until(consumer, lambda found: any(record.partition == first.partition for record in found), limit=10)
        assert consumer.position(other) - at < 500

    def test_seek_while_paused_holds_after_resume(self) -> None:
        tp = self.topic(6)
        consumer = self.reader(tp)
        read(consumer, 1, limit=2)
        consumer.pause([tp])
        consumer.poll(POLL_MS, 10)
        consumer.seek(tp, 1)
        consumer.resume([tp])
        assert [record.offset for record in read(consumer, 5)] == [1, 2, 3, 4, 5]

    def test_bounds_of_the_log_after_deletion(self) -> None:
        """Deleted records move the beginning and leave the end."""
        tp = self.topic(10)
        self.stage.delete_records(tp, 4)
        consumer = self.reader(tp, at=4)
        assert consumer.beginning_offsets([tp]) == {tp: 4}
        assert consumer.end_offsets([tp]) == {tp: 10}
        assert read(consumer, 6)[0].offset == 4

    @pytest.mark.parametrize(("deleted", "position"), [(4, 2), (0, 25)], ids=["below the start", "beyond the end"])
    def test_a_position_outside_the_log_is_an_error(self, deleted: int, position: int) -> None:
        """Reading from outside the log raises, with the place; it never jumps somewhere silently."""
        tp = self.topic(10)
        if deleted:
            self.stage.delete_records(tp, deleted)
        consumer = self.reader(tp, at=position)
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            read(consumer, 1)
        assert caught.value.args[0] == {tp: position}
        consumer.seek(tp, 5)
        assert read(consumer, 1)[0].offset == 5

    def test_offsets_for_times(self) -> None:
        """A time is answered by the first offset at or after it, and by None beyond the last."""
        tp = self.topic(5)
        consumer = self.reader(tp)
        assert consumer.offsets_for_times({tp: 0}) == {tp: 0}
        assert consumer.offsets_for_times({tp: 1003}) == {tp: 3}
        assert consumer.offsets_for_times({tp: 9999}) == {tp: None}

    def test_the_first_records_of_logs_have_their_times(self) -> None:
        """After a deletion it is the first that is left; a log without a record has none."""
        tp, empty = self.topic(5), self.topic(0)
        consumer = self.reader(tp)
        assert consumer.first_records([tp, empty]) == {tp: (0, 1000)}
        self.stage.delete_records(tp, 2)
        assert consumer.first_records([tp]) == {tp: (2, 1002)}

    def test_fetches_tell_by_partition_where_logs_begin_and_what_came(self) -> None:
        """An answer counts for the consumer and for each partition that it has news of."""
        tp = self.topic(5)
        self.stage.delete_records(tp, 2)
        consumer = self.reader(tp, at=2)
        assert not consumer.fetches.by_partition
        read(consumer, 3)
        found = consumer.fetches.by_partition[tp]
        assert (found.records, found.begin) == (3, 2)
        assert 1 <= found.calls <= consumer.fetches.calls

    def test_highwater_is_known_after_a_fetch(self) -> None:
        """The highwater is None before the first fetch and the end of the log after it."""
        tp = self.topic(5)
        consumer = self.reader(tp)
        assert consumer.highwater(tp) is None
        read(consumer, 1, limit=1)
        assert consumer.highwater(tp) == 5

    def test_nulls_headers_and_timestamps_arrive_untouched(self) -> None:
        tp = self.topic()
        producer = self.stage.cluster.producer()
        headers = [("a", b"1"), ("a", b""), ("é", b"\xff")]
        producer.send(tp.topic, key=None, value=None, partition=0, timestamp_ms=7)
        producer.send(tp.topic, key=b"\xff", value=b"", headers=headers, partition=0, timestamp_ms=8)
        producer.flush()
        producer.close()
        null, full = read(self.reader(tp), 2)
        assert (null.key, null.value, list(null.headers), null.timestamp) == (None, None, [], 7)
        assert (full.key, full.value, list(full.headers), full.timestamp) == (b"\xff", b"", headers, 8)

    def test_aborted_records_are_never_seen_and_leave_gaps(self) -> None:
        """Committed transactions are read, aborted ones are not, and their offsets and markers are passed."""
        tp = self.topic(2)
        self.stage.transaction(tp, [b"no", b"no"]).abort()
        self.stage.transaction(tp, [b"yes"]).commit()
        consumer = self.reader(tp)
        consumer.note_aborted()
        end = consumer.end_offsets([tp])[tp]
        assert end == 7
        found = poll_until(consumer, lambda _: consumer.position(tp) == end)
        assert [record.offset for record in found] == [0, 1, 5]
        assert found[-1].value == b"yes"
        told = consumer.take_aborted()
        assert {partition for partition, _, _ in told} == {tp}
        assert sorted(first + n for _, first, count in told for n in range(count)) == [2, 3]
        assert not consumer.take_aborted()
        without = self.reader(tp)
        poll_until(without, lambda _: without.position(tp) == end)
        assert not without.take_aborted()

    def test_an_open_transaction_hides_what_follows(self) -> None:
        """The end is the last stable offset while a transaction is open, and nothing beyond it is returned."""
        tp = self.topic(2)
        opened = self.stage.transaction(tp, [b"later"])
        fill(self.stage, tp.topic, 1)
        consumer = self.reader(tp)
        assert consumer.end_offsets([tp]) == {tp: 2}
        assert [record.offset for record in read(consumer, 2)] == [0, 1]
        assert not consumer.poll(POLL_MS, 10)
        opened.commit()
        assert [record.offset for record in read(consumer, 2)] == [2, 3]

    def test_a_reader_without_a_group_starts_at_the_beginning(self) -> None:
        """A partition that nobody has committed and nobody has sought is read from its beginning."""
        tp = self.topic(4)
        self.stage.delete_records(tp, 2)
        assert [record.offset for record in read(self.reader(tp, at=None), 2)] == [2, 3]

    def test_one_consumer_may_assign_again(self) -> None:
        """A second assign replaces the first, and a partition in both keeps its position."""
        tp = self.topic(4, partitions=2)
        other = fill(self.stage, tp.topic, 4, partition=1)
        consumer = self.reader(tp)
        read(consumer, 2, limit=2)
        consumer.assign([tp, other])
        consumer.seek(other, 3)
        assert consumer.assignment() == {tp, other}
        assert sorted((r.partition, r.offset) for r in read(consumer, 3)) == [(0, 2), (0, 3), (1, 3)]


class TopicContract(Staged):
    def test_deleted_records_are_below_the_start(self) -> None:
        """Deleting records moves the start of that partition alone, and an offset beyond the end is refused."""
        tp = self.topic(5, partitions=2)
        other = fill(self.stage, tp.topic, 3, partition=1)
        self.stage.cluster.delete_records(tp.topic, 0, 3)
        starts = self.consumer(None).beginning_offsets([tp, other])
        assert (starts[tp], starts[other]) == (3, 0)
        with pytest.raises((BrokerError, errors.KafkaError)):
            self.stage.cluster.delete_records(tp.topic, 0, 9)

    def test_ensure_topic_creates_once(self) -> None:
        """A topic is created where it is missing and left alone where it exists."""
        topic = unique()
        assert self.stage.cluster.ensure_topic(topic, partitions=3)
        assert not self.stage.cluster.ensure_topic(topic, partitions=5)
        assert self.consumer(None).partitions_for(topic) == {0, 1, 2}

    def test_a_missing_topic_has_no_partitions_and_no_id(self) -> None:
        """Asking for a topic that does not exist answers with nothing, and does not create it."""
        topic, consumer = unique(), self.consumer(None)
        assert consumer.partitions_for(topic) == frozenset()
        assert consumer.topic_id(topic) == ""
        assert self.stage.cluster.ensure_topic(topic)

    def test_topic_names_are_those_that_exist(self) -> None:
        """All topics are named, and one that is created later is named then; Kafka's own are not."""
        tp, consumer, later = self.topic(), self.consumer(unique("g")), unique()
        assert tp.topic in consumer.topic_names()
        assert later not in consumer.topic_names()
        self.stage.create(later, 1)
        assert {tp.topic, later} <= consumer.topic_names()
        assert "__consumer_offsets" not in consumer.topic_names()

    def test_the_ends_of_logs_are_known_of_old_and_new_topics_alike(self) -> None:
        """Asked about a partition it knows and one that has just been created, a consumer tells of both."""
        tp, consumer = self.topic(5), self.consumer(None)
        assert consumer.end_offsets([tp]) == {tp: 5}
        fresh = self.topic(3, partitions=2)
        second = fill(self.stage, fresh.topic, 2, partition=1)
        assert consumer.end_offsets([tp, second]) == {tp: 5, second: 2}
        newer = self.topic(3)
        assert consumer.beginning_offsets([tp, newer]) == {tp: 0, newer: 0}
        newest = self.topic(4)
        assert consumer.offsets_for_times({tp: 1001, newest: 1002}) == {tp: 1, newest: 2}
        self.stage.add_partitions(newest.topic, 2)
        added = TopicPartition(newest.topic, 1)
        assert consumer.end_offsets([newest, added]) == {newest: 4, added: 0}

    def test_a_partition_that_does_not_exist_has_no_end(self) -> None:
        """Asked for its end beside one that exists, a consumer raises an error that may pass."""
        tp = self.topic(2)
        with pytest.raises(errors.KafkaTimeoutError):
            self.consumer(None).end_offsets([tp, TopicPartition(tp.topic, 1)])

    def test_assigning_again_keeps_the_place_of_what_stays(self) -> None:
        """A partition that is in both assignments keeps its position and its pause; none at all may be assigned."""
        tp = self.topic(5, partitions=2)
        other, consumer = TopicPartition(tp.topic, 1), self.consumer(unique("g"))
        consumer.assign([])
        assert not consumer.poll(0, 10)
        consumer.assign([tp])
        consumer.seek(tp, 3)
        consumer.pause([tp])
        consumer.assign([tp, other])
        assert (consumer.position(tp), consumer.paused()) == (3, {tp})
        consumer.resume([tp])
        assert [record.offset for record in read(consumer, 2)] == [3, 4]
        consumer.assign([])
        assert not consumer.poll(0, 10)
        assert consumer.assignment() == frozenset()

    def test_a_topic_id_is_stable_and_new_after_re_creation(self) -> None:
        """All consumers see one id of 22 characters, and a topic that is created again has another."""
        tp = self.topic()
        first = self.consumer(None).topic_id(tp.topic)
        assert len(first) == 22
        assert self.consumer(None).topic_id(tp.topic) == first
        self.stage.delete(tp.topic)
        self.stage.create(tp.topic, 1)
        second = self.consumer(None).topic_id(tp.topic)
        assert len(second) == 22
        assert second != first

    def test_a_re_created_topic_has_no_commits(self) -> None:
        tp, group = self.topic(3), unique("g")
        self.reader(tp, group=group).commit({tp: OffsetAndMetadata(2, "", -1)})
        self.stage.delete(tp.topic)
        self.stage.create(tp.topic, 1)
        assert self.reader(tp, group=group).committed([tp]) == {tp: None}

    def test_keys_choose_the_partition(self) -> None:
        """Records of one key go to one partition, the same one on every cluster."""
        tp = self.topic(partitions=4)
        producer = self.stage.cluster.producer()
        for key in (b"a", b"b", b"c", b"a"):
            producer.send(tp.topic, key=key, value=key)
        producer.flush()
        producer.close()
        consumer = self.consumer(None)
        consumer.assign([TopicPartition(tp.topic, number) for number in range(4)])
        found = read(consumer, 4)
        assert {record.key: record.partition for record in found} == {b"a": 0, b"b": 0, b"c": 2}

    def test_a_record_over_the_limit_is_refused(self) -> None:
        """A record that is larger than the topic takes raises in send or flush, and nothing is written."""
        topic = unique()
        self.stage.cluster.ensure_topic(topic, 1, {"max.message.bytes": "5000"})
        producer = self.stage.cluster.producer()
        with pytest.raises((errors.MessageSizeTooLargeError, BrokerError)):
            self._send_large(topic, producer)
        producer.close()
        tp = TopicPartition(topic, 0)
        assert self.reader(tp).end_offsets([tp]) == {tp: 0}

    @staticmethod
    def _send_large(topic: str, producer: Any) -> None:
        producer.send(topic, key=None, value=b"x" * 6000)
        producer.flush()
