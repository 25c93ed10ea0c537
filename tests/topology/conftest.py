from __future__ import annotations

from collections.abc import Iterator

import pytest

for _module in ("spout_driver", "broker_kafka"):
    pytest.register_assert_rewrite(f"tests.topology.{_module}")

from downspout.kafka.embedded import EmbeddedKafka  # noqa: E402
from downspout.testing.fake_kafka import FakeKafka  # noqa: E402
from tests.topology.broker_kafka import Backstage, BrokerKafka  # noqa: E402
from tests.topology.spout_driver import PARTITIONS, RECORDS, TOPIC, Kafka, fill  # noqa: E402


@pytest.fixture(scope="session")
def backstage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backstage]:
    """A broker that one test after the other has to itself."""
    with EmbeddedKafka(tmp_path_factory.mktemp("twins")) as broker:
        made = Backstage(broker.bootstrap)
        yield made
        made.close()


@pytest.fixture
def bare_kafka(cluster_kind: str, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A Kafka without any topic: the fake, and a real broker."""
    yield from _kafka(cluster_kind, request)


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka with one topic of one partition and ten records, whose values are their offsets."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 10)
    return bare_kafka


@pytest.fixture
def wide(rebalance_kind: str, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A Kafka with one topic of four partitions: the fake under both rebalance protocols, and a real broker."""
    for kafka in _kafka(rebalance_kind, request):
        kafka.create_topic(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            fill(kafka, RECORDS, partition)
        yield kafka


def _kafka(kind: str, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    if kind == "broker":
        broker = BrokerKafka(request.getfixturevalue("backstage"))
        yield broker
        broker.close()
        return
    with FakeKafka("spout", cooperative=kind == "cooperative") as fake:
        yield fake
