"""A streaming query beside a topology that is writing: the real broker, the local engine in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from demos import flight_windows
from demos.flights_data import Flights, load_flights, publish
from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster
from downspout.spark import ORIGIN_COLUMNS, LateRows, parquet_stream, stream_sink
from topologies.flight_delays import FlightDelays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def frame() -> pd.DataFrame:
    return load_flights().iloc[::80].reset_index(drop=True)


@pytest.fixture
def topology(kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The flight delays on the local engine, running until it is told to stop; it waits for its topic."""
    settings = {
        "kafka.topics": topic_name, "kafka.group": topic_name, "parquet.flush_rows": "200", "parquet.flush_age_s": "1",
        **{f"{name}:parquet.directory": str(tmp_path / name) for name in ("flights", "route_delays")},
    }  # fmt: skip
    command = [sys.executable, "-m", "downspout", "run", "topologies/flight_delays.py"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "DOWNSPOUT_KAFKA_BOOTSTRAP": kafka_broker.bootstrap}
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=said, stderr=subprocess.STDOUT)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def wait_until(topology: subprocess.Popen[bytes], reached: Callable[[], bool], said: Path) -> None:
    """Wait for something that the topology and the queries bring about; pytest's own limit ends it if they do not."""
    while not reached():
        assert topology.poll() is None, said.read_text(encoding="utf-8")
        time.sleep(0.05)


@pytest.mark.sweep
def test_queries_run_beside_the_topology(
    spark: SparkSession, kafka_broker: EmbeddedKafka, topic_name: str, topology: subprocess.Popen[bytes],
    frame: pd.DataFrame, tmp_path: Path,
) -> None:  # fmt: skip
    """Queries that started before the first flight read each once, and their windows are those of the batch."""
    cluster, half = KafkaCluster(kafka_broker.bootstrap), len(frame) // 2
    late, said = LateRows(spark), tmp_path / "said"
    stream = stream_sink(spark, tmp_path / "flights", sink=FlightDelays.flights, origins=True)
    copy = parquet_stream(stream, tmp_path / "copy").trigger(processingTime="1 second").start()
    windows = flight_windows.start(spark, tmp_path, "carrier_hours", follow=True)

    def copied() -> int:
        return _rows(spark, tmp_path / "copy")

    publish(cluster, Flights(frame.head(half)), topic_name)
    wait_until(topology, lambda: copied() == half, said)
    publish(cluster, Flights(frame), topic_name)  # goes on where the first half ended
    wait_until(topology, lambda: copied() == len(frame), said)
    assert topology.poll() is None
    topology.send_signal(signal.SIGINT)
    topology.wait()
    for query in (copy, windows):
        query.processAllAvailable()
        query.stop()
    assert late.of(windows) == 0
    late.close()

    rows = spark.read.parquet(str(tmp_path / "copy"))
    assert rows.count() == rows.select(*ORIGIN_COLUMNS).distinct().count() == len(frame)
    written = flight_windows.written(spark, tmp_path, "carrier_hours")
    assert flight_windows.differences(written, flight_windows.closed(spark, tmp_path, "carrier_hours")) == 0
    assert written.count() > 3_000


def _rows(spark: SparkSession, directory: Path) -> int:
    """How many rows a query has written; none before its first batch."""
    if not any((directory / "_spark_metadata").glob("[0-9]*")):
        return 0
    found: Any = spark.read.schema("carrier string").parquet(str(directory)).count()
    return int(found)
