"""Consumers' notes of aborted transactions, and readers that do not need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from typing import Any

import pytest

from downspout.batches.batch_reader import BatchLimits, BatchReader
from downspout.clock import SYSTEM_CLOCK
from downspout.kafka import Rereader, TopicPartition, TopicReader
from downspout.testing import FakeKafka

TP = TopicPartition("t", 0)
ROUNDS = 5
pytestmark = pytest.mark.fake_only("it makes its own transactions; what consumers note is in the contract")
Step = Callable[[int], object]
"""Reads from an offset to the end of the log, which is two records further on: an aborted one, and one that is read."""


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka("aborted") as kafka:
        kafka.create_topic("t")
        yield kafka


def scanned(kafka: FakeKafka, consumer: Any) -> Step:
    scan = import_module("downspout.kafka.scan").scan  # the package has a function and a module of this name
    consumer.assign([TP])
    return lambda start: list(scan(consumer, TP, start, consumer.end_offsets([TP])[TP]))


def in_batches(kafka: FakeKafka, consumer: Any) -> Step:
    reader = BatchReader(consumer, SYSTEM_CLOCK, 10)
    reader.assign([TP])
    return lambda start: reader.fresh({TP: start}, consumer.end_offsets([TP]), BatchLimits(9, 999))


def again(kafka: FakeKafka, consumer: Any) -> Step:
    reader = BatchReader(consumer, SYSTEM_CLOCK, 10)
    reader.assign([TP])
    last = consumer.end_offsets
    return lambda start: reader.exactly({TP: (start, last([TP])[TP] - 1)}, SYSTEM_CLOCK.monotonic() + 60)


def followed(kafka: FakeKafka, consumer: Any) -> Step:
    batches = TopicReader(kafka, "t", until=None).batches()
    return lambda start: next(found for found in batches if found)


def single(kafka: FakeKafka, consumer: Any) -> Step:
    reader = Rereader(kafka, SYSTEM_CLOCK)
    return lambda start: reader.read([("t", "", 0, start)], 1.0)


@pytest.mark.parametrize("way", [scanned, in_batches, again, followed, single])
def test_notes_of_aborted_records_do_not_add_up(
    kafka: FakeKafka, way: Callable[[FakeKafka, Any], Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that runs for weeks keeps none."""
    with closing(kafka.consumer(group=None, columns=way is single)) as consumer:
        monkeypatch.setattr(kafka, "consumer", lambda **how: consumer)
        step, start = way(kafka, consumer), 0
        for _ in range(ROUNDS):
            transaction = kafka.transaction()
            transaction.send("t", b"no")
            transaction.abort()
            kafka.produce("t", value=b"yes")
            step(start)
            start = consumer.position(TP)
        assert start >= 2 * ROUNDS
        assert not consumer.take_aborted()
