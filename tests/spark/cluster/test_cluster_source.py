"""The source on clusters whose executors have nothing but a Python and what came with the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from downspout.broker import EmbeddedKafka
from downspout.errors import MissingExtraError
from downspout.kafka import KafkaCluster
from downspout.spark import submit
from tests.spark.standalone import LOCAL_CLUSTER, Cluster, driver_environment, forget_environments

# `make test` has a topology on executors without our packages, and test_source_batch.py has a batch on a cluster.
pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.sweep]

DRIVER = Path(__file__).parents[1] / "cluster_driver.py"
RECORDS = 300


@pytest.fixture
def published(kafka_broker: EmbeddedKafka, topic_name: str) -> tuple[str, str, list[list[object]]]:
    """A broker's address, a topic with records, and these as rows."""
    cluster = KafkaCluster(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 2)
    producer = cluster.producer()
    for number in range(RECORDS):
        producer.send(topic_name, key=None, value=b"%d" % number, partition=number % 2)
    producer.flush()
    producer.close()
    rows: list[list[object]] = [[number % 2, number // 2, str(number)] for number in range(RECORDS)]
    return kafka_broker.bootstrap, topic_name, sorted(rows)


def drive(arguments: list[str], master: str, archive: Path | None, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Run the driver by spark-submit; return its exit code, what it reported, and what else was said."""
    # Nothing begins before all executors are there: an executor that a busy machine starts later would not be counted.
    whole = {"cores.max": "2", "scheduler.minRegisteredResourcesRatio": "1"}
    whole |= {"scheduler.maxRegisteredResourcesWaitingTime": "300s"}
    options = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=1g"]
    options += [word for name, value in whole.items() for word in ("--conf", f"spark.{name}={value}")]
    command = submit.command(DRIVER, arguments, name="test", master=master, bundle=archive, spark_options=options)
    environ = driver_environment(folder / "machine", master)
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=800, check=False)
    forget_environments(folder)
    report = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert report, done.stdout + done.stderr
    return done.returncode, json.loads(report[-1]), done.stderr


@pytest.mark.parametrize("kind", ["standalone", "local-cluster"])
def test_executors_without_our_packages_read_batch_and_stream(
    kind: str,
    published: tuple[str, str, list[list[object]]],
    packed: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """With the packaged environment each record is read once, in both ways, by what the archive brought alone."""
    bootstrap, topic, rows = published
    master = request.getfixturevalue("standalone").master if kind == "standalone" else LOCAL_CLUSTER
    code, report, said = drive([bootstrap, topic, str(tmp_path)], master, packed, tmp_path)
    assert code == 0, said
    assert report["batch"] == rows
    assert report["stream"] == rows
    assert report["batches"] > 1
    assert report["executors"] == (1 if kind == "standalone" else 2)
    for seen in report["seen"]:
        assert not seen.pop("python").startswith(sys.prefix)
        assert all("/environment/" in file for file in seen.values()), seen


def test_an_executor_that_cannot_import_is_named(
    published: tuple[str, str, list[list[object]]], standalone: Cluster, tmp_path: Path
) -> None:
    """Without the archive nothing is read: the error names the executor, the module, the reason and the cure."""
    bootstrap, topic, _ = published
    code, report, _ = drive([bootstrap, topic, str(tmp_path)], standalone.master, None, tmp_path)
    assert code == MissingExtraError.exit_code
    assert f"({standalone.folder / 'work'}{os.sep}" in report["error"]
    assert "cannot import downspout: ModuleNotFoundError: No module named 'downspout'" in report["error"]
    assert "downspout spark bundle" in report["error"]
    assert not (tmp_path / "out").exists()
