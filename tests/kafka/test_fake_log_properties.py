"""The fake's log, read by polls, against a plain list of the expected records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.kafka import TopicPartition
from downspout.testing import FakeKafka
from tests.sampling import examples

pytestmark = pytest.mark.fake_only("it is the fake itself that is tested")

WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(1, 4)),
        st.tuples(st.just("gap"), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(1, 3)),
        st.tuples(st.just("abort"), st.integers(1, 3)),
        st.tuples(st.just("remove"), st.integers(0, 40)),
        st.tuples(st.just("delete"), st.integers(0, 15)),
    ),
    max_size=12,
)
READS = st.lists(
    st.one_of(
        st.tuples(st.just("poll"), st.integers(1, 5)),
        st.tuples(st.just("seek"), st.integers(0, 60)),
        st.tuples(st.just("pause"), st.just(0)),
        st.tuples(st.just("resume"), st.just(0)),
    ),
    max_size=25,
)
TP = TopicPartition("t", 0)


def _write(kafka: FakeKafka, writes: list[tuple[str, int]]) -> list[int]:
    """Write a log, and return the offsets that a read_committed reader ought to see."""
    kafka.create_topic("t")
    ought: list[int] = []
    for kind, number in writes:
        end = kafka.log(TP).end
        if kind == "record":
            ought += [kafka.produce("t", b"v") for _ in range(number)]
        elif kind == "gap":
            kafka.gap("t", 0, number)
        elif kind in ("commit", "abort"):
            transaction = kafka.transaction()
            sent = [transaction.send("t", b"v") for _ in range(number)]
            transaction.commit() if kind == "commit" else transaction.abort()
            ought += sent if kind == "commit" else []
            assert kafka.log(TP).end == end + number + 1, "a transaction ends in a marker"
        elif kind == "remove":
            kafka.remove_offsets("t", 0, [number])
            ought = [offset for offset in ought if offset != number]
        else:
            kafka.delete_records("t", 0, min(number, end))
            ought = [offset for offset in ought if offset >= number]
    return ought


@settings(max_examples=examples(300), deadline=None)
@given(WRITES, READS)
def test_polls_return_exactly_the_visible_records_in_order(
    writes: list[tuple[str, int]], reads: list[tuple[str, int]]
) -> None:
    with FakeKafka("log") as kafka:
        ought = _write(kafka, writes)
        log = kafka.log(TP)
        consumer = kafka.consumer(group=None)
        consumer.assign([TP])
        at, paused = log.start, False
        for kind, number in [*reads, ("resume", 0), ("poll", 1000)]:
            if kind == "seek":
                at = min(max(number, log.start), log.end)
                consumer.seek(TP, at)
            elif kind == "poll":
                expected = [] if paused else [offset for offset in ought if offset >= at][:number]
                got = [record.offset for record in consumer.poll(100, number).get(TP, ())]
                assert got == expected
                at = expected[-1] + 1 if expected else at
                assert at <= consumer.position(TP) <= log.end
                assert not any(at <= offset < consumer.position(TP) for offset in ought), "a record was skipped"
            else:
                paused = kind == "pause"
                (consumer.pause if paused else consumer.resume)([TP])
        assert consumer.position(TP) == log.end


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 7))
def test_partitions_take_turns_and_lose_nothing(partitions: list[int], limit: int) -> None:
    """Read by polls of any size, every record of every partition comes once, in order, and no partition starves."""
    with FakeKafka("turns") as kafka:
        kafka.create_topic("t", 4)
        for number in partitions:
            kafka.produce("t", b"v", partition=number)
        consumer = kafka.consumer(group=None)
        consumer.assign(kafka.partitions("t"))
        found: dict[int, list[int]] = {number: [] for number in range(4)}
        polls: list[set[int]] = []
        while records := consumer.poll(0, limit):
            polls.append({tp.partition for tp in records})
            for tp, batch in records.items():
                found[tp.partition] += [record.offset for record in batch]
        assert found == {number: list(range(partitions.count(number))) for number in range(4)}
        assert set().union(*polls[: len(set(partitions))]) == set(partitions)
