"""Exactly once from Kafka to Kafka: a read_committed reader sees each result once, whatever fails."""

from __future__ import annotations

import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import streamparse
from streamparse import Grouping, Topology

from bolts.kafka import KafkaBolt
from downspout.dead_letters import identity_headers
from downspout.engine import from_class
from downspout.errors import BrokerError
from downspout.kafka import GroupMembership, OffsetAndMetadata, TopicPartition
from downspout.ledger import Origin, encode
from downspout.producing import SentDeadLetter, SpoutMessage
from downspout.run import findings, resolve
from downspout.spout import Identity, SpoutMetrics, SpoutTransactions, TransactionState
from downspout.testing import TopologyResult, run_topology
from spouts.kafka import KafkaSpout
from tests.producing.support import IN, OUT, committed
from tests.spout.spout_driver import Kafka


class Double(streamparse.Bolt):
    """A stock bolt: two results of each record; ``bad`` fails between them, ``-`` gives none."""

    outputs: ClassVar[list[str]] = ["origin", "key", "message"]
    attempts: ClassVar[Counter[str]] = Counter()

    def process(self, tup: Any) -> None:
        value = tup.values.value
        self.attempts[value] += 1
        if value == "-":
            return
        for number in range(2):
            origin = tup.values.origin.child("double", number)
            self.emit([origin, value, f"{value}.{number}"])
            if value.startswith("bad"):
                raise ValueError(value)


class Copies(Topology):
    lines = KafkaSpout.spec(topics=[IN], group="copies", fields=["origin", "value"], transaction_ms=50)
    double = Double.spec(inputs=[lines])
    out = KafkaBolt.spec(inputs=[double], topic=OUT, transactional=True)


