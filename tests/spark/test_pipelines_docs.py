"""The how-to on pipelines runs as printed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from demos.flights_data import Flights, load_flights, publish
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
    directory = tmp_path_factory.mktemp("flights")
    with pytest.MonkeyPatch.context() as patch, FakeKafka("docs") as kafka:
        patch.setenv("DOWNSPOUT_HOME", str(tmp_path_factory.mktemp("home")))
        publish(kafka, Flights(frame))
        run_flight_delays(kafka, directory, run__until="end", parquet__flush_rows=1_000)
        yield directory


@pytest.mark.sweep
def test_the_how_to_on_pipelines_runs(spark: SparkSession, flights: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Every line of Python of the page runs, in one go, and its outputs hold the flights."""
    output = tmp_path / "output"
    shutil.copytree(flights, output)
    code = python_blocks(ROOT / "docs" / "how-to" / "pipelines-over-parquet.md").replace("output/", f"{output}/")
    names: dict[str, Any] = {"spark": spark}
    exec(compile(code, "pipelines-over-parquet.md", "exec"), names)
    assert names["late"].count() > 5
    assert names["routes"].count() == (frame["origin"] + frame["dest"]).nunique()
    assert spark.read.parquet(f"{output}/hours").count() > 1_000
    assert spark.read.parquet(f"{output}/checked").count() == len(frame)
    assert names["wrong"].count() == 0
