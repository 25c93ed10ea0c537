"""The folder from which Spark starts, so that its Python workers import compiled modules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from downspout.spark.session import quick_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_home_has_all_but_pythons_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads to PySpark's programs and jars, has no folder "python", and is forgotten when the JVM has started."""
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for _ in range(2):  # it may be there already
        with quick_workers():
            home = Path(os.environ["SPARK_HOME"])
            assert (home / "jars").resolve() == Path(pyspark.__file__).parent / "jars"
            assert (home / "bin" / "spark-submit").is_file()
            assert not (home / "python").exists()
        assert "SPARK_HOME" not in os.environ


def test_a_home_that_the_user_has_named_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK_HOME in the environment is the user's choice; and a cache that cannot be written changes nothing."""
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with quick_workers():
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    monkeypatch.delenv("SPARK_HOME")
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path / "file"))
    with quick_workers():
        assert "SPARK_HOME" not in os.environ


@pytest.mark.sweep
@pytest.mark.spark
def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """A Python worker has PySpark from where the driver has it, with its compiled modules."""

    def look(_: Iterator[Any]) -> Iterator[Any]:
        import pyarrow
        import pyspark

        yield pyarrow.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    found = {row.file for row in spark.range(1).mapInArrow(look, "file string").collect()}
    assert found == {pyspark.__file__}
