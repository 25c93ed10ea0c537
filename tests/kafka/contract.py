"""What stands behind the consumer port must do: the same tests for the fake and for a real broker.

A test module gives a fixture ``stage`` that returns a :class:`Stage`; the classes here are inherited there. A test
never waits by itself: it polls, and on the fake a poll takes virtual time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import pytest
from kafka import errors

from downspout.component import Failure
from downspout.errors import BrokerError
from downspout.kafka.deadletter import DeadLetters, read_dead_letters
from downspout.kafka.port import Cluster, ConsumerPort, OffsetAndMetadata, Record, TopicPartition

CLIENT = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200, "metadata_max_age_ms": 300}
POLLS_MAX = 300
POLL_MS = 100


class Stage(Protocol):
    """A cluster, and what a test does to it behind the port's back."""

    cluster: Cluster

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic and wait until it is there."""

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have more partitions."""

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Move the start of a log."""

    def transaction(self, partition: TopicPartition, values: Sequence[bytes]) -> Any:
        """Begin a transaction, write these, and return what has ``commit()`` and ``abort()``."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""


class Facts:
    """A rebalance listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[int]]] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Write it down."""
        self.told.append(("assigned", frozenset(tp.partition for tp in partitions)))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Write it down."""
        self.told.append(("revoked", frozenset(tp.partition for tp in partitions)))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Write it down."""
        self.told.append(("lost", frozenset(tp.partition for tp in partitions)))

    def real(self) -> list[tuple[str, set[int]]]:
        """What was told, without empty sets: an eager join may send those at any time."""
        return [(kind, set(numbers)) for kind, numbers in self.told if numbers]


def _name(prefix: str = "t") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def _fill(stage: Stage, topic: str, count: int, partition: int = 0) -> TopicPartition:
    producer = stage.cluster.producer()
    for number in range(count):
        producer.send(topic, key=None, value=b"%d" % number, partition=partition, timestamp_ms=1000 + number)
    producer.flush()
    producer.close()
    return TopicPartition(topic, partition)


def _poll_until(
    consumers: ConsumerPort | Sequence[ConsumerPort], done: Callable[[list[Record]], bool], limit: int = 1000
) -> list[Record]:
    """Poll in turns until ``done`` says so of all records so far, and return these."""
    everyone = [consumers] if not isinstance(consumers, list | tuple) else list(consumers)
    found: list[Record] = []
    for _ in range(POLLS_MAX):
        if done(found):
            return found
        for consumer in everyone:
            for records in consumer.poll(POLL_MS, limit).values():
                found.extend(records)
    raise AssertionError(f"not done after {POLLS_MAX} polls: {found}")


def _read(consumer: ConsumerPort, count: int, limit: int = 1000) -> list[Record]:
    return _poll_until(consumer, lambda found: len(found) >= count, limit)


def _read_to_end(consumer: ConsumerPort, partition: TopicPartition) -> list[int]:
    end = consumer.end_offsets([partition])[partition]
    found = _poll_until(consumer, lambda _: consumer.position(partition) >= end)
    return [record.offset for record in found]


class _Staged:
    """Makes consumers and closes them at the end, whatever happens."""

    @pytest.fixture(autouse=True)
    def _consumers(self, stage: Stage) -> Any:
        self.stage = stage
        self._open: list[ConsumerPort] = []
        yield
        for consumer in self._open:
            consumer.close()

    def consumer(self, group: str | None, instance: str | None = None, **client: Any) -> ConsumerPort:
        made = self.stage.cluster.consumer(group=group, instance_id=instance, client=CLIENT | client)
        self._open.append(made)
        return made

    def member(self, topic: str, group: str, instance: str | None = None, **client: Any) -> tuple[ConsumerPort, Facts]:
        consumer, facts = self.consumer(group, instance, **client), Facts()
        consumer.subscribe([topic], facts)
        return consumer, facts

    def reader(self, partition: TopicPartition, at: int | None = 0, group: str | None = None) -> ConsumerPort:
        consumer = self.consumer(group)
        consumer.assign([partition])
        if at is not None:
            consumer.seek(partition, at)
        return consumer

    def topic(self, records: int = 0, partitions: int = 1) -> TopicPartition:
        name = _name()
        self.stage.create(name, partitions)
        return _fill(self.stage, name, records)


