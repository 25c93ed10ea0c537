"""The contract of transactions: records and offsets atomically, and one owner of a transactional id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import errors

from downspout.kafka import GroupMembership, OffsetAndMetadata, Record, TopicPartition, TransactionalPort
from tests.kafka.stage import PATIENCE_S, Deaf, Staged, poll_until, read, unique
from tests.waiting import eventually

FAR = OffsetAndMetadata(7, "what is done beyond", -1)


class TransactionContract(Staged):
    @pytest.fixture(autouse=True)
    def _producers(self) -> Iterator[None]:
        self._made: list[TransactionalPort] = []
        yield
        for each in self._made:
            each.close()

    def owner(self, name: str, **client: Any) -> TransactionalPort:
        made = self.stage.cluster.transactional_producer(name, client=client)
        self._made.append(made)
        return made

    def send(self, producer: TransactionalPort, topic: str, *values: bytes) -> None:
        for value in values:
            producer.send(topic, key=None, value=value, partition=0, token=value)

    def seen(self, tp: TopicPartition, count: int) -> list[bytes | None]:
        """Return what a read_committed reader sees, which is so many records."""
        records: list[Record] = read(self.reader(tp), count)
        return [record.value for record in records]

    def committed(self, group: str) -> dict[TopicPartition, tuple[int, str]]:
        found = self.stage.cluster.group_offsets(group)
        return {tp: (entry.offset, entry.metadata) for tp, entry in found.items()}

    def wait_for(self, group: str, expected: dict[TopicPartition, tuple[int, str]]) -> None:
        """Wait until a group's offsets are these: the coordinator answers before its marks are written."""
        eventually(lambda: self.committed(group) == expected, PATIENCE_S, otherwise=lambda: self.committed(group))

    def fates(self, producer: TransactionalPort) -> dict[Any, Any]:
        """Return the error of each token; None: it is written."""
        return {token: sent.error for sent in producer.results() for token in sent.tokens}

    def test_records_and_offsets_are_committed_together(self) -> None:
        """Several transactions of one producer, each with the offsets of a group and their metadata."""
        tp, group, producer = self.topic(), unique("group"), self.owner(unique("id"))
        for number in range(3):
            producer.begin()
            self.send(producer, tp.topic, b"a%d" % number, b"b%d" % number)
            producer.send_offsets({tp: OffsetAndMetadata(number, f"m{number}", -1)}, GroupMembership(group))
            producer.commit()
            assert set(self.fates(producer).values()) == {None}
            self.wait_for(group, {tp: (number, f"m{number}")})
        assert self.seen(tp, 6) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]

    def test_an_aborted_transaction_leaves_nothing(self) -> None:
        """Neither records nor offsets; what was not sent yet fails; the producer goes on."""
        tp, group, producer = self.topic(), unique("group"), self.owner(unique("id"))
        producer.begin()
        self.send(producer, tp.topic, b"sent")
        producer.flush()
        self.send(producer, tp.topic, b"queued")
        producer.send_offsets({tp: FAR}, GroupMembership(group))
        producer.abort()
        assert isinstance(self.fates(producer)[b"queued"], errors.TransactionAbortedError)
        producer.begin()
        self.send(producer, tp.topic, b"good")
        producer.commit()
        assert self.seen(tp, 1) == [b"good"]
        assert self.committed(group) == {}

    def test_commits_in_an_open_transaction_cannot_be_read(self) -> None:
        """Their partitions are named, and their transaction; when a new owner has ended it, they can be read."""
        tp, other, group, name = self.topic(), self.topic(), unique("group"), unique("id")
        first = self.owner(name, transaction_timeout_ms=50_000)
        first.begin()
        first.send_offsets({tp: FAR}, GroupMembership(group))
        reader = self.consumer(group)
        with pytest.raises(errors.UnstableOffsetCommitError) as caught:
            reader.committed([tp, other])
        assert caught.value.args[0] == [tp]
        found = self.stage.cluster.open_transactions(group)
        assert (name, 50_000, False) in found, found
        self.owner(name)
        assert reader.committed([tp, other]) == {tp: None, other: None}
        assert name not in {each.transactional_id for each in self.stage.cluster.open_transactions(group)}

    def test_a_second_owner_fences_the_first(self) -> None:
        """The first one's open transaction is aborted, its end is refused, and it is over."""
        tp, name = self.topic(), unique("id")
        first = self.owner(name)
        first.begin()
        self.send(first, tp.topic, b"first")
        first.flush()
        second = self.owner(name)
        with pytest.raises((errors.ProducerFencedError, errors.InvalidProducerEpochError)):
            first.commit()
        assert first.is_over
        with pytest.raises(errors.IllegalStateError):
            first.begin()
        second.begin()
        self.send(second, tp.topic, b"second")
        second.commit()
        assert self.seen(tp, 1) == [b"second"]

    def test_a_record_that_is_refused_keeps_the_transaction_from_its_commit(self) -> None:
        name, producer = unique(), self.owner(unique("id"))
        self.stage.create(name, 1, {"max.message.bytes": "2000"})
        producer.begin()
        self.send(producer, name, b"good")
        producer.flush()
        self.send(producer, name, b"x" * 3000)
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.commit()
        assert isinstance(self.fates(producer)[b"x" * 3000], errors.MessageSizeTooLargeError)
        producer.abort()
        producer.begin()
        self.send(producer, name, b"again")
        producer.commit()
        assert self.seen(TopicPartition(name, 0), 1) == [b"again"]

    def test_after_a_refusal_the_transaction_takes_no_other_record(self) -> None:
        """The others are told apart from the one that was refused, and what it was refused for is their cause."""
        name, producer = unique(), self.owner(unique("id"))
        self.stage.create(name, 1, {"max.message.bytes": "2000"})
        producer.begin()
        self.send(producer, name, b"x" * 3000)
        producer.acknowledged()
        fates = eventually(lambda: self.fates(producer))
        assert isinstance(fates[b"x" * 3000], errors.MessageSizeTooLargeError)
        self.send(producer, name, b"late")
        producer.acknowledged()
        fates = self.fates(producer)
        assert isinstance(fates[b"late"], errors.TransactionAbortedError)
        assert isinstance(fates[b"late"].__cause__, errors.MessageSizeTooLargeError)
        producer.abort()

    def test_offsets_of_a_stale_member_are_refused(self) -> None:
        """A member of an earlier generation, or one that the group does not know, commits nothing."""
        tp, group, producer = self.topic(), unique("group"), self.owner(unique("id"))
        member = self.consumer(group)
        member.subscribe([tp.topic], Deaf())
        poll_until(member, lambda _: bool(member.assignment()))
        now = member.membership()
        producer.begin()
        self.send(producer, tp.topic, b"stale")
        with pytest.raises(errors.KafkaError):
            producer.send_offsets({tp: FAR}, now._replace(generation=now.generation + 5))
        producer.abort()
        producer.begin()
        self.send(producer, tp.topic, b"good")
        producer.send_offsets({tp: FAR}, member.membership())
        producer.commit()
        assert self.seen(tp, 1) == [b"good"]
        self.wait_for(group, {tp: (FAR.offset, FAR.metadata)})

    def test_after_a_time_out_the_committed_offset_tells_the_outcome(self) -> None:
        """The producer is over; once a new one has its place, records and offset are both there, or both not."""
        tp, group, name = self.topic(), unique("group"), unique("id")
        producer = self.owner(name)
        producer.begin()
        self.send(producer, tp.topic, b"1")
        producer.send_offsets({tp: FAR}, GroupMembership(group))
        try:
            producer.commit(timeout_s=0.0)
        except errors.KafkaTimeoutError:
            assert producer.is_over
        successor = self.owner(name)
        is_committed = tp in self.committed(group)
        successor.begin()
        self.send(successor, tp.topic, b"2")
        successor.commit()
        expected = [b"1", b"2"] if is_committed else [b"2"]
        assert self.seen(tp, len(expected)) == expected

    def test_nothing_is_sent_outside_of_a_transaction(self) -> None:
        tp, producer = self.topic(), self.owner(unique("id"))
        self.send(producer, tp.topic, b"1")
        producer.flush()
        assert isinstance(self.fates(producer)[b"1"], errors.KafkaError)
