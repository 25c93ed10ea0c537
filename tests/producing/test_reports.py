"""KafkaBolt's metrics and logs, and its requests to the producer."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import errors

from bolts.kafka import KafkaBolt
from downspout.kafka import GroupMembership, TopicPartition
from downspout.producing import Outgoing, PartitionCommit, SentDeadLetter, SpoutMessage
from downspout.producing.sending import Sending
from downspout.producing.settings import produce_settings, producer_client
from downspout.testing import FakeKafka
from downspout.wire import TRANSACTIONS
from tests.producing.support import OUT
from tests.spout.spout_driver import Kafka


class Bolt:
    """Notes what became of tuples, which are their own names."""

    component_name = "out"

    def __init__(self) -> None:
        self.acked: list[Any] = []
        self.failed: dict[Any, str] = {}

    def ack_many(self, tups: Any) -> None:
        self.acked += tups

    def fail_because(self, tup: Any, error: Exception) -> None:
        self.failed[tup] = str(error)

    def place_of(self, tup: Any, row: int | None) -> str:
        return f"{tup}: " if row is None else f"{tup}@{row}: "


def sending_to(kafka: Kafka, bolt: Bolt, **given: Any) -> Sending:
    values: dict[str, Any] = {"mode": "asynchronous", "buffer_bytes": 1 << 20, "age_s_max": 60, "one_topic": False}
    log = logging.getLogger("tests.producing")
    return Sending(kafka.producer(), bolt, kafka.clock, log, **{**values, **given})


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A topic that takes records of up to 2,000 bytes."""
    bare_kafka.create_topic(OUT, 1, {"max.message.bytes": "2000"})
    return bare_kafka


def test_the_report_counts_records_and_bytes(kafka: Kafka) -> None:
    """Of tuples and of the rows of chunks: on their way, written, refused."""
    bolt = Bolt()
    sending = sending_to(kafka, bolt)
    records = [
        (0, OUT, Outgoing(b"key", b"12345")),
        (1, OUT, Outgoing(None, b"x" * 3000)),
        (2, OUT, Outgoing(b"k", None)),
    ]
    for row, topic, record in records:
        sending.send(f"tuple {row}", topic, record)
    assert sending.report()["in_flight"] == 3
    sending.send_chunk("chunk", records)
    sending.flush(30)
    report = sending.report()
    assert report.pop("answer_s") >= 0
    assert report.pop("retried") >= 0  # a broker makes the client send a batch again, in parts
    assert report == {
        "sent": 4, "refused": 2, "unknown": 0, "in_flight": 0, "sent_bytes": 2 * (8 + 3000 + 1),
    }  # fmt: skip
    assert sorted(bolt.acked) == ["tuple 0", "tuple 2"]
    assert set(bolt.failed) == {"tuple 1", "chunk"}
    assert bolt.failed["chunk"].startswith("chunk@1: out: not written to out[0]: ")
    sending.close(30)


