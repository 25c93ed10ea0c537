"""The Kafka of the stages that run in process, and the scene of those that run on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downspout.broker import EmbeddedKafka
from downspout.spark import data_source
from downspout.testing import FakeKafka
from tests.spark.topology.scene import Scene

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A Kafka with the topic that all topologies here read."""
    with FakeKafka("stages") as made:
        made.create_topic("lines", 2)
        data_source.idle.clear()  # a test that raised in a batch has left a consumer of the last Kafka of this name
        yield made


@pytest.fixture
def scene(
    spark: SparkSession, kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    return Scene(spark, kafka_broker.bootstrap, topic_name, tmp_path, monkeypatch)