class ReadingContract(_Staged):
    """Positions, records and the edges of the log."""

    def test_records_come_in_offset_order_and_move_the_position(self) -> None:
        """Records come in offset order, and the position is one past the last that was returned."""
        tp = self.topic(10)
        consumer = self.reader(tp)
        first = _read(consumer, 1, limit=4)
        assert [record.offset for record in first] == [0, 1, 2, 3]
        assert consumer.position(tp) == 4
        rest = _read(consumer, 6, limit=4)
        assert [record.offset for record in rest] == [4, 5, 6, 7, 8, 9]
        assert [record.value for record in rest] == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert consumer.position(tp) == 10

    def test_a_poll_keeps_the_limit_over_all_partitions(self) -> None:
        """One poll returns at most the records that were asked for, whatever number of partitions has some."""
        tp = self.topic(5, partitions=2)
        _fill(self.stage, tp.topic, 5, partition=1)
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
        _read(consumer, 1, limit=5)
        consumer.seek(tp, 2)
        assert consumer.position(tp) == 2
        assert _read(consumer, 1, limit=1)[0].offset == 2
        consumer.seek(tp, 8)
        assert [record.offset for record in _read(consumer, 2)] == [8, 9]

    def test_pause_keeps_the_position_and_skips_nothing(self) -> None:
        """A paused partition returns nothing, and reading goes on where it stopped after it is resumed."""
        tp = self.topic(6, partitions=2)
        other = _fill(self.stage, tp.topic, 6, partition=1)
        consumer = self.consumer(None)
        consumer.assign([tp, other])
        consumer.seek(tp, 0)
        consumer.seek(other, 0)
        found = _read(consumer, 2, limit=2)
        consumer.pause([tp])
        assert consumer.paused() == {tp}
        at = consumer.position(tp)
        while_paused = _poll_until(consumer, lambda _: consumer.position(other) == 6, limit=2)
        assert {record.partition for record in while_paused} <= {1}
        assert consumer.position(tp) == at
        consumer.resume([tp])
        assert consumer.paused() == frozenset()
        found += while_paused + _poll_until(consumer, lambda _: consumer.position(tp) == 6, limit=2)
        for partition in (0, 1):
            assert [r.offset for r in found if r.partition == partition] == [0, 1, 2, 3, 4, 5]

    def test_a_resumed_partition_gets_its_turn(self) -> None:
        """A partition that was paused is read again soon after it is resumed, though another has plenty to read."""
        tp = self.topic(1000, partitions=2)
        both = {tp, _fill(self.stage, tp.topic, 1000, partition=1)}
        consumer = self.consumer(None)
        consumer.assign(both)
        for each in both:
            consumer.seek(each, 0)
        first = TopicPartition(tp.topic, _read(consumer, 1, limit=10)[0].partition)
        consumer.pause([first])
        (other,) = both - {first}
        _poll_until(consumer, lambda _: consumer.position(other) > 20, limit=10)
        consumer.resume([first])
        at = consumer.position(other)
        _poll_until(consumer, lambda found: any(record.partition == first.partition for record in found), limit=10)
        assert consumer.position(other) - at < 500

    def test_seek_while_paused_holds_after_resume(self) -> None:
        """A seek in a paused partition is where reading goes on after it is resumed."""
        tp = self.topic(6)
        consumer = self.reader(tp)
        _read(consumer, 1, limit=2)
        consumer.pause([tp])
        consumer.poll(POLL_MS, 10)
        consumer.seek(tp, 1)
        consumer.resume([tp])
        assert [record.offset for record in _read(consumer, 5)] == [1, 2, 3, 4, 5]

    def test_bounds_of_the_log_after_deletion(self) -> None:
        """Deleted records move the beginning and leave the end."""
        tp = self.topic(10)
        self.stage.delete_records(tp, 4)
        consumer = self.reader(tp, at=4)
        assert consumer.beginning_offsets([tp]) == {tp: 4}
        assert consumer.end_offsets([tp]) == {tp: 10}
        assert _read(consumer, 6)[0].offset == 4

    @pytest.mark.parametrize(("deleted", "position"), [(4, 2), (0, 25)], ids=["below the start", "beyond the end"])
    def test_a_position_outside_the_log_is_an_error(self, deleted: int, position: int) -> None:
        """Reading from outside the log raises, with the place; it never jumps somewhere silently."""
        tp = self.topic(10)
        if deleted:
            self.stage.delete_records(tp, deleted)
        consumer = self.reader(tp, at=position)
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            _read(consumer, 1)
        assert caught.value.args[0] == {tp: position}
        consumer.seek(tp, 5)
        assert _read(consumer, 1)[0].offset == 5

    def test_offsets_for_times(self) -> None:
        """A time is answered by the first offset at or after it, and by None beyond the last."""
        tp = self.topic(5)
        consumer = self.reader(tp)
        assert consumer.offsets_for_times({tp: 0}) == {tp: 0}
        assert consumer.offsets_for_times({tp: 1003}) == {tp: 3}
        assert consumer.offsets_for_times({tp: 9999}) == {tp: None}

    def test_highwater_is_known_after_a_fetch(self) -> None:
        """The highwater is None before the first fetch and the end of the log after it."""
        tp = self.topic(5)
        consumer = self.reader(tp)
        assert consumer.highwater(tp) is None
        _read(consumer, 1, limit=1)
        assert consumer.highwater(tp) == 5

    def test_nulls_headers_and_timestamps_arrive_untouched(self) -> None:
        """Null keys, null values, empty values, repeated headers and timestamps arrive as they were sent."""
        tp = self.topic()
        producer = self.stage.cluster.producer()
        headers = [("a", b"1"), ("a", b""), ("é", b"\xff")]
        producer.send(tp.topic, key=None, value=None, partition=0, timestamp_ms=7)
        producer.send(tp.topic, key=b"\xff", value=b"", headers=headers, partition=0, timestamp_ms=8)
        producer.flush()
        producer.close()
        null, full = _read(self.reader(tp), 2)
        assert (null.key, null.value, list(null.headers), null.timestamp) == (None, None, [], 7)
        assert (full.key, full.value, list(full.headers), full.timestamp) == (b"\xff", b"", headers, 8)

    def test_aborted_records_are_never_seen_and_leave_gaps(self) -> None:
        """Committed transactions are read, aborted ones are not, and their offsets and markers are passed."""
        tp = self.topic(2)
        self.stage.transaction(tp, [b"no", b"no"]).abort()
        self.stage.transaction(tp, [b"yes"]).commit()
        consumer = self.reader(tp)
        end = consumer.end_offsets([tp])[tp]
        assert end == 7
        found = _poll_until(consumer, lambda _: consumer.position(tp) == end)
        assert [record.offset for record in found] == [0, 1, 5]
        assert found[-1].value == b"yes"

    def test_an_open_transaction_hides_what_follows(self) -> None:
        """The end is the last stable offset while a transaction is open, and nothing beyond it is returned."""
        tp = self.topic(2)
        opened = self.stage.transaction(tp, [b"later"])
        _fill(self.stage, tp.topic, 1)
        consumer = self.reader(tp)
        assert consumer.end_offsets([tp]) == {tp: 2}
        assert [record.offset for record in _read(consumer, 2)] == [0, 1]
        assert not consumer.poll(POLL_MS, 10)
        opened.commit()
        assert [record.offset for record in _read(consumer, 2)] == [2, 3]

    def test_a_reader_without_a_group_starts_at_the_beginning(self) -> None:
        """A partition that nobody has committed and nobody has sought is read from its beginning."""
        tp = self.topic(4)
        self.stage.delete_records(tp, 2)
        assert [record.offset for record in _read(self.reader(tp, at=None), 2)] == [2, 3]

    def test_one_consumer_may_assign_again(self) -> None:
        """A second assign replaces the first, and a partition in both keeps its position."""
        tp = self.topic(4, partitions=2)
        other = _fill(self.stage, tp.topic, 4, partition=1)
        consumer = self.reader(tp)
        _read(consumer, 2, limit=2)
        consumer.assign([tp, other])
        consumer.seek(other, 3)
        assert consumer.assignment() == {tp, other}
        assert sorted((r.partition, r.offset) for r in _read(consumer, 3)) == [(0, 2), (0, 3), (1, 3)]


