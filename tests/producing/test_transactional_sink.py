"""One task of a transactional sink, driven by the messages of its spouts."""

from __future__ import annotations

import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors

from downspout.errors import BrokerError, SilentBrokersError, TakenOverError
from downspout.kafka import GroupMembership, TopicPartition, cluster_for
from downspout.ledger import Origin
from downspout.origins import column_of
from downspout.producing import Outgoing, PartitionCommit, SentDeadLetter, SpoutMessage
from downspout.producing.sending import TransactionalSending
from downspout.producing.transaction import Refused
from downspout.producing.transaction_routing import Transactions
from tests.producing.support import IN, OUT, committed
from tests.spout.spout_driver import Kafka

TP = TopicPartition(IN, 0)


class Sink:
    """The transactions of one task, and what became of its tuples: an origin stands for each."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.acked: list[Any] = []
        self.failed: list[str] = []
        self.producers: list[Any] = []
        self.bolt: Any = SimpleNamespace(
            component_name="out",
            ack_many=self.acked.extend,
            fail_because=lambda tup, error: self.failed.append(str(error)),
            origin_of=lambda tup: tup,
            origins_of=lambda tup: tup,
            place_of=lambda tup, row: f"row {row} of " if row is not None else "",
        )
        self.transactions = Transactions(self.bolt, "t.out.0", self._new, lambda tp: True, logging.getLogger())

    def _new(self, transactional_id: str) -> Any:
        producer = cluster_for(self.kafka.bootstrap).transactional_producer(transactional_id)
        self.producers.append(producer)
        sending = TransactionalSending(
            producer, self.bolt, self.kafka.clock, logging.getLogger(), mode="asynchronous",
            buffer_bytes=1 << 20, age_s_max=10, one_topic=True,
        )  # fmt: skip
        return producer, sending

    def say(self, kind: str, session: str = "s", spout: str = "lines.0", offset: int = -1, **more: Any) -> None:
        membership, found = more.pop("membership", GroupMembership("g")), {TP: PartitionCommit("", offset)}
        self.transactions.take(SpoutMessage(kind, spout, session, found, membership, **more))

    def begin(self, session: str = "s", offset: int = -1) -> None:
        self.say("open", session)
        self.say("start", session, offset=offset)

    def send(self, offset: int, value: bytes) -> Origin:
        origin = Origin(IN, "", 0, offset)
        self.transactions.send(origin, OUT, Outgoing(None, value))
        return origin


@pytest.fixture
def sink(bare_kafka: Kafka) -> Any:
    bare_kafka.create_topic(IN, 2)
    bare_kafka.create_topic(OUT, 1)
    made = Sink(bare_kafka)
    yield made
    made.transactions.close(1)


def test_a_late_result_is_not_taken_before_it_is_known_what_is_committed(sink: Sink) -> None:
    """Between `open` and `start` results are acked and not sent; after it those of committed offsets are."""
    sink.say("open")
    late = sink.send(5, b"late")
    sink.say("start", offset=10)
    sink.send(5, b"late")
    new = sink.send(11, b"new")
    sink.transactions.flush(10)
    sink.say("commit", offset=12)
    assert sink.acked == [late, late, new]
    assert committed(sink.kafka) == {b"new": 1}
    report = sink.transactions.report()
    assert (report["discarded"], report["repeated"], report["sent"], report["transactions_committed"]) == (1, 1, 1, 1)


def test_a_message_of_a_session_that_is_over_is_refused(sink: Sink) -> None:
    """Of one that is unknown, of one that lost a partition to another task, and of another spout altogether."""
    sink.begin()
    with pytest.raises(Refused):
        sink.say("commit", "another", offset=12)
    sink.say("open", "s2", spout="lines.1")
    with pytest.raises(Refused):
        sink.say("commit", offset=13)
    with pytest.raises(BrokerError, match=r"both read in\[0\], for the groups g and h"):
        sink.say("open", "s3", spout="others.0", membership=GroupMembership("h"))


def test_a_task_takes_over_several_partitions_of_another_at_once(sink: Sink) -> None:
    """As a rebalance moves them; the other one's session is over, and what it sent is aborted."""
    both = {TopicPartition(IN, number): PartitionCommit("", 0) for number in range(2)}
    for spout in ("lines.0", "lines.1"):
        for kind in ("open", "start"):
            sink.transactions.take(SpoutMessage(kind, spout, spout, both))
        sink.send(0, spout.encode())
        sink.transactions.flush(10)
    after = {tp: PartitionCommit("", 1) for tp in both}
    with pytest.raises(Refused):
        sink.transactions.take(SpoutMessage("commit", "lines.0", "lines.0", after, GroupMembership("g")))
    sink.transactions.take(SpoutMessage("open", "lines.0", "again", {}))
    sink.transactions.take(SpoutMessage("commit", "lines.1", "lines.1", after, GroupMembership("g")))
    assert committed(sink.kafka) == {b"lines.1": 1}