def test_what_is_forgotten_is_acked_at_once_and_its_errors_are_counted(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The first refusal of a kind is logged, with how many there were."""
    bolt = Bolt()
    sending = sending_to(kafka, bolt, mode="fire_and_forget")
    for number in range(3):
        sending.send(number, OUT, Outgoing(None, b"x" * 3000))
    assert bolt.acked == [0, 1, 2]
    sending.flush(30)
    assert sending.report()["refused"] == 3
    lines = [record.getMessage() for record in caplog.records if record.name == "tests.producing"]
    assert len(lines) == 1
    assert lines[0].startswith("out: records that were acked already are not written to out[0]: MessageSizeTooLargeErr")
    assert lines[0].endswith(" so far)")
    assert not lines[0].endswith("(None so far)")
    sending.close(30)


@pytest.mark.fake_only("no answer that lacks its offset can be had of a broker")
def test_a_record_that_may_have_been_written_before_is_counted_apart(fake: FakeKafka) -> None:
    """The broker knows it as a repetition, and no longer where it is."""
    fake.create_topic(OUT, 1)
    bolt = Bolt()
    sending = sending_to(fake, bolt)
    sent = fake.producer()
    sent.send(OUT, key=None, value=b"1", partition=0, token="a")
    sent.flush(10)
    (answer,) = sent.results()
    sending.in_flight = 1
    sending._take(answer._replace(offset=-1))
    report = sending.report()
    assert (report["unknown"], report["sent"], report["in_flight"], bolt.acked) == (1, 0, 0, ["a"])


@pytest.mark.fake_only("when the broker answers is the test's to say")
def test_a_full_buffer_is_waited_for_and_not_for_ever(fake: FakeKafka) -> None:
    """At most a second in one call; a tuple that waits longer gets its ack later."""
    fake.create_topic(OUT, 1)
    fake.acks_after_s = 0.5
    bolt = Bolt()
    sending = sending_to(fake, bolt, buffer_bytes=10)
    began = fake.clock.monotonic()
    sending.send_chunk("quick", [(0, OUT, Outgoing(None, b"x" * 100))])
    assert (bolt.acked, sending.in_flight) == (["quick"], 0)
    assert 0.5 <= fake.clock.monotonic() - began < 1
    fake.acks_after_s = 50
    began = fake.clock.monotonic()
    sending.send_chunk("slow", [(0, OUT, Outgoing(None, b"x" * 100))])
    assert (bolt.acked, sending.in_flight) == (["quick"], 1)
    assert 1 <= fake.clock.monotonic() - began < 2


@pytest.fixture
def fake() -> Any:
    with FakeKafka("reports") as made:
        yield made


def heard(tup: Any, sent: Any) -> None:
    raise ValueError("oh")


def test_a_callback_that_raises_is_logged_with_its_component(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    sending = sending_to(kafka, Bolt(), heard=heard)
    sending.send("a", OUT, Outgoing(None, b"1"))
    sending.flush(30)
    (line,) = [record for record in caplog.records if record.name == "tests.producing"]
    assert line.getMessage() == "out: produce.callback raised"
    assert line.exc_info is not None
    assert str(line.exc_info[1]) == "oh"
    sending.close(30)


# --- transactions ---


def transactional(fake: FakeKafka, **conf: Any) -> tuple[KafkaBolt, list[str], list[tuple[str, Any]]]:
    """Return a transactional bolt; the ids of the producers that it makes, and what became of tuples."""
    ids: list[str] = []
    answers: list[tuple[str, Any]] = []
    make = fake.transactional_producer

    def counted(transactional_id: str, **more: Any) -> Any:
        ids.append(transactional_id)
        return make(transactional_id, **more)

    fake.transactional_producer = counted
    bolt = KafkaBolt(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.clock, bolt.component_name, bolt.logger = fake.clock, "out", logging.getLogger("tests.producing")
    bolt.ack = lambda tup: answers.append(("ack", tup))
    bolt.fail = lambda tup: answers.append(("fail", tup))
    context = {
        "taskid": 4, "componentid": "out", "task->component": {"4": "out"},
        "source->stream->grouping": {"lines": {TRANSACTIONS: {"type": "ALL"}}},
        "source->stream->fields": {"lines": {TRANSACTIONS: ["message"], "default": ["origin", "key", "message"]}},
    }  # fmt: skip
    given = {"kafka.bootstrap": fake.bootstrap, "produce.topic": OUT, "produce.transactional": True, **conf}
    bolt.initialize(given, context)
    return bolt, ids, answers


def message(bolt: KafkaBolt, kind: str, session: str, spout: str = "lines.0") -> None:
    partitions = {TopicPartition("in", 0): PartitionCommit("")}
    bolt._hear(SpoutMessage(kind, spout, session, partitions, GroupMembership("g")).text(), cast("Any", kind))


@pytest.mark.fake_only("it is the names that count, whoever hears them")
@pytest.mark.parametrize(("conf", "expected"), [
    ({"topology.name": "shop"}, "shop.1.out.0.lines.0"),
    ({"topology.name": "shop", "run.member": 3}, "shop.3.out.0.lines.0"),
    ({}, "topology.1.out.0.lines.0"),
])  # fmt: skip
def test_a_transactional_id_is_made_of_all_that_tells_tasks_apart(
    fake: FakeKafka, conf: Mapping[str, Any], expected: str
) -> None:
    """Topology, member, sink, its task, spout and its task: two producers with one id would fence each other."""
    bolt, ids, answers = transactional(fake, **conf)
    message(bolt, "open", "s")
    assert ids == [expected]
    assert answers == [("ack", "open")]


@pytest.mark.fake_only("the broker is not asked")
def test_refused_messages_fail_and_are_warned_of_now_and_then(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them fails; a second warning comes after the throttle's minute, and no sooner."""
    bolt, _, answers = transactional(fake)

    def warnings() -> int:
        return sum("what is not committed comes again" in record.getMessage() for record in caplog.records)

    for _ in range(3):
        message(bolt, "commit", "unknown")
    assert answers == [("fail", "commit")] * 3
    assert warnings() == 1
    assert caplog.records[-1].getMessage().startswith("out: what is not committed comes again, since")
    assert "the session is not known here" in caplog.text
    fake.clock.sleep(29.9)
    message(bolt, "commit", "unknown")
    assert warnings() == 1
    fake.clock.sleep(60)
    message(bolt, "commit", "unknown")
    assert warnings() == 2


@pytest.mark.fake_only("the broker is not asked")
def test_an_open_transaction_that_cannot_be_aborted_at_the_end_is_named(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    bolt, _, _ = transactional(fake)
    message(bolt, "open", "s")
    message(bolt, "start", "s")
    transaction = bolt._sending.by_spout["lines.0"]
    transaction._producer.begin()
    transaction._is_begun = True
    fake.faults.fail_next("abort_transaction", errors.TransactionalIdAuthorizationFailedError())
    bolt.close()
    assert any(
        record.getMessage().startswith("out: the open transaction topology.1.out.0.lines.0 is left to its time-out: ")
        for record in caplog.records
    )


BYTES = st.none() | st.binary(max_size=4)
LETTERS = st.builds(
    SentDeadLetter, st.builds(TopicPartition, st.text(max_size=3), st.integers(0, 9)), st.integers(0, 1 << 60),
    st.text(max_size=3), BYTES, BYTES, st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3),
    st.none() | st.integers(0, 1 << 60),
)  # fmt: skip
PROGRESS = st.builds(PartitionCommit, st.text(max_size=3), st.integers(-1, 1 << 60), st.text(max_size=3))
MEMBERSHIPS = st.builds(
    GroupMembership, st.text(max_size=3), st.integers(-1, 9), st.text(max_size=3), st.none() | st.text()
)


@given(
    st.lists(LETTERS, max_size=3),
    st.dictionaries(st.builds(TopicPartition, st.text(), st.integers(0, 9)), PROGRESS),
    MEMBERSHIPS,
)
def test_a_message_is_what_its_text_says(letters: Any, partitions: Any, membership: GroupMembership) -> None:
    """With all of its dead letters, offsets and names, whatever they hold."""
    sent = SpoutMessage("commit", "lines.0", "s1", partitions, membership, letters)
    assert SpoutMessage.of(sent.text()) == sent


# --- the producer's properties ---


def client_for(timeout_s: float, transaction_ms: int = 1_000, **settings: Any) -> dict[str, Any]:
    conf = {f"produce.{name}": value for name, value in settings.items()}
    return producer_client(produce_settings({"produce.topic": OUT, **conf}), {}, timeout_s, transaction_ms)


@given(st.integers(1, 3_600))
def test_a_record_is_given_up_before_its_tuple_times_out(timeout_s: int) -> None:
    """Else it would be written and come again; there is time for two requests, and for the ack."""
    client = client_for(timeout_s)
    assert timeout_s * 500 <= client["delivery_timeout_ms"] < timeout_s * 1000
    assert 1 <= client["request_timeout_ms"] <= client["delivery_timeout_ms"] / 2


@given(st.integers(1, 600), st.integers(1, 60_000))
def test_a_transaction_may_last_as_long_as_its_slowest_tuple(timeout_s: int, transaction_ms: int) -> None:
    """The broker aborts it later than that, unless a time-out is set."""
    client = client_for(timeout_s, transaction_ms, transactional=True)
    longest = timeout_s * 1000 + transaction_ms
    assert client["transaction_timeout_ms"] > longest or client["transaction_timeout_ms"] == 900_000
    given_ms = client_for(timeout_s, transaction_ms, transactional=True, transaction_timeout_ms=12_345)
    assert given_ms["transaction_timeout_ms"] == 12_345


def test_the_settings_are_the_producers_properties() -> None:
    """Each under the client's name; what is not set is left to the client."""
    client = client_for(
        30, acks="1", compression="lz4", linger_ms=7, batch_bytes=11, request_bytes_max=1_300,
        idempotence=False, auto_create=False,
    )  # fmt: skip
    assert client.pop("retry_backoff_ms") > 0
    assert client == {
        "acks": client_for(30, acks="1")["acks"], "compression_type": "lz4", "linger_ms": 7, "batch_size": 11,
        "max_request_size": 1_300, "max_block_ms": 5_000, "delivery_timeout_ms": 20_000, "request_timeout_ms": 10_000,
        "enable_idempotence": False, "allow_auto_create_topics": False,
    }  # fmt: skip
    assert not {"enable_idempotence", "transaction_timeout_ms"} & client_for(30).keys()