class TopicContract(_Staged):
    """Topics, their ids and the producer."""

    def test_ensure_topic_creates_once(self) -> None:
        """A topic is created where it is missing and left alone where it exists."""
        topic = _name()
        assert self.stage.cluster.ensure_topic(topic, partitions=3)
        assert not self.stage.cluster.ensure_topic(topic, partitions=5)
        assert self.consumer(None).partitions_for(topic) == {0, 1, 2}

    def test_a_missing_topic_has_no_partitions_and_no_id(self) -> None:
        """Asking for a topic that does not exist answers with nothing, and does not create it."""
        topic, consumer = _name(), self.consumer(None)
        assert consumer.partitions_for(topic) == frozenset()
        assert consumer.topic_id(topic) == ""
        assert self.stage.cluster.ensure_topic(topic)

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
        """Deleting a topic deletes the groups' commits for it."""
        tp, group = self.topic(3), _name("g")
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
        found = _read(consumer, 4)
        assert {record.key: record.partition for record in found} == {b"a": 0, b"b": 0, b"c": 2}

    def test_a_record_over_the_limit_is_refused(self) -> None:
        """A record that is larger than the topic takes raises in send or flush, and nothing is written."""
        topic = _name()
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


class CommitContract(_Staged):
    """Commits and who may make them."""

    def test_commits_come_back_with_their_metadata(self) -> None:
        """A commit is read back with its metadata by any consumer of the group, and is None elsewhere."""
        tp, group = self.topic(5, partitions=2), _name("g")
        other = TopicPartition(tp.topic, 1)
        self.reader(tp, group=group).commit({tp: OffsetAndMetadata(3, '{"é": 1}', -1)})
        found = self.reader(tp, group=group).committed([tp, other])
        assert (found[tp].offset, found[tp].metadata) == (3, '{"é": 1}')
        assert found[other] is None
        assert self.reader(tp, group=_name("g")).committed([tp]) == {tp: None}

    def test_metadata_over_the_limit_is_refused(self) -> None:
        """4,096 characters of metadata are stored and 4,097 raise."""
        tp, group = self.topic(5), _name("g")
        consumer = self.reader(tp, group=group)
        consumer.commit({tp: OffsetAndMetadata(1, "é" * 4096, -1)})
        with pytest.raises(errors.OffsetMetadataTooLargeError):
            consumer.commit({tp: OffsetAndMetadata(2, "x" * 4097, -1)})
        assert consumer.committed([tp])[tp].offset == 1

    def test_one_partition_with_too_much_metadata_does_not_hold_the_others(self) -> None:
        """In one commit the partitions whose metadata fits are stored though another's does not."""
        tp, group = self.topic(5, partitions=2), _name("g")
        other = TopicPartition(tp.topic, 1)
        consumer = self.reader(tp, group=group)
        with pytest.raises(errors.OffsetMetadataTooLargeError):
            consumer.commit({tp: OffsetAndMetadata(2, "x" * 5000, -1), other: OffsetAndMetadata(0, "fits", -1)})
        found = consumer.committed([tp, other])
        assert found[tp] is None
        assert found[other].metadata == "fits"

    def test_an_asynchronous_commit_arrives(self) -> None:
        """A commit that is sent and not waited for is there after a while."""
        tp, group = self.topic(5), _name("g")
        consumer, _ = self.member(tp.topic, group)
        _read(consumer, 5)
        consumer.commit_async({tp: OffsetAndMetadata(4, "later", -1)})
        _poll_until(consumer, lambda _: consumer.committed([tp])[tp] is not None)
        assert consumer.committed([tp])[tp].offset == 4

    def test_a_new_assignment_starts_at_the_commit(self) -> None:
        """A partition that is assigned anew is read from the group's commit."""
        tp, group = self.topic(5), _name("g")
        self.reader(tp, group=group).commit({tp: OffsetAndMetadata(3, "", -1)})
        consumer, _ = self.member(tp.topic, group)
        assert [record.offset for record in _read(consumer, 2)] == [3, 4]

    def test_an_outsider_cannot_commit_into_a_living_group(self) -> None:
        """A consumer that reads by assign may commit while the group has no members, and is refused while it has."""
        tp, group = self.topic(5), _name("g")
        outsider = self.reader(tp, group=group)
        outsider.commit({tp: OffsetAndMetadata(1, "", -1)})
        member, _ = self.member(tp.topic, group)
        _read(member, 4)
        with pytest.raises((errors.CommitFailedError, errors.UnknownMemberIdError)):
            outsider.commit({tp: OffsetAndMetadata(2, "", -1)})
        assert member.committed([tp])[tp].offset == 1

    def test_a_member_may_commit_what_it_does_not_own(self) -> None:
        """The broker accepts a member's commit for another's partition, even back: nobody but the spout prevents it."""
        tp, group = self.topic(5, partitions=2), _name("g")
        first, _ = self.member(tp.topic, group)
        second, _ = self.member(tp.topic, group)
        _poll_until([first, second], lambda _: bool(first.assignment()) and bool(second.assignment()))
        _poll_until([first, second], lambda _: not first.rejoin_pending() and not second.rejoin_pending())
        (mine,) = first.assignment()
        first.commit({mine: OffsetAndMetadata(3, "", -1)})
        second.commit({mine: OffsetAndMetadata(1, "", -1)})
        assert first.committed([mine])[mine].offset == 1

    def test_a_member_that_was_thrown_out_cannot_commit(self) -> None:
        """A member that did not poll in time cannot commit; its next polls say lost and join again."""
        tp, group = self.topic(5), _name("g")
        consumer, facts = self.member(tp.topic, group, max_poll_interval_ms=1500)
        _read(consumer, 5)
        consumer.commit({tp: OffsetAndMetadata(2, "", -1)})
        self.stage.wait(4)
        with pytest.raises(errors.CommitFailedError):
            consumer.commit({tp: OffsetAndMetadata(4, "", -1)})
        assert consumer.rejoin_pending()
        _poll_until(consumer, lambda _: len(facts.real()) == 3)
        assert facts.real() == [("assigned", {0}), ("lost", {0}), ("assigned", {0})]
        assert consumer.committed([tp])[tp].offset == 2
        assert consumer.position(tp) >= 2


