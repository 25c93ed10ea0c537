"""RecordBatches made here: the bytes are kafka-python's own, and a batch is done only when all of its records are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import errors
from kafka.producer.future import FutureProduceResult
from kafka.producer.sender import Sender
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition

from downspout.errors import BrokerError
from downspout.kafka.patches.producing import Handles, is_bystander
from downspout.kafka.producer_batches import BatchAnswer, RecordBatches, encode_record

TP = TopicPartition("dead", 0)
data = st.none() | st.binary(max_size=200)
record = st.tuples(st.integers(0, 1 << 42), data, data, st.lists(st.tuples(st.text(max_size=80), data)))


def _answer(count: int) -> tuple[BatchAnswer, Any]:
    """Return what hears of a batch, and the batch's future."""
    future = _future()
    return BatchAnswer(SimpleNamespace(produce_future=future, attempts=0), TP, [f"r{n}" for n in range(count)]), future


def _future() -> Any:
    return FutureProduceResult(TP)


def _fates(answer: BatchAnswer) -> dict[str, Any]:
    """Return offset or error of each record."""
    found: dict[str, Any] = {}
    for places, sent in answer.results():
        assert len(places) == len(sent.tokens)
        for number, token in enumerate(sent.tokens):
            found[token] = sent.error or sent.offset + number
    return found


@settings(deadline=None)
@given(st.lists(record, min_size=1, max_size=70))
def test_records_are_encoded_as_the_client_encodes_them(records: list[Any]) -> None:
    """Nulls, empty values, headers in any script and times in any order give the client's own bytes."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    head = len(builder._buffer)
    for index, (at, key, value, headers) in enumerate(records):
        builder.append(index, at, key, value, headers)
    ours = [encode_record(i, at - records[0][0], *rest) for i, (at, *rest) in enumerate(records)]
    assert b"".join(ours) == builder._buffer[head:]


def test_a_batch_is_answered_by_its_future() -> None:
    """It is done when the broker has answered, and no sooner; offsets follow one another."""
    answer, future = _answer(3)
    assert not answer.is_done
    future.success((7, -1, None))
    assert answer.is_done
    assert _fates(answer) == {"r0": 7, "r1": 8, "r2": 9}


def test_a_refused_batch_tells_the_error_of_each_record() -> None:
    """Records with one error are one entry; those that were refused for the sake of others have one of their own."""
    answer, future = _answer(4)
    bad = errors.InvalidRecordError("no key")
    future.success((-1, -1, _refusing(bad, {1, 3})))
    fates = _fates(answer)
    assert fates["r1"] is fates["r3"] is bad
    assert is_bystander(fates["r0"])
    assert fates["r0"] is fates["r2"]
    assert len(list(answer.results())) == 2


def _refusing(error: Exception, culprits: set[int]) -> Any:
    """Return what tells the error of a record, as the client has it."""
    named = Sender._record_exceptions_fn(None, error, [(place, "bad") for place in culprits], "bad")
    return lambda index: error if index in culprits else named(index)


def test_a_batch_that_fails_as_a_whole_tells_the_error() -> None:
    answer, future = _answer(2)
    future.failure(errors.NetworkExceptionError("gone"))
    assert answer.is_done
    assert {type(error) for error in _fates(answer).values()} == {errors.NetworkExceptionError}


def test_records_that_are_sent_again_are_counted() -> None:
    """A batch that was sent three times has been sent again twice, with each of its records; a split counts too."""
    answer, _ = _answer(4)
    assert answer.retried == 0
    answer.batch.attempts = 2
    assert answer.retried == 8
    handles: Any = Handles(answer, 4)
    left, right = _future(), _future()
    for index, half in enumerate([left, left, right, right]):
        handles[index].rebind(half, 0)
    assert answer.retried == 12


def test_a_batch_that_is_split_waits_for_all_parts() -> None:
    """Split in two, and one half again: it is done after the third answer, and each record has its own offset."""
    answer, _ = _answer(5)
    handles: Any = Handles(answer, 5)
    left, right = _future(), _future()
    for index, half in enumerate([left, left, left, right, right]):
        handles[index].rebind(half, 0)
    right.success((20, -1, None))
    assert not answer.is_done
    first, second = _future(), _future()
    for index, part in enumerate([first, first, second]):
        handles[index].rebind(part, 0)
    second.success((12, -1, None))
    assert not answer.is_done
    first.success((10, -1, None))
    assert answer.is_done
    assert _fates(answer) == {"r0": 10, "r1": 11, "r2": 12, "r3": 20, "r4": 21}


def test_an_error_of_one_part_is_that_parts() -> None:
    answer, _ = _answer(2)
    left, right = _future(), _future()
    answer.moved(0, left)
    answer.moved(1, right)
    left.success((-1, -1, lambda index: errors.MessageSizeTooLargeError("no")))
    assert not answer.is_done
    right.success((4, -1, None))
    fates = _fates(answer)
    assert isinstance(fates["r0"], errors.MessageSizeTooLargeError)
    assert fates["r1"] == 4


def test_another_version_of_the_client_is_refused_at_once() -> None:
    """A producer without a part that batches need is closed, and the error names the part."""
    closed: list[float] = []
    producer = SimpleNamespace(_accumulator=SimpleNamespace(config={}), close=lambda timeout: closed.append(timeout))
    with pytest.raises(BrokerError, match=r"kafka-python .* has no producer\._accumulator\._appends_in_progress"):
        RecordBatches(producer)
    assert closed == [0]