def settings_of(kafka: Kafka, **more: Any) -> dict[str, Any]:
    return {
        "kafka.bootstrap": kafka.bootstrap, "topology.message.timeout.secs": 30, "kafka.retries_max": 2,
        "produce.auto_create": False, "run.until": "end", **more,
    }  # fmt: skip


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A topic to read, with 300 records, and one to write to."""
    bare_kafka.create_topic(IN, 3)
    bare_kafka.create_topic(OUT, 2)
    for number in range(300):
        bare_kafka.produce(IN, b"%d" % number, partition=number % 3)
    return bare_kafka


def run(topology: Any, kafka: Kafka, **more: Any) -> TopologyResult:
    return run_topology(topology, config=settings_of(kafka, **more), clock=kafka.clock)


def expected(values: Any) -> Counter[bytes | None]:
    return Counter(f"{value}.{number}".encode() for value in values for number in range(2))


def test_each_result_is_there_once_and_the_offsets_with_it(kafka: Kafka) -> None:
    run(Copies, kafka)
    assert committed(kafka) == expected(range(300))
    reader = kafka.consumer(group="copies")
    offsets = reader.committed([TopicPartition(IN, number) for number in range(3)])
    assert [commit and commit.offset for commit in offsets.values()] == [100, 100, 100]
    reader.close()


def test_a_record_that_fails_between_its_results_comes_again_with_its_transaction(kafka: Kafka) -> None:
    """Its transaction is aborted each time; in the end it is a dead letter, of which nothing else is visible."""
    Double.attempts.clear()
    kafka.produce(IN, b"bad", partition=1)
    kafka.produce(IN, b"-", partition=1)
    run(Copies, kafka)
    assert committed(kafka) == expected(range(300))
    assert committed(kafka, "copies.dead-letters") == {b"bad": 1}
    assert Double.attempts["bad"] == 3


@pytest.mark.parametrize("retries_max", [0, 2])
def test_a_record_that_kafka_refuses_is_a_dead_letter_and_no_other_is(kafka: Kafka, retries_max: int) -> None:
    """The others of its transaction, and of its chunk, come again, and do not count as failed."""
    kafka.create_topic("small", 1, {"max.message.bytes": "2000"})
    kafka.produce(IN, b"x" * 3000, partition=0)

    class Small(Topology):
        lines = KafkaSpout.spec(topics=[IN], group="copies", fields=["origin", "value"], transaction_ms=50)
        out = KafkaBolt.spec(inputs=[lines], topic="small", fields={"message": "value"}, transactional=True)

    run(Small, kafka, **{"kafka.retries_max": retries_max})
    assert committed(kafka, "small") == Counter(b"%d" % number for number in range(300))
    assert committed(kafka, "copies.dead-letters") == {b"x" * 3000: 1}


def test_with_several_tasks_each_takes_its_own_partitions(kafka: Kafka) -> None:
    """Two spouts and three sinks: each sink has a transaction for each spout."""

    class Wide(Topology):
        lines = KafkaSpout.spec(par=2, topics=[IN], group="copies", fields=["origin", "value"], transaction_ms=50)
        double = Double.spec(inputs=[lines], par=2)
        out = KafkaBolt.spec(inputs=[double], par=3, topic=OUT, transactional=True)

    run(Wide, kafka)
    assert committed(kafka) == expected(range(300))


@pytest.mark.parametrize("tasks", [1, 2])
def test_spouts_of_one_group_may_read_one_topic(kafka: Kafka, tasks: int) -> None:
    """By a pattern, two components with some tasks each: a partition that another one gets is taken over."""
    kafka.create_topic("in2", 4)
    for number in range(300, 500):
        kafka.produce("in2", b"%d" % number, partition=number % 4)

    class Both(Topology):
        first = KafkaSpout.spec(
            par=tasks, pattern=r"in\d?", group="copies", fields=["origin", "value"], transaction_ms=50
        )
        second = KafkaSpout.spec(
            par=tasks, pattern=r"in\d?", group="copies", fields=["origin", "value"], transaction_ms=50
        )
        double = Double.spec(inputs=[first, second])
        out = KafkaBolt.spec(inputs=[double], topic=OUT, transactional=True)

    run(Both, kafka)
    assert committed(kafka) == expected(range(500))


def test_spouts_of_two_groups_may_not(kafka: Kafka) -> None:
    """Each result would be there twice: that is found beforehand where topics are named, else at the start."""

    class Two(Topology):
        first = KafkaSpout.spec(pattern=r"in\d?", group="copies", fields=["origin", "value"])
        second = KafkaSpout.spec(pattern="i.", group="others", fields=["origin", "value"])
        double = Double.spec(inputs=[first, second])
        out = KafkaBolt.spec(inputs=[double], topic=OUT, transactional=True)

    class Named(Topology):
        first = KafkaSpout.spec(pattern=r"in\d?", group="copies", fields=["origin", "value"])
        second = KafkaSpout.spec(topics=["other", IN], group="others", fields=["origin", "value"])
        double = Double.spec(inputs=[first, second])
        out = KafkaBolt.spec(inputs=[double], topic=OUT, transactional=True)

    with pytest.raises(BrokerError, match="a result cannot be in two transactions"):
        run(Two, kafka)
    assert not [each for each in wrong(Two, kafka) if each.startswith("error")]
    assert any(
        "first and second both read in, for the groups copies and others" in each for each in wrong(Named, kafka)
    )
    assert not any("both read" in each for each in wrong(Named, kafka, **{"kafka.group": "copies"}))


def test_tuples_that_cannot_tell_their_origin_are_found_beforehand(kafka: Kafka) -> None:
    """An error where the spout does not say it; a warning where a bolt may lose or mix it."""

    class Batches(streamparse.BatchingBolt):
        outputs: ClassVar[list[str]] = ["origin", "message"]

    class Bare(streamparse.Bolt):
        outputs: ClassVar[list[str]] = ["message"]

    class Back(streamparse.Bolt):
        outputs: ClassVar[list[str]] = ["origin", "message"]

    class NoOrigin(Topology):
        lines = KafkaSpout.spec(topics=[IN], fields=["value"])
        back = Back.spec(inputs=[lines])
        out = KafkaBolt.spec(inputs=[back], topic=OUT, transactional=True)

    class ByParts(Topology):
        lines = KafkaSpout.spec(topics=[IN], fields=["topic", "partition", "offset", "value"])
        back = Back.spec(inputs=[lines])
        out = KafkaBolt.spec(inputs=[back], topic=OUT, transactional=True)

    class Lost(Topology):
        lines = KafkaSpout.spec(topics=[IN], fields=["origin", "value"])
        bare = Bare.spec(inputs=[lines])
        back = Back.spec(inputs=[bare])
        out = KafkaBolt.spec(inputs=[back], topic=OUT, transactional=True)

    class Mixed(Topology):
        lines = KafkaSpout.spec(topics=[IN], fields=["origin", "value"])
        batches = Batches.spec(inputs={lines: Grouping.fields("value")})
        out = KafkaBolt.spec(inputs=[batches], topic=OUT, transactional=True)

    about = "do not identify their record"
    assert [each for each in wrong(NoOrigin, kafka) if about in each and each.startswith("error: lines")]
    for topology in (ByParts, Lost, Mixed, Copies):
        assert not [each for each in wrong(topology, kafka) if each.startswith("error")], topology
    assert any("bare does not pass on the field origin" in each for each in wrong(Lost, kafka))
    assert any("batches before it takes tuples in batches" in each for each in wrong(Mixed, kafka))
    assert any("batches before it groups by fields" in each for each in wrong(Mixed, kafka))
    assert not [each for each in wrong(Copies, kafka) if "origin" in each]


def test_chunks_are_written_exactly_once(kafka: Kafka) -> None:
    """From columns; a row that is refused splits its chunk until it stands alone."""
    kafka.create_topic("small", 1, {"max.message.bytes": "2000"})
    kafka.produce(IN, b"x" * 3000, partition=0)

    class Chunks(Topology):
        lines = KafkaSpout.spec(
            topics=[IN], group="copies", fields=["origin", "value"], transaction_ms=50, emit="chunk"
        )
        out = KafkaBolt.spec(inputs=[lines], topic="small", fields={"message": "value"}, transactional=True)

    run(Chunks, kafka)
    assert committed(kafka, "small") == Counter(b"%d" % number for number in range(300))
    assert committed(kafka, "copies.dead-letters") == {b"x" * 3000: 1}


def wrong(topology: Any, kafka: Kafka, **more: Any) -> list[str]:
    graph = from_class(topology, "found")
    return [str(found) for found in findings(graph, resolve(graph, options=settings_of(kafka, **more), environ={}))]


def test_what_cannot_be_exactly_once_is_found_beforehand(kafka: Kafka) -> None:
    """Two transactional sinks of one spout, a spout without offsets, a setting given too late, and contradictions."""

    class Two(Topology):
        lines = KafkaSpout.spec(topics=[IN], fields=["origin", "value"])
        first = KafkaBolt.spec(inputs=[lines], topic=OUT, fields={"message": "value"}, transactional=True)
        second = KafkaBolt.spec(inputs=[lines], topic=OUT, fields={"message": "value"}, transactional=True)

    class Stock(streamparse.Spout):
        outputs: ClassVar[list[str]] = ["origin", "message"]

    class Rows(Topology):
        rows = Stock.spec()
        out = KafkaBolt.spec(inputs=[rows], topic=OUT, transactional=True)

    class Late(Topology):
        lines = KafkaSpout.spec(topics=[IN], fields=["origin", "value"])
        out = KafkaBolt.spec(inputs=[lines], topic=OUT, fields={"message": "value"})

    assert any("first and second are transactional" in each for each in wrong(Two, kafka))
    assert any("rows is not a KafkaSpout" in each for each in wrong(Rows, kafka))
    assert any("cannot see it" in each for each in wrong(Late, kafka, **{"produce.transactional": True}))
    assert not [each for each in wrong(Copies, kafka) if each.startswith("error")]
    for more in ({"produce.mode": "fire_and_forget"}, {"produce.acks": "1"}, {"topology.acker.executors": 0}):
        assert any("produce.transactional cannot be combined with" in each for each in wrong(Copies, kafka, **more)), (
            more
        )
    short = {"produce.transaction_timeout_ms": 5_000}
    assert any("a transaction may take 30050 ms" in each for each in wrong(Copies, kafka, **short))


def test_two_results_with_one_origin_are_an_error_that_says_so(kafka: Kafka) -> None:
    """The record is a dead letter, and none of its results is visible."""

    class Same(streamparse.Bolt):
        outputs: ClassVar[list[str]] = ["origin", "message"]

        def process(self, tup: Any) -> None:
            for number in range(2 if tup.values.value == "7" else 1):
                self.emit([tup.values.origin, f"{tup.values.value}.{number}"])

    class Doubled(Topology):
        lines = KafkaSpout.spec(topics=[IN], group="copies", fields=["origin", "value"], transaction_ms=50)
        same = Same.spec(inputs=[lines])
        out = KafkaBolt.spec(inputs=[same], topic=OUT, transactional=True)

    run(Doubled, kafka)
    assert committed(kafka) == Counter(b"%d.0" % number for number in range(300) if number != 7)
    assert committed(kafka, "copies.dead-letters") == {b"7": 1}


class Lines(Topology):
    lines = KafkaSpout.spec(topics=[IN], group="copies", fields=["origin", "value"], transaction_ms=5_000)
    out = KafkaBolt.spec(inputs=[lines], topic=OUT, fields={"message": "value"}, transactional=True)


def test_where_a_spout_starts_may_be_before_what_its_group_has_committed(kafka: Kafka) -> None:
    """A commit of another topology that the start does not go by says nothing about what is written already."""
    reader = kafka.consumer(group="copies")
    foreign = encode(80, topology_id="another", task=1, topic_id=kafka.topic_id(IN))
    reader.commit({TopicPartition(IN, number): OffsetAndMetadata(80, foreign, -1) for number in range(3)})
    reader.close()
    run(Lines, kafka, **{"kafka.start": "EARLIEST"})
    assert committed(kafka) == Counter(b"%d" % number for number in range(300))


def test_a_dead_letter_that_is_replayed_is_written(kafka: Kafka) -> None:
    """Its origin is that of a record which is done; but nothing of that one is visible."""
    run(Lines, kafka)
    replayed = identity_headers(Origin(IN, kafka.topic_id(IN), 1, 50), IN)
    kafka.produce(IN, b"repaired", partition=1, headers=replayed)
    run(Lines, kafka)
    assert committed(kafka)[b"repaired"] == 1


def test_a_dead_letter_that_cannot_be_written_ends_the_run(kafka: Kafka) -> None:
    """The error names the record, the topic and the cure; nothing of its transaction is committed."""
    kafka.create_topic("copies.dead-letters", 1, {"max.message.bytes": "300"})
    kafka.produce(IN, b"bad" + b"x" * 400, partition=1)
    with pytest.raises(BrokerError, match=r"in\[1\]@100: failed for good, .* cannot be written to copies.dead-letters"):
        run(Copies, kafka)
    assert set(committed(kafka).values()) <= {1}


def test_a_dead_letter_that_comes_while_a_commit_is_on_its_way_is_in_the_next_one() -> None:
    sent: list[tuple[str, str]] = []
    transactions = SpoutTransactions(
        "lines.0", lambda values, tup_id, stream: sent.append((values[0], tup_id)), logging.getLogger()
    )
    session = cast(
        "Any",
        SimpleNamespace(
            parts=[], consumer=SimpleNamespace(membership=lambda: GroupMembership("g")), idle=True,
            identity=Identity("t", 1), metrics=SpoutMetrics(),
        ),
    )  # fmt: skip
    first, second = (SentDeadLetter(TopicPartition(IN, 0), n, "dead", None, b"%d" % n, (), None) for n in range(2))
    transactions.state = TransactionState.OPEN
    transactions.add(first)
    assert not transactions.commit(session, 0, last=False, failure_policy=None)
    transactions.add(second)
    assert transactions.answered(session, sent[-1][1], None, 0)
    assert transactions.is_dirty
    assert not transactions.commit(session, 0, last=False, failure_policy=None)
    assert [[each.value for each in SpoutMessage.of(text).dead_letters] for text, _ in sent] == [
        [b"0"],
        [b"1"],
    ]