def visible_after_a_plain_record(kafka: Kafka) -> Counter[bytes | None]:
    """Return what a read_committed reader sees behind a record outside transactions: nothing while one is open."""
    kafka.produce(OUT, b"plain", partition=0)
    return committed(kafka)


@pytest.mark.parametrize(
    ("offset", "dead"), [(1, []), (2, [SentDeadLetter(TP, 1, "dead", None, b"1", [], None)])], ids=["to come", "dead"]
)
def test_the_result_of_a_record_that_failed_aborts_its_transaction(sink: Sink, offset: int, dead: list[Any]) -> None:
    """Whether the record comes again or is a dead letter: none of it is seen, and no reader waits for a time-out."""
    sink.begin()
    sink.send(0, b"0")
    sink.send(1, b"1")
    sink.transactions.flush(10)
    with pytest.raises(Refused, match=r"in\[0\]@1 failed after a result of it was sent"):
        sink.say("commit", offset=offset, dead_letters=dead)
    assert visible_after_a_plain_record(sink.kafka) == {b"plain": 1}
    assert sink.transactions.report()["transactions_aborted"] == 1


def test_what_is_open_at_the_end_is_aborted(sink: Sink) -> None:
    sink.begin()
    sink.send(0, b"0")
    sink.transactions.flush(10)
    sink.transactions.close(1)
    assert visible_after_a_plain_record(sink.kafka) == {b"plain": 1}


@pytest.mark.fake_only("faults of transactions are injected in the fake only")
@pytest.mark.parametrize("operation", ["send_offsets", "commit_transaction"])
def test_a_transaction_that_fails_is_aborted_and_a_new_session_goes_on(sink: Sink, operation: str) -> None:
    """Nothing of it is visible; what comes again is written once."""
    sink.begin()
    sink.send(0, b"0")
    sink.transactions.flush(10)
    sink.kafka.faults.fail_next(operation, errors.CoordinatorNotAvailableError("moved"))
    with pytest.raises(Refused, match="CoordinatorNotAvailable"):
        sink.say("commit", offset=1)
    assert sink.transactions.report()["transactions_aborted"] == 1
    assert visible_after_a_plain_record(sink.kafka) == {b"plain": 1}
    sink.begin("s2")
    sink.send(0, b"0")
    sink.transactions.flush(10)
    sink.say("commit", "s2", offset=1)
    assert committed(sink.kafka) == {b"plain": 1, b"0": 1}


