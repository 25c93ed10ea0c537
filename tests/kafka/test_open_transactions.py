"""Which open transactions hold back a group's commits, by the answers of an admin client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors
from kafka.admin import TransactionState

from downspout.kafka import OpenTransaction, TopicPartition
from downspout.kafka.describing import OFFSETS_TOPIC, open_transactions


class Admin:
    """Answers, with the starts of a producer's transaction as two looks at the partition find them."""

    def __init__(self, state: str, starts: Sequence[int]) -> None:
        self._state, self._starts = TransactionState(state), iter(starts)

    def describe_topics(self, topics: Sequence[str]) -> Sequence[Any]:
        """Return that there is one partition."""
        assert topics == [OFFSETS_TOPIC]
        return [{"error_code": 0, "partitions": [{}]}]

    def describe_producers(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
        """Return a look."""
        assert partitions == [(OFFSETS_TOPIC, 0)]
        producer = SimpleNamespace(producer_id=7, current_transaction_start_offset=next(self._starts))
        return {partitions[0]: SimpleNamespace(active_producers=[producer])}

    def list_transactions(self, producer_id_filters: Sequence[int]) -> dict[int, Any]:
        assert producer_id_filters == [7]
        return {1: [SimpleNamespace(transactional_id="copies")]}

    def describe_transactions(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(producer_id=7, transaction_timeout_ms=9, state=self._state) for name in names}


def cases() -> Iterator[tuple[str, Sequence[int], list[OpenTransaction]]]:
    for state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
        yield state, (5, 5), [OpenTransaction("copies", 9, is_lost=False)]
    for state in ("Empty", "CompleteCommit", "CompleteAbort"):
        yield state, (5, 5), [OpenTransaction("copies", 9, is_lost=True)]
        yield state, (5, -1), []
        yield state, (5, 8), []
        yield state, (-1,), []


@pytest.mark.parametrize(("state", "starts", "found"), list(cases()))
def test_a_transaction_is_lost_if_it_stays_open_though_its_coordinator_has_ended_it(
    state: str, starts: Sequence[int], found: list[OpenTransaction]
) -> None:
    """One that ended between two looks is not, nor is the next one of the same producer."""
    assert open_transactions(Admin(state, starts), "group") == found


def test_a_client_that_may_not_see_the_topic_of_commits_gets_kafkas_error() -> None:
    """Brokers describe a topic without the right to see it as one without partitions."""
    admin = Admin("Ongoing", ())
    denied = {"error_code": errors.TopicAuthorizationFailedError.errno, "partitions": []}
    admin.describe_topics = lambda topics: [denied]
    with pytest.raises(errors.TopicAuthorizationFailedError):
        open_transactions(admin, "group")