class GroupContract(_Staged):
    """Membership and rebalances (eager protocol)."""

    def _pair(self, partitions: int = 4) -> tuple[Any, ...]:
        tp, group = self.topic(3, partitions=partitions), _name("g")
        first, told_first = self.member(tp.topic, group)
        _poll_until(first, lambda _: len(first.assignment()) == partitions)
        second, told_second = self.member(tp.topic, group)
        return tp, group, first, told_first, second, told_second

    def _settle(self, *members: ConsumerPort, partitions: int) -> None:
        def settled(_: list[Record]) -> bool:
            shares = [member.assignment() for member in members]
            return (
                all(shares)
                and sum(map(len, shares)) == partitions == len(frozenset().union(*shares))
                and not any(member.rejoin_pending() for member in members)
            )

        _poll_until(list(members), settled)

    def test_the_first_member_gets_everything(self) -> None:
        """A lone member is assigned all partitions in its first polls, told once."""
        tp, group = self.topic(3, partitions=3), _name("g")
        consumer, facts = self.member(tp.topic, group)
        assert consumer.assignment() == frozenset()
        _poll_until(consumer, lambda _: len(consumer.assignment()) == 3)
        assert facts.real() == [("assigned", {0, 1, 2})]
        assert not consumer.rejoin_pending()

    def test_a_second_member_takes_its_share(self) -> None:
        """A rebalance revokes the full set first and assigns full sets then, which are disjoint and complete."""
        _, _, first, told_first, second, told_second = self._pair()
        self._settle(first, second, partitions=4)
        kinds = [kind for kind, _ in told_first.real()]
        assert kinds[:3] == ["assigned", "revoked", "assigned"]
        assert told_first.real()[1] == ("revoked", {0, 1, 2, 3})
        shares = [{tp.partition for tp in member.assignment()} for member in (first, second)]
        assert [told_first.real()[-1], told_second.real()[-1]] == [("assigned", share) for share in shares]
        assert sorted(map(len, shares)) == [2, 2]

    def test_a_planned_hand_over_is_announced_before_it_happens(self) -> None:
        """While a rejoin is pending nothing is revoked yet, the assignment stands, and a commit is accepted."""
        tp, _, first, told, second, _ = self._pair()
        for _ in range(POLLS_MAX):
            second.poll(POLL_MS, 10)
            if first.rejoin_pending():
                break
        assert first.rejoin_pending()
        assert told.real() == [("assigned", {0, 1, 2, 3})]
        assert len(first.assignment()) == 4
        first.commit({tp: OffsetAndMetadata(2, "handed over", -1)})
        self._settle(first, second, partitions=4)
        assert ("revoked", {0, 1, 2, 3}) in told.real()
        assert first.committed([tp])[tp].metadata == "handed over"

    def test_a_partition_that_stays_keeps_its_position_and_its_pause(self) -> None:
        """Over a rebalance a partition that comes back reads on where it was, and stays paused if it was."""
        tp, _, first, _, second, _ = self._pair(partitions=2)
        _fill(self.stage, tp.topic, 3, partition=1)
        for number in (0, 1):
            first.seek(TopicPartition(tp.topic, number), 1)
        first.pause([TopicPartition(tp.topic, 0), TopicPartition(tp.topic, 1)])
        self._settle(first, second, partitions=2)
        (kept,) = first.assignment()
        assert first.position(kept) == 1
        assert first.paused() == {kept}

    def test_a_dynamic_member_that_leaves_hands_over_at_once(self) -> None:
        """After a close the other member gets everything, without waiting for a session to end."""
        _, _, first, _, second, told = self._pair()
        self._settle(first, second, partitions=4)
        first.close()
        _poll_until(second, lambda _: len(second.assignment()) == 4)
        assert [kind for kind, _ in told.real()][-2:] == ["revoked", "assigned"]

    def test_closing_tells_the_listener(self) -> None:
        """Closing a member tells its listener that everything is revoked."""
        tp, group = self.topic(3, partitions=2), _name("g")
        consumer, facts = self.member(tp.topic, group)
        _poll_until(consumer, lambda _: len(consumer.assignment()) == 2)
        consumer.close()
        assert facts.real() == [("assigned", {0, 1}), ("revoked", {0, 1})]

    def test_a_static_member_restarts_without_a_rebalance(self) -> None:
        """A static member that closes without leaving gets the same partitions back, and the other hears nothing."""
        tp, group = self.topic(3, partitions=4), _name("g")
        first, _ = self.member(tp.topic, group, instance="one")
        second, told = self.member(tp.topic, group, instance="two")
        self._settle(first, second, partitions=4)
        share, before = first.assignment(), list(told.told)
        first.close(leave_group=False)
        again, told_again = self.member(tp.topic, group, instance="one")
        _poll_until([again, second], lambda _: bool(again.assignment()))
        for _ in range(5):
            again.poll(POLL_MS, 10)
            second.poll(POLL_MS, 10)
        assert again.assignment() == share
        assert told_again.real() == [("assigned", {tp.partition for tp in share})]
        assert told.told == before
        assert not second.rejoin_pending()

    def test_a_static_member_that_leaves_hands_over_at_once(self) -> None:
        """A static member that closes and leaves is out before its session ends."""
        tp, group = self.topic(3, partitions=4), _name("g")
        client = {"session_timeout_ms": 30000}
        first, _ = self.member(tp.topic, group, instance="one", **client)
        second, _ = self.member(tp.topic, group, instance="two", **client)
        self._settle(first, second, partitions=4)
        first.close(leave_group=True)
        for _ in range(100):
            second.poll(POLL_MS, 10)
            if len(second.assignment()) == 4:
                break
        assert len(second.assignment()) == 4

    def test_a_static_member_whose_place_is_taken_is_fenced(self) -> None:
        """When a second process comes under the same instance id, the first one's commit raises."""
        tp, group = self.topic(3), _name("g")
        first, _ = self.member(tp.topic, group, instance="one")
        _read(first, 3)
        second, _ = self.member(tp.topic, group, instance="one")
        _poll_until(second, lambda _: bool(second.assignment()))
        with pytest.raises(errors.FencedInstanceIdError):
            first.commit({tp: OffsetAndMetadata(3, "", -1)})
        assert second.committed([tp]) == {tp: None}

    def test_a_pattern_picks_up_a_topic_that_appears_later(self) -> None:
        """A pattern must match the whole name, and a new topic that matches is assigned without a call."""
        stem, group = _name("logs"), _name("g")
        self.stage.create(f"{stem}-a", 1)
        self.stage.create(f"{stem}-a-not", 1)
        consumer = self.consumer(group)
        consumer.subscribe_pattern(f"{stem}-[a-z]", Facts())
        _poll_until(consumer, lambda _: bool(consumer.assignment()))
        assert {tp.topic for tp in consumer.assignment()} == {f"{stem}-a"}
        self.stage.create(f"{stem}-b", 1)
        _poll_until(consumer, lambda _: len(consumer.assignment()) == 2)
        assert {tp.topic for tp in consumer.assignment()} == {f"{stem}-a", f"{stem}-b"}

    def test_a_missing_topic_is_picked_up_when_it_appears(self) -> None:
        """A subscribed topic that does not exist is no error, and is read once it exists."""
        topic, group = _name(), _name("g")
        consumer, _ = self.member(topic, group)
        assert not consumer.poll(POLL_MS, 10)
        self.stage.create(topic, 2)
        _fill(self.stage, topic, 3)
        assert [record.offset for record in _read(consumer, 3)] == [0, 1, 2]

    def test_new_partitions_are_picked_up(self) -> None:
        """Partitions that are added to a subscribed topic are assigned, and the others keep their position."""
        tp, group = self.topic(3), _name("g")
        consumer, _ = self.member(tp.topic, group)
        _read(consumer, 3)
        self.stage.add_partitions(tp.topic, 3)
        _poll_until(consumer, lambda _: len(consumer.assignment()) == 3)
        assert consumer.position(tp) == 3

    def test_remote_calls_raise_in_a_listener(self) -> None:
        """Inside a rebalance callback commit and committed raise, while seek and pause work."""
        tp, group = self.topic(5), _name("g")
        consumer = self.consumer(group)
        raised: list[str] = []

        class Acts(Facts):
            def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
                super().on_partitions_assigned(partitions)
                for call in (
                    lambda: consumer.commit({tp: OffsetAndMetadata(1, "", -1)}),
                    lambda: consumer.committed([tp]),
                ):
                    try:
                        call()
                        raised.append("nothing")
                    except RuntimeError:
                        raised.append("RuntimeError")
                for partition in partitions:
                    consumer.seek(partition, 2)
                    consumer.pause([partition])

        consumer.subscribe([tp.topic], Acts())
        _poll_until(consumer, lambda _: bool(consumer.assignment()))
        assert set(raised) == {"RuntimeError"}
        assert consumer.paused() == {tp}
        assert consumer.position(tp) == 2
        consumer.resume([tp])
        assert [record.offset for record in _read(consumer, 3)] == [2, 3, 4]


