"""Batches made here: the bytes are kafka-python's own, and a batch is done only when all of its records are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import errors
from kafka.producer.future import FutureProduceResult
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition

from downspout.errors import BrokerError
from downspout.kafka.batches import Answer, Batches, encode_record

TP = TopicPartition("dead", 0)
data = st.none() | st.binary(max_size=200)
record = st.tuples(st.integers(0, 1 << 42), data, data, st.lists(st.tuples(st.text(max_size=80), data)))


def _future() -> Any:
    return FutureProduceResult(TP)


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
    """It is done when the broker has answered, and no sooner."""
    future = _future()
    answer = Answer(future, 3)
    assert not answer.is_done
    future.success((0, -1, None))
    assert answer.is_done
    assert answer.exception is None


def test_a_refused_batch_tells_the_error() -> None:
    """An error for records of the batch is the batch's."""
    future = _future()
    answer = Answer(future, 2)
    future.success((-1, -1, lambda index: errors.TopicAuthorizationFailedError(str(index))))
    assert answer.is_done
    assert isinstance(answer.exception, errors.TopicAuthorizationFailedError)


def test_a_batch_that_fails_as_a_whole_tells_the_error() -> None:
    """So is an error of the request."""
    future = _future()
    answer = Answer(future, 2)
    future.failure(errors.NetworkExceptionError("gone"))
    assert answer.is_done
    assert isinstance(answer.exception, errors.NetworkExceptionError)


def test_a_batch_that_is_split_waits_for_all_parts() -> None:
    """Split in two, and one half again: it is done after the third answer, whatever their order."""
    answer = Answer(_future(), 5)
    left, right = _future(), _future()
    for index, half in enumerate([left, left, left, right, right]):
        answer.rebind(half, index)
    right.success((0, -1, None))
    assert not answer.is_done
    first, second = _future(), _future()
    for index, part in enumerate([first, first, second]):
        answer.rebind(part, index)
    second.success((2, -1, None))
    assert not answer.is_done
    first.success((4, -1, None))
    assert answer.is_done
    assert answer.exception is None


def test_an_error_of_one_part_is_the_batchs() -> None:
    """A half that is refused makes the whole batch one that failed, also where the other half was written."""
    answer = Answer(_future(), 2)
    left, right = _future(), _future()
    answer.rebind(left, 0)
    answer.rebind(right, 0)
    left.success((-1, -1, lambda index: errors.MessageSizeTooLargeError("no")))
    assert not answer.is_done
    right.success((0, -1, None))
    assert isinstance(answer.exception, errors.MessageSizeTooLargeError)


def test_another_version_of_the_client_is_refused_at_once() -> None:
    """A producer without a part that batches need is closed, and the error names the part."""
    closed: list[float] = []
    producer = SimpleNamespace(_accumulator=SimpleNamespace(config={}), close=lambda timeout: closed.append(timeout))
    with pytest.raises(BrokerError, match=r"kafka-python .* has no producer\._accumulator\._appends_in_progress"):
        Batches(producer)
    assert closed == [0]
