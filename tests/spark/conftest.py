"""One Spark session for all tests: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downspout.kafka.client import KafkaCluster
from downspout.kafka.embedded import EmbeddedKafka
from downspout.spark import bundle, register
from downspout.spark.session import spark_session
from tests.spark.source_support import Bench
from tests.spark.standalone import ROOT, Cluster, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("spark-home")))
        with spark_session("tests") as session:
            yield session


@pytest.fixture
def bench(spark: SparkSession, kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> Bench:
    """A session that knows the source, and a topic of the test's own that it creates itself."""
    register(spark)
    return Bench(spark, KafkaCluster(kafka_broker.bootstrap), topic_name, tmp_path)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster whose machine has nothing of ours."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged environment: this checkout, and what it needs."""
    target = tmp_path_factory.mktemp("archive") / "environment.tar.gz"
    bundle.write(target, ROOT)
    return target