class DeadLetterContract(_Staged):
    """Dead letters are written whole and read back once."""

    def _record(self, value: bytes | None = b"poison") -> Record:
        tp = self.topic()
        producer = self.stage.cluster.producer(client={"max_request_size": 8_000_000})
        producer.send(tp.topic, key=b"\xff", value=value, headers=[("trace", b"7")], partition=0, timestamp_ms=1)
        producer.flush()
        producer.close()
        return _read(self.reader(tp), 1)[0]

    def test_a_letter_is_the_record_with_its_reason(self) -> None:
        """A letter has the record's key, value, headers and time, and tells where it came from and why it failed."""
        record, topic = self._record(), _name("dead")
        letters = DeadLetters(self.stage.cluster, topic)
        letters.write(
            record,
            attempts=11,
            first_failure_ms=5,
            last_failure_ms=6,
            failure=Failure("exception", "parse", 4, "ValueError: no: number", "Traceback …"),
            topic_id="abc",
        )
        letters.close()
        (letter,) = read_dead_letters(self.stage.cluster, topic)
        assert letter.origin == (record.topic, "abc", 0, 0)
        assert (letter.letter.key, letter.letter.value, letter.letter.timestamp) == (b"\xff", b"poison", 1)
        assert letter.headers == [("trace", b"7")]
        assert (letter.attempts, letter.first_failure_ms, letter.last_failure_ms) == (11, 5, 6)
        assert (letter.kind, letter.component, letter.task) == ("exception", "parse", 4)
        assert (letter.error_class, letter.error, letter.stack) == ("ValueError", "no: number", "Traceback …")

    def test_a_letter_written_twice_is_read_once(self) -> None:
        """Letters of one origin count once, and what is not known is None."""
        record, topic = self._record(value=None), _name("dead")
        for _ in range(2):
            letters = DeadLetters(self.stage.cluster, topic)
            letters.write(record, attempts=1, first_failure_ms=None, last_failure_ms=None, failure=None)
            letters.close()
        (letter,) = read_dead_letters(self.stage.cluster, topic)
        assert letter.letter.value is None
        assert (letter.topic_id, letter.first_failure_ms, letter.error, letter.stack) == (None, None, None, None)

    def test_a_record_of_5_mib_fits(self) -> None:
        """The dead-letter topic takes a record that is larger than topics take by default."""
        topic = _name("dead")
        source = _name()
        self.stage.cluster.ensure_topic(source, 1, {"max.message.bytes": "8000000"})
        producer = self.stage.cluster.producer(client={"max_request_size": 8_000_000})
        producer.send(source, key=None, value=b"x" * (5 << 20), partition=0, timestamp_ms=1)
        producer.flush()
        producer.close()
        record = _read(self.reader(TopicPartition(source, 0)), 1)[0]
        letters = DeadLetters(self.stage.cluster, topic)
        letters.write(record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=Failure("timeout"))
        letters.close()
        (letter,) = read_dead_letters(self.stage.cluster, topic)
        assert len(letter.letter.value or b"") == 5 << 20
        assert letter.kind == "timeout"

    def test_no_topic_has_no_letters(self) -> None:
        """Reading the letters of a topic that does not exist yields none."""
        assert list(read_dead_letters(self.stage.cluster, _name("dead"))) == []
