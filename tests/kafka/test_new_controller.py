"""Administration while the controller has only just started: the client knows no address for it yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka import errors

from downspout.errors import SilentBrokersError
from downspout.kafka import KafkaCluster
from downspout.kafka import client as client_module

Answers = Callable[..., KafkaCluster]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Return a function that makes a cluster whose admin clients raise these errors, one each, and then succeed."""

    def make(*raised: Exception) -> KafkaCluster:
        left = list(raised)

        class Admin:
            def __init__(self, **properties: Any) -> None:
                pass

            def create_topics(self, topics: Any) -> None:
                if left:
                    raise left.pop(0)

            delete_topics = create_topics

            def describe_topics(self, topics: Any = None) -> Any:
                self.create_topics(topics)
                partitions = [{"partition_index": 0, "leader_id": 1, "error_code": 0}]
                return [{"name": "t", "is_internal": False, "partitions": partitions}]

            def close(self) -> None:
                pass

        monkeypatch.setattr(client_module, "KafkaAdminClient", Admin)
        monkeypatch.setattr(client_module, "ask_all", lambda addresses, client: (addresses[0], []))
        return KafkaCluster("localhost:9092")

    return make


def test_an_unknown_controller_is_asked_again(cluster: Answers) -> None:
    """Nothing was sent to it, so neither a creation nor a deletion can happen twice."""
    unknown = errors.UnknownBrokerIdError(3)
    assert cluster(unknown, unknown).ensure_topic("t")
    assert cluster(unknown).delete_topic("t")
    assert cluster(unknown).topics() == {"t": 1}


def test_a_controller_that_stays_unknown_counts_as_silent(cluster: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that the brokers do not answer, so those that wait for brokers go on waiting."""
    monkeypatch.setattr(client_module, "ERROR_S_MAX", 0)
    with pytest.raises(SilentBrokersError, match=r"t cannot be created: UnknownBrokerIdError"):
        cluster(errors.UnknownBrokerIdError(3)).ensure_topic("t")
