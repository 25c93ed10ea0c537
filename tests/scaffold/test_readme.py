"""The commands of a project's README on a real Storm and on Spark; ``tests/packaging`` runs the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from downspout.scaffold import create
from downspout.sink import read_table
from tests.scaffold.readme import commands, shell

STOPS = ["downspout storm stop", "downspout kafka stop"]


@pytest.mark.sweep
@pytest.mark.storm
@pytest.mark.slow
def test_storm_goes_on_where_the_local_run_stopped(tmp_path: Path) -> None:
    """The README's commands for Storm add the records that were produced since, each once, by its audit."""
    create(tmp_path / "shop")
    sections = commands(tmp_path / "shop/README.md")
    local = [line for line in sections["Run"] if not line.startswith(("downspout audit", "python"))]
    with shell(tmp_path / "shop", tmp_path / "home", STOPS) as run:
        run.run(*local, *sections["Storm"])
        assert "exact: 400 offsets" in run.said("downspout audit")
    assert read_table(tmp_path / "shop/output/shop").num_rows == 400


@pytest.mark.sweep
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_spark_writes_the_same_rows(tmp_path: Path) -> None:
    """The README's command for Spark writes the rows of the whole topic into a directory of its own."""
    create(tmp_path / "shop")
    sections = commands(tmp_path / "shop/README.md")
    with shell(tmp_path / "shop", tmp_path / "home", STOPS[1:]) as run:
        run.run(*sections["Run"], *sections["Spark"])
    local, spark = (read_table(tmp_path / "shop/output" / name).to_pylist() for name in ("shop", "shop_spark"))
    assert sorted(local, key=lambda row: row["id"]) == sorted(spark, key=lambda row: row["id"])
