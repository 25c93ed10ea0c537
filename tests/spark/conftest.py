"""One Spark session for all tests: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster
from downspout.spark import register, spark_session, submit
from tests.spark.cluster.clustered import make_project
from tests.spark.source_support import Bench
from tests.spark.standalone import Cluster, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("spark-home")))
        with spark_session("tests", config={"spark.sql.shuffle.partitions": "2"}) as session:  # rows are few
            yield session


@pytest.fixture
def bench(spark: SparkSession, kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> Bench:
    """A session that knows the source, and a topic of the test's own that it creates itself."""
    register(spark)
    return Bench(spark, KafkaCluster(kafka_broker.bootstrap), topic_name, tmp_path)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with modules in topologies/ and in src/, packed; the folder has nothing else."""
    project = tmp_path_factory.mktemp("packed")
    make_project(project)
    submit.write_bundle(project / "clustered.tar.gz", project)
    return project / "clustered.tar.gz"
