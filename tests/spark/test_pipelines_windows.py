"""Real flights in windows of event time: the stream writes what the batch computes, however it is run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from demos import flight_windows as job
from demos.flights_data import Flights, load_flights, publish
from downspout.errors import SinkError
from downspout.spark import LateRows, read_sink, watermark_of
from downspout.spark.parquet_output import files_in
from downspout.testing import FakeKafka
from tests.sampling import WHOLE
from tests.topologies.slices import run_flight_delays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).resolve().parents[2]
FLUSH_ROWS = 400

pytestmark = [
    pytest.mark.spark,
    pytest.mark.fake_only("runs a topology in virtual time; test_pipelines_running.py has it in real time"),
]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Flights of the whole year: the carriers' partitions, of 21,000 to 140,000 flights, run far apart."""
    return load_flights().iloc[::60].reset_index(drop=True)


@pytest.fixture(scope="module")
def flights(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("flights")
    with pytest.MonkeyPatch.context() as patch, FakeKafka("windows") as kafka:
        patch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("home")))
        publish(kafka, Flights(frame))
        # By record: a chunk would bring all that is there into a few flushes.
        run_flight_delays(kafka, directory, run__until="end", parquet__flush_rows=FLUSH_ROWS, kafka__emit="record")
        yield directory


@pytest.fixture
def output(flights: Path, tmp_path: Path) -> Path:
    """A copy of it that the test may write into."""
    shutil.copytree(flights, tmp_path / "output")
    return tmp_path / "output"


def test_the_batch_is_what_pandas_computes(spark: SparkSession, output: Path, frame: pd.DataFrame) -> None:
    """Every hour and carrier has the flights and delays that pandas finds in the package."""
    at = pd.to_datetime(frame["time_hour"], utc=True)  # the scheduled hour, in UTC
    wanted = frame.groupby([at, "carrier"]).agg(flights=("flight", "size"), departed=("dep_delay", "count"),
                                                late=("dep_delay", "sum"), latest=("dep_delay", "max"))  # fmt: skip
    rows = job.batch(spark, output, "carrier_hours").collect()
    found = {
        (row["begins"].astimezone(UTC), row["carrier"]): (row["flights"], row["departed"], row["dep_delay_sum"])
        for row in rows
    }
    assert found == {
        (hour.to_pydatetime(), carrier): (row.flights, row.departed, row.late)
        for (hour, carrier), row in zip(wanted.index, wanted.itertuples(), strict=True)
    }
    assert len(found) == len(rows) > 1_000


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name",
    [pytest.param("carrier_hours", marks=pytest.mark.sweep), "airport_days"],  # the driver that is killed has it
)
def test_the_stream_writes_what_the_batch_computes(spark: SparkSession, output: Path, name: str) -> None:
    """Read in many batches, with a delay of an hour, no flight is late, and all windows that ended are the same."""
    late = LateRows(spark)
    query = job.start(spark, output, name, max_files=10)
    query.awaitTermination()
    batches = [one.numInputRows for one in query.recentProgress if one.numInputRows]
    assert len(batches) > 5
    assert late.of(query) == 0
    late.close()
    rows = job.written(spark, output, name)
    assert job.differences(rows, job.closed(spark, output, name)) == 0
    # What is still open is little: windows that end after the last flight of the slowest partition.
    assert rows.count() > 0.95 * job.batch(spark, output, name).count()


@pytest.mark.sweep
def test_one_watermark_for_all_partitions_loses_flights(spark: SparkSession, output: Path) -> None:
    """With one watermark for all, the fastest partition closes the windows, and flights are dropped as late."""
    late = LateRows(spark)
    query = job.start(spark, output, "carrier_hours", partitions=None, max_files=10)
    query.awaitTermination()
    dropped = late.of(query)
    late.close()
    rows, closed = job.written(spark, output, "carrier_hours"), job.closed(spark, output, "carrier_hours")
    missing = sum(row["flights"] for row in closed.collect()) - sum(row["flights"] for row in rows.collect())
    assert missing > 500
    assert 0 < dropped <= missing  # Spark counts what is left after adding up within a task


@pytest.mark.sweep
@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on(
    spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After kill -9 of the driver, Python and Java, the windows are in the end those of a run without."""
    state = job.directory(output, "carrier_hours.checkpoint")
    for batches in (4, 12) if WHOLE else (2,):
        process = _start(output, max_files=2)  # so many batches are left that it cannot have done all before we look
        while _batches(state) < batches:
            assert process.poll() is None, _said(process)
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        _said(process)
    assert len(files_in(state / "sources" / "0")) < len(list((output / "flights").rglob("*.parquet")))
    monkeypatch.setattr("sys.argv", ["windows", *_options(output, max_files=30)])
    job.main()  # in this process, which has a session
    assert "0 dropped as late; equal to the batch" in capsys.readouterr().out
    rows = job.written(spark, output, "carrier_hours")
    assert job.differences(rows, job.closed(spark, output, "carrier_hours")) == 0
    # As far as without the kills: the small partition, of which nothing came after them, holds nothing up.
    slowest = read_sink(spark, output / "flights", origins=True).groupBy("_partition").agg({"scheduled_at": "max"})
    last = min(row[1].astimezone(UTC) for row in slowest.collect())
    assert watermark_of(state) == last - timedelta(hours=1)


def _options(output: Path, max_files: int) -> list[str]:
    return ["--output", str(output), "--max-files", str(max_files), "--table", "carrier_hours"]


def _start(output: Path, max_files: int) -> subprocess.Popen[str]:
    """Start the program with few files per batch, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "demos.flight_windows", *_options(output, max_files)],
        cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def _said(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate()
    return said


def _batches(state: Path) -> int:
    return len([path for path in state.glob("commits/*") if path.name.isdigit()])


def test_a_query_that_has_written_nothing_has_no_watermark(spark: SparkSession, output: Path) -> None:
    """Before its first batch a query has closed no window, and the comparison is empty instead of wrong."""
    assert watermark_of(job.directory(output, "carrier_hours.checkpoint")) is None
    assert job.closed(spark, output, "carrier_hours").count() == 0


@pytest.mark.sweep
def test_windows_are_never_written_into_a_sink(
    spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pointed at a sink's directory the job refuses, and the sink's files stay readable."""
    monkeypatch.setattr(job, "directory", lambda output, name: output / "flights" / name)
    with pytest.raises(SinkError, match="lies in the directory of a topology's sink"):
        job.start(spark, output, "carrier_hours")
    assert job.batch(spark, output, "carrier_hours").count() > 1_000