@pytest.mark.fake_only("a real broker would take the time-out's time")
@pytest.mark.parametrize("meets", ["commit", "open", "send"])
def test_a_task_that_stood_still_longer_than_the_transaction_may_take_goes_on(sink: Sink, meets: str) -> None:
    """The brokers have aborted what was open and fenced its producer: another takes its place, whatever hears first."""
    sink.begin()
    sink.send(0, b"0")
    sink.transactions.flush(10)
    sink.kafka.clock.sleep(100)
    if meets == "send":
        sink.send(1, b"1")
        sink.transactions.flush(10)
    if meets != "open":
        with pytest.raises(Refused, match=r"transaction_timeout_ms|refused"):
            sink.say("commit", offset=1)
    sink.begin("s2")
    sink.send(0, b"again")
    sink.transactions.flush(10)
    sink.say("commit", "s2", offset=1)
    assert committed(sink.kafka) == {b"again": 1}
    assert (len(sink.producers), sink.transactions.report()["sent"]) == (2, 2)
    assert not sink.failed


def test_no_broker_answers_as_a_session_begins(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spout is told, and opens again: it passes."""
    made, tries = sink._new, []

    def new(transactional_id: str) -> Any:
        tries.append(transactional_id)
        if len(tries) == 1:
            raise SilentBrokersError("No Kafka at b:9092: b:9092 does not answer")
        return made(transactional_id)

    monkeypatch.setattr(sink.transactions, "_new", new)
    with pytest.raises(Refused, match="b:9092 does not answer"):
        sink.say("open")
    sink.begin()
    sink.send(0, b"0")
    sink.transactions.flush(10)
    sink.say("commit", offset=1)
    assert committed(sink.kafka) == {b"0": 1}


def test_a_transaction_that_another_producer_fences_is_counted(sink: Sink) -> None:
    """The error names the transactional id; the results of the other one are visible."""
    other = Sink(sink.kafka)
    for number, each in enumerate((sink, other)):
        each.begin()
        each.send(0, b"%d" % number)
    other.say("commit", offset=1)
    with pytest.raises(Refused, match="another producer has its transactional id"):
        sink.say("commit", offset=1)
    with pytest.raises(TakenOverError, match=r"another producer has the transactional id t\.out\.0\.lines\.0"):
        sink.say("open", "s2")
    assert [each.transactions.report()["transactions_fenced"] for each in (sink, other)] == [1, 0]
    assert committed(sink.kafka) == {b"1": 1}
    other.transactions.close(1)


def test_a_session_that_aborts_in_good_order_keeps_its_producer(sink: Sink) -> None:
    for session in ("s", "s2", "s3"):
        sink.begin(session)
        sink.send(0, session.encode())
        sink.transactions.flush(10)
    sink.say("commit", "s3", offset=1)
    assert committed(sink.kafka) == {b"s3": 1}
    assert len(sink.producers) == 1


def test_a_row_with_the_origin_of_another_is_named(sink: Sink) -> None:
    """The chunk fails, the row's coordinates stand before the error, and the transaction can only be aborted."""
    sink.begin()
    chunk = column_of([Origin(IN, "", 0, 7), Origin(IN, "", 0, 8), Origin(IN, "", 0, 8)])
    rows = [(row, OUT, Outgoing(None, b"%d" % row)) for row in range(3)]
    sink.transactions.send_chunk(chunk, rows)
    assert len(sink.failed) == 1
    assert sink.failed[0].startswith("row 2 of out: two results for topic out have the same origin")
    with pytest.raises(Refused, match="a chunk was taken in part"):
        sink.say("commit", offset=9)
    assert not committed(sink.kafka)


def test_a_refused_record_breaks_its_transaction_and_names_its_topic(bare_kafka: Kafka) -> None:
    """Its own tuple fails; the others of the transaction are acked, since they come again with it."""
    bare_kafka.create_topic(IN, 1)
    bare_kafka.create_topic(OUT, 1, {"max.message.bytes": "2000"})
    sink = Sink(bare_kafka)
    sink.begin()
    good = sink.send(0, b"0")
    sink.transactions.flush(10)
    sink.send(1, b"x" * 3000)
    sink.transactions.flush(10)
    assert (sink.acked, len(sink.failed)) == ([good], 1)
    with pytest.raises(Refused, match=r"a record for out was refused: .*MessageSizeTooLarge"):
        sink.say("commit", offset=2)
    assert not committed(bare_kafka)
    sink.transactions.close(1)
