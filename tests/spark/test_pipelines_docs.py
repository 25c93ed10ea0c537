"""The how-to on pipelines runs as it stands there, and the example of data quality finds what pandas finds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from demos import flight_quality
from demos.flights_data import Flights, load_flights, publish, read_table
from downspout.testing import FakeKafka
from tests.docs.test_docs import ROOT, python_blocks
from tests.topologies.slices import run_flight_delays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.fake_only("runs a topology in virtual time; test_pipelines_running.py has it in real time"),
]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """A slice of the year, with all the tail numbers that are none."""
    year = load_flights()
    odd = year["tailnum"].notna() & ~year["tailnum"].str.fullmatch("N[1-9][0-9A-Z]{0,4}", na=False)
    return year[odd | (year.index % 150 == 0)].reset_index(drop=True)


@pytest.fixture(scope="module")
def flights(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the topology leaves of it."""
    directory = tmp_path_factory.mktemp("flights")
    with pytest.MonkeyPatch.context() as patch, FakeKafka("docs") as kafka:
        patch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("home")))
        publish(kafka, Flights(frame))
        run_flight_delays(kafka, directory, run__until="end", parquet__flush_rows=1_000)
        yield directory


@pytest.mark.sweep
def test_the_how_to_on_pipelines_runs(spark: SparkSession, flights: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Every line of Python of the page runs, in one go, and its reports and outputs hold the flights."""
    output = tmp_path / "output"
    shutil.copytree(flights, output)
    code = python_blocks(ROOT / "docs" / "how-to" / "pipelines-over-parquet.md").replace("output/", f"{output}/")
    names: dict[str, Any] = {"spark": spark}
    exec(compile(code, "pipelines-over-parquet.md", "exec"), names)
    assert names["late"].count() > 5
    assert names["routes"].count() == (frame["origin"] + frame["dest"]).nunique()
    assert names["quality"].report().rows == names["report"].rows == len(frame)
    assert not names["report"].errors
    assert spark.read.parquet(f"{output}/hours").count() > 1_000
    assert spark.read.parquet(f"{output}/checked").count() == spark.read.parquet(f"{output}/copy").count() == len(frame)
    assert json.loads((output / "quality.json").read_text(encoding="utf-8"))["rows"] == len(frame)


def test_the_example_finds_what_pandas_finds(spark: SparkSession, flights: Path, frame: pd.DataFrame) -> None:
    """What is wrong with the real flights is told, with the number of rows that pandas counts; what must hold holds."""
    report = flight_quality.run(spark, flights)
    known, present = frame["tailnum"].isin(read_table("planes")["tailnum"]), frame["tailnum"].notna()
    possible = frame["tailnum"].str.fullmatch("N[1-9][0-9A-Z]{0,4}", na=False)
    wanted = {
        "tailnum is not null": (~present).sum(),
        "tailnum matches N[1-9][0-9A-Z]{0,4}": (present & ~possible).sum(),
        "tailnum is in planes": (present & ~known).sum(),
        "to_airport is in airports": (~frame["dest"].isin(read_table("airports")["faa"])).sum(),
        "who arrived was in the air": (frame["arr_time"].notna() & frame["air_time"].isna()).sum(),
    }  # fmt: skip
    assert {result.check: result.failed for result in report.results if result.failed} == wanted
    assert (report.exit_code, report.rows) == (0, len(frame))
    assert min(wanted.values()) > 0


def test_the_example_as_a_program(
    spark: SparkSession,
    flights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints the table, writes the reports that it was asked for, and returns the report's exit code."""
    report = tmp_path / "report.md"
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["quality", "--output", str(flights), "--report", str(report)])
    assert flight_quality.main() == 0
    assert "each record is there once" in capsys.readouterr().out
    assert "| warn | tailnum is in planes |" in report.read_text(encoding="utf-8")


def test_the_example_follows(spark: SparkSession, flights: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Told to follow, it checks and copies what is there until Ctrl-C, and then reports on all batches."""
    output = tmp_path / "output"
    shutil.copytree(flights, output)

    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while not any(one.numInputRows for query in spark.streams.active for one in query.recentProgress):
            time.sleep(0.05)
        while signal.getsignal(signal.SIGINT) == before:  # a signal before it waits would end the tests
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    report = flight_quality.follow(spark, output)
    thread.join()
    assert (report.rows, report.exit_code, len(report.results)) == (len(frame), 0, 12)
    assert spark.read.parquet(str(output / "checked_flights")).count() == len(frame)
